"""The verbs of `jobs.py --on NAME`."""

import json
import os
import re
import signal
import time

import pytest

from engine.tests.remote.conftest import Laptop, Site
from tools.testing.processes import wait_until

pytestmark = [pytest.mark.git, pytest.mark.new_process]

QUICK = ("cluster=local", "trainer.max_epochs=1", "monitor.tensorboard=false")


@pytest.mark.slow
def test_verbs_act_on_the_runs_there(laptop: Laptop, site: Site) -> None:
    refused = laptop.command("jobs", "list", "--on", "site")
    assert refused.returncode == 2 and "site has no project in" in refused.stderr, refused.stderr
    assert "python src/train.py on=site sends it" in refused.stderr
    for seed in ("1", "2"):
        assert laptop.command("train", "on=site", *QUICK, f"seed={seed}").returncode == 0
    runs = sorted(p.parent.name for p in (site.folder / "results").glob("*/*/run.json"))
    listed = laptop.command("jobs", "--on", "site", "list")
    assert listed.returncode == 0 and all(run in listed.stdout for run in runs), listed.stderr
    assert (
        json.loads(laptop.command("jobs", "status", runs[0], "--json", "--on=site").stdout)["runs"][0]["id"]
        == runs[0]
    )
    assert "seed" in laptop.command("jobs", "diff", *runs, "--on", "site").stdout
    assert "the highest of 2 runs" in laptop.command("jobs", "best", "--on", "site").stderr
    done = laptop.command("jobs", "--on", "site", "cancel", "no-such-run")
    assert done.returncode == 2 and "no run is called 'no-such-run'" in done.stderr
    again = laptop.command("jobs", "--on", "site", "resubmit", runs[0])
    assert again.returncode == 2 and "ran on this machine" in again.stderr, again.stderr
    assert "invalid choice: 'sattus'" in laptop.command("jobs", "--on", "site", "sattus").stderr
    evaluated = laptop.command("evaluate", runs[0], "on=site")
    assert evaluated.returncode == 0 and "test/acc" in evaluated.stdout, evaluated.stderr
    assert not (laptop.project / "results").exists()


@pytest.mark.slow
def test_programs_and_comparisons_run_there(laptop: Laptop, site: Site) -> None:
    (laptop.project / "hello.py").write_text("import sys\nprint('hello', sys.argv[1:])\n")
    done = laptop.command("run", "on=site", "cluster=local", "--", "hello.py", "on=site", "a b")
    assert done.returncode == 0 and "hello ['on=site', 'a b']" in done.stdout, done.stdout + done.stderr
    assert "hello ['on=site', 'a b']" in laptop.command("jobs", "logs", "--on", "site").stdout
    (laptop.project / "fail.py").write_text("raise SystemExit(3)\n")
    assert laptop.command("run", "on=site", "cluster=local", "--", "fail.py").returncode == 3
    shown = laptop.command("jobs", "status", "--on", "site").stdout
    command = re.search(r"python src/run.py on=site (resume=\S+)", shown)
    assert command and "python src/jobs.py --on site logs 2" in shown, shown
    assert laptop.command("run", "on=site", command[1]).returncode == 3
    shown = laptop.command("scaling", "on=site", "cluster=slurm", "nodes=1,2", "dry_run=true")
    assert shown.returncode == 0 and "trainer.nodes=2" in shown.stdout, shown.stderr
    laptop.knows("site", site, cluster="slurm")
    preset = laptop.command("train", "on=site", "dry_run=true")
    assert (
        "#SBATCH" in preset.stdout
        and "#SBATCH" not in laptop.command("train", "on=site", "cluster=local", "dry_run=true").stdout
    )


@pytest.mark.slow
def test_a_run_continues_when_the_laptop_is_closed(laptop: Laptop, site: Site) -> None:
    words = ("cluster=local", "trainer.max_epochs=100000", "trainer.log_every_n_steps=10", "model=mlp")
    process = laptop.start("train", "on=site", *words, start_new_session=True)
    wait_until(lambda: [*(site.folder / "results").glob("*/*/monitor/live.json")], process)
    os.killpg(process.pid, signal.SIGKILL)  # the laptop is closed
    process.communicate()
    time.sleep(1)
    status = laptop.command("jobs", "status", "--on", "site")
    assert "running" in status.stdout, status.stdout + status.stderr
    done = laptop.command("jobs", "cancel", "--on", "site")
    assert done.returncode == 0, done.stderr
