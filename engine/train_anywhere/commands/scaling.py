"""Compare one training on several numbers of nodes and devices, strategies and launch methods.

    python -m train_anywhere scaling devices=1,2 strategy=auto,horovod                   run here, one after the other
    python -m train_anywhere scaling cluster=neuron nodes=1,2 launch=srun,mpirun
    python -m train_anywhere scaling on=neuron nodes=1,2                                 run on a host of configs/hosts/, over ssh
    python -m train_anywhere scaling results/scaling/<id>                                show the table of submitted jobs

Other arguments are those of src/train.py: experiment=resnet50_mnist trainer.max_epochs=5. The global batch is the same in all cells; with
--weak, data.batch_size is the batch per device. wait=true waits for the jobs; dry_run=true shows what would run.
Exit codes: 0 done, 1 a run failed, 2 refused (nothing was written).
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.diagnose import diagnose, is_configuration_error
from train_anywhere.config.command.members import COMMAND_KEYS
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.files.terminal.printable import printable_output
from train_anywhere.launch.command import run_command
from train_anywhere.launch.local_run import local_problems
from train_anywhere.launch.preflight import data_problems
from train_anywhere.runs.summary import command_path, display_path, train_command
from train_anywhere.slurm.scaling import grid, timing_table
from train_anywhere.slurm.scaling.grid import Cell, Table
from train_anywhere.slurm.status.gather import OVER
from train_anywhere.slurm.submission import prepare
from train_anywhere.slurm.submission.submit import wait_for_jobs


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit code; a refusal is one message."""
    return here_or_there("-m train_anywhere scaling", lambda: _compare_or_show(arguments))


def _compare_or_show(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=FittedHelp)
    words = "an existing table, or the values to compare"
    parser.add_argument("words", nargs="+", metavar="FOLDER | key=value", help=words)
    parser.add_argument("--weak", action="store_true", help="the global batch grows with the devices")
    parsed = parser.parse_intermixed_args(arguments)
    first, *others = parsed.words
    if not others and (os.path.isdir(first) or "=" not in first):
        with printable_output():
            return run_command(lambda: show(timing_table.open_table(Path(first))), overrides=False)
    return run_command(lambda: compare(parsed.words, parsed.weak), overrides=False)


def compare(words: Sequence[str], weak: bool) -> int:
    """Check the arguments, then run or submit the cells of the table."""
    _, others = grid.split_overrides(words)
    base = compose_base(others)
    refuse_switches(base)
    made = grid.make_grid([word for word in words if word.partition("=")[0] not in COMMAND_KEYS], base)
    batch = base["data"]["batch_size"] if weak else None
    scheduler = base["cluster"]["scheduler"]
    check, dry = local_problems if scheduler == "none" else cluster_problems, bool(base["dry_run"])
    first, *_ = grid.load_all(made, batch, check, dry)
    print("".join(f"{sentence}\n" for sentence in made.left_out), end="", flush=True)
    commands = [(cell, made.words(cell, batch)) for cell in made.cells]
    if dry:
        for _, overrides in commands:
            print(f"{train_command()} {shlex.join(overrides)}")
        return 0
    table = grid.create_table(made, Path(first.paths.results), scheduler, words)
    print(f"Table: {display_path(table.folder)}", flush=True)
    return run_here(table, commands) if scheduler == "none" else submit(table, commands, bool(base["wait"]))


def refuse_switches(base: Mapping[str, Any]) -> None:
    """Raise ConfigError if a switch of this command, which no cell gets, is neither true nor false."""
    odd = [
        key
        for key in ("dry_run", "wait")
        if not isinstance(base[key], bool) and (key, base[key]) != ("dry_run", "test")
    ]
    if odd:
        raise ConfigError(*(f"{key}={base[key]} is not true or false." for key in odd))


def compose_base(words: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of some overrides, or raise ConfigError with all their problems."""
    quoted = grid.quote_overrides(words)
    try:
        return compose(quoted)
    except Exception as error:
        if is_configuration_error(error):
            raise diagnose(quoted, error, False) from None
        raise


def cluster_problems(config: Config) -> list[str]:
    """Return the problems that prevent the submission of a cell."""
    return prepare.refusals(config, None, None, None, data_problems)


def run_here(table: Table, commands: Sequence[tuple[Cell, list[str]]]) -> int:
    """Run the cells one after the other on this machine. The table is written even after an error."""
    failed = []
    try:
        for number, (cell, words) in enumerate(commands, 1):
            print(f"[{number}/{len(commands)}] {cell.name} ...", flush=True)
            log = table.folder / cell.name / grid.LOG
            log.parent.mkdir(exist_ok=True)
            with open(log, "w") as output:
                done = subprocess.run(table.command(words), stdout=output, stderr=subprocess.STDOUT)
            if code := done.returncode:
                failed.append(cell)
                shown = f"{cell.name} ended with exit code {code}: {display_path(log)}"
                print(shown, file=sys.stderr, flush=True)
    finally:
        show(table)
    return 1 if failed else 0


def submit(table: Table, commands: Sequence[tuple[Cell, list[str]]], wait: bool) -> int:
    """Submit a job for each cell, and return at once unless `wait`. Raises SubmitError: a submission failed, with its message."""
    for number, (cell, words) in enumerate(commands, 1):
        done = subprocess.run(table.command(words), capture_output=True, text=True)
        if done.returncode:
            why = done.stderr.strip().removeprefix("error: ")
            raise SubmitError(f"{cell.name} was not submitted: {why} ({shlex.join(words)})")
        submitted = next(iter(done.stdout.strip().splitlines()), "")
        print(f"[{number}/{len(commands)}] {cell.name}: {submitted}", flush=True)
    if wait:
        newest = timing_table.find_newest_runs(table).values()
        wait_for_jobs(table.scheduler, [job for run in newest for job in run.job_ids])
        return show(table)
    print(
        f"Next:  {command_path('python')} -m train_anywhere scaling {shlex.quote(display_path(table.folder))}"
    )
    return 0


def show(table: Table) -> int:
    """Print the table and write its files; return 1 if a run failed."""
    rows, trouble = timing_table.read_rows(table)
    print(timing_table.to_text(rows))
    for sentence in trouble:
        print(sentence, file=sys.stderr)
    try:
        print("\n".join(display_path(path) for path in timing_table.write_files(table, rows)), flush=True)
    except Exception as error:  # the runs decide the exit code
        print(f"The page was not written: {error}", file=sys.stderr)
    ended = {row.state for row in rows} & {*OVER, "not run"}
    return 1 if ended - {"completed"} else 0
