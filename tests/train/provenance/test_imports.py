"""How imports are followed, on packages of a few lines, hostile ones among them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from train.provenance.closure import closure, digest
from train.provenance.module import UntraceableError, parsed

ROOT = Path(__file__).parents[3]
Files = Mapping[str, str]
BASE = {
    "train/__init__.py": '"""A package."""\n',
    "train/a.py": "def f(x): return x + 1\n",
    "train/b.py": "def g(x): return 2 * x\n",
    "train/pack/__init__.py": '"""Re-exports."""\nfrom train.pack.one import f, h as k\nfrom train.pack.two import g\n'
    '__all__ = ["f", "g", "k"]\n',
    "train/pack/one.py": "def f(): return 1\ndef h(): return 0\n",
    "train/pack/two.py": "def g(): return 2\n",
    "train/outer/__init__.py": "from train.pack import g as renamed\n",
    "loopverify/__init__.py": "import importlib\nfrom typing import TYPE_CHECKING\nfrom loopverify._version import v\n"
    "if TYPE_CHECKING:\n    from loopverify import sub\n    from loopverify.core import unroll\n"
    '_LAZY = {"unroll": "loopverify.core", "sub": None}\n__all__ = ["unroll", "v"]\n'
    "def __getattr__(name):\n    return getattr(importlib.import_module(_LAZY[name]), name)\n"
    "def __dir__():\n    return __all__\n",
    "loopverify/_version.py": 'v = "1"\n',
    "loopverify/core.py": "def unroll(): return 3\n",
    "loopverify/sub/__init__.py": "from loopverify.sub.deep import d\n",
    "loopverify/sub/deep.py": "d = 1\n",
}


def found(root: str, changes: Files | None = None, **more: str) -> set[str]:
    """The closure of a module train.main with the source `root`, without itself."""
    files = {**BASE, "train/main.py": root, **(changes or {}), **more}
    return {module.name for module in closure(["train.main"], files.get)} - {"train.main"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", set()),
        ("from train.a import f", {"train.a"}),
        ("from train import a", {"train.a"}),
        ("from train import a as other, b", {"train.a", "train.b"}),
        ("import train.a as other", {"train.a"}),
        ("from train.a import *", {"train.a"}),
        ("from . import a", {"train.a"}),
        ("from .a import f", {"train.a"}),
        ("from .pack.one import f", {"train.pack.one"}),
        # A package that only re-exports is passed through, also where names are changed on the way.
        ("from train.pack import f", {"train.pack.one"}),
        ("from train.pack import k", {"train.pack.one"}),
        ("from train.outer import renamed as again", {"train.pack.two"}),
        ("from train.pack import two", {"train.pack.two"}),
        # As an object it shows all that it re-exports.
        ("from train import pack", {"train.pack.one", "train.pack.two"}),
        ("import train.pack as p", {"train.pack.one", "train.pack.two"}),
        ("from train.pack import *", {"train.pack.one", "train.pack.two"}),
        # Wherever the statement stands.
        ("def f():\n    def g():\n        from train.a import f", {"train.a"}),
        ("try:\n    import nothing\nexcept ImportError:\n    from train.a import f\nelse:\n    from train.b import g",
         {"train.a", "train.b"}),
        ("for _ in ():\n    pass\nelse:\n    from train.a import f", {"train.a"}),
        ("match 1:\n    case 2:\n        from train.a import f", {"train.a"}),
        ("class C:\n    with open('x'):\n        from train.a import f", {"train.a"}),
        ("async def f():\n    async with x:\n        from train.a import f", {"train.a"}),
        ("if 1 > 2:\n    from train.a import f\nelif x:\n    from train.b import g", {"train.a", "train.b"}),
        ("try:\n    pass\nfinally:\n    from train.a import f", {"train.a"}),
        # For types only.
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from train.a import f", set()),
        ("import typing\nif typing.TYPE_CHECKING:\n    from train.a import f", set()),
        ("if TYPE_CHECKING:\n    from train.a import f\nelse:\n    from train.b import g", {"train.b"}),
        ("if not TYPE_CHECKING:\n    from train.a import f", {"train.a"}),
        ("if TYPE_CHECKING or True:\n    from train.a import f", {"train.a"}),
        # The lazy top level: its loader runs for what is loaded, and not for what lies below it.
        ("from loopverify.core import unroll", {"loopverify.core"}),
        ("from loopverify import unroll", {"loopverify", "loopverify.core"}),
        ("from loopverify import v", {"loopverify._version"}),
        ("from loopverify import sub", {"loopverify", "loopverify.sub.deep"}),
        ("import loopverify as lv", {"loopverify", "loopverify._version", "loopverify.core", "loopverify.sub.deep"}),
        # Others' code is others'.
        ("import torch.nn.functional as F\nfrom numpy import array\nimport training.a", set()),
    ],
)  # fmt: skip
def test_an_import_leads_to_the_modules_that_define_what_it_takes(source: str, expected: set[str]) -> None:
    assert found(source) == expected


def test_the_closure_is_closed_and_cycles_end() -> None:
    changes = {"train/a.py": "from train.b import g\n", "train/b.py": "def g():\n    from train.a import f\n"}
    assert found("from train.a import f", changes) == {"train.a", "train.b"}
    circular = {
        "train/pack/__init__.py": "from train.outer import renamed as f\n",
        "train/outer/__init__.py": "from train.pack import f as renamed\nfrom train.pack import one\n",
    }
    assert found("from train.outer import renamed", circular) == set()
    assert found("from train.outer import one", circular) == {"train.pack.one"}


@pytest.mark.parametrize(
    "statement",
    [
        "import train.b as other\nother.g = abs\n",  # patches another module
        "from train.b import g\nif True:\n    from train.a import f\n",  # imports on a condition
        "from train.a import f\nf = 2\n",  # binds a name once more
        "from train.a import f\nf, other = 1, 2\n",
        "from train.a import *\n",
        "import train.b as other\nprint()\n",
        "from train.a import f\n__all__ = [name for name in dir()]\n",
        "from train.a import f\ntry:\n    import nothing\nexcept ImportError:\n    pass\n",
        "from train.a import f\ndef __getattr__(name): return 1\n",  # a lazy loader below the top level
        "from train.a import f\n@f\ndef g(): pass\n",
        "from train.a import f\n__all__ = ['f']\ndel f\n",
    ],
)
def test_an_init_that_does_anything_else_counts_with_all_it_imports(statement: str) -> None:
    changes = {"train/pack/__init__.py": statement}
    expected = {"train.pack", "train.pack.one"}
    expected |= {name for name in ("train.a", "train.b") if name in statement}
    # It runs for whatever lies below it.
    assert found("from train.pack.one import f", changes) == expected
    base = digest(closure(["train.pack.one"], {**BASE, **changes}.get))
    assert digest(closure(["train.pack.one"], {**BASE, "train/pack/__init__.py": f"{statement}\nx = 1"}.get)) != base


def test_the_top_level_init_may_be_lazy_and_nothing_else() -> None:
    patched = BASE["loopverify/__init__.py"] + "import loopverify.core as core\ncore.unroll = None\n"
    with pytest.raises(UntraceableError, match=r"loopverify, line 1: importlib hides from the run key"):
        found("from loopverify.core import unroll", {"loopverify/__init__.py": patched})
    decorated = BASE["loopverify/__init__.py"].replace("def __dir__", "@print\ndef __dir__")
    with pytest.raises(UntraceableError, match=r"loopverify, line 1: importlib"):
        found("from loopverify.core import unroll", {"loopverify/__init__.py": decorated})


def test_a_name_bound_twice_or_called_like_a_module_counts_in_every_sense() -> None:
    twice = {"train/pack/__init__.py": "from train.a import f\nfrom train.b import g as f\n"}
    assert found("from train.pack import f", twice) == {"train.a", "train.b"}
    both = {"train/pack/__init__.py": "from train.a import f as one\n"}
    assert found("from train.pack import one", both) == {"train.a", "train.pack.one"}


def test_a_package_hides_a_module_of_its_name() -> None:
    changes = {"train/a/__init__.py": "from train.b import g as f\n"}
    assert found("from train.a import f", changes) == {"train.b"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import importlib\nimportlib.import_module('train.a')", "train.main, line 1: importlib hides from the run"),
        ("from importlib import import_module as load", "importlib hides"),
        ("import importlib.util", "importlib.util hides"),
        ("from importlib import resources", "importlib.resources hides|importlib hides"),
        ("import runpy", "runpy hides"),
        ("from pkgutil import get_data", "pkgutil hides"),
        ("__import__('train.a')", "__import__ hides"),
        ("other.import_module('train.a')", "import_module hides"),
        ("load = getattr(other, 'import_module')", "import_module hides"),
        ("import sys\nsys.modules['train.a'].f()", "sys.modules hides"),
        ("ev" + "al('1')", "eval hides"),
        ("run = ex" + "ec", "exec hides"),
        ("compile('1', '', 'single')", "compile hides"),
        ("open(__file__)", "__file__ hides"),
        ("import torch\nopen(torch.__file__)", "__file__ hides"),
        ("def f():\n    'words'\nx = f.__doc__", "__doc__ hides"),
        ("import inspect\ninspect.getsource(f)", "getsource hides"),
        ("TYPE_CHECKING = True\nif TYPE_CHECKING:\n    from train.a import f", "a TYPE_CHECKING of its own hides"),
        ("from train.a import f as TYPE_CHECKING", "a TYPE_CHECKING of its own hides"),
        ("import train.a", "`import train.a` makes everything below train reachable; write"),
        ("from train.absent import x", "train.main: there is no source of the module train.absent"),
        ("import loopverify.absent as x", "train.main: there is no source of the module loopverify.absent"),
        ("from train.pack import absent", "train.main: train.pack has no name 'absent' and no module of this name"),
        ("from ... import x", "a relative import from above the top-level package"),
        ("x = = 1", "train.main is not the source of a Python module"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_rejected(source: str, words: str) -> None:
    with pytest.raises(UntraceableError, match=words):
        found(source)


def test_metadata_of_installed_packages_and_words_that_look_alike_are_not_rejected() -> None:
    source = "import importlib.metadata\nimport torch\nmodel.eval()\ntorch.compile(f)\nmodel.modules()\nx = 'eval'\n"
    assert found(source) == set()
    assert found("from importlib.metadata import version") == set()
    assert found("from importlib import metadata") == set()


def test_the_digest_is_one_of_syntax() -> None:
    def of(text: str) -> str:
        return parsed("train.x", False, text).digest

    base = of("class C:\n    x: int = 1000\n    def f(self):\n        return self.x\n")
    assert base == of(
        '"""Module."""\n# comment\nclass C:\n    """Class."""\n    x: int = 1_000\n    """Attribute."""\n\n'
        "    def f(self):\n        '''Method.'''\n        return (self.x)  # why\n        'after'\n"
    )
    others = [
        "class C:\n    x: int = 1000\n    def f(self):\n        return -self.x\n",
        "class C:\n    x: int = 1000.0\n    def f(self):\n        return self.x\n",
        "class C:\n    x: int = True\n    def f(self):\n        return self.x\n",
        "class C:\n    x: int = '1000'\n    def f(self):\n        return self.x\n",
        "class C:\n    x: int = b'1000'\n    def f(self):\n        return self.x\n",
        "class C:\n    x: int = 1000\n    def f(self):\n        f'{1}'\n        return self.x\n",
        "class C:\n    x: int = 1000\ndef f(self):\n    return self.x\n",
        "class C:\n    x: int = None\n    def f(self):\n        return self.x\n",
        "class C:\n    x: int\n    def f(self):\n        return self.x\n",
        "class C:\n    x: int = 1000\n    def f(self, *, y=None):\n        return self.x\n",
        "class C:\n    x: int = 1000\n    def f(self, y=None):\n        return self.x\n",
    ]
    digests = {base, *map(of, others)}
    assert len(digests) == 1 + len(others)
    # Lists, strings and constants of one spelling do not run into one another.
    near = [
        *(
            "f(a, [b])",
            "f([a, b])",
            "f('a', 'b')",
            "f('a,', 'b')",
            "f(\"a', 'b\")",
            "f(*a)",
            "f(**a)",
            "f(a=b)",
            "f(a, b)",
        ),
        *(
            "x = {**a}",
            "x = {None: a}",
            "x = ...",
            "x = 'Ellipsis'",
            "x = [1], 2",
            "x = [1, 2]",
            "x = (1, 2)",
            "x = 1j",
        ),
    ]
    assert len({of(text) for text in near}) == len(near)


def test_a_module_that_moves_is_another() -> None:
    one, other = ({f"train/{name}.py": "x = 1\n", "train/__init__.py": ""} for name in ("one", "other"))
    assert digest(closure(["train.one"], one.get)) != digest(closure(["train.other"], other.get))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from properties.blocks import x", "properties.blocks is no part of loopverify or train"),
        ("import sys as s", "sys under another name"),
        ("from sys import modules", "sys.modules"),
        ("from builtins import eval as e", "builtins"),
        ("import train.pack as p\nx = p.__path__", "__path__"),
        ("# -*- coding: latin-1 -*-\nx = 1", "declares an encoding; expected UTF-8"),
        ("\n# vim: set fileencoding=cp1252 :\nx = 1", "declares an encoding"),
    ],
)
def test_code_that_hides_what_it_depends_on_is_refused(source: str, message: str) -> None:
    with pytest.raises(UntraceableError, match=message):
        found(source)


def test_an_encoding_that_is_utf_8_or_no_comment_is_none_of_another() -> None:
    assert found("# coding: utf-8\nx = 1") == found("x = '# coding: latin-1'") == set()


def test_old_bytecode_is_not_run_under_the_key_of_new_code(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.dont_write_bytecode = False\n"
        "import train.specification.preset_fields\nfrom train.provenance.closure import code_digest\n"
        "code_digest('train.specification.preset_fields')\n"
    )
    for package in ("loopverify", "train"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", script]
    run = partial(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run(env=environment | {"PYTHONPATH": str(tmp_path)}).returncode == 0
    source = tmp_path / "train" / "specification" / "preset_fields.py"
    times, text = source.stat(), source.read_text(encoding="utf-8")
    source.write_text(text.replace("step / ", "step * "), encoding="utf-8")
    assert source.read_text(encoding="utf-8") != text
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = run(env=environment | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode != 0
    assert "train.specification.preset_fields runs from bytecode that is not that of preset_fields.py" in done.stderr
