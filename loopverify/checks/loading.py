"""A model named on a command line: 'pkg.mod:factory'."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from torch import nn

from loopverify.adapters import adapt
from loopverify.errors import InputError
from loopverify.looped import Looped

__all__ = ["load_model"]


def load_model(reference: str, search: Path | None = None) -> Looped:
    """The model behind 'pkg.mod:factory'.

    Args:
        reference: a module and, behind a colon, a function without arguments that returns a `Looped` or a module that
            `loopverify.adapt` recognizes; or such an object itself. Dots reach into objects.
        search: a folder that is looked through first, as the current one is by `python -m`.

    Raises:
        InputError: no such form, module or name, a factory that fails or wants arguments, or a result of another kind.
    """
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise InputError(f"model {reference!r}; expected 'package.module:factory', such as 'mylm.models:tiny'")
    found: object = _import(module_name, reference, search)
    for name in path.split("."):
        if not hasattr(found, name):
            raise InputError(f"model {reference!r}: {module_name} has no {path!r}; expected a factory of that name")
        found = getattr(found, name)
    # A module is callable, too; an instance is the model itself.
    if not isinstance(found, (Looped, nn.Module)):
        found = _call(found, reference)
    if not isinstance(found, (Looped, nn.Module)):
        raise InputError(f"model {reference!r} gave a {type(found).__name__}; expected a Looped or an nn.Module")
    return adapt(found)


def _import(name: str, reference: str, search: Path | None) -> object:
    if search is not None and str(search) not in sys.path:
        sys.path.insert(0, str(search))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"model {reference!r}: cannot import {name!r} ({error}); expected a module that Python finds from the "
            "current folder or an installed package"
        ) from error


def _call(factory: object, reference: str) -> object:
    if not callable(factory):
        raise InputError(f"model {reference!r} is a {type(factory).__name__}; expected a function that returns a model")
    try:
        return factory()
    except Exception as error:
        raise InputError(
            f"model {reference!r}: the factory, called without arguments, raised {type(error).__name__}: {error}"
        ) from error
