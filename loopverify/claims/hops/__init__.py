"""Our own study of depth use, on a task that needs depth: following pointers (`tasks.Hops`)."""

from __future__ import annotations

from loopverify.claims.hops.depth import CLAIMS, HOPS
from loopverify.claims.hops.limits import FIRST_EXIT

__all__ = ["CLAIMS", "FIRST_EXIT", "HOPS"]
