"""Why a run failed is found among what its processes, and those who started them, wrote."""

from __future__ import annotations

import pytest

from train.launch.failure_reason import reason

TORCHRUN = """
E1129 23:01:00.1 7 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode: 1) local_rank: 1 (pid: 8)
Traceback (most recent call last):
  File "run.py", line 9, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""
LOST = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [127.0.0.1]:4242\n"


@pytest.mark.parametrize(
    ("logs", "why"),
    [
        ([], "no message"),
        (["\n \n"], "no message"),
        (["one\ntwo\n"], "two"),
        (["error: no such text\n" + LOST + TORCHRUN], "error: no such text"),
        ([LOST, "diverged: at step 3\n"], "diverged: at step 3"),
        (["error: no room\nstopped by SIGTERM after step 4\n" + TORCHRUN], "error: no room"),
        (["stopped by SIGTERM after step 4\n" + TORCHRUN], "stopped by SIGTERM after step 4"),
        (["KeyError: 'x'\n" + LOST + TORCHRUN], "KeyError: 'x'"),
        (["two\nslurmstepd: error: *** STEP 1.0 CANCELLED ***\nsrun: error: task 0: Exited"], "two"),
    ],
)
def test_the_process_that_failed_is_heard_above_the_others(logs: list[str], why: str) -> None:
    assert reason(logs) == why
