"""Everything a run needs to go on where it was: parameters, buffers, moments of the optimizer, random numbers.

The learning rate is a function of the step, and so is the order of the data; neither has a state. One process writes
plain safetensors; several write the shards they hold through torch.distributed.checkpoint, in safetensors too, which
loads at any number of ranks.
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
        """Take up what `ranks` processes saved after `step`; another number of them now draws other random numbers."""
        own = self.tensors()
        if (folder / _STATE).exists() and self.ranks.count == 1:
            saved = load_file(folder / _STATE)
            assert saved.keys() == own.keys(), "what determines the names is in the key of the run"
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(saved[name])
        else:
            _load_shards(own, folder)
        if ranks == self.ranks.count:
            _take_up(load_file(folder / _RANDOM / f"{self.ranks.rank}.safetensors"))
        else:
            self.draw_anew(step)

    def draw_anew(self, step: int) -> None:
        """Seed the random numbers of this rank by what it is: no two ranks drop the same channels."""
        mixed = hashlib.sha256(f"{self.seed}/{step}/{self.ranks.rank}/{self.ranks.count}".encode()).digest()
        torch.manual_seed(int.from_bytes(mixed[:8], "big") >> 1)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name, sharing its memory, none of them a scalar."""
        named = dict(self.module.named_parameters())
        found = {f"model.{name}": tensor for name, tensor in (*named.items(), *self.module.named_buffers())}
        for name, parameter in named.items():
            found |= {f"{moment}.{name}": tensor for moment, tensor in self._moments(parameter).items()}
        return {name: tensor.detach() if tensor.ndim else tensor.detach().view(1) for name, tensor in found.items()}

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """AdamW's state of one parameter, made as AdamW makes it where there was no step yet."""
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state |= {name: torch.zeros_like(parameter.detach()) for name in ("exp_avg", "exp_avg_sq")}
        return state

    def _random_numbers(self) -> dict[str, Tensor]:
        on_gpu = any(parameter.is_cuda for parameter in self.module.parameters())
        return {"cpu": torch.get_rng_state(), **({"cuda": torch.cuda.get_rng_state()} if on_gpu else {})}


def _take_up(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _save_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    # Here, because it takes seconds to import and one process needs none of it.
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


def _load_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))
