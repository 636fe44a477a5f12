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
import itertools
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from train_anywhere.commands.doctor import run_problems
from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.config.command.diagnose import compose_diagnosed
from train_anywhere.config.command.members import merge_problems
from train_anywhere.config.load import load
from train_anywhere.config.paths import escape_dollars
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.root import resolve_as_typed
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.files.terminal.table import Column, format_csv, format_table
from train_anywhere.runs.folder import ATTEMPTS, RunDir, new_run_id
from train_anywhere.runs.summary import command_path, display_path, train_command
from train_anywhere.slurm.status.find_runs import RunEntry, read_entry
from train_anywhere.slurm.status.gather import OVER, Report, gather
from train_anywhere.slurm.submission.submit import wait_for_jobs

COUNT = "0*[1-9][0-9]{0,6}"
"""Matches a number of nodes or devices."""

AXES = {"nodes": "trainer.nodes", "devices": "trainer.devices"}
AXES |= {name: name for name in ("framework", "strategy", "launch")}
"""Arguments that can have several values, and their keys in the configuration."""

REFUSED = {
    "resume": "each cell is a new run",
    "trainer.total_devices": "the devices of a cell are nodes times devices",
    "name": "each cell gets its own name",
    "hydra/sweeper": "a table has one run of each cell",
}
"""Keys that can't be set for a table, with the reason."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit code; a refusal is one message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=FittedHelp)
    shown = "an existing table, or the values to compare"
    parser.add_argument("words", nargs="+", metavar="FOLDER | key=value", help=shown)
    parser.add_argument("--weak", action="store_true", help="the global batch grows with the devices")
    parsed = parser.parse_intermixed_args(arguments)
    first, *others = parsed.words
    shows = not others and (os.path.isdir(first) or "=" not in first)
    command = partial(show, Path(first)) if shows else partial(compare, parsed.words, parsed.weak)
    return here_or_there("-m train_anywhere scaling", command)


def compare(words: Sequence[str], weak: bool) -> int:
    """Check the arguments, run or submit the cells, and print the table unless jobs still have to run."""
    axes, others = split_words(words)
    base = compose_diagnosed(others)
    here = base["cluster"]["scheduler"] == "none"
    if here and "launch" in axes:
        raise ConfigError("launch= sets how a job starts its ranks; these runs are not jobs: leave it out.")
    batch = base["data"]["batch_size"] if weak else None
    cells = {name: [*others, *own] for name, own in make_cells(axes, base, batch)}
    config = check_cells(cells)
    typed = [[w for w in cell if not w.startswith(("wait=", "dry_run="))] for cell in cells.values()]
    if config.dry_run:
        print(*(f"{train_command()} {shlex.join(cell)}" for cell in typed), sep="\n")
        return 0
    folder = Path(config.paths.results) / "scaling" / new_run_id()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise SubmitError(f"{folder} can't be made ({error.strerror}); use paths.results=FOLDER.") from error
    print(f"Table: {display_path(folder)}", flush=True)
    train = [sys.executable, "-u", str(ROOT / "src" / "train.py")]
    results, codes = f"paths.results={escape_dollars(str(folder))}", list[int]()
    try:
        for number, (name, cell) in enumerate(zip(cells, typed, strict=True), 1):
            print(f"[{number}/{len(cells)}] {name}", flush=True)
            codes.append(subprocess.run([*train, *cell, results]).returncode)
            if codes[-1] and not here:
                return codes[-1]
    finally:  # also after Ctrl-C
        if here and newest_runs(folder):
            show(folder)
    if here:
        return int(any(codes))
    if config.wait:
        runs = newest_runs(folder)
        wait_for_jobs(str(runs[0].scheduler), [job for run in runs for job in run.job_ids])
        return show(folder)
    print(f"Next:  {command_path('python')} -m train_anywhere scaling {shlex.quote(display_path(folder))}")
    return 0


def split_words(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split overrides into values of the axes and others. Raises ConfigError with all problems."""
    axes: dict[str, list[str]] = {}
    others, problems = [], []
    for word in words:
        key, equals, value = word.partition("=")
        axis = next((a for a, long in AXES.items() if key in (a, long)), None)
        if key in REFUSED and equals:
            problems.append(f"{key}= can't be given for a timing table: {REFUSED[key]}.")
        elif axis is None:
            others.append(word)
        elif "" in (values := value.split(",")):
            problems.append(f"'{word}' has an empty value; use {axis}=A,B.")
            axes[axis] = []
        else:
            axes[axis] = list(dict.fromkeys(values))
    for axis in ("nodes", "devices"):
        problems += [
            f"{axis}={text} is not a number of {axis}; use {axis}=1,2."
            for text in axes.get(axis, ())
            if not re.fullmatch(COUNT, text)
        ]
    if not axes.keys() & {"nodes", "devices"}:
        problems.append("there is nothing to compare; give numbers of nodes or devices, such as devices=1,2.")
    if problems:
        raise ConfigError(*problems)
    return axes, others


def make_cells(
    axes: Mapping[str, Sequence[str]], base: Mapping[str, Any], batch: int | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield name and overrides of each combination. One device is `single`, for all strategies.

    `base` is the configuration without the axes; `batch` is that of one device if it grows, else None.
    """
    trainer = base["trainer"]
    devices = "1" if trainer["devices"] == "auto" else str(trainer["devices"])
    own = (str(trainer["nodes"]), devices, base["framework"], base["strategy"]["name"], base["launch"])
    values = [axes.get(axis) or [value] for axis, value in zip(AXES, own, strict=True)]
    for nodes, each, framework, strategy, launch in itertools.product(*values):
        having = [name for name, known in SUPPORTED.items() if strategy in known]
        if "framework" not in axes and having and framework not in having:
            framework = having[0]
        support, total = SUPPORTED.get(framework, {}).get(strategy), int(nodes) * int(each)
        strategy = "single" if total == 1 else strategy
        if total == 1 or (support and not support.several_nodes):
            launch = "auto"
        chosen = (nodes, each, framework, strategy, launch)
        name = "-".join([f"{nodes}x{each}", *chosen[2 : 4 if launch == "auto" else 5]])
        grown = [f"data.batch_size={batch * total}"] if batch else []
        words = [f"{key}={value}" for key, value in zip(AXES.values(), chosen, strict=True)]
        yield name, [*words, *grown, f"name={name}"]


def check_cells(cells: dict[str, list[str]]) -> Config:
    """Remove the cells that can't run, print why, and return the configuration of the first one.

    Raises ConfigError: nothing is left to compare.
    """
    configs: list[Config] = []
    wrong: dict[str, list[str]] = {}
    for name, words in cells.items():
        try:
            configs.append(load(compose_diagnosed(words), run_problems))
        except ConfigError as error:
            wrong[name] = error.problems
    merged = merge_problems([*wrong.items()], len(cells))
    if wrong and len(configs) < 2:
        raise ConfigError(*merged)
    for problem in merged:
        print(f"left out: {problem}", flush=True)
    for name in wrong:
        del cells[name]
    return configs[0]


def newest_runs(folder: Path) -> list[RunEntry]:
    """Return the newest run of each cell that has one."""
    found = {path.parent.parent: path.parent for path in sorted(folder.glob("*/*/config.yaml"))}
    return [read_entry(path) for path in found.values()]


def show(folder: Path) -> int:
    """Print the table and write scaling.csv; return 1 if a run failed. Raises SubmitError: the folder has no runs."""
    folder = resolve_as_typed(folder)
    runs = newest_runs(folder) if folder.parent.name == "scaling" else []
    if not runs:
        raise SubmitError(
            f"{folder} contains no timing table (no runs in it); name a folder like results/scaling/<id>."
        )
    gathered = gather(runs)
    rows = add_speedups(sorted(map(make_row, gathered.reports), key=lambda row: row["total"]))
    print(format_rows(rows))
    for sentence in gathered.trouble:
        print(one_line(sentence), file=sys.stderr)
    values = ([row.get(key) for key in FORMS] for row in rows)
    cells = ([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in values)
    try:
        write_atomic(folder / "scaling.csv", format_csv([FORMS, *cells]))
        print(display_path(folder / "scaling.csv"), flush=True)
    except OSError as error:  # the runs decide the exit code
        print(f"scaling.csv was not written: {error}", file=sys.stderr)
    return 1 if {row["state"] for row in rows} & {*OVER} - {"completed"} else 0


def make_row(report: Report) -> dict[str, Any]:
    """Return the results of a run, as far as they are known.

    `seconds` are from the first batch to the last, with validations and checkpoints; `rate` is that of all devices without the first
    batches; `waiting` is the share of a step in which ranks wait for each other.
    """
    row: dict[str, Any] = {axis: report.overrides.get(key) for axis, key in AXES.items()}
    row["total"] = math.prod(int(n) for n in (row["nodes"], row["devices"]) if re.fullmatch(COUNT, str(n)))
    row["state"] = report.state or report.written
    if row["state"] == "completed":
        attempts = RunDir(report.path).read_info().get(ATTEMPTS, [])
        known = [a["seconds"] for a in attempts if isinstance(a.get("seconds"), dict)]
        trained = ("step", "validation", "checkpoint")  # neither the start of a run nor its test
        row["seconds"] = sum(float(s.get(name, 0.0)) for s in known for name in trained) if known else None
        row |= {"rate": report.progress.rate, "unit": report.progress.unit}
        if (efficiency := report.progress.efficiency) is not None:
            row["waiting"] = 1 - efficiency
    return row


def add_speedups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the rate divided by that of the fewest devices of the same framework, and that divided by the factor of the devices."""
    first: dict[str, dict[str, Any]] = {}
    for row in sorted((row for row in rows if row.get("rate")), key=lambda row: int(row["total"])):
        fewest = first.setdefault(row["framework"], row)
        row["speedup"] = row["rate"] / fewest["rate"]
        row["efficiency"] = row["speedup"] * fewest["total"] / row["total"]
    return rows


FORMS = dict.fromkeys(AXES, "") | {"seconds": ".1f", "rate": ".4g", "unit": ""}
FORMS |= dict.fromkeys(("speedup", "efficiency", "waiting"), ".2f") | {"state": ""}
"""Columns of the table and of scaling.csv, with the form of their values."""


def format_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table to print."""

    def cell(row: Mapping[str, Any], key: str) -> str:
        return "-" if row.get(key) is None else f"{row[key]:{FORMS[key]}}"

    return format_table([Column(key, partial(cell, key=key)) for key in FORMS], rows)
