"""A run on this machine, or a sweep: check, make or reopen the run folder, train.

Each member of a sweep has its own process, one after the other, because frameworks keep global state: seeds, devices, graphs, threads.
The process is a fork of one that has imported the framework (launch/forkserver.py).
"""

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from train_anywhere import features
from train_anywhere.config.checks.contradictions import batch_size_problem, machine_problems
from train_anywhere.config.checks.targets import global_batch, target_notes
from train_anywhere.config.command.members import Member, load_members, refuse_alone, refuse_mixed_members
from train_anywhere.config.load import load
from train_anywhere.config.paths import results_problems
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import (
    Layout,
    local_layout,
    no_gpu_message,
    visible_gpus,
)
from train_anywhere.distributed.packages import framework_problem, horovod_problem
from train_anywhere.errors import STOPPED, CheckpointError
from train_anywhere.files import ROOT
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.output import protect_output
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.launch.command import Checks
from train_anywhere.launch.processes import (
    refuse_nested_launch,
    run_here,
    run_members,
)
from train_anywhere.runs import folder as folders
from train_anywhere.runs.attempts import describe_exit_code, record_failure
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.provenance import describe_code
from train_anywhere.runs.reopen.frozen import write_frozen
from train_anywhere.runs.reopen.resume import completion_message, is_complete, merge_resumed, move_aside
from train_anywhere.runs.reopen.trust import remember
from train_anywhere.runs.summary import display_path


def start(tree: Mapping[str, Any], overrides: Sequence[str], checks: Checks) -> int:
    """Check, make or reopen the run folder, train, and return the exit code.

    `overrides` is the command line, which is kept in the run folder.

    Raises:
        ConfigError: lists all problems, before anything is written.
        CheckpointError: another job trains in the run folder, or none of its checkpoints can be read.
    """
    run = folders.open_run(tree["resume"]) if tree["resume"] else None
    config = load(
        merge_resumed(tree, run, overrides) if run else tree, partial(local_problems, checks=checks)
    )
    layout = local_layout(config)
    if not run:
        refuse_alone(tree)
    refuse_nested_launch()
    if run:
        RunLock(run).refuse_if_held()
        if not config.from_scratch:
            if is_complete(run, config):
                print(completion_message(run, config))
                return 0
            checks.refuse_unreadable(run)
    if config.dry_run:
        print(format_dry_run(config, layout, checks))
        return 0
    if run and config.from_scratch and (kept := move_aside(run)):
        print(f"from_scratch=true: the earlier results are kept in {display_path(kept)}.", flush=True)
    results = Path(config.paths.results)
    before = None if run else latest_run(results)
    if run:
        freeze(run, config, overrides, layout)
    else:
        run = make_run(config, overrides, layout)
    if config.monitor.progress != "none":
        print(fit(f"{'Run folder:':<15}{display_path(run.path)}", terminal_width()), flush=True)
        if not config.program:
            print(f"{'Starting:':<15}importing {config.framework.capitalize()} takes seconds", flush=True)
        for note in target_notes(config):
            print(f"note: {note}", flush=True)
    code = run_here(run, config, layout)
    info = run.read_info() if before and not config.program else {}
    # a run that failed before its first step, such as because of its data
    if info.get("state") == "failed" and all("from_step" not in a for a in info.get(ATTEMPTS, [])):
        folders.point_latest(results, before)
    return code


def latest_run(results: Path) -> Path | None:
    """Return the run folder that results/latest points to, if any."""
    link = results / "latest"
    return results / os.readlink(link) if link.is_symlink() and link.is_dir() else None


def make_run(config: Config, overrides: Sequence[str], layout: Layout, run_id: str | None = None) -> RunDir:
    """Make a run folder with all files that its ranks read. Raises CheckpointError."""
    results = Path(config.paths.results)
    before = latest_run(results)
    with folders.no_empty_folders(results / config.name):
        run = folders.create(results, config.name, run_id)
        try:
            freeze(run, config, overrides, layout)
        except CheckpointError:
            folders.discard(run)
            with suppress(OSError):
                folders.point_latest(results, before)
            raise
    return run


def freeze(run: RunDir, config: Config, overrides: Sequence[str], layout: Layout) -> None:
    """Write the files that the ranks read, and run.json. Raises CheckpointError."""
    try:
        write_frozen(run, config, overrides)
        remember(run.path)  # this user runs it here
        run.update(
            state="queued",
            framework="program" if config.program else config.framework,
            strategy=layout.strategy,
            launch="local",
            cluster=config.cluster.name,
            world_size=layout.device_count,
            gpus=layout.device_count / (config.cluster.members_per_gpu or 1) if uses_gpus(config) else 0,
            **describe_code(ROOT),
        )
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or run.path} can't be written ({error.strerror or error}), so nothing was trained; make room there"
            f"{'.' if config.resume else ', or name another folder with paths.results=...'}"
        ) from error


def local_problems(config: Config, checks: Checks) -> list[str]:
    """Return why this machine can't run it."""
    devices = local_layout(config).device_count
    problems = [
        *machine_problems(config, visible_gpus, local_layout(config).world_size),
        *features.problems(config, "any", "here"),
    ]
    if not config.program:  # its data, batches and packages are its own
        problems += [
            batch_size_problem(global_batch(config), devices),
            *checks.problems(config, devices, True),
        ]
    if config.resume is None:
        problems += results_problems(Path(config.paths.results), config.name)
    if config.trainer.accelerator == "gpu" and visible_gpus() == 0:
        problems.append(no_gpu_message("this machine"))
    if config.cluster.members_per_gpu and not visible_gpus() and config.trainer.accelerator == "auto":
        problems.append(
            f"cluster.members_per_gpu={config.cluster.members_per_gpu}, but this machine sees no GPU; use cluster.members_per_node."
        )
    if config.trainer.accelerator == "mps" and (sys.platform, platform.machine()) != ("darwin", "arm64"):
        problems.append(
            "trainer.accelerator=mps needs a Mac with Apple silicon; use trainer.accelerator=auto or cpu."
        )
    if not config.program:
        problems.append(framework_problem(config.framework))
    if config.strategy.name == "horovod" and (problem := horovod_problem(config.framework)):
        problems.append(f"{problem} Without Horovod: strategy=auto.")
    return [p for p in problems if p]


def format_dry_run(config: Config, layout: Layout, checks: Checks) -> str:
    """Return the lines that `dry_run=true` prints: the run's first ones, as far as known."""
    if config.program:
        shown = (
            f"{'Program:':<15}{one_line(shlex.join(config.program.command))}\n"
            f"{'Processes:':<15}{layout.world_size} (program.processes={layout.strategy})"
        )
        return f"{shown}\ndry run: nothing was written or started."
    rows = {
        "Framework": f"{config.framework}, {layout.world_size} process{'es' if layout.world_size > 1 else ''}",
        "Run folder": config.resume or f"{config.paths.results}/{config.name}/<run id>",
    }
    lines = [*checks.header(config, layout), *(f"{k + ':':<15}{v}" for k, v in rows.items())]
    notes = [f"note: {note}" for note in target_notes(config)]
    shown = "\n".join([*lines, *notes, "dry run: nothing was written or started."])
    return fit(shown, terminal_width())


@dataclass
class FinishedMember:
    """A member that has run, with its exit code."""

    run: RunDir
    config: Config
    code: int = 0


def run_all(
    trees: Sequence[Mapping[str, Any]], overrides: Sequence[Sequence[str]], checks: Checks
) -> list[FinishedMember]:
    """Run each member, also after one has failed. A signal stops the sweep.

    Returns:
        The members that ran; none after a dry run.

    Raises:
        ConfigError: the problems of all members, before anything is written.
        KeyboardInterrupt: Ctrl-C, after the running member has saved a checkpoint.
        SystemExit: another signal, after the same.
    """
    refuse_mixed_members(trees, submitted=False)
    members = load_members(trees, overrides, partial(local_problems, checks=checks))
    shared = [w for w in overrides[0] if len(overrides) > 1 and all(w in words for words in overrides)]
    names = [" ".join(w.lstrip("+") for w in words if w not in shared) for words in overrides]
    if members[0].config.dry_run:
        numbers = [format_dry_run(m.config, local_layout(m.config), checks) for m in members]
        print("\n\n".join(f"{name}\n{n}" for name, n in zip(names, numbers, strict=True)))
        return []
    protect_output()
    finished, stopped = _run_members(members, names, folders.new_run_id())
    if stopped:
        count, left = len(finished), len(members) - len(finished)
        print(f"\nstopped at member {count} of {len(members)}; {left} did not start.", file=sys.stderr)
        raise KeyboardInterrupt if stopped == "Ctrl-C" else SystemExit(STOPPED)
    failed = [name for name, one in zip(names, finished, strict=True) if one.code]
    if failed:
        message = f"\n{len(failed)} of {len(finished)} members failed: {'; '.join(failed)}"
        print(fit(message, terminal_width(sys.stderr)), file=sys.stderr)
    return finished


def uses_gpus(config: Config) -> bool:
    """Return whether a run of this machine has GPUs."""
    return config.trainer.accelerator != "cpu" and visible_gpus() > 0


def count_slots(config: Config) -> int:
    """Return the number of members of a sweep that run on this machine at once."""
    c, gpus = config.cluster, visible_gpus() if uses_gpus(config) else 0
    most = (c.members_per_gpu or 1) * gpus or c.pack
    return min(c.members_per_node or most, most)


def _run_members(
    members: Sequence[Member], names: Sequence[str], sweep: str
) -> tuple[list[FinishedMember], str]:
    """Run members until a signal comes; return those that ran, and its name. Several at once have a log each."""
    finished, configs = list[FinishedMember](), {n: member.config for n, member in enumerate(members)}
    packed = configs[0].cluster.pack > 1

    def make(number: int) -> RunDir:
        config = configs[number]
        if not packed:
            print(fit(f"\n[{number + 1}/{len(members)}] {names[number]}", terminal_width()), flush=True)
        run = make_run(config, members[number].overrides, local_layout(config), f"{sweep}-{number}")
        folders.claim_sweep(run)
        finished.append(FinishedMember(run, config))
        if packed:
            note(number, display_path(run.log))
        return run

    def ended(number: int, run: RunDir, code: int) -> None:
        state = run.read_info().get("state")
        if killed := state == "running":  # nothing could write its state
            code, state = code or 1, describe_exit_code(code)
            with suppress(OSError):
                record_failure(run, f"its process ended with {state}")
        finished[number].code = code
        if packed or killed:
            note(number, state)

    def note(number: int, what: object) -> None:
        print(fit(f"[{number + 1}/{len(members)}] {names[number]}: {what}", terminal_width()), flush=True)

    slots = count_slots(configs[0]) if packed else 1
    return finished, run_members(configs, make, ended, slots, log=packed, share=packed)
