"""Values of NVML, with a stand-in that answers as the driver does."""

import sys
from pathlib import Path

import pytest

from train_anywhere.features.sampler.machine import Gpu, reader, visible_gpus

UUIDS = [f"GPU-4f6ba1f1-7d14-1a3c-8a55-d1d0e1c3a00{i}" for i in range(4)]


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests run on a machine with a GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_no_driver_is_no_gpu() -> None:
    assert reader()() == []


@pytest.mark.parametrize(
    "listed, indices",
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,3", [2, 3]),
        (f"{UUIDS[1]}", [1]),
        ("NoDevFiles", []),
        ("7", [0, 1, 2, 3]),  # the driver shows only the job's, and counts them in another way
    ],
)
def test_only_the_job_s_gpus(listed: str | None, indices: list[int]) -> None:
    gpus = [Gpu(i, uuid, "") for i, uuid in enumerate(UUIDS)]
    found = visible_gpus(gpus, {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed})
    assert [g.index for g in found] == indices


def test_the_installed_nvml_has_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml")
    import pynvml

    source = (
        Path(__file__).parents[3] / "engine" / "train_anywhere" / "features" / "sampler" / "machine.py"
    ).read_text()
    asked = {
        word
        for word in source.replace("(", " ").replace(",", " ").replace(")", " ").split()
        if "nvml." in word
    }
    names = {word.partition("nvml.")[2] for word in asked} - {""}
    assert len(names) > 8 and [name for name in names if not hasattr(pynvml, name.rstrip(":."))] == []
