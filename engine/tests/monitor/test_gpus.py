"""Values of NVML, with a stand-in that answers as the driver does."""

import sys
import types
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


class Lost(Exception):
    """NVMLError of the stand-in."""


def of_lost(*_: object) -> None:
    raise Lost("GPU is lost")


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the module pynvml 13. A GPU with MIG does not answer all functions."""
    memory = types.SimpleNamespace(total=80 << 30, used=8 << 30)
    nvml = types.SimpleNamespace(
        NVMLError=Lost,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index if index == 0 else of_lost(),
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlDeviceGetUtilizationRates=of_lost,
        nvmlDeviceGetPowerUsage=lambda handle: 301250,
        nvmlDeviceGetTemperature=lambda handle, sensor: 54,
        nvmlDeviceGetUUID=lambda handle: UUIDS[0].encode(),
        nvmlDeviceGetName=lambda handle: "A100",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert reader()() == [Gpu(0, UUIDS[0], "A100", 80.0, None, 8.0, 301.25, 54), Gpu(1, "", "")]


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
