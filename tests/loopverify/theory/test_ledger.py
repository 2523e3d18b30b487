"""The norm ledger: hand-worked entries, attribution to names, shapes and messages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loopverify.errors import InputError
from loopverify.models import LoopedTransformer, TransformerConfig
from loopverify.theory import ledger_of_branches, ledger_of_states


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# In two channels (1, 1) and (1, −1) have rms 1 and are orthogonal: coordinates along them are read off as rms values.
ALONG, ACROSS = f64(1.0, 1.0), f64(1.0, -1.0)


def test_two_loops_by_hand() -> None:
    """3 along; then 1 along and 3 across (the scale becomes √(4² + 3²) = 5); then the state is doubled."""
    H0 = 3 * ALONG
    H1 = 4 * ALONG + 3 * ACROSS
    ledger = ledger_of_states([H0, H1, 2 * H1])
    assert ledger.names == ("loop 1", "loop 2")
    assert ledger.scales.tolist() == pytest.approx([3.0, 5.0, 10.0], rel=1e-15)
    assert ledger.radial.tolist() == pytest.approx([1.0, 5.0], rel=1e-15)
    assert ledger.turning.tolist() == pytest.approx([3.0, 0.0], abs=2e-15)
    assert ledger.remainder.tolist() == pytest.approx([1.0, 0.0], abs=2e-15)
    assert ledger.remainder_bound.tolist() == pytest.approx([9 / 8, 0.0], abs=2e-15)
    assert ledger.growth.item() == pytest.approx(7.0, rel=1e-15)
    assert ledger.accounted.item() == pytest.approx(7.0, rel=1e-15)


def test_growth_is_attributed_to_the_branch_that_causes_it() -> None:
    """Attention only turns (3 along, 4 across: ρ = 2), the MLP only grows (by 5, along what attention left)."""
    state = 3 * ALONG
    turned = 3 * ALONG + 4 * ACROSS
    branches = [("attention", 4 * ACROSS), ("mlp", turned), ("attention", 0 * ACROSS), ("mlp", turned)]
    shares = ledger_of_branches(state, branches).attribution()
    assert list(shares) == ["attention", "mlp"]
    assert shares["attention"].item() == pytest.approx(2.0, rel=1e-14)
    assert shares["mlp"].item() == pytest.approx(10.0, rel=1e-14)


def test_a_state_that_is_turned_around_or_stopped_still_adds_up() -> None:
    ledger = ledger_of_states([ALONG, -3 * ALONG, 0 * ALONG, ACROSS])
    assert ledger.radial.tolist() == pytest.approx([-4.0, -3.0, 0.0], abs=1e-15)
    # ρ = rms(F) − (s + a): 3 − (−3) = 6 at the reversal; the zero state has no direction, so all of ACROSS is turning.
    assert ledger.remainder.tolist() == pytest.approx([6.0, 0.0, 1.0], abs=1e-15)
    assert (ledger.remainder <= ledger.remainder_bound + 1e-15).all()
    assert ledger.growth.item() == ledger.accounted.item() == 0.0


def test_shapes_of_a_batch() -> None:
    states = [torch.randn(2, 3, 8) for _ in range(5)]
    ledger = ledger_of_states(states)
    assert ledger.scales.shape == (5, 2, 3)
    for field in (ledger.radial, ledger.turning, ledger.remainder, ledger.remainder_bound):
        assert field.shape == (4, 2, 3)
    assert ledger.growth.shape == ledger.accounted.shape == (2, 3)
    torch.testing.assert_close(ledger.growth, ledger.accounted, rtol=0, atol=2e-5)


def test_half_precision_states_are_summed_in_float32() -> None:
    """256 + 0.5 is 256 in bfloat16: added there, the growth would be lost, ledger and all."""
    state = torch.full((4,), 256.0, dtype=torch.bfloat16)
    ledger = ledger_of_branches(state, [("b", torch.full((4,), 0.5, dtype=torch.bfloat16))] * 4)
    assert ledger.growth.item() == 2.0
    assert ledger.accounted.item() == 2.0
    assert ledger.scales.dtype == torch.float32


def test_the_branches_of_the_reference_model_make_up_its_loops() -> None:
    model = LoopedTransformer(TransformerConfig(vocab_size=5, d_model=8, heads=2, d_ff=8, init_std=0.5)).double().eval()
    looped = model.looped()
    assert looped.branches is not None
    with torch.no_grad():
        H, context = looped.embed(torch.arange(5)[None])
        outputs, states = [], [H]
        for loop in (1, 2):
            outputs += looped.branches(states[-1], context, loop)
            states.append(looped.step(states[-1], context, loop))
    by_branch, by_loop = ledger_of_branches(H, outputs), ledger_of_states(states)
    assert set(by_branch.attribution()) == {f"layers.{i}.{name}" for i in (0, 1) for name in ("attention", "mlp")}
    torch.testing.assert_close(by_branch.accounted, by_loop.growth, rtol=1e-12, atol=1e-13)


def test_messages() -> None:
    with pytest.raises(InputError, match=r"a ledger of 1 states; expected at least two, H_0 and H_1"):
        ledger_of_states([ALONG])
    with pytest.raises(InputError, match=r"states of shapes \[\(2,\), \(3,\)\]; expected one shape for all loops"):
        ledger_of_states([ALONG, torch.zeros(3)])
    with pytest.raises(InputError, match=r"a ledger of no branches"):
        ledger_of_branches(ALONG, [])
    with pytest.raises(InputError, match=r"branch 'mlp' has shape \(3,\); expected the state's, \(2,\)"):
        ledger_of_branches(ALONG, [("mlp", torch.zeros(3))])
