"""`on=NAME` runs the same command on the host, with the files of the project and each argument as typed."""

import json
import os
from pathlib import Path

import pytest

from engine.tests.remote.conftest import Laptop, Site
from tools.testing.projects import git

pytestmark = [pytest.mark.git, pytest.mark.new_process]

ECHO = """
import json, os, sys
print(json.dumps({"words": sys.argv[1:], "folder": os.getcwd()}))
print("to standard error", file=sys.stderr)
sys.exit(7)
"""

ODD = ["name=a b", "x='q\"uo$HOME`id`\\", "y=größe\n2", "z=!x *?[a] ~ # ; & | <>", "", "%", "-m"]


def files(folder: Path) -> set[str]:
    """Every file below a folder, apart from what the host records."""
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}
    return {
        name for name in found if not name.startswith((".remote/", "results/")) and "__pycache__" not in name
    }


def test_arguments_output_and_exit_code_pass_unchanged(laptop: Laptop, site: Site) -> None:
    (laptop.project / "src" / "train.py").write_text(ECHO)
    start = (
        "import sys; sys.path[:1] = [{!r}]; from train_anywhere.remote.remote_command import run_elsewhere; "
    )
    code = (
        start.format(str(laptop.project / "engine")) + "sys.exit(run_elsewhere('src/train.py', sys.argv[1:]))"
    )
    (laptop.project / "src" / "here.py").write_text(code)
    done = laptop.command("here", "on=site", *ODD)
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == {"words": ODD, "folder": str(site.folder)}
    assert "to standard error" in done.stderr and "On site: echo making" in done.stderr


@pytest.mark.slow
def test_a_training_there_prints_what_it_prints_here_and_its_commit_is_that_of_the_laptop(laptop, site):
    words = ("on=site", "cluster=local", "trainer.fast_dev_run=true", "monitor.tensorboard=false")
    done = laptop.command("train", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Model:         cnn" in done.stdout and "jobs.py --on site" in done.stderr
    [run] = (site.folder / "results").glob("*/*/run.json")
    info = json.loads(run.read_text())
    assert info["commit"] == git(laptop.project, "rev-parse", "HEAD") and info["dirty"]
    script = laptop.command("train", "on=site", "cluster=slurm", "trainer.nodes=2", "dry_run=true")
    assert script.returncode == 0 and "#SBATCH --nodes=2" in script.stdout, script.stderr
    assert "is not under git" not in script.stdout + script.stderr and "making" not in script.stderr


def test_a_refusal_there_has_its_message_and_exit_code(laptop: Laptop, site: Site) -> None:
    done = laptop.command("train", "on=site", "data=imagefolder", "data.dir=/no/such/photos", "cluster=slurm")
    assert done.returncode == 2 and "/no/such/photos" in done.stderr, done.stderr
    assert not (site.folder / "results").exists()


def test_only_files_that_git_knows_travel_without_keys_data_and_environments(laptop, site):
    project = laptop.project
    mine = ("src/new.py", "env/pyvenv.cfg", "env/lib/a.py", "out/r/1/.run-marker", "out/r/1/config.yaml")
    keys = (".env", "src/id_ed25519", "data/rows.csv", "results/run/1/x.ckpt", "deploy_key.pem")
    for name in (*mine, *keys, "configs/local/site.yaml", "configs/local/token.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("account: me\n")
    (project / "tracked.key").write_text("x")
    git(project, "add", "-f", "tracked.key")
    with open(project / "big.bin", "wb") as big:
        big.truncate(3 << 30)
    (project / "configs" / "local" / "slurm.yaml").write_text("cluster:\n  account: me\n")
    before = files(site.home)
    done = laptop.command("train", "on=site", "dry_run=true")
    assert done.returncode == 0, done.stderr
    sent = files(site.folder)
    tracked = {
        n
        for n in git(project, "ls-files").split("\n")
        if not n.startswith(("tests/", "engine/tests/", "engine/benchmarks/"))
    }
    added = {"src/new.py", "configs/local/site.yaml", "configs/local/slurm.yaml", "configs/hosts/site.yaml"}
    assert sent == (tracked - {"tracked.key"}) | added
    notes = [
        line for line in done.stderr.splitlines() if line.startswith("note: not sent, since it may hold")
    ]
    named = {".env", "src/id_ed25519", "deploy_key.pem", "tracked.key", "configs/local/token.txt"}
    assert len(notes) == 1 and {*notes[0].rpartition(": ")[2].split(", ")} == named, done.stderr
    assert "larger than 20 MiB: big.bin" in done.stderr
    assert {
        name for name in files(site.home) - before if not name.startswith(("jobs/", "state/", "tmp/"))
    } == set()


def test_a_second_transfer_sends_what_changed_and_deletes_only_what_the_first_has_sent(laptop, site):
    (laptop.project / "src" / "old one.py").write_text("a = 1\n")
    (laptop.project / "src" / "gone").mkdir()
    (laptop.project / "src" / "gone" / "ü.py").write_text("a = 1\n")
    (laptop.project / "linked").mkdir()
    (laptop.project / "linked" / "kept.py").write_text("a = 1\n")
    assert laptop.command("train", "on=site", "dry_run=true").returncode == 0
    (site.folder / "results" / "mine").mkdir(parents=True)
    theirs = {n: site.folder / n for n in ("results/mine/x.ckpt", "data.csv", "src/theirs.py", ".venv2")}
    for path in theirs.values():
        path.write_text("theirs")
    elsewhere = site.home / "elsewhere"  # a link that was made there is not followed
    (site.folder / "linked").rename(elsewhere)
    (site.folder / "linked").symlink_to(elsewhere)
    (laptop.project / "src" / "old one.py").unlink()
    (laptop.project / "src" / "gone" / "ü.py").unlink()
    (laptop.project / "linked" / "kept.py").unlink()
    (laptop.project / "src" / "new.py").write_text("a = 2\n")
    [first] = (site.folder / ".remote" / "requests").iterdir()
    os.utime(first / "code", (0, 0))  # an answer of 1970
    done = laptop.command("train", "on=site", "dry_run=true")
    assert "Sent 1 of" in done.stderr and done.stderr.count("src/new.py") == 1, done.stderr
    assert not (site.folder / "src" / "old one.py").exists() and not (site.folder / "src" / "gone").exists()
    assert not first.exists() and len([*(site.folder / ".remote" / "requests").iterdir()]) == 1
    assert (elsewhere / "kept.py").exists() and all(path.read_text() == "theirs" for path in theirs.values())


def test_a_folder_with_other_files_is_refused_and_stays(laptop: Laptop, site: Site) -> None:
    site.folder.mkdir(parents=True)
    (site.folder / "thesis.txt").write_text("theirs")
    done = laptop.command("train", "on=site")
    assert done.returncode == 2 and "has files that were not sent from here" in done.stderr
    assert files(site.folder) == {"thesis.txt"}
