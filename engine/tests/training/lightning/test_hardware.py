"""TF32, channels last, compiling, fused optimizers. `make gpu-check` tries them on a GPU."""

import fcntl
import os
import subprocess
import tarfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from train_anywhere import ENVIRON
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.compiled_code import FOLDER, keep_compiled_code
from train_anywhere.training.lightning.hardware import (
    BFloat16,
    can_fuse,
    compile_forward,
    find_compiled_parts,
    match_state_layout,
    precision_arguments,
)
from train_anywhere.training.lightning.run import make_setup
from train_anywhere.training.lightning.strategies.choose import make_strategy
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy

from .conftest import Fit, MakeConfig, MakeRun, assert_resumes

Train = Callable[..., subprocess.CompletedProcess[str]]

SMALL = (
    "model=mlp",
    "model.hidden=[16]",
    "model.dropout=0.5",
    "trainer.max_epochs=2",
    "monitor.progress=none",
)
PICTURES = ("model=cnn", "model.width=4", "trainer.max_epochs=2", "monitor.progress=none")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*SMALL, "trainer.compile=true"), id="compiled"),
        pytest.param((*PICTURES, "trainer.channels_last=true"), id="channels last"),
    ],
)
@pytest.mark.quick("channels last")
def test_stop_and_resume_changes_no_bit(words: tuple[str, ...], make_run: MakeRun, fit: Fit) -> None:
    assert_resumes(make_run, fit, words, train=17)


@pytest.mark.slow
def test_a_compiled_run_goes_on_without_compiling(make_run: MakeRun, fit: Fit) -> None:
    """Names in a checkpoint are the same, and what is computed nearly is."""
    words = (*SMALL, "model.dropout=0.0")
    config, whole = make_run(*words)
    plain = fit(config, whole)
    compiled, parts = make_run(*words, "trainer.compile=true")
    assert fit(compiled, parts, train=17).state == "preempted"
    assert fit(config, parts).metrics["test/loss"] == pytest.approx(plain.metrics["test/loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.new_process  # torch reads CXX when it is imported
def test_a_compiler_that_is_missing_is_one_sentence(tmp_path: Path, train: Train) -> None:
    """Compiled code is kept in a cache, which would do without."""
    environ = {"CXX": "/none/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = train(*SMALL, "trainer.compile=true", f"paths.results={tmp_path}", env=environ)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: trainer.compile=true, but torch.compile failed: " in done.stderr
    assert "use trainer.compile=false" in done.stderr


def test_channels_last_computes_the_same(make_run: MakeRun, fit: Fit) -> None:
    plain, last = (fit(*make_run(*PICTURES, word)) for word in ("seed=1", "trainer.channels_last=true"))
    assert last.metrics["test/loss"] == pytest.approx(plain.metrics["test/loss"], rel=1e-4)


def test_weights_of_convolutions_lie_channels_last(make_config: MakeConfig) -> None:
    weights = make_setup(make_config(*PICTURES, "trainer.channels_last=true"), Topology()).module.parameters()
    pictures = [w for w in weights if w.dim() == 4 and w.shape[1] > 1]
    assert pictures
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in pictures)


class Theirs(pl.LightningModule):
    """A module with its own layers and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.loss = nn.MSELoss()


@pytest.mark.slow
@pytest.mark.new_process  # torch reads CXX when it is imported
def test_a_second_start_on_another_node_compiles_nothing(tmp_path, train, monkeypatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)  # set by torch in this process
    compiler, calls, cache = tmp_path / "compiler", tmp_path / "calls", tmp_path / "cache"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec g++ "$@"\n')
    compiler.chmod(0o755)

    def count_compiled(node: str) -> int:
        calls.write_text("")
        words = (*SMALL, "trainer.compile=true", "trainer.max_epochs=1", f"paths.results={tmp_path}")
        done = train(
            *words,
            f"cluster.cache={cache}",
            f"cluster.local_disk={tmp_path / node}",
            env={"CXX": str(compiler)},
        )
        assert done.returncode == 0, done.stderr
        notes.append(done.stderr)
        return sum(" -shared " in line for line in calls.read_text().splitlines())

    notes: list[str] = []
    assert count_compiled("n1") > 0
    (archive,) = (cache / "compiled").iterdir()
    assert count_compiled("n2") == 0
    archive.write_text("damaged")
    assert count_compiled("n3") > 0
    assert "compiled" not in notes[1] and notes[2].count(f"no copy of {archive} on this node") == 1


def test_compiled_code_is_kept_where_only_this_user_may_write(tmp_path, monkeypatch, make_config, capfd):
    words = ("trainer.compile=true", f"cluster.cache={tmp_path}", f"cluster.local_disk={tmp_path / 'n1'}")
    monkeypatch.delitem(ENVIRON, FOLDER, raising=False)
    with keep_compiled_code(make_config(*words), 0):
        code = Path(os.environ[FOLDER])
        assert code.is_relative_to(tmp_path / "n1") and code.parent.stat().st_mode & 0o777 == 0o700
        (code / "locks").mkdir()
        for name in ("done", "compiling"):
            (code / f"{name}.main.so").write_text(name)
        compiling = (code / "locks" / "compiling.lock").open("w")
        fcntl.flock(compiling, fcntl.LOCK_EX)
    (archive,) = (tmp_path / "compiled").iterdir()
    with tarfile.open(archive) as tar:
        assert tar.getnames() == ["done.main.so"]
    (tmp_path / "n1").chmod(0o777)
    code.parents[1].chmod(0o777)  # another user may have put code there
    with keep_compiled_code(make_config(*words), 0):
        assert not Path(os.environ[FOLDER]).is_relative_to(tmp_path)
    assert capfd.readouterr().err.count("compiles all code") == 1
    monkeypatch.setitem(ENVIRON, FOLDER, "/mine")
    before = os.environ.get(FOLDER)
    with keep_compiled_code(make_config(*words), 0):
        assert os.environ.get(FOLDER) == before


def test_what_is_compiled(make_config: MakeConfig) -> None:
    alone = SingleDeviceStrategy(torch.device("cpu"))
    network, module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), Theirs()
    assert find_compiled_parts(network, alone) == [network]
    assert find_compiled_parts(module, alone) == [module.first, module.second]  # the loss has no weights
    split = FullyShardedStrategy.__new__(FullyShardedStrategy)
    split.blocks = []
    assert find_compiled_parts(network, split) == [network[0], network[2]]


def test_a_copy_of_a_compiled_part_computes_with_its_own_weights() -> None:
    """As averaged weights do, of a callback."""
    part = nn.Sequential(nn.Linear(2, 2, bias=False))
    part.forward = compile_forward(part)  # type: ignore[method-assign]
    copied = deepcopy(part)
    nn.init.zeros_(copied[0].weight)
    x = torch.ones(1, 2)
    assert not copied(x).any()
    assert part(x).any()
    assert [*part.state_dict()] == ["0.weight"]


def test_only_on_gpus_and_without_a_scaled_loss_optimizers_are_fused() -> None:
    on_cpu, elsewhere = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
    assert not can_fuse(on_cpu, "32")
    assert not can_fuse(elsewhere, "32")


def test_gradients_for_a_fused_optimizer_are_clipped_in_bf16() -> None:
    """Lightning's own plugin refuses that, for no loss is scaled."""
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.grad = torch.full((4,), 3.0)
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        MixedPrecision("bf16-mixed", "cpu").clip_gradients(optimizer, 0.5)
    plugin = precision_arguments("bf16-mixed", torch.device("cpu"))["plugins"]
    assert isinstance(plugin, BFloat16)
    plugin.clip_gradients(optimizer, 0.5)
    assert weight.grad.norm().item() == pytest.approx(0.5, rel=1e-4)


def test_what_a_checkpoint_restores_is_laid_out_like_the_weights() -> None:
    weight = nn.Parameter(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    moments = torch.randn(4, 3, 2, 2)
    state["exp_avg"] = moments.clone()
    match_state_layout(optimizer)
    assert state["exp_avg"].stride() == weight.stride()
    assert torch.equal(state["exp_avg"], moments)
    assert state["step"].device.type == "cpu"


def test_nccl_is_refused_on_a_cpu(make_config: MakeConfig) -> None:
    config = make_config("strategy=ddp", "strategy.process_group_backend=nccl")
    with pytest.raises(ConfigError, match=r"needs GPUs.*use strategy\.process_group_backend=gloo"):
        make_strategy("ddp", config, Topology(), torch.device("cpu"))
