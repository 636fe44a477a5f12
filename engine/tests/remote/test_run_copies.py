"""`jobs.py pull`: a run moves between machines, and continues with the same bits."""

import filecmp
from pathlib import Path

import pytest
import yaml

from engine.tests.remote.conftest import Laptop, Site
from tools.testing.weights import final_weights, info, largest_difference
from train_anywhere.runs.folder import RunDir, claim_named
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.frozen import REQUIRED_KEYS

pytestmark = [pytest.mark.git, pytest.mark.new_process]

SHORT = ("model=mlp", "monitor.tensorboard=false", "schedule=constant")


def ok(laptop: Laptop, program: str, *words: str) -> str:
    """Return what a command prints that must succeed."""
    done = laptop.command(program, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_is_pulled_evaluated_and_resumed_here(laptop: Laptop, site: Site) -> None:
    ok(laptop, "train", "on=site", "cluster=local", *SHORT, "trainer.max_epochs=3", "seed=7")
    [there] = (site.folder / "results").glob("*/2*")
    ok(laptop, "jobs", "pull", "--on", "site")
    here = laptop.project / "results" / there.parent.name / there.name
    best = (there / "checkpoints" / "best").read_text().strip()
    assert {p.name for p in (here / "checkpoints").iterdir() if p.is_dir()} == {best}
    assert filecmp.cmp(there / "metrics.csv", here / "metrics.csv") and (here / "report.html").exists()
    assert not (here / "lock").exists() and str(site.home) not in (here / "config.yaml").read_text()
    assert "test/acc" in ok(laptop, "evaluate", str(here))
    ok(laptop, "report", str(here))
    ok(laptop, "jobs", "pull", there.name, "--on", "site", "--all")
    assert {p.name for p in (here / "checkpoints").iterdir()} == {
        p.name for p in (there / "checkpoints").iterdir()
    }
    ok(laptop, "train", f"resume={here}", "trainer.max_epochs=5")
    done = laptop.command("jobs", "pull", "--on", "site")
    assert done.returncode == 2 and "was continued since" in done.stderr, done.stderr
    ok(laptop, "train", "on=site", "cluster=local", *SHORT, "trainer.max_epochs=5", "seed=7", "name=whole")
    [whole] = (site.folder / "results" / "whole").glob("2*")
    assert info(here)["step"] == info(whole)["step"] and len(info(here)["attempts"]) == 2
    assert largest_difference(final_weights(here), final_weights(whole)) == 0


def test_a_run_that_is_only_here_is_named(laptop: Laptop, site: Site) -> None:
    run = laptop.project / "results" / "digits" / "1"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("framework: lightning\n")
    for words in (("train", "resume=results/digits/1"), ("evaluate", str(run)), ("train", f"init={run}")):
        done = laptop.command(*words, "on=site")
        assert done.returncode == 2 and "is a run of this machine; if site has none" in done.stderr


def make_run(results: Path, *starts: str) -> RunDir:
    """Make a run folder that was started at some times."""
    run = claim_named(results, "digits", "1")
    run.config.write_text(yaml.safe_dump({key: {} for key in REQUIRED_KEYS}))
    run.update(attempts=[{"started": start} for start in starts], state="completed")
    return run


def test_a_copy_replaces_no_run_that_was_continued_or_is_running(laptop: Laptop, site: Site) -> None:
    assert laptop.command("train", "on=site", "dry_run=true").returncode == 0
    here = make_run(laptop.project / "results", "2026-01-01", "2026-01-02")
    make_run(site.folder / "results", "2026-01-01", "2026-01-03")
    words = ("jobs", "pull", "1", "--on", "site")
    done = laptop.command(*words)
    assert done.returncode == 2 and "results/digits/1 was continued since" in done.stderr, done.stderr
    here.update(attempts=[{"started": "2026-01-01"}])
    with RunLock(here):
        done = laptop.command(*words)
        assert done.returncode == 2 and "would overwrite each other's checkpoints" in done.stderr
    assert here.read_info()["attempts"] == [{"started": "2026-01-01"}]
    ok(laptop, *words)
    assert len(here.read_info()["attempts"]) == 2
