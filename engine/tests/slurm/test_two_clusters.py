"""Two clusters that a laptop uses over ssh, each with a scheduler, nodes and an sshd of its own on its login node."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.tests.remote.conftest import Laptop, Site
from engine.tests.slurm.login import EACH_STEP, log, set_step_seconds, trained, wait_for
from tools.testbed import namespaces
from tools.testbed.testbed_cluster import Testbed
from tools.testing.projects import copy_project
from tools.testing.weights import final_weights, info, largest_difference

pytestmark = [pytest.mark.slurm, pytest.mark.git, pytest.mark.slow, pytest.mark.new_process]

SAVED = ("checkpoint.every_n_epochs=1000", "checkpoint.every_n_steps=20", "data.batch_size=24")
EXACT = (*EACH_STEP, *SAVED, "schedule=constant", "model.dropout=0", "trainer.nodes=2", "trainer.devices=1")
"""A training whose weights do not depend on how often it was resumed."""


class Clusters(NamedTuple):
    """A laptop and two clusters.

    Attributes:
        laptop: a copy of the project that knows the clusters as `a` and `b`.
        a: the login node of three nodes.
        b: the login node of two nodes.
        nodes_a: the nodes of a.
        nodes_b: the nodes of b.
    """

    laptop: Laptop
    a: Site
    b: Site
    nodes_a: Testbed
    nodes_b: Testbed


@pytest.fixture
def clusters(testbed_for: Callable[..., Testbed], shared_dir: Path, tmp_path: Path) -> Iterator[Clusters]:
    """Two clusters and a laptop, each with its own user, key, port and home."""
    testbeds = {"a": testbed_for("slurm", nodes=3), "b": testbed_for("technion", nodes=2)}
    laptop, sites = Laptop(tmp_path, copy_project(tmp_path)), []
    for name, user, preset in (("a", "ann", "slurm"), ("b", "ben", "technion")):
        testbed, home = testbeds[name], shared_dir / user
        home.mkdir()
        passwd = testbed.dir / "etc" / "passwd"
        others = [line for line in passwd.read_text().splitlines() if not line.startswith(f"{user}:")]
        passwd.write_text("\n".join([*others, f"{user}:x:0:0::{home}:/bin/bash", ""]))
        login = testbed.machines.pid("login")
        assert login
        enter = namespaces.enter(login, pid_namespace=False, cwd="/")
        sites.append(Site(home, user=user, enter=enter))
        laptop.knows(name, sites[-1], cluster=preset, setup=None)
    yield Clusters(laptop, *sites, testbeds["a"], testbeds["b"])
    laptop.close()
    for site in sites:
        site.stop()
    for testbed in testbeds.values():
        testbed.run(["scancel", "--user=root"])
        for node in testbed.nodes:
            if not testbed.machines.pid(node):
                testbed.boot_node(node)


def ok(laptop: Laptop, program: str, *words: str) -> str:
    """Return what a command prints that must succeed."""
    done = laptop.command(program, *words, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def submit(laptop: Laptop, site: Site, name: str, *words: str) -> tuple[str, Path]:
    """Submit a job to a host, and return its id and the run folder there."""
    shown = ok(laptop, "train", f"on={name}", *words)
    found = re.search(r"Submitted job (\d+)", shown)
    assert found, shown
    [run] = [
        file.parent
        for file in site.folder.glob("results/*/*/jobs.txt")
        if found[1] in file.read_text().split()
    ]
    return found[1], run


def test_a_run_loses_a_node_moves_to_another_cluster_and_has_the_same_bits(
    clusters: Clusters, slow_steps: str, shared_dir: Path
) -> None:
    laptop, a, b, nodes_a, nodes_b = clusters
    job, run = submit(laptop, a, "a", *EXACT, "trainer.max_steps=120", "name=moved", slow_steps)
    following = laptop.start("jobs", "--on", "a", "logs", "-f")
    wait_for(lambda: trained(run) > 45, run, 240)
    nodes_a.kill_node(info(run)["hosts"][1])
    wait_for(lambda: len(info(run)["attempts"]) == 2 and trained(run, 1) > 0, run, 240)
    set_step_seconds(shared_dir, "0")
    assert nodes_a.wait_job(job, 240) == "COMPLETED", log(run)
    out, err = following.communicate(timeout=60)
    assert following.returncode == 0 and "resuming at step 40 of 120" in out, out + err
    assert len(info(run)["attempts"]) == 2
    pulled = laptop.project / "results" / "moved" / run.name
    assert run.name in ok(laptop, "jobs", "pull", run.name, "--on", "a", "--all")
    assert "test/acc" in ok(laptop, "evaluate", str(pulled), "trust=true")
    ok(laptop, "train", "on=b", "dry_run=true")  # b has the project
    shutil.copytree(pulled, b.folder / "results" / "moved" / run.name)
    same = (f"resume=results/moved/{run.name}", "trainer.max_steps=200", "trust=true")
    job, there = submit(laptop, b, "b", *same)
    assert nodes_b.wait_job(job, 240) == "COMPLETED", log(there)
    job, whole = submit(laptop, b, "b", *EXACT, "trainer.max_steps=200", "name=whole")
    assert nodes_b.wait_job(job, 240) == "COMPLETED", log(whole)
    assert info(there)["step"] == info(whole)["step"] == 200 and info(there)["world_size"] == 2
    assert largest_difference(final_weights(there), final_weights(whole)) == 0
    job, _ = submit(laptop, b, "b", same[0], "trainer.max_steps=240", "trainer.nodes=1", same[2])
    assert nodes_b.wait_job(job, 240) == "COMPLETED", log(there)
    job, _ = submit(laptop, b, "b", f"resume=results/whole/{whole.name}", "trainer.max_steps=240")
    assert nodes_b.wait_job(job, 240) == "COMPLETED", log(whole)
    assert info(there)["world_size"] == 1 and info(there)["step"] == info(whole)["step"] == 240
    assert largest_difference(final_weights(there), final_weights(whole)) < 1e-5


def checksums(folder: Path, names: list[str]) -> dict[str, str]:
    """Return a checksum of each file."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def test_every_verb_leaves_the_files_of_others_alone(
    clusters: Clusters, slow_steps: str, shared_dir: Path
) -> None:
    laptop, a, _, nodes_a, _ = clusters
    words = (*EXACT, "trainer.max_steps=3000", "name=my-run", slow_steps)
    job, run = submit(laptop, a, "a", *words)
    other = "results/theirs/20260101-000000-abcd"
    theirs = [
        *(f"{other}/{name}" for name in ("config.yaml", "checkpoints/00000001/model.ckpt", "notes")),
        *("data/rows.csv", "src/theirs.py", ".venv/bin/tool", "results/table.csv", "thesis.txt"),
    ]
    for name in theirs:
        (a.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (a.folder / name).write_text(f"theirs: {name}")
    before = checksums(a.folder, theirs)

    def verb(*words: str, code: int = 0, says: str = "", program: str = "jobs") -> str:
        done = laptop.command(program, *words, timeout=240)
        assert done.returncode == code and "Traceback" not in done.stdout + done.stderr, (words, done)
        assert says in done.stdout + done.stderr, (words, done)
        assert checksums(a.folder, theirs) == before, words
        return done.stdout

    on = ("--on", "a")
    wait_for(lambda: trained(run) > 5, run, 240)
    set_step_seconds(shared_dir, "0.1")
    assert json.loads(verb("list", "--json", *on))["runs"]
    verb("status", run.name, *on, says="running")
    verb("save", run.name, *on, says="checkpoints/")
    verb("profile", run.name, "--steps", "2", *on)
    verb("debug", run.name, *on, says="rank")
    verb("status", "results/theirs", *on, code=2, says="error: ")
    shell = laptop.start("jobs", "shell", run.name, *on, stdin=subprocess.PIPE)
    out, err = shell.communicate("hostname; exit\n", timeout=60)
    assert "node" in out, out + err
    assert checksums(a.folder, theirs) == before
    following = laptop.start("jobs", "logs", "-f", run.name, *on)
    verb("cancel", run.name, *on)
    nodes_a.wait_job(job, 60)
    following.communicate(timeout=60)
    verb("resubmit", run.name, *on, says="Submitted job")
    verb("cancel", run.name, *on)
    verb("logs", run.name, *on, says="slurm-")
    set_step_seconds(shared_dir, "0")
    second = (*words[:-2], "trainer.max_steps=60", "name=my-run", "seed=2")
    job, again = submit(laptop, a, "a", *second)
    assert nodes_a.wait_job(job, 240) == "COMPLETED", log(again)
    verb("best", "--name", "my-run", *on, says="highest")
    verb("diff", run.name, again.name, *on, says="seed")
    verb("on=a", "cluster=local", again.name, "trust=true", program="evaluate", says="test/acc")
    verb("on=a", "cluster=local", program="fetch", says="done: jobs find these files.")
    verb("on=a", "nodes=1,2", "devices=1", "dry_run=true", program="scaling", says="trainer.nodes=2")
    (laptop.project / "hello.py").write_text("print('hello')\n")
    verb("on=a", "cluster=local", "--", "hello.py", program="run", says="hello")
    verb("pull", again.name, *on)
    for wrong in (
        ("status", "no such"),
        ("cancel", "9999"),
        ("save", "x"),
        ("best", "x"),
        ("diff", "x", "y"),
    ):
        verb(*wrong, *on, code=2, says="error: ")
    verb("prune", again.name, "--yes", *on)
    assert not again.exists() and run.exists()
