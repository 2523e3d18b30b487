"""The tensors with which a run resumes: parameters, buffers, moments of the optimizer, random numbers.

The learning rate and the order of the data are functions of the step and have no state. One process writes plain
safetensors. Several processes write their shards through torch.distributed.checkpoint, also as safetensors, which can
be loaded with any number of ranks.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from train.machine.distributed import Ranks

__all__ = ["TrainState"]

_STATE, _RANDOM = "state.safetensors", "random"


@dataclass(frozen=True, eq=False)
class TrainState:
    """The tensors of a run in training."""

    module: nn.Module
    optimizer: torch.optim.AdamW
    ranks: Ranks
    seed: int

    def save(self, folder: Path) -> None:
        """Write this rank's part below a folder that all ranks share."""
        (folder / _RANDOM).mkdir(exist_ok=True)
        save_file(self._random_numbers(), folder / _RANDOM / f"{self.ranks.rank}.safetensors")
        if self.ranks.count == 1:
            save_file(self.tensors(), folder / _STATE)
        else:
            _save_shards(self.tensors(), folder)

    def load(self, folder: Path, *, step: int, ranks: int) -> None:
        """Load what `ranks` processes saved after `step`. With another number of ranks, random numbers are seeded
        again."""
        own = self.tensors()
        if (folder / _STATE).exists() and self.ranks.count == 1:
            saved = load_file(folder / _STATE)
            assert saved.keys() == own.keys(), "the names are determined by the key of the run"
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(saved[name])
        else:
            _load_shards(own, folder)
        if ranks == self.ranks.count:
            _set_random_numbers(load_file(folder / _RANDOM / f"{self.ranks.rank}.safetensors"))
        else:
            self.seed_rank(step)

    def seed_rank(self, step: int) -> None:
        """Seed this rank's random numbers by run, step and rank, so that no two ranks draw the same dropout masks."""
        mixed = hashlib.sha256(f"{self.seed}/{step}/{self.ranks.rank}/{self.ranks.count}".encode()).digest()
        torch.manual_seed(int.from_bytes(mixed[:8], "big") >> 1)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name, sharing its memory; scalars have shape (1,), as shards need a
        dimension."""
        named = dict(self.module.named_parameters())
        found = {f"model.{name}": tensor for name, tensor in (*named.items(), *self.module.named_buffers())}
        for name, parameter in named.items():
            found |= {f"{moment}.{name}": tensor for moment, tensor in self._moments(parameter).items()}
        return {name: tensor.detach() if tensor.ndim else tensor.detach().view(1) for name, tensor in found.items()}

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """AdamW's state of one parameter, initialized as by AdamW if there was no step yet."""
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state |= {name: torch.zeros_like(parameter.detach()) for name in ("exp_avg", "exp_avg_sq")}
        return state

    def _random_numbers(self) -> dict[str, Tensor]:
        on_gpu = any(parameter.is_cuda for parameter in self.module.parameters())
        return {"cpu": torch.get_rng_state(), **({"cuda": torch.cuda.get_rng_state()} if on_gpu else {})}


def _set_random_numbers(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _save_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    # Imported here, because it takes seconds and a single process does not need it.
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


def _load_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended for one process
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))
