"""What is on disk: folders that are whole or not there, and the store of runs made of them. It needs no torch."""

from __future__ import annotations

from train.store.atomic_folders import StoreError
from train.store.run_store import CorruptRunError, RunStore, Say, StoredRun

__all__ = ["CorruptRunError", "RunStore", "Say", "StoreError", "StoredRun"]
