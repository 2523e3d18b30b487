"""Steps: in micro-batches, after an out-of-memory, compiled, in bfloat16; and how fast they are said to be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from loopverify.looped import unroll
from tests.train.compiling import INDUCTOR
from tests.train.micro import micro
from tests.train.stops import After
from train.engine.checkpointing import CheckpointPolicy
from train.engine.open import open_examples
from train.engine.stepper import OutOfMemoryError, Stepper
from train.engine.throughput import Throughput
from train.engine.trainee import Trainee, trainee
from train.launch.run import ensure
from train.machine.distributed import ALONE, Ranks
from train.machine.hardware import autocast, use_precision
from train.resume.checkpoint import Checkpoint
from train.resume.preemption import PreemptedError
from train.specification import Execution, RunSpec
from train.store import RunStore

CPU = torch.device("cpu")


def spec_of(text: Path, loss: str = "per_loop", micro_batch: int | None = None, **shape: object) -> RunSpec:
    execution = Execution(micro_batch=micro_batch)
    return RunSpec(preset=micro(text, **shape), loss=loss, readout="rmsnorm", execution=execution)


def begin(spec: RunSpec, store: RunStore, ranks: Ranks = ALONE) -> tuple[Stepper, Trainee, tuple[Tensor, Tensor]]:
    """A stepper before its first step, its model, and the first batch."""
    examples = open_examples(spec, store)
    torch.manual_seed(spec.seed)
    model = trainee(spec, spec.model(examples.vocab_size), ALONE)
    stepper = Stepper(spec, model, CPU, spec.preset.steps or 1, ranks=ranks, say=lambda message: None)
    return stepper, model, next(examples.training(spec.seed, 0, ALONE.share))


@pytest.mark.parametrize("loss", ["per_loop", "exit_weighted+penalty"])
@pytest.mark.parametrize("micro_batch", [1, 5, 8])
def test_micro_batches_sum_to_the_gradient_of_the_batch(
    text_file: Path, tmp_path: Path, loss: str, micro_batch: int
) -> None:
    whole, parts = (
        begin(spec_of(text_file, loss, size, grad_clip=1e9), RunStore(tmp_path)) for size in (None, micro_batch)
    )
    for stepper, _, batch in (whole, parts):
        stepper.step(1, *batch)
    for (name, a), b in zip(whole[1].module.named_parameters(), parts[1].module.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-5, atol=1e-6 * float(a.grad.abs().max()), msg=name)
    facts = [stepper.facts() for stepper, _, _ in (whole, parts)]
    assert {name for name in facts[0] if name.startswith("loss/")} == {f"loss/{name}" for name in parts_of(loss)}
    for name in facts[0].keys() - {"tokens_per_s", "mfu"}:
        assert facts[1][name] == pytest.approx(facts[0][name], rel=1e-6)


def parts_of(loss: str) -> set[str]:
    return {"per_loop"} if loss == "per_loop" else {"exit_weighted", "exit_entropy", "penalty"}


def out_of_memory_beyond(windows: int) -> Callable[..., object]:
    """A forward that runs out of memory where it is given more than so many windows."""
    loss = Trainee.loss

    def limited(self: Trainee, tokens: Tensor, targets: Tensor) -> object:
        found = loss(self, tokens, targets)  # dropout has drawn by then
        if len(tokens) > windows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")
        return found

    return limited


class TestOutOfMemory:
    def test_the_largest_micro_batch_that_fits_is_taken_and_said(
        self, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(Trainee, "loss", out_of_memory_beyond(7))
            found = ensure(spec_of(text_file, dropout=0.1), RunStore(tmp_path), lambda event: None, said.append)
        assert said == [
            "out of memory with micro-batches of 16 windows; trying 8",
            "out of memory with micro-batches of 8 windows; trying 6",  # three for 16, the fewest of 7 at most
        ]
        given = ensure(spec_of(text_file, micro_batch=6, dropout=0.1), RunStore(tmp_path), lambda event: None)
        a, b = (load_file(run.path / "model.safetensors") for run in (found, given))
        assert [name for name in a if not torch.equal(a[name], b[name])] == []

    def test_a_resumed_run_goes_on_with_the_size_that_was_found(
        self, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, spec = RunStore(tmp_path), spec_of(text_file, dropout=0.1)
        with monkeypatch.context() as patch:
            patch.setattr(Trainee, "loss", out_of_memory_beyond(7))
            with pytest.raises(PreemptedError):
                ensure(
                    spec, store, lambda event: None, lambda message: None, policy=CheckpointPolicy(preemption=After(2))
                )
        resumed = ensure(spec, store, lambda event: None, lambda message: None)
        given = ensure(spec_of(text_file, micro_batch=6, dropout=0.1), store, lambda event: None)
        a, b = (load_file(run.path / "model.safetensors") for run in (resumed, given))
        assert [name for name in a if not torch.equal(a[name], b[name])] == []

    def test_a_single_window_that_does_not_fit_ends_the_run(
        self, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stepper, _, batch = begin(spec_of(text_file), RunStore(tmp_path))
        monkeypatch.setattr(Trainee, "loss", out_of_memory_beyond(0))
        with pytest.raises(
            OutOfMemoryError,
            match=r"a single window of 16 tokens \(CUDA out of memory. Tried to allocate 2.00 GiB.\); use a smaller",
        ):
            stepper.step(1, *batch)

    def test_several_ranks_are_advised_to_set_a_micro_batch(
        self, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ranks = Ranks(1, 2)
        stepper, _, batch = begin(spec_of(text_file), RunStore(tmp_path), ranks)
        monkeypatch.setattr(Trainee, "loss", out_of_memory_beyond(4))
        with pytest.raises(OutOfMemoryError, match=r"of 8 windows on rank 1 .*; start again with --micro-batch 4"):
            stepper.step(1, *(ranks.share(part) for part in batch))


# What torch itself does to compile for a CPU.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_the_block_is_compiled_once_for_every_loop_and_number_of_loops(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not INDUCTOR:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    spec = spec_of(text_file)
    _, plain, batch = begin(spec, RunStore(tmp_path))
    compiled = trainee(replace(spec, execution=Execution(compiled=True)), plain.module, ALONE)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for loops in (1, 2, 3, 4):
        found = [
            spec.objective()(unroll(model, batch[0], loops, grad=True), batch[1]).total
            for model in (plain.losses.trained, compiled.losses.trained)
        ]
        gradients = [torch.autograd.grad(loss, plain.module.layers[0].attention_norm.weight) for loss in found]
        assert found[1].item() == pytest.approx(found[0].item(), abs=1e-5)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("ranks", "expected"), [(1, 3), (2, 16)])
def test_a_micro_batch_that_was_found_is_gone_on_with_by_as_many_ranks(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, expected: int
) -> None:
    stepper, _, _ = begin(spec_of(text_file), RunStore(tmp_path))
    assert stepper.micro_batch == 16
    monkeypatch.setattr("train.engine.stepper.TrainState.load", lambda *given, **named: None)
    progress = {"micro_batch": 3, "gradient_before": None}
    stepper.load(Checkpoint(path=tmp_path, run={}, step=1, ranks=ranks, progress=progress, digest=""))
    assert stepper.micro_batch == expected


class TestPrecision:
    def test_it_comes_with_its_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert use_precision("auto", "cpu") == (None, "float32: a CPU gains nothing")
        assert use_precision("bfloat16", "cpu") == ("bfloat16", "bfloat16: as requested")
        assert use_precision("float32", "cpu") == (None, "float32: as requested")
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
        for supported, precision, reason in (
            (True, None, "bfloat16 autocast, as in the paper (table 9)"),
            (False, "float32", "float32: Tesla T4 has no bfloat16 arithmetic"),
        ):
            monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, answer=supported: answer)
            assert use_precision("auto", "cuda") == (precision, reason)

    def test_bfloat16_is_that_of_autocast(self) -> None:
        a = torch.randn(4, 4)
        for precision, dtype in (("bfloat16", torch.bfloat16), (None, torch.float32)):
            with autocast(CPU, precision):
                assert (a @ a).dtype == dtype

    def test_it_is_part_of_a_run_s_key_and_facts(self, text_file: Path, tmp_path: Path) -> None:
        spec = replace(spec_of(text_file), execution=Execution(precision="bfloat16"))
        stored = ensure(spec, RunStore(tmp_path), lambda event: None)
        assert stored.spec["execution"]["precision"] == "bfloat16"
        assert stored.facts["dtype"] == "bfloat16 autocast"
        assert {tensor.dtype for tensor in stored.tensors("model.safetensors").values()} == {torch.float32}


class TestThroughput:
    def test_the_share_of_the_peak_is_reported_for_known_gpus(
        self, text_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
        spec = replace(spec_of(text_file), device="cuda")
        throughput = Throughput(spec, 100, Ranks(0, 2))
        throughput.add(1000)
        monkeypatch.setattr(time, "perf_counter", lambda: 0.5)
        # By hand: d = 16, d_ff = 32, T = 16, one layer, four loops with an exit each, 100 words.
        weights = 4 * (4 * 16 * 16 + 3 * 16 * 32) + 4 * 16 * 100
        attention = 4 * 2 * 16 * 16
        flops = 6 * (weights + attention)
        assert throughput.facts() == {"tokens_per_s": 2000.0, "mfu": pytest.approx(2000 * flops / (2 * 312e12))}

    @pytest.mark.parametrize(
        ("device", "name", "precision"),
        [("cpu", "", None), ("cuda", "Radeon", None), ("cuda", "NVIDIA A100-SXM4-80GB", "float32")],
    )
    def test_nothing_is_guessed(
        self, text_file: Path, monkeypatch: pytest.MonkeyPatch, device: str, name: str, precision: str | None
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
        spec = replace(spec_of(text_file), device=device, execution=Execution(precision=precision))
        assert Throughput(spec, 100, ALONE).facts()["mfu"] is None
