"""Files of weights of other programs: `init=FILE`, `--export safetensors`."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tools.testing.weights import final_weights, largest_difference
from train_anywhere.checkpoints.choice import init_problems
from train_anywhere.errors import CheckpointError
from train_anywhere.launch.local_run import local_problems
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.weights import choose_names, plain_name, read_weight_files
from train_anywhere.training.preflight import CHECKS

from .conftest import SHORT, Evaluate, Trained
from .test_init import STILL

Runs = dict[str, RunDir]
needs_safetensors = pytest.mark.skipif(
    "not __import__('importlib.util').util.find_spec('safetensors')",
    reason="needs safetensors: pip install --no-deps -r requirements/locks/finetune.txt",
)
LIT = (
    "task._target_=examples.lightning_module.LitDigits",
    "data._target_=examples.lightning_module.DigitsData",
)


def test_prefixes_of_wrappers() -> None:
    names = ["module._orig_mod.net.weight", "net._orig_mod.weight", "net.module.weight", "my_orig_mod.weight"]
    assert [plain_name(name) for name in names] == [
        "net.weight",
        "net.weight",
        "net.module.weight",
        "my_orig_mod.weight",
    ]


@pytest.mark.parametrize(
    ("stored", "own"),
    [
        ("a.weight", "a.weight"),
        ("module.a.weight", "network.a.weight"),
        ("model.a.weight", "network.a.weight"),
        ("a.weight", "model.inner.a.weight"),
        ("_orig_mod.a.weight", "net._orig_mod.a.weight"),
        ("module.a.weight", "module.a.weight"),
        ("unknown.scale", None),
    ],
)
def test_names_in_a_file_become_those_of_the_model(stored: str, own: str | None) -> None:
    shapes = {own or "a.weight": (2,), "other.bias": (3,)}
    assert choose_names({stored: (2,)}, shapes)(stored) == (own or stored)


def whole(run: RunDir) -> dict[str, torch.Tensor]:
    return {n.removeprefix("network."): torch.from_numpy(a) for n, a in final_weights(run.path).items()}


def test_init_with_a_state_dict(runs: Runs, trained: Trained, tmp_path: Path) -> None:
    torch.save({f"module._orig_mod.{n}": t for n, t in whole(runs["lightning"]).items()}, tmp_path / "w.pt")
    new = trained(*SHORT, *STILL, f"init={tmp_path / 'w.pt'}")
    assert largest_difference(final_weights(new.path), final_weights(runs["lightning"].path)) == 0


def test_init_with_a_checkpoint_of_lightning(trained: Trained, tmp_path: Path) -> None:
    import lightning.pytorch as pl

    from examples.lightning_module import DigitsData, LitDigits

    options = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 0, "logger": False}
    trainer = pl.Trainer(**options, default_root_dir=tmp_path, enable_progress_bar=False, accelerator="cpu")

    class WithOptimizer(LitDigits):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer.fit(module := WithOptimizer(), DigitsData())
    trainer.save_checkpoint(tmp_path / "lit.ckpt")
    new = trained(*LIT, *STILL, *SHORT[2:], "checkpoint.monitor=null", f"init={tmp_path / 'lit.ckpt'}")
    for name, array in final_weights(new.path).items():
        np.testing.assert_array_equal(array, module.state_dict()[name].numpy(), err_msg=name)


def test_files_of_old_torch_are_read(tmp_path: Path) -> None:
    file = tmp_path / "old.pth"
    torch.save({"weight": torch.ones(2)}, file, _use_new_zipfile_serialization=False)
    assert read_weight_files([file], {"weight": (2,)})["weight"].tolist() == [1, 1]


def safetensors_bytes(data: bytes) -> bytes:
    header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.pt", b"", "an empty .pt file"),
        ("w.safetensors", b"", "an empty .safetensors file"),
        ("w.ckpt", b"PK\3\4 and no more", "not a complete .ckpt file"),
        ("w.bin", b"\x80\x04\x95\x0f\0\0\0\0\0\0\0}\x94.", "not a complete .bin file"),
        ("w.safetensors", b"\xff" * 8 + b"{}", "not a complete .safetensors file"),
        ("w.safetensors", b"\2\0\0\0\0\0\0\0[]", "not a complete .safetensors file"),
        ("w.safetensors", (400_000).to_bytes(8, "little") + b"[" * 200_000 + b"]" * 200_000, "not a complete .safetensors file"),
        ("w.safetensors", safetensors_bytes(b"\0" * 3), "not a complete .safetensors file"),
        ("w.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("w.h5", b"x", r"not a file of weights: those end with \.safetensors"),
        ("folder.pt/notes", b"x", "is not a run folder"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_before_a_run(make_config, name, content, message, tmp_path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    config = make_config(f"init.run={tmp_path}/{name.split('/')[0]}")
    [problem] = init_problems(config)
    assert re.search(message, problem)
    os.mkfifo(tmp_path / "pipe.pt")
    assert "can't be read" in init_problems(make_config(f"init.run={tmp_path}/pipe.pt"))[0]


def test_complete_files_are_accepted_before_a_run(make_config, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "w.safetensors").write_bytes(safetensors_bytes(b"\0" * 8))
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "pytorch_model.bin").write_bytes((tmp_path / "w.pt").read_bytes())
    for name in ("w.pt", "old.pt", "w.safetensors", "hf"):
        assert init_problems(make_config(f"init.run={tmp_path}/{name}")) == []


def test_a_missing_package_is_reported_before_a_run(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train_anywhere.distributed.packages.find_spec", lambda package: None)
    config = make_config(
        "init.run=/x/w.safetensors",
        "model.lora={rank: 2, alpha: 4.0, targets: [fc], dropout: 0.0, train: []}",
    )
    problems = local_problems(config, CHECKS)
    assert any("model.lora needs the package peft: pip install" in problem for problem in problems)
    assert any("w.safetensors needs the package safetensors: pip install" in problem for problem in problems)


def test_files_that_can_not_be_used_are_refused(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "damaged.ckpt").write_bytes(b"PK\3\4 and nothing else")
    torch.save([1], tmp_path / "list.pt")
    torch.save({"weight": print}, tmp_path / "code.pt")
    for name in ("damaged.ckpt", "code.pt"):
        with pytest.raises(CheckpointError, match=rf"{name} can't be read as weights: .*save its state_dict"):
            read_weight_files([tmp_path / name], {})
    with pytest.raises(CheckpointError, match="holds no weights by name"):
        read_weight_files([tmp_path / "list.pt"], {})


@pytest.mark.parametrize(
    ("framework", "message"), [("lightning", "there is no such file"), ("keras", "holds weights for torch")]
)
def test_files_are_checked_before_a_run(make_config, framework: str, message: str, tmp_path: Path) -> None:
    config = make_config(f"framework={framework}", f"init.run={tmp_path}/x.safetensors")
    assert any(message in problem for problem in local_problems(config, CHECKS))


@needs_safetensors
def test_safetensors_out_and_in(runs: Runs, trained: Trained, evaluated: Evaluate, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    file = tmp_path / "model.safetensors"
    code, _, error = evaluated(runs["lightning"].path, "--export", "safetensors", "--to", file)
    assert code == 0, error
    expected = whole(runs["lightning"])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_file(file).items())
    new = trained(*SHORT, *STILL, f"init={tmp_path}")  # the folder of save_pretrained
    assert largest_difference(final_weights(new.path), final_weights(runs["lightning"].path)) == 0
