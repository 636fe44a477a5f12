"""Submissions are killed at each file operation: no job is lost or submitted twice.

The clients of the scheduler are scripts with a queue in a file, because a real Slurm forgets no job when the test ends.
"""

import contextlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.tests.killed import run_killed
from engine.tests.slurm.fakes import Fakes
from train_anywhere.checkpoints.store import refuse_unreadable
from train_anywhere.commands import jobs
from train_anywhere.config.command.compose import compose
from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler import client
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.submission.prepare import start
from train_anywhere.training.preflight import data_problems

SBATCH = """
n=$((4000 + $(grep -c ^sbatch {asked})))
for script; do case $script in --array=*) array=$script;; esac; done
[ "$array" ] || array=$(sed -n "s/^#SBATCH --array=/--array=/p" "$script")
range=$(echo "$array" | sed -n "s/--array=\\([0-9]*\\)-\\([0-9]*\\).*/\\1 \\2/p")
if [ "$range" ]; then members=$(seq $range); else members=${{array#--array=}}; fi
[ "$members" ] || echo "$n|PENDING|$script" >>{queue}
for m in $members; do echo "$n"_"$m|PENDING|$script" >>{queue}; done
echo $n
"""
SQUEUE = """
case "$*" in
    *%o*) grep -v "COMPLETED\\|FAILED" {queue};;
    *) [ -s {queue} ] || {{ echo slurm_load_jobs error: Invalid job id specified >&2; exit 1; }}; cut -d'|' -f1,2 {queue};;
esac
exit 0
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    fakes = Fakes(tmp_path)
    fakes("sbatch", SBATCH.format(queue=fakes.queue, asked=fakes.folder.parent / "asked"))
    fakes("squeue", SQUEUE.format(queue=fakes.queue))
    fakes("scancel", f"for i; do sed -i s/^$i.PENDING/$i\\|CANCELLED/ {fakes.queue}; done")
    fakes("sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
    fakes("scontrol", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    monkeypatch.setenv("PATH", f"{fakes.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(client, "LOOKUP_PAUSES_S", (0.0, 0.0, 0.3))
    monkeypatch.chdir(tmp_path)
    yield fakes


def queued(fakes: Fakes) -> list[str]:
    return [line.split("|")[0] for line in fakes.queue.read_text().splitlines() if "|PENDING|" in line]


def ask(fakes: Fakes, *words: str) -> str:
    """Everything that a verb of jobs.py prints."""
    with io.StringIO() as text, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        jobs.main([*words, "--results", str(fakes.results)])
        return text.getvalue()


def check(fakes: Fakes, runs: list[Path], links: int) -> str:
    """Check the verbs on runs whose submission was killed. Return the counts."""
    mine = queued(fakes)
    name = str(runs[0]) if len(runs) == 1 else str(runs[0]).rpartition("-")[0]
    shown = ask(fakes, "status", name)
    written = all((run / "run.json").exists() for run in runs)  # else sbatch has not been called
    assert "lost" not in shown or not (written or mine), shown
    may_be = bool(mine) or any(
        "?" in (run / "jobs.txt").read_text() for run in runs if (run / "jobs.txt").exists()
    )
    if may_be:
        kept = ask(fakes, "prune", name, "--yes")
        assert kept.count("kept: ") == len(runs) and all(run.is_dir() for run in runs), kept
    again = ask(fakes, "resubmit", name, "--trust")
    if mine:
        assert "nothing to submit again" in again and queued(fakes) == mine, again
        assert all(job in shown or len(runs) > 1 for job in mine), (shown, mine)
        said = ask(fakes, "cancel", name)
        assert not queued(fakes), said
        return "submitted"
    if not (runs[0] / "job.sbatch").exists() and not list(runs[0].parent.glob("*/job.sbatch")):
        return "unwritten"
    assert "Submitted job" in again, again
    assert len(queued(fakes)) == links * len(runs), fakes.queue.read_text()
    return "not submitted"


def kill_each(call: Callable[[], object], fakes: Fakes, links: int = 1) -> dict[str, int]:
    """Kill a submission at each operation, always from the same state. Return the counts."""
    kept = fakes.queue.with_name("kept")
    shutil.rmtree(kept, ignore_errors=True)
    if fakes.results.exists():
        shutil.copytree(fakes.results, kept, symlinks=True)
    listed, found, at = (
        fakes.queue.read_text(),
        dict.fromkeys(("unwritten", "not submitted", "submitted"), 0),
        0,
    )
    while True:
        shutil.rmtree(fakes.results, ignore_errors=True)
        if kept.exists():
            shutil.copytree(kept, fakes.results, symlinks=True)
        fakes.queue.write_text(listed)
        at += 1
        if not run_killed(call, fakes.results.parent, at, without="/code")[0]:
            break
        runs = fakes.runs()
        assert runs or not queued(fakes)
        found[check(fakes, runs, links) if runs else "unwritten"] += 1
    assert len(queued(fakes)) >= links, "the last one was not killed"
    print(f"{at - 1} kills: {found}")
    assert found["not submitted"] and found["submitted"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("links", [1, 2])
def test_a_killed_submission(fakes: Fakes, links: int) -> None:
    kill_each(lambda: fakes.submit(f"cluster.chain={links}"), fakes, links)


@pytest.mark.slow
def test_a_killed_sweep(fakes: Fakes) -> None:
    words = [["cluster=slurm", f"paths.results={fakes.results}", f"seed={seed}"] for seed in (1, 2)]
    kill_each(lambda: start([compose(w) for w in words], words, data_problems, refuse_unreadable), fakes)


def ended(fakes: Fakes) -> Path:
    """A run whose job has failed."""
    fakes.submit()
    [run] = fakes.runs()
    fakes.queue.write_text(fakes.queue.read_text().replace("PENDING", "FAILED"))
    RunDir(run).update(state="failed")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["resubmit", "resume"])
def test_a_killed_resubmission(fakes: Fakes, verb: str) -> None:
    run = str(ended(fakes))
    calls = {
        "resubmit": lambda: jobs.main(["resubmit", run, "--results", str(fakes.results)]),
        "resume": lambda: fakes.submit(f"resume={run}"),
    }
    kill_each(calls[verb], fakes)


def test_a_submission_whose_sbatch_outlives_it(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed while sbatch runs, and Slurm gets the job a moment later."""
    late = f'(sleep 4; {fakes.folder}/real "$@" >/dev/null) & kill -9 $PPID'
    monkeypatch.setattr(client, "LOOKUP_PAUSES_S", (0.0, 0.0, 15.0))
    (fakes.folder / "sbatch").rename(fakes.folder / "real")
    fakes("sbatch", late)
    killed, _ = run_killed(lambda: fakes.submit(), fakes.results.parent)
    [run] = fakes.runs()
    shown = ask(fakes, "status", str(run))
    assert killed and "unknown  run.json says queued  job ?" in shown and "squeue --me" in shown
    assert "kept: " in ask(fakes, "prune", str(run), "--yes")
    assert "nothing to submit again" in ask(fakes, "resubmit", str(run))
    assert len(queued(fakes)) == 1
    assert f"pending  job {queued(fakes)[0]} on slurm" in ask(fakes, "status", str(run))


def test_a_job_whose_record_is_missing_is_found_after_its_end(fakes: Fakes) -> None:
    """Its log proves it, even if Slurm has forgotten it. Without both an old submission is lost."""
    run = ended(fakes)
    (run / "jobs.txt").write_text("?\n")
    fakes.queue.write_text("")
    (run / "slurm-4001.out").touch()
    assert "failed  job 4001 on slurm" in ask(fakes, "status", str(run))
    (run / "slurm-4001.out").unlink()
    RunDir(run).update(state="queued")
    assert "unknown  run.json says queued  job ?" in ask(fakes, "status", str(run))
    os.utime(run / "jobs.txt", (time.time(), time.time() - 2 * find_runs.FORGOTTEN_S))
    assert "lost  job ?" in ask(fakes, "status", str(run))
    fakes("squeue", "exit 1")
    assert "kept: " in ask(fakes, "prune", str(run), "--yes") and run.is_dir()


def test_a_run_that_the_job_of_another_run_names_is_kept(fakes: Fakes) -> None:
    run = ended(fakes)
    fakes.submit()
    [job] = set(fakes.runs()) - {run}
    with open(job / "config.yaml", "a") as config:
        config.write(f"program: {{command: [src/evaluate.py, {run}]}}\n")
    assert f"{job.name} names it, and its job is queued" in ask(fakes, "prune", str(run), "--yes")
    fakes("squeue", "exit 1")
    assert "kept: " in ask(fakes, "prune", str(run), "--yes") and run.is_dir()


def test_a_run_is_not_waited_for_while_its_job_is_not_known(fakes: Fakes) -> None:
    run = ended(fakes)
    (run / "jobs.txt").write_text("?\n")
    RunDir(run).update(state="queued")
    fakes.queue.write_text("")
    with pytest.raises(ConfigError, match="whether a job of that run is queued is not known yet"):
        fakes.submit(f"after={run}")
