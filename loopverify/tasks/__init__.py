"""Synthetic tasks of exact depth d: each sequence ends in one question, whose answer takes d steps to find. Sequences
are drawn from a random generator. The families are those of the loop-boundary study (P2): pointer-chasing, Boolean
circuits, and the parity of several pointer walks.

task = Hops(symbols=5, depth=4)
sequences = task.draw(64, torch.Generator().manual_seed(0))    # tokens, targets, depths
"""

from __future__ import annotations

from loopverify.tasks.circuit import Circuit
from loopverify.tasks.hops import Hops
from loopverify.tasks.paragg import Paragg
from loopverify.tasks.task import NOT_ASKED, Sequences, Task

__all__ = ["NOT_ASKED", "Circuit", "Hops", "Paragg", "Sequences", "Task"]
