"""What is on disk: folders that are whole or not there, and the store of runs made of them. It needs no torch."""

from __future__ import annotations

from train.store.run_store import CorruptRunError, RunStore, StoredRun
from train.store.sealed import StoreError

__all__ = ["CorruptRunError", "RunStore", "StoreError", "StoredRun"]
