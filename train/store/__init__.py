"""Storage on disk: folders that are either complete or absent, and the store of runs built on them. Needs no torch."""

from __future__ import annotations

from train.store.atomic_folders import StoreError
from train.store.run_store import CorruptRunError, RunStore, Say, StoredRun

__all__ = ["CorruptRunError", "RunStore", "Say", "StoreError", "StoredRun"]
