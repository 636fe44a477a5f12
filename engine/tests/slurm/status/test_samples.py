"""Lines of the sampler's files, with made-up GPUs."""

import time
from typing import Any

import pytest

from train_anywhere.features.sampler.machine import Gpu
from train_anywhere.features.sampler.sampler import columns
from train_anywhere.slurm.status.text_page import sample_line


def content(gpus: int, age: float = 0.0) -> dict[str, Any]:
    """As the sampler writes it."""
    found = [
        Gpu(i, f"GPU-{i}", "H100", memory_gib=80.0, use_percent=90.0 - i, memory_used_gib=34.2)
        for i in range(gpus)
    ]
    known = [{"index": g.index, "name": g.name, "memory_gib": g.memory_gib} for g in found]
    sample = {"time": time.time() - age, "cpu_use_percent": 45.4, **columns(found)}
    return {"host": "n", "every_seconds": 10, "gpus": known, "sample": sample}


def test_each_gpu_has_its_use() -> None:
    assert sample_line(content(2)) == "GPU 0 90%, 34 of 80 GiB; GPU 1 89%, 34 of 80 GiB; CPUs 45%"


def test_of_many_there_is_the_mean() -> None:
    assert sample_line(content(16)) == "16 GPUs 82% on average, 75% the least; CPUs 45%"


def test_an_old_sample_says_so() -> None:
    assert sample_line(content(0, age=100)) == "CPUs 45%; 100 s ago"


@pytest.mark.parametrize(
    "odd", [{}, {"sample": 3}, {"sample": {"gpu0_use_percent": None}}, {"gpus": [3], "sample": {"x": "y"}}]
)
def test_what_it_does_not_know_it_leaves_out(odd: dict[str, Any]) -> None:
    assert sample_line(odd) == ""
