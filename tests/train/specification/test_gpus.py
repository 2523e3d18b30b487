"""GPUs by name: those of torch are recognized, and what is not exactly one of them is not guessed."""

from __future__ import annotations

import pytest

from loopverify.errors import InputError
from train.specification.gpus import GPUS, gpu, recognized


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA L40", None),
        ("Tesla V100-SXM2-16GB", None),
        ("", None),
    ],
)
def test_a_device_is_recognized_or_it_is_not(device: str, name: str | None) -> None:
    assert recognized(device) is (None if name is None else GPUS[name])


def test_a_gpu_is_found_by_its_name_and_an_unknown_one_lists_those_there_are() -> None:
    assert gpu("h100") is GPUS["H100"]
    with pytest.raises(InputError, match="unknown GPU 'V100'; expected one of: A100-40GB, A100-80GB, H100, H200, B200"):
        gpu("V100")
