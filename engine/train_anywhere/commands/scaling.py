"""Compare the same training on different numbers of nodes and devices, with different strategies and launch methods.

    python src/scaling.py devices=1,2 strategy=auto,horovod                   here, one after the other
    python src/scaling.py cluster=neuron nodes=1,2 devices=1,4 strategy=auto,horovod launch=srun,mpirun
    python src/scaling.py results/scaling/<id>                                the table of jobs that were submitted

Everything else is as for src/train.py: experiment=resnet50_mnist trainer.max_epochs=5. The global batch is the same in all cells; with
--weak it grows with the devices, data.batch_size being that of one. wait=true waits for the jobs; dry_run=true shows what would run.
Exit codes: 0 done, 1 a run failed, 2 refused (nothing was written).
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.command.members import OF_THE_COMMAND
from train_anywhere.config.command.sentences import about_configuration
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.files.terminal.printable import printable_output
from train_anywhere.launch.command import exit_code
from train_anywhere.launch.local_run import local_problems
from train_anywhere.launch.preflight import data_problems
from train_anywhere.runs.summary import command_path, display_path, train_command
from train_anywhere.slurm.scaling import start_table, timing_table
from train_anywhere.slurm.scaling.grid import Cell, grid, split
from train_anywhere.slurm.scaling.start_table import Table
from train_anywhere.slurm.submission import prepare
from train_anywhere.slurm.submission.submit import wait_for


def main(arguments: list[str] | None = None) -> int:
    """The exit code; a refusal is one message."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="FOLDER | key=value",
        help="a table that exists, or what is to be compared",
    )
    parser.add_argument("--weak", action="store_true", help="the global batch grows with the devices")
    parsed = parser.parse_intermixed_args(arguments)
    if len(parsed.words) == 1 and "=" not in parsed.words[0]:
        with printable_output():
            return exit_code(lambda: show(timing_table.open_table(Path(parsed.words[0]))), overrides=False)
    return exit_code(lambda: compare(parsed.words, parsed.weak), overrides=False)


def compare(words: Sequence[str], weak: bool) -> int:
    """Check what was typed, then run or submit its cells."""
    _, others = split(words)
    base = composed(others)
    refuse_switches(base)
    asked = grid([word for word in words if word.partition("=")[0] not in OF_THE_COMMAND], base)
    batch = base["data"]["batch_size"] if weak else None
    scheduler = base["cluster"]["scheduler"]
    check, dry = local_problems if scheduler == "none" else cluster_problems, bool(base["dry_run"])
    first, *_ = start_table.load_all(asked, batch, check, dry)
    print("".join(f"{sentence}\n" for sentence in asked.left_out), end="", flush=True)
    if dry:
        for cell in asked.cells:
            print(f"{train_command()} {shlex.join(start_table.words_of(cell, asked, batch))}")
        return 0
    made = start_table.begin(asked, Path(first.paths.results), scheduler, words)
    print(f"Table: {display_path(made.folder)}", flush=True)
    commands = [(cell, start_table.words_of(cell, asked, batch)) for cell in asked.cells]
    return run(made, commands) if scheduler == "none" else submit(made, commands, bool(base["wait"]))


def refuse_switches(base: Mapping[str, Any]) -> None:
    """Raise ConfigError for a switch of this command, which no cell gets, that is neither on nor off."""
    odd = [
        key
        for key in ("dry_run", "wait")
        if not isinstance(base[key], bool) and (key, base[key]) != ("dry_run", "test")
    ]
    if odd:
        raise ConfigError(*(f"{key}={base[key]} is not true or false." for key in odd))


def composed(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of some overrides. Raises ConfigError with all their problems."""
    try:
        return start_table.compose_words(words)
    except Exception as error:
        if about_configuration(error):
            raise diagnose(start_table.as_hydra_reads(words), error, False) from None
        raise


def cluster_problems(config: Config) -> list[str]:
    """What keeps a cell from being submitted."""
    return prepare.refusals(config, None, None, None, data_problems)


def run(made: Table, commands: Sequence[tuple[Cell, list[str]]]) -> int:
    """One cell after the other on this machine; the table so far is kept whatever happens."""
    failed = []
    try:
        for number, (cell, words) in enumerate(commands, 1):
            print(f"[{number}/{len(commands)}] {cell.name} ...", flush=True)
            if code := start_table.run_here(made, cell, words):
                failed.append(cell)
                print(
                    f"{cell.name} ended with exit code {code}: {timing_table.log(made, cell)}",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        show(made)
    return 1 if failed else 0


def submit(made: Table, commands: Sequence[tuple[Cell, list[str]]], wait: bool) -> int:
    """A job for each cell; returns at once unless `wait`."""
    for number, (cell, words) in enumerate(commands, 1):
        print(f"[{number}/{len(commands)}] {cell.name}: {start_table.submit(made, cell, words)}", flush=True)
    if wait:
        wait_for(made.scheduler, [job for run in timing_table.runs(made).values() for job in run.job_ids])
        return show(made)
    again = f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'scaling.py'))}"
    print(f"Next:  {again} {shlex.quote(display_path(made.folder))}")
    return 0


def show(made: Table) -> int:
    """Print the table and write its files; 1 if a run has failed."""
    rows, trouble = timing_table.read(made)
    print(timing_table.as_text(rows))
    for sentence in trouble:
        print(sentence, file=sys.stderr)
    print("\n".join(display_path(path) for path in timing_table.write(made, rows)), flush=True)
    return 1 if any(row.over and row.state != "completed" for row in rows) else 0
