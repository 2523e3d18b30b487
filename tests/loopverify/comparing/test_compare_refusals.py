"""Errors of compare: each says what is wrong, what was given, and what to do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from loopverify.comparing.compare import compare
from loopverify.errors import InputError
from tests.loopverify.comparing.compared import TOKENS, RunningMean, V, some_tokens, toy, transformer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_b": nn.Linear(2, 2)}, r"model_b is a Linear; expected a loopverify.Looped"),
        ({"tokens": [[1]]}, r"tokens are a list; expected an int64 tensor"),
        ({"tokens": TOKENS.int()}, r"model a \(toy\): tokens are torch.int32 \(2, 3\)"),
        ({"loops": 0}, r"loops is 0; expected an integer >= 1"),
        ({"loops_b": 0}, r"model b \(toy\): loops is 0"),
        ({"targets": TOKENS[:1]}, r"targets are torch.int64 \(1, 3\); expected int64 \(2, 3\)"),
        ({"targets": [1, 2]}, r"targets are list; expected int64 \(2, 3\) as the tokens"),
        ({"targets": TOKENS + V}, r"targets contain 6; expected 0..5 for 6 logits \(-100 leaves a token out\)"),
        ({"targets": -TOKENS}, r"targets contain -3; expected 0..5 for 6 logits"),
        (
            {"model_a": dataclasses.replace(toy(), vocab_size=V), "tokens": TOKENS + 1},
            r"model a \(toy\): tokens span 1..6; expected 0..5 for a vocabulary of 6. Was the text encoded",
        ),
        ({"loops": "2"}, r"model a \(toy\): loops is '2'; expected an integer >= 1"),
        ({"loops": True}, r"loops is True; expected an integer >= 1"),
        ({"loops_b": 1.5}, r"model b \(toy\): loops is 1.5; expected an integer >= 1"),
        *(
            ({"tolerance": value}, rf"tolerance is {shown}; expected a relative error >= 0, such as 1e-5, or None for")
            for value, shown in [(math.nan, "nan"), (math.inf, "inf"), (-1, "-1"), ("x", "'x'"), (True, "True")]
        ),
        *(
            ({"seed": value}, rf"seed is {shown}; expected an integer in 0\.\.2\^63 - 1")
            for value, shown in [
                ("a", "'a'"),
                (1.5, r"1\.5"),
                (-1, "-1"),
                (2**63, str(2**63)),
                (True, "True"),
                (None, "None"),
            ]
        ),
        ({"path": "decode"}, r"unknown path of toy 'decode'; expected one of: \(it declares neither"),
        ({"path": ["decode"]}, r"unknown path of toy \['decode'\]; expected one of"),
        (
            {"model_a": toy(readout=lambda h, c, k, n: h[:, -1])},
            r"exit 1 returned torch.float64 \(2, 6\); expected floating logits \(2, 3, V\), one row for every token",
        ),
        ({"model_b": toy(readout=lambda h, c, k, n: (h, None))}, r"exit 1 returned tuple; expected floating logits"),
        (
            {"model_b": toy(lambda h, c, k: h, lambda h, c, k, n: h[..., :4])},
            r"exit 1 are \(2, 3, 6\) in a and .*4\) in b",
        ),
        (
            {"model_b": dataclasses.replace(toy(), embed=lambda tokens: (torch.ones(2, 3, 9), None))},
            r"H_0 are \(2, 3, 6\) in a and \(2, 3, 9\) in b; expected one shape, the channels last",
        ),
        (
            {"model_a": dataclasses.replace(toy(), vocab_size=6), "model_b": dataclasses.replace(toy(), vocab_size=7)},
            r"vocabularies of 6 \(a\) and 7 tokens \(b\)",
        ),
    ],
)
def test_wrong_use_says_what_to_do(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare(**{"model_a": toy(), "model_b": toy(), "tokens": TOKENS, "loops": 2, **arguments})


def test_models_of_different_sizes_are_refused_before_one_is_given_the_states_of_the_other() -> None:
    small, wide = (transformer(d_model=d).looped() for d in (32, 64))
    with pytest.raises(
        InputError, match=r"H_0 are \(\d+, \d+, 32\) in a and \(\d+, \d+, 64\) in b; expected one shape"
    ):
        compare(small, wide, some_tokens())


def test_a_model_that_cannot_run_as_many_loops_says_how_many() -> None:
    gains = [1.0, 2.0]
    short = dataclasses.replace(toy(lambda h, c, k: gains[k - 1] * h), trained_loops=2)
    with pytest.raises(InputError, match=r"model b \(toy\) cannot run 4 loops \(IndexError: .*it is trained with 2"):
        compare(toy(), short, TOKENS, loops=4)
    with pytest.raises(IndexError):  # an error within the trained loops is the model's own
        compare(toy(), dataclasses.replace(short, trained_loops=4), TOKENS, loops=4)


def test_a_path_and_another_loop_count_do_not_go_together() -> None:
    model = RunningMean("each loop").looped()
    with pytest.raises(InputError, match="loops_b is 3 with path 'decode'; expected None"):
        compare(model, model, TOKENS, loops=4, loops_b=3, path="decode")
