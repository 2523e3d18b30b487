"""Estimates of a run against torch's own counter and closed forms; and the command that prints them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import loopverify as lv
from loopverify.errors import InputError
from train.__main__ import main
from train.data import DataSpec
from train.specification import RunSpec, preset
from train.specification.gpus import gpu
from train.specification.plan import RESERVE, plan

V = 96


def tiny(loss: str = "per_loop", readout: str = "rmsnorm", recurrence: str = "residual", **shape: object) -> RunSpec:
    changes = {
        "data": DataSpec(vocab_max=V),
        "d_model": 32,
        "heads": 2,
        "d_ff": 80,
        "layers": 2,
        "seq_len": 24,
        **shape,
    }
    p = replace(preset("tiny"), **changes)
    return RunSpec(preset=p, loss=loss, readout=readout, recurrence=recurrence)


@pytest.mark.parametrize(
    "spec",
    [
        tiny("terminal"),
        tiny("per_loop", "raw", loops=3),
        tiny("per_loop+penalty", layers=3, tied_head=True),
        tiny("exit_weighted", recurrence="shared_boundary_norm", sandwich_norm=True, seq_len=40),
    ],
    ids=lambda spec: spec.condition,
)
def test_flops_and_parameters_are_those_that_torch_counts(spec: RunSpec) -> None:
    model, batch = spec.model(V), 3
    tokens = torch.randint(V, (batch, spec.preset.seq_len))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = spec.objective()(lv.unroll(model.looped(), tokens, spec.preset.loops, grad=True), tokens).total
        forward = counter.get_total_flops()
        loss.backward()
    planned = plan(spec)
    assert planned.forward_flops * tokens.numel() == forward
    assert planned.flops * tokens.numel() == counter.get_total_flops()
    assert planned.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_bytes_of_weights_and_optimizer_are_those_of_their_dtypes() -> None:
    planned = plan(tiny(d_model=128, d_ff=320))
    layer = 4 * 128**2 + 3 * 128 * 320
    parameters = 2 * (layer + 2 * 128) + 128 + 2 * V * 128
    # Float32 weights, gradients and two moments; bfloat16 copies of what is multiplied (and, small, rotary tables).
    expected = 16 * parameters + 2 * (2 * layer + V * 128)
    assert expected <= planned.constant_bytes <= 1.02 * expected


def test_a_loop_keeps_what_its_layers_and_its_exit_must_keep() -> None:
    shape = {"d_model": 64, "d_ff": 160, "seq_len": 32}
    one, two = (plan(tiny(loops=loops, **shape)).window_bytes / 32 for loops in (2, 3))
    # Float32: the stream into both norms. Bfloat16: into both products, q, k and v before and after they are turned
    # (v is not), the mixed values; gate and up, and two products of theirs.
    layer = 2 * 4 * 64 + 2 * (2 * 64 + 3 * 64 + 2 * 64 + 64 + 2 * 160 + 2 * 160)
    exit_ = 4 * 64 + 2 * 64 + 4 * V  # the state, what the head is shown, and float32 logits
    assert two - one == pytest.approx(2 * layer + exit_, rel=0.25)


def test_a_wide_vocabulary_takes_a_chunk_of_logits_and_not_all_of_them() -> None:
    shape = {"d_model": 64, "d_ff": 160, "seq_len": 32}
    plans = {
        (vocab, loops): plan(tiny(data=DataSpec(vocab_max=vocab), loops=loops, **shape))
        for vocab in (8192, 16384)
        for loops in (2, 3)
    }
    windows = {key: planned.window_bytes for key, planned in plans.items()}
    assert windows[8192, 2] == windows[16384, 2]
    # The layers as above; the float32 state, which the next loop keeps, and its gradient, which its exit has made.
    layer = 2 * 4 * 64 + 2 * (2 * 64 + 3 * 64 + 2 * 64 + 64 + 2 * 160 + 2 * 160)
    assert (windows[8192, 3] - windows[8192, 2]) / 32 == pytest.approx(2 * layer + 2 * 4 * 64, rel=0.25)
    # A token more: 16 bytes for each of its two rows of weights, 2 for the head's copy; and its logits in a chunk.
    more = plans[16384, 2].constant_bytes - plans[8192, 2].constant_bytes
    assert more == 8192 * ((2 * 16 + 2) * 64 + 6 * 256)


def test_the_state_that_an_exit_in_chunks_reads_has_a_gradient_at_once() -> None:
    wide = DataSpec(vocab_max=8192)
    one, four = (plan(tiny(loss, data=wide)) for loss in ("terminal", "per_loop"))
    assert four.window_bytes - one.window_bytes == 24 * 3 * 4 * 32  # float32, of three exits more


def test_a_word_of_a_small_vocabulary_takes_a_logit_of_each_exit_and_the_gradients_of_one() -> None:
    plans = {
        (vocab, loops): plan(tiny(data=DataSpec(vocab_max=vocab), loops=loops))
        for vocab in (96, 192)
        for loops in (2, 3)
    }
    for loops in (2, 3):
        more = plans[192, loops].window_bytes - plans[96, loops].window_bytes
        assert more == 24 * 96 * (4 * loops + 2 * 4)  # float32; the gradient, and what it is computed from


def test_dropout_keeps_a_byte_for_each_channel_of_the_embedding_and_of_every_branch() -> None:
    without, dropped = (plan(tiny(loops=3, dropout=dropout)) for dropout in (0.0, 0.1))
    assert dropped.window_bytes - without.window_bytes == 24 * (1 + 3 * 2 * 2) * 32
    assert dropped.constant_bytes == without.constant_bytes


def test_the_memory_of_a_micro_batch_and_the_largest_one_that_fits() -> None:
    planned, h100 = plan(tiny()), gpu("H100")
    assert planned.memory(3) - planned.memory(2) == pytest.approx(planned.window_bytes)
    assert planned.memory(0) == planned.constant_bytes + RESERVE
    assert planned.largest_micro_batch(h100) == planned.batch == 16  # no more than there are
    room = replace(h100, memory=planned.memory(5) + 1)
    assert planned.largest_micro_batch(room) == 5
    assert planned.largest_micro_batch(replace(h100, memory=planned.constant_bytes)) == 0


def test_time_is_operations_over_what_is_assumed_to_be_reached() -> None:
    planned = plan(tiny())
    seconds = planned.seconds_per_step(gpu("A100-40GB"), mfu=0.5, gpus=4)
    assert seconds == pytest.approx(planned.flops * 16 * 24 / (312e12 * 0.5 * 4))
    # Of 16 windows on 5 GPUs one takes 4, as of 4 GPUs.
    assert planned.seconds_per_step(gpu("A100-40GB"), mfu=0.5, gpus=5) == pytest.approx(seconds)
    for wrong, words in (
        ({"mfu": 0.0}, "mfu is 0.0; expected"),
        ({"mfu": 0.5, "gpus": 0}, r"gpus is 0; expected 1\.\.16"),
        ({"mfu": 0.5, "gpus": 17}, r"gpus is 17; expected 1\.\.16, at least one window of a batch per GPU"),
    ):
        with pytest.raises(InputError, match=words):
            planned.seconds_per_step(gpu("H100"), **wrong)


def test_steps_follow_the_text_where_a_preset_counts_epochs() -> None:
    spec = tiny(steps=None, epochs=3, seq_len=24, stride=8, batch=10)
    assert plan(spec).steps is None
    assert plan(spec, train_tokens=24 + 1 + 8 * 99).steps == 3 * 10  # 100 windows
    assert plan(spec, train_tokens=24 + 8 * 99).steps == 3 * 9  # the last one lacks a target
    assert plan(tiny(steps=7), train_tokens=10**6).steps == 7
    assert plan(spec, train_tokens=97).steps == 3
    for tokens in (96, 0, -5):
        with pytest.raises(
            InputError, match=f"train tokens are {tokens}; expected at least 97, the tokens of one batch"
        ):
            plan(spec, train_tokens=tokens)


def test_the_command_prints_what_the_44m_run_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dry-run", "--preset", "44m", "--gpu", "H100", "--mfu", "0.5", "--steps", "2000"]) == 0
    output = capsys.readouterr().out
    assert "44m, per_loop/rmsnorm: 43,803,136 parameters; 8 layers applied K = 4 times" in output
    # 6 a weight and token, each layer K times; the tied head once an exit; 12 T D a layer and loop for attention.
    flops = 6 * 4 * (8 * (4 * 512**2 + 3 * 512 * 2048) + 512 * 20_000) + 12 * 256 * 512 * 8 * 4
    assert f"FLOPs per token: {flops:.4g}" in output
    assert "if 50% of its 989 TFLOP/s is reached (--mfu; assumed, not measured)" in output
    seconds = flops * 64 * 256 / 989e12 / 0.5
    assert f"{seconds:.3g} s per step" in output
    assert f"2,000 steps: {2000 * seconds:.3g} s" in output
    assert "micro-batch  64:" in output


def test_a_run_that_fits_no_gpu_ends_with_status_1_and_wrong_use_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    ouro = ("--loss", "exit_weighted", "--recurrence", "shared_boundary_norm")
    assert main(["dry-run", "--preset", "1.4b", *ouro, "--gpu", "rtx-4090", "--gpus", "13"]) == 1
    output = capsys.readouterr().out
    assert "1,434,652,673 parameters; 24 layers applied K = 4 times" in output
    assert "micro-batch   1:" in output
    assert "does not fit RTX-4090" in output
    assert main(["dry-run", "--gpu", "abacus"]) == 2
    assert "error: unknown GPU 'abacus'; expected one of: A100-40GB" in capsys.readouterr().err
    assert main(["dry-run", "--gpus", "0"]) == 2
    assert "error: gpus is 0; expected 1..64" in capsys.readouterr().err
