"""RunSpec: one training run, identified by everything that determines its result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from loopverify.arguments import check_count
from loopverify.errors import InputError, unknown
from loopverify.models import READOUTS, RECURRENCES, LoopedTransformer, TransformerConfig
from loopverify.objectives import Objective, named
from train.data import Examples
from train.provenance.closure import code_digest
from train.specification.execution import ORDINARY, Execution, environment
from train.specification.preset_fields import Preset

__all__ = ["PAPER_PENALTY", "RunSpec"]

PAPER_PENALTY = 0.01
"""lambda of the paper's norm penalty (Sharma & Vu 2026, section 3)."""

# From this vocabulary size on the logits of K exits dominate the memory of a step, and they are computed in chunks of
# so many tokens: on a CPU enough for fast matrix products (bench/README.md), on a GPU more (not measured on a GPU).
_WIDE_VOCABULARY = 4096
_CHUNK_TOKENS = {"cpu": 256, "cuda": 4096}

# The modules that open the data of a run and that train and evaluate on it. A run's key contains the digest of all code
# that they depend on, computed at import, when the files on disk are the imported ones: a process may run for days.
_ROOTS = ("train.engine.open", "train.engine.loop")
_CODE = code_digest(*_ROOTS)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One condition of a preset, with one seed."""

    preset: Preset
    loss: str
    """As in `loopverify.objectives.named`: 'terminal', 'per_loop' or 'exit_weighted', and '+penalty' or '+latent'."""
    readout: str
    recurrence: str = "residual"
    """The operation between two loops, one of `loopverify.models.RECURRENCES`."""
    seed: int = 0
    penalty: float = PAPER_PENALTY
    lr: float | None = None
    """Peak learning rate; None: the preset's."""
    device: str = "cpu"
    """'cpu' or 'cuda'; results differ between kinds of device."""
    execution: Execution = ORDINARY
    """How its steps are computed."""
    continued: str | None = None
    """Digest of the checkpoint of another execution from which the run starts; None: it starts at the first step."""

    def __post_init__(self) -> None:
        named(self.loss, penalty=self.penalty)  # raises for unknown losses and invalid weights
        if self.readout not in READOUTS:
            raise unknown("readout", self.readout, READOUTS)
        if self.recurrence not in RECURRENCES:
            raise unknown("recurrence", self.recurrence, RECURRENCES)
        if self.lr is not None:
            replace(self.preset, lr=self.lr)  # raises for an invalid rate
            if self.lr == self.preset.lr:  # one name per run
                object.__setattr__(self, "lr", None)
        if self.device not in ("cpu", "cuda"):
            raise unknown("kind of device", self.device, ("cpu", "cuda"))
        # Torch's generator on a CPU uses 32 bits of a seed: two larger seeds could draw the same numbers.
        check_count("seed", self.seed, "an integer in 0..2^31 - 1", least=0, most=2**31 - 1)
        object.__setattr__(self, "loss", _ordered(self.loss))

    @classmethod
    def of_condition(cls, preset: Preset, condition: str, *, seed: int = 0, device: str = "cpu") -> RunSpec:
        """The run of a condition such as 'per_loop+penalty=0.1/rmsnorm/damped@lr=0.001'; see `condition`.

        The name of the preset's task may be omitted.

        Raises:
            InputError: the condition has another form, unknown parts, or another task.
        """
        task, _, rest = condition.rpartition(":")
        if task and task != preset.task:
            raise InputError(
                f"condition {condition!r} is on the task {task}; preset {preset.name!r} is on {preset.task or 'text'}"
            )
        rest, rated, rate = rest.partition("@lr=")
        parts = rest.split("/")
        if not 2 <= len(parts) <= 3:
            raise InputError(
                f"condition is {condition!r}; expected loss/readout or loss/readout/recurrence, then @lr=RATE for a "
                "learning rate other than the preset's"
            )
        loss, _, weight = parts[0].partition("=")
        try:
            penalty = float(weight) if weight else PAPER_PENALTY
            lr = float(rate) if rated else None
        except ValueError as error:
            raise InputError(
                f"condition {condition!r} has the weight {weight!r} and the rate {rate!r}; expected numbers"
            ) from error
        recurrence = parts[2] if len(parts) == 3 else "residual"
        return cls(
            preset=preset,
            loss=loss,
            readout=parts[1],
            recurrence=recurrence,
            seed=seed,
            penalty=penalty,
            lr=lr,
            device=device,
        )

    @property
    def penalized(self) -> bool:
        """Whether the loss has a norm penalty."""
        return "+penalty" in self.loss

    @property
    def condition(self) -> str:
        """The condition of the run, such as 'per_loop+penalty/rmsnorm': loss, readout and recurrence if not residual.

        The condition of a run on a task begins with the task, as in 'hops:per_loop/raw@lr=0.0007', so that it equals no
        row of a table on text.
        """
        task = f"{self.preset.task}:" if self.preset.task else ""
        rate = "" if self.lr is None else f"@lr={self.lr!r}"
        weight = f"={self.penalty!r}" if self.penalized and self.penalty != PAPER_PENALTY else ""
        between = "" if self.recurrence == "residual" else f"/{self.recurrence}"
        return f"{task}{self.loss}{weight}/{self.readout}{between}{rate}"

    @property
    def label(self) -> str:
        """Human-readable name: condition and seed."""
        return f"{self.condition} seed {self.seed}"

    @property
    def chunk_tokens(self) -> int | None:
        """Tokens per chunk of logits in training; None: the logits of all tokens and exits at once."""
        wide = self.preset.data.vocab_max >= _WIDE_VOCABULARY
        return _CHUNK_TOKENS.get(self.device, _CHUNK_TOKENS["cuda"]) if wide else None

    def learning_rate(self, step: int, steps: int) -> float:
        """The learning rate of step 1..steps."""
        p = self.preset if self.lr is None else replace(self.preset, lr=self.lr)
        return p.learning_rate(step, steps)

    def objective(self) -> Objective:
        """The loss of the run."""
        return named(self.loss, penalty=self.penalty, chunk_tokens=self.chunk_tokens)

    def model(self, vocab_size: int) -> LoopedTransformer:
        """A freshly initialized model; the weights are drawn from torch's global generator."""
        p = self.preset
        return LoopedTransformer(
            TransformerConfig(
                vocab_size=vocab_size,
                d_model=p.d_model,
                layers=p.layers,
                heads=p.heads,
                d_ff=p.d_ff,
                trained_loops=p.loops,
                readout=self.readout,
                sandwich_norm=p.sandwich_norm,
                rope_theta=p.rope_theta,
                tied_head=p.tied_head,
                dropout=p.dropout,
                exit_gate=self.objective().gated,
                **RECURRENCES[self.recurrence],
            )
        )

    def determinants(self, examples: Examples) -> dict[str, Any]:
        """Everything that determines the result, as JSON; the store derives the run's key from it.

        It contains nothing else: not the name of the preset, the name or path of its text, or whether steps or epochs
        are counted. Nor does it contain the machine (host, processor, number of threads if the preset leaves it open),
        so that a run has the same key on every node of a cluster.
        """
        p = self.preset
        settings = {name: _plain(value) for name, value in vars(p).items() if name not in ("name", "data", "epochs")}
        return {
            "preset": {**settings, "steps": p.total_steps(examples.count) if p.steps is None else p.steps},
            "loss": self.loss,
            "readout": self.readout,
            "recurrence": self.recurrence,
            "penalty": _plain(self.penalty) if self.penalized else None,
            "lr": _plain(self.lr),
            "seed": self.seed,
            "device": self.device,
            "execution": self.execution.determinants(self.device, p.batch),
            "continued": self.continued,
            "data": examples.digest,
            "code": _CODE,
            "torch": torch.__version__,
            "environment": environment(self.device, compiled=self.execution.compiled),
        }


def _plain(value: Any) -> Any:
    """A number in one JSON form: 1.0 as 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _ordered(loss: str) -> str:
    """A loss with its additions in one order: '+latent+penalty' and '+penalty+latent' are the same sum."""
    placement, *additions = loss.split("+")
    return "+".join([placement, *sorted(additions, reverse=True)])
