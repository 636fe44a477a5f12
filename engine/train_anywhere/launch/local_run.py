"""From a composed configuration to a run folder, and training in it on this machine."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere import features
from train_anywhere.config.checks.batch_size import uneven_batch
from train_anywhere.config.checks.targets import unreadable
from train_anywhere.config.checks.this_machine import this_machine
from train_anywhere.config.checks.writable import results_problems
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.devices import no_apple_gpu, no_gpu, visible_gpus
from train_anywhere.distributed.horovod.installation import horovod_problem
from train_anywhere.distributed.layout import Layout, local_layout
from train_anywhere.distributed.packages import missing_framework
from train_anywhere.errors import CheckpointError
from train_anywhere.launch.preflight import data_problems, refuse_unreadable_run
from train_anywhere.launch.processes import beside, refuse_nested_launch, run_here
from train_anywhere.runs.folder import ATTEMPTS, RunDir, create, discard, open_run, point_latest
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.completed import complete, is_complete
from train_anywhere.runs.reopen.from_scratch import set_aside
from train_anywhere.runs.reopen.frozen import write_frozen
from train_anywhere.runs.reopen.resume import resumed
from train_anywhere.runs.reopen.trust import remember
from train_anywhere.runs.summary import display_path


def start(tree: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """Check, make or reopen the run folder, train; returns the exit code.

    Args:
        tree: the composed configuration.
        overrides: the command line, kept in the run folder.

    Raises:
        ConfigError: with all problems, before anything is written.
        CheckpointError: where another job trains in the run folder, or none of its checkpoints can be read.
    """
    run = open_run(tree["resume"]) if tree["resume"] else None
    config = load(resumed(tree, run, overrides) if run else tree, local_problems)
    layout = local_layout(config)
    refuse_nested_launch()
    if run:
        RunLock(run).refuse_if_held()
        if is_complete(run, config):
            print(complete(run, config))
            return 0
        refuse_unreadable_run(run, config)
    if config.dry_run:
        print(resolved_numbers(config, layout))
        return 0
    if run and config.from_scratch and (kept := set_aside(run)):
        print(f"from_scratch=true: what the run had is kept in {display_path(kept)}.", flush=True)
    results, new = Path(config.paths.results), run is None
    before = latest_run(results) if new else None
    try:
        if run:
            freeze(run, config, overrides, layout)
        else:
            run = make_run(config, overrides, layout)
    except CheckpointError:
        if new:
            with suppress(OSError):
                point_latest(results, before)
        raise
    with beside(run, config):
        code = run_here(run, layout)
    if before and never_trained(run):
        point_latest(results, before)
    return code


def latest_run(results: Path) -> Path | None:
    """Return the run folder that results/latest points to; None if there is none."""
    link = results / "latest"
    folder = results / os.readlink(link) if link.is_symlink() else None
    return folder if folder and folder.is_dir() else None


def make_run(config: Config, overrides: Sequence[str], layout: Layout) -> RunDir:
    """A new run folder, ready for its ranks."""
    run = create(Path(config.paths.results), config.name)
    try:
        freeze(run, config, overrides, layout)
    except CheckpointError:
        discard(run)
        raise
    return run


def freeze(run: RunDir, config: Config, overrides: Sequence[str], layout: Layout) -> None:
    """Write what the ranks read, and what run.json says of a run before it starts. Raises CheckpointError: the disk refuses."""
    try:
        _freeze(run, config, overrides, layout)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or run.path} can't be written ({error.strerror or error}), so nothing was trained; make room there"
            f"{'.' if config.resume else ', or name another folder with paths.results=...'}"
        ) from error


def _freeze(run: RunDir, config: Config, overrides: Sequence[str], layout: Layout) -> None:
    write_frozen(run, config, overrides)
    remember(run.path, config)  # this user runs it here
    run.update(
        state="queued",
        framework=config.framework,
        strategy=layout.strategy,
        launch="local",
        cluster=config.cluster.name,
        world_size=layout.device_count,
    )


def never_trained(run: RunDir) -> bool:
    """Whether a run failed before its first step, such as for its data: `latest` should not point to it."""
    info = run.info()
    return info.get("state") == "failed" and all("from_step" not in a for a in info.get(ATTEMPTS, []))


def local_problems(config: Config) -> list[str]:
    """What this machine can't run: several nodes, a batch that its devices can't share, missing folders, data or Horovod."""
    devices = local_layout(config).device_count
    problems = [
        *this_machine(config, visible_gpus, local_layout(config).world_size),
        *features.problems(config, lambda one: [*one.problems(), *one.problems_here()]),
        uneven_batch(config.data.batch_size, devices),
        *data_problems(config, devices),
    ]
    if config.resume is None:
        problems += results_problems(Path(config.paths.results), config.name)
    if config.trainer.accelerator == "gpu" and visible_gpus() == 0:
        problems.append(no_gpu("this machine"))
    if config.trainer.accelerator == "mps":
        problems.append(no_apple_gpu())
    problems.append(missing_framework(config.framework))
    if config.strategy.name == "horovod" and (problem := horovod_problem(config.framework)):
        problems.append(f"{problem} Without Horovod: strategy=auto.")
    return [p for p in problems if p]


def resolved_numbers(config: Config, layout: Layout) -> str:
    """What `dry_run=true` shows for a run on this machine."""
    rows = {
        "framework": config.framework,
        "strategy": layout.strategy,
        "processes": layout.world_size,
        "devices": layout.device_count,
        "global batch": config.data.batch_size,
        "batch per device": config.data.batch_size // layout.device_count,
        "run folder": f"{config.paths.results}/{config.name}/<run id>",
    }
    lines = [f"{k:<18}{v}" for k, v in rows.items()] + [f"note: {note}" for note in unreadable(config)]
    return "\n".join([*lines, "dry run: nothing was written or started."])
