"""A model named on a command line: 'pkg.mod:factory', or 'path/to/file.py:factory'."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from loopverify.adapters import adapt
from loopverify.errors import InputError
from loopverify.looped import Looped

__all__ = ["load_model", "raised"]

_LIBRARIES = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), "<frozen")


def load_model(reference: str, search: Path | None = None) -> Looped:
    """The model behind 'pkg.mod:factory' or 'file.py:factory'.

    Args:
        reference: a module or a file and, after a colon, a function without arguments that returns a `Looped` or a
            module that `loopverify.adapt` recognizes; or such an object itself. Dots access attributes.
        search: a folder that is searched first, as `python -m` does with the current one; files are relative to it.

    Raises:
        InputError: a malformed reference, a missing module, file or name, a factory that fails or requires arguments,
            or a result that is not a model.
    """
    source, colon, path = reference.rpartition(":")
    if not (source and colon and path):
        raise InputError(f"model {reference!r}; expected 'package.module:factory', such as 'mylm.models:tiny'")
    found: object = _import(source, reference, search)
    for name in path.split("."):
        if not hasattr(found, name):
            raise InputError(f"model {reference!r}: {source} has no {path!r}; expected a factory with this name")
        found = getattr(found, name)
    # An nn.Module is callable as well; an instance is the model itself.
    if not isinstance(found, (Looped, nn.Module)):
        found = _call(found, reference)
    if not isinstance(found, (Looped, nn.Module)):
        raise InputError(f"model {reference!r} gave a {type(found).__name__}; expected a Looped or an nn.Module")
    return adapt(found)


def raised(error: BaseException) -> str | None:
    """The last line of a traceback and the user's line that caused it; None if no line of it is the user's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg}, at {error.filename}:{error.lineno}"
    if not frames:
        return None
    return f"{_last_line(error)}, at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}"


def _last_line(error: BaseException) -> str:
    """The type of an exception, and its message if it has one."""
    return f"{type(error).__name__}: {message}" if (message := str(error).strip()) else type(error).__name__


def _is_the_users(file: str) -> bool:
    standard = file.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in file
    return not standard and not file.startswith(_LIBRARIES)


def _import(source: str, reference: str, search: Path | None) -> object:
    folder = str(search or Path.cwd())
    try:
        if source.endswith(".py"):
            return _import_file(Path(folder, source))
        if search is not None and folder not in sys.path:
            sys.path.insert(0, folder)
        return importlib.import_module(source)
    except ImportError as error:
        reason = raised(error) or str(error) or type(error).__name__
        raise InputError(
            f"model {reference!r}: cannot import {source!r} ({reason}); expected a module that Python "
            "finds from the current folder or an installed package"
        ) from error
    except OSError as error:
        raise InputError(f"model {reference!r}: cannot read {source}: {error.strerror or error}") from error
    except (Exception, SystemExit) as error:  # an unguarded sys.exit() must not set our exit status
        reason = raised(error) or _last_line(error)
        raise InputError(f"model {reference!r}: importing {source} raised {reason}") from error


def _import_file(path: Path) -> ModuleType:
    # Modules in its folder can be imported, as for `python file.py`.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"{path.stem} of {path.parent}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _call(factory: object, reference: str) -> object:
    if not callable(factory):
        raise InputError(f"model {reference!r} is a {type(factory).__name__}; expected a function that returns a model")
    try:
        return factory()
    except (Exception, SystemExit) as error:
        reason = raised(error) or _last_line(error)
        raise InputError(f"model {reference!r}: the factory, called without arguments, raised {reason}") from error
