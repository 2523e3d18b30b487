"""Runs that fail and places that cannot be stores: nothing is left, and the error says what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from loopverify.errors import InputError
from tests.train.store.stores import SPEC, fill, leftovers
from train.store import CorruptRunError, RunStore, StoreError

NEEDS_DEV_FULL = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")


def attempt(store: RunStore, then: Callable[[], object], name: str = "half.json") -> None:
    """Write a file of a run, then do something."""
    with store.create(SPEC) as folder:
        (folder / name).write_text("{}", encoding="utf-8")
        then()


def fill_by_writing() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


def fill_by_safetensors() -> None:
    # What save_file raises on a full disk. It is not tried on /dev/full, which it would replace by a file.
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


class TestFailures:
    @pytest.mark.parametrize("error", [RuntimeError("diverged"), KeyboardInterrupt(), FileNotFoundError(2, "lost")])
    def test_nothing_is_left_of_a_run_that_fails_and_the_error_is_its_own(
        self, store: RunStore, error: BaseException
    ) -> None:
        def fail() -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            attempt(store, fail)
        assert caught.value is error
        assert store.get(SPEC) is None
        assert leftovers(store) == []

    @pytest.mark.parametrize("fill_up", [pytest.param(fill_by_writing, marks=NEEDS_DEV_FULL), fill_by_safetensors])
    def test_a_full_disk_is_named_and_leaves_nothing(self, store: RunStore, fill_up: Callable[[], None]) -> None:
        with pytest.raises(StoreError, match="No space left on device; free some space or choose another place"):
            attempt(store, fill_up)
        assert store.get(SPEC) is None
        assert leftovers(store) == []

    @pytest.mark.parametrize("call", ["fsync", "rename"])
    def test_so_is_one_that_fills_while_the_run_is_sealed(
        self, store: RunStore, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(StoreError, match="No space left on device; free some space"):
            attempt(store, lambda: monkeypatch.setattr(os, call, refuse))
        monkeypatch.undo()
        assert store.get(SPEC) is None
        assert leftovers(store) == []

    def test_a_run_may_not_bring_its_own_manifest(self, store: RunStore) -> None:
        with pytest.raises(InputError, match=r"a run contains a file 'manifest\.json', a reserved name"):
            attempt(store, lambda: None, name="manifest.json")
        assert store.get(SPEC) is None


def begin(store: RunStore, method: str) -> None:
    with getattr(store, method)(SPEC):
        pytest.fail("the work began")


class TestPlacesThatCannotBeStores:
    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("", encoding="utf-8")
        for root in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
            with pytest.raises(StoreError, match=r"no store can be at .*: .*/file is not a folder; choose another"):
                RunStore(root)

    def test_a_link_to_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "nothing")
        with pytest.raises(StoreError, match="link is not a folder"):
            RunStore(tmp_path / "link")

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system that makes no folders")
    @pytest.mark.parametrize("method", ["create", "lock"])
    def test_a_place_where_nothing_can_be_written(self, method: str) -> None:
        store = RunStore("/proc/self/store")
        with pytest.raises(StoreError, match=r"cannot write the store at /proc/self/store.*choose another place"):
            begin(store, method)
        assert store.get(SPEC) is None  # looking is allowed

    @pytest.mark.parametrize("method", ["create", "lock"])
    def test_a_place_without_permission(self, store: RunStore, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: Path, *_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(
            StoreError, match="Permission denied; check the path and its permissions, or choose another"
        ):
            begin(store, method)

    def test_a_store_whose_runs_cannot_be_read(self, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(store)

        def refuse(self: Path) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(StoreError, match=r"cannot read the store at .*manifest.json: Permission denied") as caught:
            store.get(SPEC)
        assert not isinstance(caught.value, CorruptRunError)  # which would have it moved away

    def test_looking_makes_nothing(self, store: RunStore) -> None:
        assert store.get(SPEC) is None
        assert list(store.runs()) == []
        assert not store.root.exists()
