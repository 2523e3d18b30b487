"""pytest starts as fast with loopverify installed as without, since its plugin is imported in every run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HEAVY = ("torch", "numpy", "rich", "tyro", "scipy", "transformers")
TEST = f"""
import sys

def test_nothing_heavy_was_imported(pytestconfig):
    assert [name for name in {HEAVY!r} if name in sys.modules] == []
    if pytestconfig.pluginmanager.hasplugin("loopverify.pytest_plugin"):
        assert pytestconfig.getoption("--looped-regen") is False
"""


def start(folder: Path, *plugin: str) -> float:
    """Seconds that a session of one empty test takes in a separate process."""
    (folder / "test_none.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    assert done.returncode == 0, done.stdout
    return seconds


def test_the_plugin_imports_nothing_heavy_and_starts_fast(tmp_path: Path) -> None:
    pairs = [(start(tmp_path), start(tmp_path, "-p", "loopverify.pytest_plugin")) for _ in range(3)]
    without, with_plugin = (min(times) for times in zip(*pairs, strict=True))
    # Measured: 10 ms more than 210 ms. Importing torch would make it about ten times as long.
    assert with_plugin < 1.5 * without
