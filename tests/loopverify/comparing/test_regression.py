"""looped_regression: what it stores, what it notices, its messages, and that it cannot pass by accident."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopverify.comparing.files import Collected, stored_path
from loopverify.comparing.fingerprint import PROJECTIONS, Fingerprint, fingerprint
from loopverify.comparing.guard import LoopedRegression, RegressionError
from loopverify.errors import InputError
from loopverify.looped import Looped, unroll
from loopverify.models import LoopedTransformer, TransformerConfig

pytest_plugins = ["pytester"]

V, D = 11, 16
TOKENS = torch.arange(24).reshape(3, 8) % V
DELTA = 2.0**-8

Step = Callable[[Tensor, Any, int], Tensor]


def toy(step: Step | None = None, readout: Any = None, dtype: torch.dtype = torch.float64) -> Looped:
    """H_0 is a fixed table, a step doubles (exactly), and the logits are the first channels of the state."""
    table = (torch.arange(V * D, dtype=torch.float64).reshape(V, D).sin() + 2).to(dtype)
    return Looped(
        embed=lambda tokens: (table[tokens], None),
        step=step or (lambda state, context, loop: 2 * state),
        readout=readout or (lambda state, context, loop, loops: state[..., :V]),
        trained_loops=4,
        name="toy",
    )


def changed_at(loop: int, change: Callable[[Tensor], Tensor]) -> Looped:
    return toy(lambda state, context, k: change(2 * state) if k == loop else 2 * state)


def guard(folder: Path, test: str = "test_a", **options: Any) -> LoopedRegression:
    return LoopedRegression(folder / "test_mine.py", test, **options)


def store(folder: Path, model: Looped | None = None, **arguments: Any) -> Path:
    """The path of a newly stored trace of 4 loops."""
    with pytest.raises(RegressionError, match="no stored trace yet: wrote"):
        guard(folder).check(model or toy(), **{"tokens": TOKENS, "loops": 4, **arguments})
    return folder / "test_mine" / "test_a.looped.json"


def complaint(folder: Path, model: Looped, **arguments: Any) -> str:
    with pytest.raises(RegressionError) as caught:
        guard(folder).check(model, **{"tokens": TOKENS, "loops": 4, **arguments})
    return str(caught.value)


def test_the_first_run_stores_and_fails_and_the_second_passes(tmp_path: Path) -> None:
    path = store(tmp_path)
    assert path.stat().st_size < 16_000
    guard(tmp_path).check(toy(), TOKENS, loops=4)


def test_what_is_stored_are_the_numbers_of_the_model(tmp_path: Path) -> None:
    record = json.loads(store(tmp_path, loops=2).read_text())
    assert record["kept"] == [[0, 0], [1, 0], [1, 7], [2, 7]]
    assert (record["dtype"], record["channels"], record["vocabulary"]) == ("float64", D, V)
    assert record["versions"]["torch"] == torch.__version__
    start = (torch.arange(V * D, dtype=torch.float64).reshape(V, D).sin() + 2)[TOKENS]
    rms = start.square().mean(-1).sqrt()
    for loop, entry in enumerate(record["per_loop"]):
        assert entry["statistics"]["mean"] == pytest.approx(2**loop * float(rms.mean()))
        assert entry["statistics"]["max"] == pytest.approx(2**loop * float(rms.max()))
        assert entry["scales"][1] == pytest.approx(2**loop * float(rms[1, 0]))
    assert record["per_loop"][1]["argmax"] == start[[0, 1, 1, 2], [0, 0, 7, 7], :V].argmax(-1).tolist()
    assert record["per_loop"][0]["argmax"] == []


def test_a_change_of_one_channel_shows_in_every_projection_at_its_size() -> None:
    def projections(model: Looped) -> list[float]:
        return list(fingerprint(unroll(model, TOKENS, 1), 0).per_loop[1].states[0])

    def nudge(state: Tensor) -> Tensor:
        state[..., 5] += DELTA
        return state

    changes = [abs(a - b) for a, b in zip(projections(toy()), projections(changed_at(1, nudge)), strict=True)]
    assert changes == pytest.approx([DELTA / math.sqrt(D)] * PROJECTIONS)


def test_projections_have_the_rms_of_the_whole() -> None:
    torch.manual_seed(0)
    table = torch.randn(V, 4096, dtype=torch.float64)
    model = dataclasses.replace(toy(), embed=lambda tokens: (table[tokens], None))
    entry = fingerprint(unroll(model, TOKENS, 1), 0).per_loop[0]
    squares = [p * p / s**2 for row, s in zip(entry.states, entry.scales, strict=True) for p in row]
    # A mean of 32 squares of unit normals: 1 ± √(2/32), of which three make 0.75.
    assert sum(squares) / len(squares) == pytest.approx(1, abs=0.75)


def _turn(state: Tensor) -> Tensor:
    x, y = state.chunk(2, dim=-1)
    return torch.cat([x * math.cos(DELTA) - y * math.sin(DELTA), x * math.sin(DELTA) + y * math.cos(DELTA)], -1)


def _one_other_token(state: Tensor) -> Tensor:
    state[0, 3] *= 2
    return state


CHANGES: dict[str, tuple[Looped, str]] = {
    "scale": (changed_at(3, lambda h: h * (1 + DELTA)), "at loop 3: scale\n  off by 0.0039 = "),
    "direction": (changed_at(2, _turn), "at loop 2: direction\n"),
    "both": (changed_at(2, lambda h: h + DELTA * torch.linspace(-1, 1, D)), "at loop 2: state\n"),
    "another token": (changed_at(4, _one_other_token), "at loop 4: mean scale over all tokens\n"),
    "logits": (
        toy(readout=lambda state, context, loop, loops: state[..., :V] + DELTA * (loop == 1)),
        "at loop 1: logits\n",
    ),
    "embedding": (
        dataclasses.replace(toy(), embed=lambda tokens: (toy().embed(tokens)[0] * 1.5, None)),
        "at the embedding: scale\n  off by 0.5 = ",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_first_loop_and_quantity_that_differ_are_named_with_their_size(tmp_path: Path, change: str) -> None:
    model, message = CHANGES[change]
    store(tmp_path)
    text = complaint(tmp_path, model)
    assert message in text
    assert "ulps of float64 (tolerance" in text
    assert text.endswith("If the change is intended: pytest --looped-regen")


def test_a_flipped_argmax_counts_unless_it_was_a_near_tie(tmp_path: Path) -> None:
    def tied(lead: float, winner: int) -> Looped:
        logits = torch.zeros(V, dtype=torch.float64)
        logits[:2] = 1
        logits[winner] += lead
        return toy(readout=lambda state, context, loop, loops: logits.expand(*state.shape[:2], V))

    store(tmp_path, tied(1e-3, 0))
    guard(tmp_path).check(tied(1e-3, 1), TOKENS, loops=4, tolerance=1e-3)
    text = complaint(tmp_path, tied(1e-3, 1), tolerance=2e-4)
    assert "at loop 1: logits" in text
    assert "argmax at loop 1" in text


@pytest.mark.parametrize("tolerance", ["1e-3", -1.0, float("nan")])
def test_a_tolerance_that_is_none_is_refused_before_a_trace_is_stored(tmp_path: Path, tolerance: Any) -> None:
    with pytest.raises(InputError, match=rf"tolerance is {tolerance!r}; expected a relative error >= 0, such as 1e-5"):
        guard(tmp_path).check(toy(), TOKENS, loops=4, tolerance=tolerance)
    assert list(tmp_path.rglob("*.json")) == []


def test_rounding_is_no_mismatch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LoopedTransformer(TransformerConfig(vocab_size=V, init_std=0.1)).eval().looped()
    store(tmp_path, model)

    def reordered(state: Tensor, context: Any, loop: int) -> Tensor:
        double = state.double() * (1 + 1e-7)
        return model.step(double.float(), context, loop)

    guard(tmp_path).check(dataclasses.replace(model, step=reordered), TOKENS, loops=4)
    text = complaint(tmp_path, dataclasses.replace(model, step=lambda h, c, k: model.step(h * 1.001, c, k)))
    assert "at loop 1" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": TOKENS + 0 * TOKENS.flip(0) + (TOKENS == 3)}, "tokens differ\n  stored 3 × 8, sha256"),
        ({"tokens": TOKENS[:2]}, "tokens differ\n  stored 3 × 8, sha256"),
        ({"loops": 5}, "loop counts differ\n  stored 4, now 5"),
        ({"model": toy(dtype=torch.float32)}, "dtypes differ\n  stored float64, now float32"),
        ({"model": toy(readout=lambda h, c, k, n: h)}, "vocabularies differ\n  stored 11, now 16"),
        ({"seed": 1}, "seeds differ\n  stored 0, now 1"),
    ],
)
def test_another_run_is_not_compared_but_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    store(tmp_path)
    text = complaint(tmp_path, **{"model": toy(), **arguments})
    assert text.startswith("this is not the run that was stored")
    assert message in text


def test_versions_that_changed_are_said_with_a_mismatch(tmp_path: Path) -> None:
    path = store(tmp_path)
    path.write_text(path.read_text().replace(f'"torch": "{torch.__version__}"', '"torch": "1.0"'))
    guard(tmp_path).check(toy(), TOKENS, loops=4)
    assert f"torch was 1.0, is {torch.__version__}" in complaint(tmp_path, CHANGES["scale"][0])


def test_regeneration_writes_and_still_fails(tmp_path: Path) -> None:
    path = store(tmp_path)
    with pytest.raises(RegressionError, match=r"regenerated .*test_a\.looped\.json\nReview the change"):
        guard(tmp_path, regenerate=True).check(CHANGES["scale"][0], TOKENS, loops=4)
    guard(tmp_path).check(CHANGES["scale"][0], TOKENS, loops=4)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "it is not JSON"),
        (lambda text: "[]", "it is not a stored trace"),
        (lambda text: text.replace('"scales"', '"scale"', 1), "it is not a stored trace"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "it has format 9; expected 1"),
        (lambda text: json.dumps({**json.loads(text), "kept": [[0, 0]]}), "loop 0 is incomplete"),
    ],
)
def test_a_corrupt_file_is_named_with_what_to_do(tmp_path: Path, damage: Callable[[str], str], message: str) -> None:
    path = store(tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError, match=message) as caught:
        guard(tmp_path, command="pytest test_mine.py::test_a").check(toy(), TOKENS, loops=4)
    assert str(path) in str(caught.value)
    assert "write it again: pytest test_mine.py::test_a --looped-regen" in str(caught.value)


def test_a_record_goes_through_json_unchanged() -> None:
    found = fingerprint(unroll(toy(dtype=torch.float32), TOKENS, 3), 0)
    assert Fingerprint.from_json(found.to_json()) == found


def test_several_traces_of_one_test_need_names(tmp_path: Path) -> None:
    guarded = guard(tmp_path)
    for name in ("", "other"):
        with pytest.raises(RegressionError, match="wrote"):
            guarded.check(toy(), TOKENS, loops=2, name=name)
    assert {path.name for path in (tmp_path / "test_mine").iterdir()} == {
        "test_a.looped.json",
        "test_a.other.looped.json",
    }
    with pytest.raises(InputError, match=r"two traces as test_a\.looped\.json; give them names"):
        guarded.check(toy(), TOKENS, loops=2)
    with pytest.raises(InputError, match=r"name of a stored trace is 'a/b'"):
        guarded.check(toy(), TOKENS, loops=2, name="a/b")


def test_a_trace_that_is_not_finite_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="H_2 is not finite"):
        guard(tmp_path).check(changed_at(2, lambda h: h * math.inf), TOKENS, loops=4)
    assert not (tmp_path / "test_mine").exists()


def test_what_is_no_looped_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot adapt Linear"):
        guard(tmp_path).check(nn.Linear(2, 2), TOKENS)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_mine").write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cannot write the stored trace .*test_a\.looped\.json"):
        guard(tmp_path).check(toy(), TOKENS, loops=2)


def test_different_tests_never_share_a_file() -> None:
    tests = ["test_a", "TestA::test_a", "test_a[x]", "test_a[x.y]", "test_a[x_y]", "test_a[x::y]", "test_a[x-y]", "é"]
    tests += ["test_" + "a" * 200 + end for end in "bc"]
    paths = {stored_path(Path("test_m.py"), test) for test in tests}
    assert len({str(path).lower() for path in paths}) == len(tests)
    assert stored_path(Path("d/test_m.py"), "TestA::test_b[c]") == Path("d/test_m/TestA-test_b[c].looped.json")
    assert all(len(path.name) < 200 and path.name.isascii() for path in paths)


def test_stale_files_are_those_without_a_test_in_modules_seen_whole(tmp_path: Path) -> None:
    folder = tmp_path / "test_m"
    folder.mkdir()
    for name in ("test_a", "test_a.second", "test_gone", "test_gone.second"):
        (folder / f"{name}.looped.json").write_text("{}")
    collected = Collected()
    collected.add(tmp_path / "test_m.py", "test_a")
    sent = Collected()
    sent.merge(Collected(**json.loads(json.dumps(collected.to_plain()))))
    assert [path.name for path in sent.stale()] == ["test_gone.looped.json", "test_gone.second.looped.json"]
    sent.leave_out(tmp_path / "test_m.py")
    assert sent.stale() == []


# The fixture itself, in sessions of its own.

MINE = """
import torch
from loopverify import Looped

def model(factor):
    table = torch.arange(40.0).reshape(5, 8).sin()
    return Looped(
        embed=lambda tokens: (table[tokens], None),
        step=lambda state, context, loop: state * (factor if loop == 2 else 2.0),
        readout=lambda state, context, loop, loops: state,
        trained_loops=2,
    )

TOKENS = torch.tensor([[0, 1, 2]])
"""
TEST = """
import mine

def test_{name}(looped_regression):
    looped_regression.check(mine.model({factor}), mine.TOKENS)
"""


def session(pytester: pytest.Pytester, *arguments: str, **tests: float) -> pytest.RunResult:
    """Run a module of one guarded test for each factor."""
    parts = [TEST.format(name=name, factor=factor) for name, factor in tests.items()]
    pytester.makepyfile(mine=MINE, test_mine="\n".join(parts))
    pytester.syspathinsert()
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_the_life_of_a_guarded_test(pytester: pytest.Pytester) -> None:
    first = session(pytester, a=2.0)
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["*no stored trace yet: wrote *test_mine/test_a.looped.json"])
    session(pytester, a=2.0).assert_outcomes(passed=1)

    changed = session(pytester, a=3.0)
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(
        [
            "*the model first differs from its stored trace at loop 2: scale",
            "*off by 0.5 = * ulps of float32 (tolerance *), most at token * of row 0",
            "*If the change is intended: pytest test_mine.py::test_a --looped-regen",
        ]
    )
    assert "guard.py" not in changed.stdout.str()

    regenerated = session(pytester, "--looped-regen", a=3.0)
    regenerated.assert_outcomes(failed=1)
    regenerated.stdout.fnmatch_lines(["*regenerated *test_mine/test_a.looped.json"])
    session(pytester, a=3.0).assert_outcomes(passed=1)


def test_stale_files_are_reported_when_the_whole_module_ran(pytester: pytest.Pytester) -> None:
    session(pytester, a=2.0, b=2.0)
    stale = "stale: *test_b.looped.json is the stored trace of a test that no longer exists; delete it"
    session(pytester, a=2.0).stdout.fnmatch_lines([stale])
    session(pytester, "test_mine.py", a=2.0).stdout.fnmatch_lines([stale])
    session(pytester, "test_mine.py::test_a", a=2.0, c=2.0).stdout.no_fnmatch_line("stale:*")
    session(pytester, "-k", "test_a", a=2.0, c=2.0).stdout.no_fnmatch_line("stale:*")
    session(pytester, a=2.0, b=2.0).stdout.no_fnmatch_line("stale:*")


def test_parallel_sessions_store_check_and_report_alike(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    (pytester.mkdir("test_mine") / "test_gone.looped.json").write_text("{}")
    first = session(pytester, "-n2", a=2.0, b=2.0)
    first.assert_outcomes(failed=2)
    first.stdout.fnmatch_lines(["stale: *test_gone.looped.json*"])
    session(pytester, "-n2", a=2.0, b=2.0).assert_outcomes(passed=2)
    assert len(list((pytester.path / "test_mine").iterdir())) == 3


def test_the_reference_model_computes_what_it_did(looped_regression: LoopedRegression) -> None:
    """Weights from a formula rather than a generator, so that the trace is the same everywhere."""
    model = LoopedTransformer(TransformerConfig(vocab_size=V, d_model=16, heads=2, d_ff=40)).eval()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            waves = (torch.arange(parameter.numel(), dtype=torch.float64) * (1 + place) * 0.7).sin()
            parameter.copy_((0.3 * waves + (parameter.ndim == 1)).view_as(parameter))
    looped_regression.check(model.looped(), TOKENS, loops=4)
