"""Runs go through JSON unchanged, and malformed ones are refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopverify.claims import Run, one_study
from loopverify.errors import InputError
from tests.loopverify.claims.made_up import run

TEXT = st.text(max_size=8)


@given(
    st.builds(
        Run,
        preset=TEXT,
        condition=TEXT,
        seed=st.integers(0, 2**31),
        metrics=st.dictionaries(TEXT, st.floats(allow_nan=False)),
        facts=st.dictionaries(TEXT, TEXT),
        key=TEXT,
    )
)
def test_json_round_trip(one: Run) -> None:
    assert Run.from_json(one.to_json()) == one
    assert Run.from_dict(one.to_dict()) == one


def test_numbers_that_json_lacks() -> None:
    text = run("a/b", 0, {"ce@1": math.nan, "ppl@1": math.inf, "norm@1": -math.inf}).to_json()
    assert json.loads(text)["metrics"] == {"ce@1": "nan", "ppl@1": "inf", "norm@1": "-inf"}
    back = Run.from_json(text)
    assert math.isnan(back.metrics["ce@1"])
    assert back.metrics["ppl@1"] == math.inf


def test_a_run_cannot_be_changed() -> None:
    given_metrics = {"ce@4": 1.0}
    one = run("a/b", 0, given_metrics)
    given_metrics["ce@4"] = 2.0
    assert one.metrics["ce@4"] == 1.0
    with pytest.raises(TypeError):
        one.metrics["ce@4"] = 3.0  # type: ignore[index]
    assert one.label == "a/b seed 0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a run is not JSON: Expecting property name"),
        ("[]", "a run is a JSON list; expected an object"),
        ("{}", r"missing \['condition', 'metrics', 'preset', 'seed'\], unknown \[\]"),
        ('{"preset": "t", "condition": "c", "seed": 0, "metrics": {}, "loss": 1}', r"unknown \['loss'\]"),
        ('{"preset": "t", "condition": "c", "seed": 0.5, "metrics": {}}', r"seed is 0\.5; expected an integer"),
        ('{"preset": "t", "condition": "c", "seed": true, "metrics": {}}', "seed is True; expected an integer"),
        ('{"preset": "t", "condition": "c", "seed": 0, "metrics": {"ce@4": "low"}}', "expected numbers by name"),
        ('{"preset": "t", "condition": "c", "seed": 0, "metrics": 3}', "metrics are 3; expected numbers by name"),
    ],
)
def test_what_is_no_run(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Run.from_json(text)


def test_one_study_is_ordered() -> None:
    study = one_study([run("b", 1, {}), run("a", 0, {}), run("b", 0, {})])
    assert [one.label for one in study] == ["a seed 0", "b seed 0", "b seed 1"]
