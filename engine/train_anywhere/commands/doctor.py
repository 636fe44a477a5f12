"""Check the installation, the site and a job of two small steps, with the arguments of a run.

python -m train_anywhere doctor                                                # this machine
python -m train_anywhere doctor cluster=alvis trainer.nodes=2 strategy=horovod   # a job on alvis, and wait for it

The job is `src/train.py` with the same arguments, so its gradients are averaged over all ranks.
Exit codes: 0 all checks pass, 1 a check fails (its line has the remedy), 2 the arguments are invalid.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from train_anywhere.commands.elsewhere import read_request
from train_anywhere.config.checks.contradictions import scheduler_problems
from train_anywhere.config.schema import Config
from train_anywhere.distributed import packages
from train_anywhere.distributed.layout import local_layout, make_layout
from train_anywhere.errors import listed
from train_anywhere.files import ROOT
from train_anywhere.files.terminal.fit import fit_page, terminal_width
from train_anywhere.launch.command import HELP, run_command
from train_anywhere.launch.local_run import local_problems
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import read_reports
from train_anywhere.slurm.script.job import devices_per_node
from train_anywhere.slurm.script.units import format_problems as cluster_problems
from train_anywhere.slurm.submission.prepare import refusals
from train_anywhere.training.preflight import CHECKS

SHORT = (
    "trainer.max_epochs=1", "trainer.max_steps=2", "trainer.limit_val_batches=1", "trainer.limit_test_batches=0",
    "monitor.ranks=true", "name=doctor", "wait=true", "dry_run=false",
)  # fmt: skip
"""Overrides of the small job."""


class Fact(NamedTuple):
    """One line of the report; `remedy` is what to do if it is not ok."""

    name: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{'ok' if not self.remedy else '!!':<4}{self.name:<18}{self.remedy or self.found}"


def run_problems(config: Config) -> list[str]:
    """Return why this machine, or the cluster that is named, can't run a training."""
    if config.cluster.scheduler == "none":
        return local_problems(config, CHECKS)
    return refusals(config, None, None, None, CHECKS.problems)


def collect_facts(config: Config) -> Iterator[Fact]:
    """Yield what can be checked without starting a job."""
    yield Fact("python", f"{sys.version.split()[0]}  {sys.executable}")
    frameworks = packages.installed_frameworks()
    for package in packages.PACKAGES[config.framework]:
        with suppress(metadata.PackageNotFoundError):
            yield Fact(package, frameworks.get(package) or metadata.version(package))
    # what is missing for the request is reported with its other problems
    if (horovod := packages.installed_horovod()) and not packages.horovod_problem(config.framework):
        yield Fact("horovod", horovod)
    for problem in run_problems(config):
        yield Fact("request", "", problem)


def run_job(words: list[str], results: str, task: str) -> Fact:
    """Run two steps on all ranks with `src/train.py`; on a cluster, wait for the job."""
    folder = Path(results) / "doctor"
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words, *SHORT, f"paths.results={results}"]
    print(f"    {'job':<18}two steps of task={task} ...", flush=True)
    before = set(folder.glob("*/run.json"))
    done = subprocess.run(command, capture_output=True, text=True)
    new = sorted(set(folder.glob("*/run.json")) - before)
    if not new:
        return Fact("job", "", (done.stderr or done.stdout).strip())
    run = RunDir(new[-1].parent)
    logs = (path.read_text(errors="replace") for path in sorted(run.path.glob("*-*.*")))
    return check_run(run, done.stdout + done.stderr + "".join(logs))


def check_run(run: RunDir, output: str) -> Fact:
    """Check that every rank answered, and that all ended with the same weights; `output` of the job ends the message."""
    info, ranks = run.read_info(), read_reports(run)
    silent = sorted(set(range(info["world_size"])) - ranks.keys())
    answered = f"{len(ranks)} of {info['world_size']} ranks answered, on {listed(info.get('hosts', []))}"
    problem, tail = "", "\n".join(["", *output.strip().splitlines()[-15:]])
    if silent:
        problem = f"ranks {silent} did not start; see {run.path}{tail}"
    elif info["state"] != "completed":
        problem = f"{answered}, and the job is {info['state']}; see {run.path}{tail}"
    elif len({r["weights"] for r in ranks.values() if "weights" in r}) > 1:
        problem = f"{answered}, with different weights: their gradients are not averaged"
    return Fact("job", answered, problem)


def main(arguments: list[str]) -> int:
    """Print the report and return the exit code."""
    if HELP & {*arguments}:
        print(fit_page(__doc__ or "", terminal_width()))
        return 0
    return run_command(lambda: report(*read_request(arguments, request_problems)))


def request_problems(config: Config) -> list[str]:
    """Return what no machine or site allows. The report has what this machine or site does not allow."""
    resumes = f"resume={config.resume}: this command starts a new run; leave resume= out."
    find_problems = scheduler_problems if config.cluster.name == "local" else cluster_problems
    return [*([resumes] if config.resume else []), *find_problems(config.cluster)]


def report(config: Config, words: list[str]) -> int:
    """Print all facts, then the result of a small job; return the exit code."""
    local = config.cluster.scheduler == "none"
    framework, strategy, cluster = config.framework, config.strategy.name, config.cluster.name
    layout = local_layout(config) if local else make_layout(framework, strategy, devices_per_node(config))
    print(f"    {'checked':<18}framework={framework} strategy={layout.strategy} cluster={cluster}")
    fails = False
    for fact in collect_facts(config):
        print(fact, flush=True)
        fails |= bool(fact.remedy)
    if not fails:
        print(job := run_job(words, config.paths.results, config.task.name))
        fails = bool(job.remedy)
    return int(fails)
