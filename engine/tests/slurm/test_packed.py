"""A packed environment runs where it is unpacked, independent of its origin."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log
from train_anywhere.config.schema import Config
from train_anywhere.errors import SubmitError
from train_anywhere.features.pack_env import archive, unpack
from train_anywhere.files import ROOT
from train_anywhere.files.removal import MARKER
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.testbed.testbed_cluster import Testbed

PYTHON = ROOT / "engine" / "train_anywhere" / "features" / "pack_env" / "python"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with one package, and links: inside, to the outside, to nothing."""
    folder = tmp_path_factory.mktemp("shared disk") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = archive.read(folder).packages
    info = packages / "mine-1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("mine.py,sha256=aaaa,10\n")
    (packages / "mine.py").write_text("from linked import two\n")
    outside = folder.parent / "linked.py"
    outside.write_text("two = 2\n")
    (packages / "linked.py").symlink_to(outside)
    (packages / "again.py").symlink_to(packages / "mine.py")
    (packages / "nothing.py").symlink_to(folder.parent / "nothing")
    return folder


@pytest.fixture(scope="module")
def packed(venv: Path) -> Path:
    """The archive of an environment that is gone."""
    copy = venv.with_name("gone")
    shutil.copytree(venv, copy, symlinks=True)
    made = archive.pack(archive.read(copy), venv.parent / "results")
    shutil.rmtree(copy)
    return made


@pytest.fixture(scope="module")
def unpacked(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment on a node's disk."""
    disk = tmp_path_factory.mktemp("node's disk")
    folder, made = unpack.unpack_environment(packed, disk / f"shared-{os.getuid()}" / "environment-1")
    assert made
    return folder


def test_the_key_changes_with_what_is_installed(venv: Path) -> None:
    before = archive.read(venv).key()
    assert archive.read(venv).key() == before
    record = archive.read(venv).packages / "mine-1.dist-info" / "RECORD"
    old = record.read_text()
    record.write_text(old.replace("aaaa", "bbbb"))
    assert archive.read(venv).key() != before
    record.write_text(old)
    assert archive.read(venv).key() == before


def test_later_submissions_use_the_archive_that_is_there(
    venv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = venv.parent / "twice"
    first = archive.pack(archive.read(venv), results)
    assert re.search(r"Packing .* for the nodes: done, \d+\.\d MB in \d+ s\.\n$", capsys.readouterr().err)
    assert archive.pack(archive.read(venv), results) == first
    assert capsys.readouterr().err == ""
    os.utime(first.parent / MARKER, (1, 1))
    archive.pack(archive.read(venv), results)
    assert time.time() - (first.parent / MARKER).stat().st_mtime < 600, "it is in use"
    os.utime(first.parent / MARKER, (1, 1))
    record = archive.read(venv).packages / "mine-1.dist-info" / "RECORD"
    old = record.read_text()
    record.write_text("another\n")
    second = archive.pack(archive.read(venv), results)
    record.write_text(old)
    assert [*(results / ".environments").iterdir()] == [second.parent]


def test_it_runs_where_it_was_unpacked(unpacked: Path) -> None:
    said = subprocess.run(
        [unpacked / "venv" / "bin" / "python", "-E", "-c", "import json, ssl, sys, mine, again, linked; print(json.dumps([sys.prefix, "
         "json.__file__, mine.__file__, linked.two, [*sys.path]]))"],
        capture_output=True, text=True, cwd="/", check=True,
    ).stdout  # fmt: skip
    prefix, library, package, two, path = json.loads(said)
    assert prefix == str(unpacked / "venv") and two == 2
    assert not (archive.read(unpacked / "venv").packages / "linked.py").is_symlink()
    assert all(p.startswith(str(unpacked)) for p in (library, package, *path[1:])), said


def test_the_system_s_python_is_not_packed(venv: Path, tmp_path: Path) -> None:
    copy = tmp_path / "venv"
    shutil.copytree(venv, copy, symlinks=True)
    (copy / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert archive.read(copy).base is None
    assert archive.read(copy).key() != archive.read(venv).key()
    made = archive.pack(archive.read(copy), tmp_path / "results")
    assert made.stat().st_size < 1_000_000
    folder, _ = unpack.unpack_environment(made, tmp_path / f"shared-{os.getuid()}" / "environment-1")
    assert (folder / "venv" / "pyvenv.cfg").read_text() == "home = /usr/bin\n"
    assert (folder / "venv" / "bin" / "python").resolve() == Path(sys.executable).resolve()


def test_code_has_a_key_of_its_own(tmp_path: Path) -> None:
    def snapshot(name: str, text: str) -> tuple[str, Path]:
        code = tmp_path / name
        (code / "src").mkdir(parents=True)
        (code / "src" / "a.py").write_text(text)
        return archive.pack_code(code), code / archive.CODE

    (key, first), (same, _), (other, _) = snapshot("1", "a"), snapshot("2", "a"), snapshot("3", "b")
    assert key == same != other
    folder = tmp_path / f"shared-{os.getuid()}" / "code-x"
    unpack.unpack_code(first, folder)
    assert (folder / "code" / "src" / "a.py").read_text() == "a"


def ask(unpacked: Path, code: Path, *words: str) -> list[str]:
    """Return arguments, folder and interpreter of the script `python`."""
    program = "import os, sys; print(*sys.argv[1:], os.getcwd(), sys.executable, sep='|')"
    environ = {
        "TRAIN_PACKED": str(unpacked),
        "TRAIN_PACKED_CODE": str(code),
        "TRAIN_PYTHON": sys.executable,
        "PATH": "/usr/bin:/bin",
    }
    command = [
        str(code.parent / "train_anywhere" / "features" / "pack_env" / "python"),
        "-c",
        program,
        *words,
    ]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd=code.parent)
    return said.stdout.strip().split("|")


def test_a_rank_runs_what_its_node_has_unpacked_or_else_what_is_shared(
    unpacked: Path, tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require(os.getuid() == 0, "run as root: a folder is given to another user")
    shared = tmp_path / "it's $CODE"
    (shared / "train_anywhere" / "features" / "pack_env").mkdir(parents=True)
    shutil.copy2(PYTHON, shared / "train_anywhere" / "features" / "pack_env")
    node_code = shared / "on node"
    words = (f"{shared}/src/train.py", "--run", "a  b")
    assert ask(unpacked, node_code, *words) == [*words, str(shared), sys.executable]
    (node_code / "code").mkdir(parents=True)
    here = [f"{node_code}/code/src/train.py", *words[1:], f"{node_code}/code", f"{unpacked}/venv/bin/python"]
    assert ask(unpacked, node_code, *words) == here
    assert ask(unpacked.with_name("environment-2"), node_code, *words)[-1] == sys.executable
    os.chown(unpacked.parent, 12345, 12345)
    try:
        assert ask(unpacked, node_code, *words)[-1] == sys.executable
    finally:
        os.chown(unpacked.parent, os.getuid(), os.getgid())


def test_a_node_without_room_says_so(
    packed: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAIN_PACKED", str(small_disk / f"shared-{os.getuid()}" / "environment-1"))
    monkeypatch.setenv("TRAIN_PACKED_CODE", str(small_disk / f"shared-{os.getuid()}" / "code-1"))
    assert unpack.main([str(packed), str(packed)]) == 1
    assert re.search(
        r": the packed environment can't be unpacked \(.*small has 1\.0 MB free, and .* are needed\); this node uses the shared one\.",
        capsys.readouterr().err,
    )
    assert unpack.main([str(packed.with_name("missing") / "x.tar"), str(packed)]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_what_cannot_be_packed_is_refused(tmp_path: Path, venv: Path) -> None:
    assert "it has no pyvenv.cfg" in archive.problem(tmp_path)
    (tmp_path / "pyvenv.cfg").touch()
    assert "has no Python" in archive.problem(tmp_path)
    (tmp_path / "conda-meta").mkdir()
    assert "conda environment" in archive.problem(tmp_path)
    assert archive.problem(venv) == ""


def test_a_disk_that_is_full_leaves_no_archive(
    make_config: Callable[..., Config], venv: Path, small_disk: Path
) -> None:
    config = make_config("cluster=slurm", f"cluster.venv='{venv}'", "cluster.pack_env=true")
    job = make_job(config, "/run", "/run/code")
    with pytest.raises(
        SubmitError, match=r"can't be packed into .*No space left.*use cluster.pack_env=false"
    ):
        job.features.prepare(small_disk)
    assert not [*(small_disk / ".environments").iterdir()]


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.mpi
@pytest.mark.horovod
@pytest.mark.needs_root
def test_ranks_of_two_nodes_run_it_and_one_that_has_no_room_does_without(
    testbed: Testbed, login: Login
) -> None:
    """Return a job whose ranks print the places of Python, code and Horovod."""
    (login.folder / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "def report():\n"
        "    files = (sys.modules[name].__file__ for name in ('horovod', 'train_anywhere'))\n"
        "    print('runs', sys.prefix, sys.path[0], *files, flush=True)\n"
        "if '--run' in sys.orig_argv: atexit.register(report)\n"
    )
    disk = "/tmp/disk-of-test-packed"
    where = [f"cluster.local_disk={disk}", f'cluster.setup=["export PYTHONPATH={login.folder}"]']
    words = ["trainer.nodes=2", "strategy=horovod", "launch=mpirun", "model=mlp", "trainer.max_epochs=1"]
    words += [
        "cluster=slurm",
        "cluster.pack_env=true",
        "monitor.tensorboard=false",
        "trainer.accelerator=cpu",
    ]
    run = login.result(*words, *where)
    assert len(re.findall(r"^node\d: environment unpacked in", log(run), re.M)) == 2
    ran = re.findall(r"runs (\S+) (\S+) (\S+) (\S+)", log(run))
    assert len(ran) == 2 and all(path.startswith(f"{disk}/shared-") for paths in ran for path in paths), ran

    testbed.run(
        ["srun", "--nodes=1", "--nodelist=node2", "bash", "-c", f"mv {disk} {disk}.kept; touch {disk}"]
    )
    run = login.result(*words, *where, 'cluster.exclude="node3,node4"')
    assert re.search(r"^node1: environment found in", log(run), re.M), log(run)
    assert re.search(r"^node2: the packed environment can't be unpacked", log(run), re.M), log(run)
    ran = re.findall(r"runs (\S+) (\S+) (\S+) (\S+)", log(run))
    assert sorted(prefix.startswith(disk) for prefix, *_ in ran) == [False, True], ran
