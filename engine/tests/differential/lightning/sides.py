"""Run a program with plain Lightning and with this project."""

import csv
import gc
import importlib
import os
import shutil
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytorch_lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

from engine.tests.differential.draws import Spec
from engine.tests.differential.forks import call_in_forks, make_folder, torchrun_variables
from engine.tests.differential.lightning import parts
from engine.tests.differential.lightning.faults import FAULTS
from engine.tests.differential.lightning.program import render
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.distributed.discover import discover
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning import run as engine

SEED = 5
NAME = "differential_program"
QUIET = {"enable_progress_bar": False, "enable_model_summary": False}


def seed_everything() -> None:
    """Seed all generators."""
    pl.seed_everything(SEED, verbose=False)


def run_plain(spec: Spec, folder: Path, ranks: int) -> list[Any]:
    """Fit and test with plain Lightning and return the events."""
    package: Any = pytorch_lightning if spec.get("pytorch_lightning") else pl
    parts.record_stages(package.Trainer)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    program = importlib.import_module(NAME)
    strategy: Any = "auto"
    if ranks > 1:
        strategy = (package.strategies.DDPStrategy if spec.get("pytorch_lightning") else DDPStrategy)(
            process_group_backend="gloo", find_unused_parameters=bool(spec.get("module", {}).get("manual"))
        )
    loggers = {"csv": lambda: package.loggers.CSVLogger(folder / "logs"), "none": lambda: False}
    make_logger = loggers.get(
        spec.get("logger", ""), lambda: package.loggers.TensorBoardLogger(folder / "logs")
    )
    callbacks = [getattr(program, f"Callback{n}")() for n in range(len(spec.get("callbacks", [])))]
    if spec.get("accumulate"):
        callbacks.append(program.accumulate())
    options = {"max_epochs": 1, "num_sanity_val_steps": 0, "log_every_n_steps": 20} | spec.get("trainer", {})
    trainer = package.Trainer(
        accelerator="cpu", devices=ranks, strategy=strategy, logger=make_logger(), callbacks=callbacks,
        default_root_dir=folder / "root", **QUIET, **options,
    )  # fmt: skip
    seed_everything()
    module = program.Net(**dict.fromkeys(spec.get("constructor", []), 9))
    where = spec.get("data", {}).get("where", "plain")
    fit, test = dict[str, Any](), dict[str, Any]()
    if where == "datamodule":
        fit["datamodule"] = test["datamodule"] = program.Data()
    elif where == "plain":
        loaders = program.data()
        fit = {"train_dataloaders": loaders["train"], "val_dataloaders": loaders.get("val")}
        test = {"dataloaders": loaders.get("test")}
    seed_everything()
    trainer.fit(module, **fit)
    if (
        spec.get("module", {}).get("test")
        and spec.get("data", {}).get("test")
        and options.get("limit_test_batches", 1)
    ):
        trainer.test(module, **test, verbose=False)
    record_rows(folder)
    return parts.EVENTS


def record_rows(folder: Path) -> None:
    """Record what a CSVLogger has written."""
    for file in sorted(folder.rglob("version_*/metrics.csv")):
        rows = {"rows": [*csv.DictReader(file.read_text().splitlines())]}
        parts.EVENTS.append(("CSVLogger", "rows", None, None, [], [], "logged", rows))


def words(spec: Spec, folder: Path, ranks: int) -> list[str]:
    """Return our command line for a program."""
    where, trainer = spec.get("data", {}).get("where", "plain"), dict(spec.get("trainer", {}))
    trainer = {"max_epochs": 1, "num_sanity_val_steps": 0, "log_every_n_steps": 20} | trainer
    if isinstance(every := trainer.get("val_check_interval"), int):  # we count optimizer steps
        trainer["val_check_interval"] = every // trainer.get("accumulate_grad_batches", 1) or 1
    found = [
        f"task._target_={NAME}.Net", "trainer.accelerator=cpu", f"trainer.devices={ranks}", "monitor.progress=none",
        "monitor.report=false", "monitor.sample_seconds=null", "checkpoint.local=null", f"seed={SEED}",
        f"paths.results={folder / 'results'}",
        *(["strategy=ddp"] if ranks > 1 else []),
        *(["monitor.tensorboard=false"] if spec.get("logger") else []),
        *(["monitor.csv=false"] if spec.get("logger") == "none" else []),
        *(["loggers.one._target_=lightning.pytorch.loggers.CSVLogger"] if spec.get("logger") == "csv" else []),
        *(f"task.{name}=9" for name in spec.get("constructor", [])),
        *(f"trainer.{'extra.' * name.startswith(('reload', 'use_'))}{name}={value}" for name, value in trainer.items()),
        *(f"callbacks.c{n}._target_={NAME}.Callback{n}" for n in range(len(spec.get("callbacks", [])))),
        *([f"callbacks.accumulate._target_={NAME}.accumulate"] if spec.get("accumulate") else []),
    ]  # fmt: skip
    targets = {"datamodule": f"data._target_={NAME}.Data", "plain": f"data._target_={NAME}.data"}
    return [*found, targets.get(where, "data=module")]


def run_ours(spec: Spec, folder: Path, ranks: int, run: RunDir) -> list[Any]:
    """Fit and test with this project from the newest checkpoint and return the events."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "pytorch_lightning"]:
        del sys.modules[name]  # as in a new process, which finds what the engine makes of it
    parts.record_stages(pl.Trainer)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    run.path.mkdir(exist_ok=True)
    config = load(compose(to_hydra_overrides(words(spec, folder, ranks))))
    outcome = engine.train(config, RankProcess(run, discover(), Stop().install()))
    record_rows(run.path)
    parts.EVENTS.append(("run", outcome.state, None, None, [], [], "", None))
    return parts.EVENTS


def run_program(
    spec: Spec, ranks: int = 1, stop: int = -1, sides: Iterable[str] = ("plain", "ours"), fault: str = ""
) -> Any:
    """Return the events of each rank: plain, ours, stopped and resumed, or a ForkError."""
    folder = make_folder()
    places = torchrun_variables(ranks) if ranks > 1 else [{}]

    def call(side: str, place: dict[str, str]) -> list[Any]:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        os.environ.update(place)
        if side == "plain":
            return run_plain(spec, folder, ranks)
        if fault:
            FAULTS[fault]()
        if side == "stopped":
            parts.Stopping.at = stop
        return run_ours(spec, folder, ranks, RunDir(folder / side.replace("resumed", "stopped")))

    try:
        (folder / f"{NAME}.py").write_text(render(spec))
        return {side: call_in_forks([partial(call, side, place) for place in places]) for side in sides}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def warm_up() -> None:
    """Import what a first run imports, for the forks of processes that compare programs."""
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # TensorBoard would import it, which takes seconds
    import_in_fork = [partial(_modules_of_a_run, side) for side in ("plain", "ours")]
    for names in call_in_forks(import_in_fork):
        for name in names if isinstance(names, list) else []:
            with suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _modules_of_a_run(side: str) -> list[str]:
    spec: Spec = {
        "seed": 0,
        "module": {"validation": True, "log": [{"hook": "training_step", "value": "metric"}]},
    }
    spec["data"] = {"val": [{}]}
    folder, before = make_folder(), set(sys.modules)
    try:
        (folder / f"{NAME}.py").write_text(render(spec))
        run_plain(spec, folder, 1) if side == "plain" else run_ours(spec, folder, 1, RunDir(folder / "run"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [name for name in sys.modules if name not in before and NAME not in name]
