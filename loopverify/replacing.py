"""Write a text file so that readers, and other processes that write it, never see a part of it. No torch here."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["replace_text"]


def replace_text(path: Path, text: str) -> None:
    """Write `text` to a temporary file in the same folder, created if missing, and rename it to `path`."""
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
