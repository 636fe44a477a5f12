"""Check the whole path with the words of a run: what is installed, what the site wants, then a job of two tiny steps.

python src/doctor.py                                                # this machine
python src/doctor.py cluster=alvis trainer.nodes=2 strategy=horovod   # a job there, waited for

The job is `src/train.py` with the same words: its gradients are averaged over all ranks, as in any other run.
Exit codes: 0 all well, 1 something is not (the line says what to do), 2 the request itself makes no sense.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from train_anywhere.config.checks.this_machine import no_scheduler
from train_anywhere.config.command.command_line import here, opened, split
from train_anywhere.config.command.compose import CONFIGS, compose, quoted
from train_anywhere.config.command.refusal import refusal
from train_anywhere.config.command.yaml_files import refuse_unusable
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.horovod.installation import (
    horovod_problem,
    installed_frameworks,
    installed_horovod,
)
from train_anywhere.distributed.layout import Layout, lay_out, local_layout
from train_anywhere.distributed.packages import PACKAGES
from train_anywhere.errors import REFUSED, ConfigError
from train_anywhere.files import ROOT
from train_anywhere.launch.local_run import local_problems
from train_anywhere.launch.preflight import data_problems
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.rank_reports import reports
from train_anywhere.slurm.presets import name_current
from train_anywhere.slurm.script.job import devices_per_node
from train_anywhere.slurm.script.readable import problems as cluster_problems
from train_anywhere.slurm.submission.prepare import refusals

TOOLS = {"none": (), "slurm": ("sbatch", "squeue", "scontrol"), "pbs": ("qsub", "qstat")}
SHORT = ("trainer.max_epochs=1", "trainer.max_steps=2")
NAME = "doctor"
QUIET = ("trainer.limit_val_batches=1", "trainer.limit_test_batches=0", "monitor.ranks=true", f"name={NAME}")


@dataclass(frozen=True)
class Fact:
    """One line of the report; `remedy` says what to do where it is not ok."""

    name: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{'ok' if not self.remedy else '!!':<4}{self.name:<18}{self.remedy or self.found}"


def facts(config: Config) -> Iterator[Fact]:
    """What can be known without starting anything."""
    yield Fact("python", f"{sys.version.split()[0]}  {sys.executable}")
    frameworks = installed_frameworks()
    for package in PACKAGES[config.framework]:
        version = frameworks.get(package) or _version(package)
        yield Fact(package, version or "", "" if version else f"not installed in {sys.prefix}: `make setup`")
    yield from _horovod(config)
    for tool in TOOLS[config.cluster.scheduler]:
        where = shutil.which(tool)
        yield Fact(tool, where or "", "" if where else "not on PATH: this is not a login node of the cluster")
    yield _results(Path(config.paths.results))
    problems = local_problems(config) if config.cluster.scheduler == "none" else _site_problems(config)
    for problem in problems:
        yield Fact("request", "", problem)


def _horovod(config: Config) -> Iterator[Fact]:
    """Where it is of use; where one is asked for that is not, the request's own check says so."""
    version = installed_horovod()
    if version and not horovod_problem(config.framework):
        yield Fact("horovod", version)


def _results(folder: Path) -> Fact:
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = f"{shutil.disk_usage(there).free >> 30} GiB free in {folder}"
    writable = os.access(there, os.W_OK)
    return Fact("results", free, "" if writable else f"{there} can't be written: use paths.results=DIR")


def _site_problems(config: Config) -> list[str]:
    return refusals(config, None, None, None, data_problems)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def run_job(config: Config, words: list[str]) -> Fact:
    """Two steps on all ranks through the same path as any run; for a cluster, a job that is waited for."""
    folder = Path(config.paths.results) / NAME
    settings = [
        f"paths.results={config.paths.results}",
        "wait=true",
        "dry_run=false",
    ]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words, *SHORT, *QUIET, *settings]
    print(f"    {'job':<18}two steps of task={config.task.name} ...", flush=True)
    before = set(folder.glob("*/run.json"))
    done = subprocess.run(command, capture_output=True, text=True)
    made = sorted(set(folder.glob("*/run.json")) - before)
    if not made:
        return Fact("job", "", (done.stderr or done.stdout).strip())
    run = RunDir(made[-1].parent)
    logs = (path.read_text(errors="replace") for path in sorted(run.path.glob("*-*.*")))
    return judged(run, done.stdout + done.stderr + "".join(logs))


def judged(run: RunDir, output: str) -> Fact:
    """Whether every rank answered, and all ended with the same weights.

    Args:
        output: of the job, for people: its end is shown where something is wrong.
    """
    info, ranks = run.info(), reports(run)
    silent = sorted(set(range(info["world_size"])) - ranks.keys())
    answered = f"{len(ranks)} of {info['world_size']} ranks answered, on {', '.join(info.get('hosts', []))}"
    if silent:
        return Fact("job", "", f"ranks {silent} did not start; see {run.path}\n{_tail(output)}")
    if info["state"] != "completed":
        return Fact("job", "", f"{answered}, and the job is {info['state']}; see {run.path}\n{_tail(output)}")
    if len({r["weights"] for r in ranks.values() if "weights" in r}) > 1:
        return Fact("job", "", f"{answered}, with different weights: their gradients are not averaged")
    return Fact("job", answered)


def _layout(config: Config) -> Layout:
    if config.cluster.scheduler == "none":
        return local_layout(config)
    return lay_out(config, devices_per_node(config))


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-15:])


def main(arguments: list[str]) -> int:
    """Print the report; returns the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    words: list[str] = []
    try:
        config = asked(arguments, words)
    except Exception as error:
        message = refusal(error, words)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return REFUSED
    return report(config, words)


def asked(arguments: list[str], words: list[str]) -> Config:
    """The configuration of the command line; its overrides are appended to `words`.

    Raises:
        ProjectError: with all problems.
    """
    here()
    refuse_unusable(CONFIGS)
    line = split(arguments)
    if line.flags:
        raise ConfigError(f"{' '.join(line.flags)}: this command takes key=value only; see --help.")
    words += [quoted(w) for w in opened(line.overrides)]
    if "cluster=current" in words:
        words[:] = name_current(words)
    return load(compose(words), senseless)


def senseless(config: Config) -> list[str]:
    """What no machine and no site could give; of what these here don't, the report speaks."""
    resumes = [f"resume={config.resume}: this command makes a run of its own; leave resume= out."]
    of_cluster = no_scheduler(config) if config.cluster.name == "local" else cluster_problems(config.cluster)
    return [*(resumes if config.resume else []), *of_cluster]


def report(config: Config, words: list[str]) -> int:
    """Print all facts, then what became of a tiny job; returns the exit code."""
    strategy = _layout(config).strategy
    print(
        f"    {'checked':<18}framework={config.framework} strategy={strategy} cluster={config.cluster.name}"
    )
    found = []
    for fact in facts(config):
        print(fact, flush=True)
        found.append(fact)
    if not any(f.remedy for f in found):
        found.append(run_job(config, words))
        print(found[-1])
    return int(any(f.remedy for f in found))
