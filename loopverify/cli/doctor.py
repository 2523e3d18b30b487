"""What this installation can do: versions, devices, dtypes, extras, and the p-values that n seeds can reach."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterator

import torch

from loopverify import __version__
from loopverify.claims import CLAIMS
from loopverify.stats import seeds_needed, smallest_p

__all__ = ["diagnose"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NOT_FOR_USERS = ("bench", "dev")


def diagnose() -> Iterator[tuple[str, str]]:
    """Lines of (subject, finding)."""
    yield "loopverify", f"{__version__}, Python {platform.python_version()} on {platform.platform(terse=True)}"
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} of {os.cpu_count()} threads"
    for device in _devices():
        yield device.type if device.index is None else str(device), _device(device)
    for extra, packages in sorted(_extras().items()):
        versions = {package: _version(package) for package in packages}
        missing = [package for package, version in versions.items() if version is None]
        wanted = f"missing {', '.join(missing)}; pip install 'loopverify[{extra}]'"
        present = ", ".join(f"{package} {version}" for package, version in versions.items())
        yield f"extra {extra}", wanted if missing else present
    yield "claims", _reach()


def _devices() -> list[torch.device]:
    cuda = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    mps = [torch.device("mps")] if torch.backends.mps.is_available() else []
    return [torch.device("cpu"), *cuda, *mps]


def _device(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    works = [str(dtype).removeprefix("torch.") for dtype in _DTYPES if _computes(device, dtype)]
    return f"{name}: {', '.join(works)}"


def _computes(device: torch.device, dtype: torch.dtype) -> bool:
    try:
        ones = torch.ones(2, 2, device=device, dtype=dtype)
        return bool(((ones @ ones) == 2).all())
    except (RuntimeError, TypeError):
        return False


def _extras() -> dict[str, list[str]]:
    """The packages of each extra, from the installed metadata."""
    found = defaultdict(list)
    for requirement in importlib.metadata.requires("loopverify") or ():
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?.*;\s*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if match and match[1] != "loopverify" and match[2] not in _NOT_FOR_USERS:
            found[match[2]].append(match[1])
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _reach() -> str:
    """The smallest p-values of rank tests with n seeds per side, and the n required at the claims' strictest alpha."""
    alpha = min(claim.alpha for claim in CLAIMS.values())
    alone, jointly = seeds_needed(alpha), seeds_needed(alpha / len(CLAIMS))
    least = ", ".join(f"{smallest_p(n, n):.2g} (n = {n})" for n in range(1, alone + 1))
    return (
        f"n against n seeds can reach p = {least}: one claim needs {alone} per side for alpha = {alpha:g}, "
        f"all {len(CLAIMS)} together (Holm) {jointly}"
    )
