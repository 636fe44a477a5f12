"""A run on this machine: the output of dry_run=true, the end as a rank reports it, and its exit code."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from train_anywhere.config.checks.targets import global_batch
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch import rank
from train_anywhere.launch.local_run import format_dry_run
from train_anywhere.runs import folder
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.training.preflight import CHECKS

MakeConfig = Callable[..., Config]


def facts(config: Config) -> dict[str, str]:
    """Return the rows by name."""
    lines = format_dry_run(config, local_layout(config), CHECKS).splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def test_the_facts_of_a_run(make_config: MakeConfig) -> None:
    words = ("trainer.devices=2", "trainer.accelerator=cpu", "strategy=ddp", "optimizer.scale_lr=linear")
    shown = facts(make_config(*words, "trainer.accumulate_grad_batches=2", "trainer.max_steps=70"))
    assert shown["Model"] == "cnn"
    assert shown["Data"] == "digits, 1,259 training rows"
    assert shown["Device"].startswith("2 x cpu (") and shown["Device"].endswith("precision 32, strategy ddp")
    assert shown["Batch"] == "96 (48 per device), 2 batches per step"
    assert shown["Steps"] == "70 in 12 epochs"
    assert shown["Optimizer"] == "adamw, lr 0.002 (scale_lr=linear), schedule cosine"
    assert shown["Framework"] == "lightning, 2 processes"
    assert shown["Run folder"].endswith("results/digits/<run id>")


def test_rows_that_are_counted_later(make_config: MakeConfig, picture_dir: Path) -> None:
    words = ("data=imagefolder", f"data.dir={picture_dir}", "trainer.accelerator=cpu")
    assert facts(make_config(*words))["Steps"] == "15 epochs"
    shown = facts(make_config(*words, "trainer.max_steps=50"))
    assert (shown["Data"], shown["Steps"]) == ("imagefolder", "50, at most 15 epochs")


def test_code_of_the_user(make_config: MakeConfig) -> None:
    lightning = make_config(
        "task._target_=engine.tests.training.lightning.strangers.Plain",
        "optimizer._target_=torch.optim.RAdam",
    )
    shown = facts(replace(lightning, resume="/results/digits/1"))
    assert shown["Model"] == "engine.tests.training.lightning.strangers.Plain"
    assert shown["Steps"] == "15 epochs"
    own = make_config("data._target_=examples.lightning_module.DigitsData", "data.batch_size=33")
    assert (global_batch(lightning), global_batch(own)) == (96, 0)
    assert shown["Optimizer"].startswith("torch.optim.RAdam, lr 0.001, schedule")
    assert shown["Optimizer"].endswith("unless the task has its own")
    assert shown["Run folder"] == "/results/digits/1"


def test_an_end_that_no_disk_takes_is_a_failure(make_run, monkeypatch, capsys):
    """Whoever started the run must not take it for one that has ended."""
    config, run = make_run("monitor.report=false")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def train(*_: object) -> Outcome:
        monkeypatch.setattr(folder, "write_atomic", full)
        return Outcome("completed", 1, 2, {}, None)

    monkeypatch.setattr(rank, "import_framework_module", lambda *_: SimpleNamespace(train=train))
    assert rank._run_locked(config, RankProcess(run, Topology(), Stop(), RunRecorder(run))) == 1
    assert "error: the run is completed, but" in capsys.readouterr().err
