"""A dry run refuses what a submission from this machine refuses, with the same message."""

import dataclasses
import shlex
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from engine.tests.slurm.test_rules import REFUSED
from train_anywhere.config.schema import Config
from train_anywhere.slurm import presets
from train_anywhere.slurm.presets import is_elsewhere
from train_anywhere.slurm.submission.prepare import refusals
from train_anywhere.training.preflight import data_problems

MakeConfig = Callable[..., Config]


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is a login node of every site."""
    monkeypatch.setattr(presets.fnmatch, "fnmatch", lambda host, pattern: True)
    monkeypatch.setattr(
        presets.os.path,
        "isdir",
        lambda path, isdir=presets.os.path.isdir: path in ("/scratch", "/arc") or isdir(path),
    )
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def found(config: Config, dry: "bool | str", members: range | None) -> list[str]:
    return refusals(dataclasses.replace(config, dry_run=dry), None, members, None, data_problems)


@pytest.mark.parametrize("name", REFUSED)
def test_all_refusals_are_those_of_a_submission(login: None, make_config: MakeConfig, name: str) -> None:
    line, _ = REFUSED[name]
    config, members = make_config(*shlex.split(line)), range(2) if "sweep" in line else None
    submission = found(config, False, members)
    assert submission and found(config, True, members) == found(config, "test", members) == submission


def test_another_machine_is_not_checked(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(make_config("cluster=neuron"), dry_run=True)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop")
    assert is_elsewhere(config.cluster, True) and not is_elsewhere(config.cluster, "test")
    assert not any("only from below" in problem for problem in found(config, True, None))
    monkeypatch.setattr(socket, "gethostname", lambda: "glogin01")
    assert not is_elsewhere(config.cluster, True)
    assert any("only from below" in problem for problem in found(config, True, None))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert is_elsewhere(config.cluster, True)


WORDS = {
    "results": "paths.results=/tmp/results",
    "several": "data.batch_size=5000 cluster.time=soon",
    "sweep": "-m seed=1,2 cluster.venv=/nope",
    "after": "after=nope",
    "class": "callbacks.x._target_=lightning.pytorch.callbacks.Nope name=a/b",
}


@pytest.mark.parametrize("name", WORDS)
def test_both_commands_print_the_same_error(
    train: Callable[..., "CompletedProcess[str]"], tmp_path: Path, name: str
) -> None:
    if not shutil.which("sbatch"):
        pytest.skip("needs sbatch: apt install slurm-client")
    words = ["cluster=slurm", f"paths.results={tmp_path}/results", *WORDS[name].split()]
    dry, real = train(*words, "dry_run=true"), train(*words)
    assert (dry.returncode, real.returncode) == (2, 2)
    plain = dry.stderr.replace(" dry_run=True", "").replace(" dry_run=true", "")
    assert (
        "error: " in real.stderr
        and plain[plain.index("error: ") :] == real.stderr[real.stderr.index("error: ") :]
    )
    assert not (tmp_path / "results").exists()
