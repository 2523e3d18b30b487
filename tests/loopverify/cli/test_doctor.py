"""loopverify doctor: what this installation can do."""

from __future__ import annotations

import pytest

from tests.loopverify.cli.calls import Cli


def test_doctor_names_versions_devices_extras_and_reach(cli: Cli) -> None:
    status, out, _ = cli("doctor")
    flat = " ".join(out.split())
    assert status == 0
    for part in ("loopverify 0.", "torch 2.", "float64, float32", "extra cli", "0.05 (n = 3)"):
        assert part in flat


def test_doctor_says_how_to_get_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    installed = metadata.version

    def without_scipy(package: str) -> str:
        if package == "scipy":
            raise metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(metadata, "version", without_scipy)
    _, out, _ = cli("doctor")
    assert "missing scipy; pip install 'loopverify[stats]'" in " ".join(out.split())
