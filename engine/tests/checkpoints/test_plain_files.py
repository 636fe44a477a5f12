"""A run folder is data: only what torch's tensors need is unpickled, and no hostile pickle."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import torch

from tools.testing.weights import Evil
from train_anywhere.checkpoints.disk.manifest import (
    flush_files,
    load_manifest,
    write_manifest,
)
from train_anywhere.training.lightning.checkpoint.contents import CLASSES, ShardReader

Train = Callable[..., "CompletedProcess[str]"]

TORCH = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch", "FloatStorage"),
    ("torch", "ByteStorage"),
    ("torch", "LongStorage"),
    ("collections", "OrderedDict"),
}
"""What the pickle in a file of torch.save names: how to put a tensor together, the type of its numbers, its dictionary."""

TEXT = {".yaml", ".txt", ".json", ".csv", ".html", ""}
"""Read as YAML, JSON, CSV, words, or by a browser; without a suffix: newest, best."""

LENGTH = "trainer.max_epochs=1"
TINY = ("model=mlp", "model.hidden=[8]", LENGTH, "trainer.accelerator=cpu", "monitor.tensorboard=false")


class Refusing(pickle.Unpickler):
    """An unpickler that knows given names, refuses all others and skips the tensors' numbers."""

    def __init__(self, content: bytes, names: set[tuple[str, str]]) -> None:
        super().__init__(io.BytesIO(content))
        self.names = names

    def find_class(self, module: str, name: str) -> Any:
        """The class, if it is one of the names."""
        assert (module, name) in self.names, f"{module}.{name}"
        return super().find_class(module, name)

    def persistent_load(self, _: Any) -> Any:
        """An empty storage, for `_rebuild_tensor_v2`."""
        return torch.storage.TypedStorage(
            wrap_storage=torch.UntypedStorage(0), dtype=torch.float32, _internal=True
        )


def unpickle_all(archive: zipfile.ZipFile) -> int:
    """Check the pickles of a file of torch.save and return their number."""
    pickles = [name for name in archive.namelist() if name.endswith(".pkl")]
    for name in pickles:
        Refusing(archive.read(name), TORCH).load()
    return len(pickles)


def check(file: Path) -> str:
    """Read the file by the rules above and return its kind."""
    content = file.read_bytes()
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype != object for name in arrays.files)
    elif file.suffix == ".ckpt":
        assert unpickle_all(zipfile.ZipFile(file)) == 1
        for state in torch.load(file, weights_only=True)["rank_states"]:
            assert unpickle_all(zipfile.ZipFile(io.BytesIO(state.numpy().tobytes()))) == 1
    elif file.name == ".metadata":
        Refusing(content, CLASSES).load()
        places = ShardReader(file.parent).read_metadata().storage_data.values()
        for place in places:
            shard = (file.parent / place.relative_path).read_bytes()
            assert unpickle_all(zipfile.ZipFile(io.BytesIO(shard[place.offset :][: place.length]))) == 1
    elif file.suffix in TEXT:
        content.decode()
    else:
        assert file.suffix == ".distcp", f"{file}: a kind of file that this test does not know"
    return file.suffix or file.name


RUNS = {
    "lightning": ("strategy=single",),
    "keras": ("framework=keras",),
    "fsdp": ("strategy=fsdp", "trainer.devices=2"),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of each kind."""
    results = tmp_path_factory.mktemp(request.param)
    done = train(*TINY, *RUNS[request.param], f"paths.results={results}")
    assert done.returncode == 0, done.stderr
    return (results / "latest").resolve()


def newest(run: Path) -> Path:
    return run / "checkpoints" / (run / "checkpoints" / "newest").read_text().strip()


def plant(run: Path, proof: Path) -> list[str]:
    """Put a hostile pickle into every suitable file of the newest checkpoint and return the names."""
    hostile, folder = pickle.dumps(Evil(proof)), newest(run)
    pickle.loads(hostile)
    proof.rmdir()  # it works
    if (folder / "weights.npz").exists():
        np.savez(folder / "weights.npz", evil=np.array([Evil(proof)], dtype=object))
        planted = ["weights.npz"]
    elif (folder / ".metadata").exists():
        (folder / ".metadata").write_bytes(hostile)
        planted = [".metadata"]
    else:
        state = torch.load(folder / "model.ckpt", weights_only=True)
        old = bytearray(hostile.ljust(16384, b"\0"))
        state["rank_states"] = [torch.frombuffer(old, dtype=torch.uint8)]
        torch.save(state, folder / "model.ckpt")
        planted = ["more than tensors"]
    write_manifest(folder, load_manifest(folder), flush_files(folder))
    return planted


@pytest.mark.slow
def test_every_file_of_a_run_is_plain_and_a_hostile_one_does_not_run(
    run: Path, train: Train, tmp_path: Path
) -> None:
    kinds = {check(file) for file in run.rglob("*") if file.is_file()}
    assert {".yaml", ".json", ".csv"} < kinds
    [what] = plant(run, proof := tmp_path / "proof")
    done = train(f"resume={run}", "trainer.max_epochs=2")
    assert not proof.exists()
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1
    [said] = [line for line in done.stderr.splitlines() if "error: " in line][:1]  # maybe after the rank
    refusals = ("it is not read", "holds more than numbers", "are torch.uint8 [1, 16384], not bytes")
    assert what in said and any(part in said for part in refusals), said
    assert json.loads((run / "run.json").read_text())["state"] in ("completed", "failed")
