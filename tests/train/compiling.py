"""How far tests compile."""

from __future__ import annotations

import os

INDUCTOR = bool(os.environ.get("LOOPVERIFY_INDUCTOR"))
"""Whether to compile to machine code too, which takes a C++ compiler a minute; the graphs are the same."""
