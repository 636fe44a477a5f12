"""An evaluation as a job of a real Slurm has the same metrics. A refused one leaves nothing."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import SMALL, Login, log
from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.submission.evaluation import claim, next_place
from train_anywhere.slurm.testbed.testbed_cluster import Testbed
from train_anywhere.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

HEAVY = {"torch", "tensorflow", "lightning", "keras", "numpy"}


def test_a_run_is_evaluated_by_a_job(login: Login, testbed: Testbed) -> None:
    """The job's folder holds its code, script and log. The rest of the run is unchanged."""
    login.train(*SMALL, "model=mlp", "trainer.accelerator=cpu")
    run = (login.results / "latest").resolve()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    answers = login.folder / "the answers.csv"
    options = ("--split", "val", "--predict", str(answers), "cluster=slurm", "wait=true")
    done = login.command("evaluate", str(run), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.match(r"Submitted job (\d+) to slurm: 1 node, 1 process\nLog:  +(\S+)\n", done.stdout)
    assert found, done.stdout
    job = run / "evaluations" / "job-1"
    assert testbed.wait_job(found[1], 60) == "COMPLETED", log(job)
    assert {p.name for p in job.iterdir()} >= {"code", "job.sbatch", f"slurm-{found[1]}.out"}
    (written,) = run.glob("evaluations/val-*.json")
    assert json.loads(written.read_text())["metrics"] == {
        name: value for name, value in info(run)["metrics"].items() if name.startswith("val")
    }
    assert len(answers.read_text().splitlines()) == 1 + 179
    assert {path: path.read_bytes() for path in before} == before


@pytest.fixture
def trained(train: Callable[..., object], tmp_path: Path) -> Path:
    """A run folder that has been trained a little."""
    train(
        *SMALL,
        "model=mlp",
        "trainer.accelerator=cpu",
        f"paths.results={tmp_path}",
        "trainer.limit_train_batches=2",
    )
    return (tmp_path / "latest").resolve()


def test_what_is_refused_or_shown_leaves_nothing(trained: Path, tmp_path: Path) -> None:
    """Without a scheduler sbatch refuses. A dry run shows the script. Neither imports numpy."""

    def evaluate(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [
            sys.executable,
            "-X",
            "importtime",
            str(ROOT / "src" / "evaluate.py"),
            str(trained),
            *words,
        ]
        return subprocess.run(
            command, capture_output=True, text=True, env={"PATH": "/nowhere", "HOME": str(tmp_path)}
        )

    before = sorted(trained.rglob("*"))
    drawn = ("--tokens", "9", "--temperature", "0.5", "--seed", "7")
    shown = evaluate("cluster=slurm", "dry_run=true", "--generate", "it's", *drawn)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert "#SBATCH --nodes=1\n#SBATCH --ntasks=1\n" in shown.stdout and "--signal" not in shown.stdout
    assert f"""-u "$CODE"/src/evaluate.py {trained} """ in shown.stdout
    assert f""" '--generate=it'"'"'s' {" ".join(drawn)}""" in shown.stdout
    imported = set(re.findall(r"\| +(\w+)$", shown.stderr, re.MULTILINE))
    assert "argparse" in imported and not imported & HEAVY
    refused = evaluate("cluster=slurm")
    assert refused.returncode == 2 and "sbatch" in refused.stderr
    of_pbs = evaluate("cluster=pbs", "dry_run=true")
    assert "srun" not in of_pbs.stdout and "#PBS -l select=1:" in of_pbs.stdout, of_pbs.stdout
    assert sorted(trained.rglob("*")) == before


def test_of_two_submissions_at_once_one_is_refused(tmp_path: Path) -> None:
    """The folder of the other one stays as it is."""
    first = next_place(RunDir(tmp_path))
    claim(first)
    (first.path / "job.sbatch").write_text("theirs")
    with pytest.raises(SubmitError, match="job-1 was just created by another submission"):
        claim(first)
    assert (first.path / "job.sbatch").read_text() == "theirs"
    assert next_place(RunDir(tmp_path)).path.name == "job-2"
