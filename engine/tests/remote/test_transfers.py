"""Projects with odd names, links, repositories inside, and files that change: what is sent, deleted and left alone."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.tests.remote.conftest import Laptop, Site
from tools.testing.projects import commit, git

pytestmark = [pytest.mark.git, pytest.mark.new_process]

HERE = """import sys
sys.path[:1] = [{engine!r}]
from train_anywhere.launch.command import run_command
from train_anywhere.remote.remote_command import run_elsewhere
sys.exit(run_command(lambda: run_elsewhere("src/quick.py", sys.argv[1:]), overrides=False))
"""
"""A command that starts src/quick.py on a host."""


@pytest.fixture
def quick(laptop: Laptop) -> Laptop:
    """A laptop with a command that takes no time, and a small project."""
    src = laptop.project / "src"
    src.joinpath("here.py").write_text(HERE.format(engine=str(laptop.project / "engine")))
    src.joinpath("quick.py").write_text("print('done')\n")
    return laptop


def send(laptop: Laptop, *words: str, code: int = 0) -> str:
    """Send the project to the host and return what is printed on standard error."""
    done = laptop.command("here", *(words or ("on=site",)))
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert code == 0 or sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


NAMES = ["a b.py", "q'uo\"te.py", "$HOME.py", "größe.py", "new\nline.py", "-n.py", "`x`.py", "*?[a].py", "~", "#a;b|c&d.py"]  # fmt: skip


def test_names_links_and_executable_bits_arrive(quick: Laptop, site: Site) -> None:
    odd, outside = quick.project / "odd $dir's", quick.folder / "outside"
    odd.mkdir()
    outside.mkdir()
    for name in NAMES:
        (odd / name).write_text(name)
    (odd / os.fsdecode(b"\xff\xfe.py")).write_text("bytes")
    (odd / "tool").write_text("#!/bin/sh\n")
    (odd / "tool").chmod(0o750)
    (outside / "file.yaml").write_text("outside")
    (outside / "id_rsa").write_text("SECRET")
    (outside / "chain").symlink_to("id_rsa")
    links = {
        "in": "a b.py", "folder": "../src", "broken": "no such", "out": outside / "file.yaml", "far": "/no/such/file",
        "all": outside, "loop": "loop", "key": outside / "id_rsa", "chain": outside / "chain",
    }  # fmt: skip
    for name, target in links.items():
        (odd / name).symlink_to(target)
    git(quick.project, "add", "-f", "odd $dir's")
    os.mkfifo(quick.project / "src" / "fifo")
    bind = "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
    subprocess.run([sys.executable, "-c", bind], cwd=quick.project / "src", check=True)
    (quick.project / "configs" / "gone.yaml").symlink_to("no such.yaml")
    (quick.project / "requirements" / "gone.txt").symlink_to("no such.txt")
    err = send(quick)
    there = site.folder / odd.name
    assert {p.name: p.read_text() for p in there.iterdir() if p.is_file() and p.suffix == ".py"} == {
        **{name: name for name in NAMES if name.endswith(".py")},
        os.fsdecode(b"\xff\xfe.py"): "bytes",
    }
    assert (there / "tool").stat().st_mode & 0o777 == 0o750
    assert (there / "out").read_text() == "outside" and not (there / "out").is_symlink()
    assert {n: os.readlink(there / n) for n in ("in", "folder", "broken", "loop")} == {
        n: str(links[n]) for n in ("in", "folder", "broken", "loop")
    }
    assert not any(os.path.lexists(there / name) for name in ("far", "all", "key", "chain"))
    assert "hold keys or passwords: odd $dir's/key, odd $dir's/chain" in err or (
        "odd $dir's/chain, odd $dir's/key" in err
    )
    assert "odd $dir's/far" in err and "odd $dir's/all" in err
    assert "Sent 0 of" in send(quick)
    for name in (*NAMES, *links):
        (odd / name).unlink()
    send(quick)
    assert {p.name for p in there.iterdir()} == {"tool", os.fsdecode(b"\xff\xfe.py")}


@pytest.mark.slow
def test_a_repository_inside_sends_what_its_git_knows(quick: Laptop, site: Site) -> None:
    for name, how in {"sub": "submodule", "nested": "another repository"}.items():
        folder = quick.project / name
        folder.mkdir()
        for file in ("a.py", "ignored/big.bin", "results/r.txt", ".env", "new.py"):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text("x")
        (folder / ".gitignore").write_text("ignored/\n")
        git(folder, "init", "-q")
        git(folder, "add", "a.py", ".gitignore")
        git(folder, "commit", "-q", "-m", "first")
        if how == "submodule":
            git(quick.project, "add", name)
    err = send(quick)
    for name in ("sub", "nested"):
        there = site.folder / name
        found = {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}
        assert found == {"a.py", ".gitignore", "new.py"}
        assert f"{name}/.env" in err


def test_a_file_becomes_a_folder_and_back(quick: Laptop, site: Site) -> None:
    path, there = quick.project / "src" / "part", site.folder / "src" / "part"
    path.write_text("file")
    send(quick)
    assert there.read_text() == "file"
    path.unlink()
    path.mkdir()
    (path / "a.py").write_text("a = 1\n")
    (path / "b").mkdir()
    (path / "b" / "c.py").write_text("a = 1\n")
    send(quick)
    assert (there / "b" / "c.py").exists()
    for folder in (there, there / "b"):  # Python was there
        (folder / "__pycache__").mkdir()
    (there / "__pycache__" / "a.cpython-311.pyc").touch()
    (there / "b" / "__pycache__" / "c.cpython-311.pyc").touch()
    (path / "b" / "c.py").unlink()
    (path / "b").rmdir()
    (path / "b").write_text("file")
    send(quick)
    assert (there / "b").read_text() == "file" and (there / "__pycache__").exists()
    (path / "a.py").unlink()
    (path / "b").unlink()
    path.rmdir()
    path.symlink_to("train.py")
    send(quick)
    assert os.readlink(there) == "train.py" and (site.folder / "src" / "train.py").exists()
    path.unlink()
    send(quick)
    assert not os.path.lexists(there)


def test_what_someone_else_made_in_the_place_of_a_file_or_folder_survives(quick: Laptop, site: Site) -> None:
    send(quick)
    there = site.folder / "src"
    (there / "file").write_text("theirs")
    (there / "link").symlink_to("/etc")
    (there / "full").mkdir()
    (there / "full" / "x").write_text("theirs")
    cases = {"file/a.py": "src/file", "link": "src/link", "full": "src/full", "file": "src/file"}
    for name, named in cases.items():
        path = quick.project / "src" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        assert named in send(quick, code=2)
        path.unlink()
        if path.parent.name == "file":
            path.parent.rmdir()
    assert (there / "file").read_text() == "theirs" == (there / "full" / "x").read_text()
    assert os.readlink(there / "link") == "/etc"
    assert "Sent 0 of" in send(quick)


@pytest.mark.slow
def test_branches_with_odd_names_a_detached_head_and_no_repository(quick: Laptop, site: Site) -> None:
    quick.knows("each", site, folder=f"{site.home}/jobs/{{branch}}")
    for branch, folder in {
        "my/idea": "my-idea",
        "a$HOME'b": "a-HOME-b",
        "größe": "größe",
        "x;touch${IFS}y": "x-touch--IFS-y",
    }.items():
        git(quick.project, "checkout", "-q", "-b", branch)
        send(quick, "on=each")
        assert (site.home / "jobs" / folder / "src" / "quick.py").exists()
    git(quick.project, "checkout", "-q", "-b", "my-idea")
    assert "branch my/idea of" in send(quick, "on=each", code=2)  # the same folder
    git(quick.project, "checkout", "-q", "--detach")
    send(quick, "on=each")
    (quick.project / ".git").rename(quick.folder / "old.git")
    (quick.project / ".env.production").write_text("SECRET")
    (quick.project / ".aws").mkdir()
    (quick.project / ".aws" / "config").write_text("SECRET")
    send(quick, "on=each")
    assert (site.home / "jobs" / "none" / "src" / "quick.py").exists()
    names = {str(p.relative_to(site.home)) for p in site.home.rglob("*")}
    assert not [name for name in names if ".env" in name or ".aws" in name]


def wrap_rsync(laptop: Laptop, first: str) -> None:
    """Let a command run here before each rsync."""
    rsync = laptop.folder / "bin" / "rsync"
    rsync.write_text(f'#!/bin/bash\n{first}\nexec /usr/bin/rsync "$@"\n')
    rsync.chmod(0o755)


OF_MACOS = r"""
known='-ltz|-p|-rtz|-c|-e|--(from0|keep-dirlinks|safe-links|version)|--(files-from|out-format|partial-dir|exclude)=.*'
[ "$1" = --version ] && { echo "openrsync: protocol version 29"; exit; }
words=()
for word; do
    if [ "$before" = -e ]; then  # split as openrsync does: quotes have no quotes inside, and are not escaped
        [[ "$word" =~ ^[^\'\"\\\\]*\'[^\'\\\\]*\'$ ]] || { echo "bad command: $word" >&2; exit 2; }
    elif [[ "$word" == -* ]] && ! [[ "$word" =~ ^($known)$ ]]; then echo "unknown option $word" >&2; exit 1; fi
    before=$word
done
exec /usr/bin/rsync --protocol=29 "$@"
"""
"""A stand-in for the rsync of macOS: options of both rsync 2.6.9 and openrsync, and their protocol."""


def test_the_rsync_of_macos(quick: Laptop, site: Site) -> None:
    rsync = quick.folder / "bin" / "rsync"
    rsync.write_text(f"#!/bin/bash\n{OF_MACOS}")
    rsync.chmod(0o755)
    odd = quick.project / "src" / "a b"
    odd.mkdir()
    (odd / "q'ü.py").write_text("a = 1\n")
    (odd / "tool").write_text("#!/bin/sh\n")
    (odd / "tool").chmod(0o755)
    (odd / "link").symlink_to("q'ü.py")
    git(quick.project, "add", ".")
    send(quick)
    there = site.folder / "src" / "a b"
    assert os.readlink(there / "link") == "q'ü.py" and (there / "q'ü.py").read_text() == "a = 1\n"
    assert (there / "tool").stat().st_mode & 0o777 == 0o755
    (quick.project / "src" / "new.py").write_text("a = 1\n")
    assert "src/new.py" in send(quick) and "Sent 0 of" in send(quick)


def test_a_change_in_the_second_of_the_transfer_is_sent(quick: Laptop, site: Site) -> None:
    file = quick.project / "src" / "changed.py"
    at = time.time() + 60  # a time that is not over when the transfer starts
    for text in ("a = 1\n", "a = 2\n"):
        file.write_text(text)
        os.utime(file, (at, at))
        assert "Sent 0 of" not in send(quick)
    assert (site.folder / "src" / "changed.py").read_text() == "a = 2\n"
    assert "Sent 0 of" in send(quick)


def test_the_folder_is_checked_before_each_transfer(quick: Laptop, site: Site) -> None:
    send(quick)
    shutil.rmtree(site.folder)
    assert "Sent 0 of" not in send(quick)
    (site.folder / ".remote" / "owner").write_text("x\nbranch other of elsewhere\n")
    assert "has branch other of elsewhere" in send(quick, code=2)
    quick.close_connections()
    site.stop()
    err = send(quick, code=2)
    assert "it can't be reached" in err and "Trying again" not in err, err


@pytest.mark.slow
def test_files_that_change_or_vanish_during_the_transfer(quick: Laptop, site: Site) -> None:
    growing, gone = quick.project / "src" / "growing.py", quick.project / "src" / "gone.py"
    growing.write_text("a = 1\n" * 300_000)
    gone.write_text("a = 1\n")
    git(quick.project, "add", ".")
    append = f"(for i in $(seq 50); do echo '# more' >> {shlex.quote(str(growing))}; sleep 0.01; done) &"
    wrap_rsync(quick, append)
    send(quick)
    wrap_rsync(quick, f"rm -f {shlex.quote(str(gone))}")
    done = quick.command("here", "on=site")
    assert "Traceback" not in done.stderr and done.returncode in (0, 2), done.stderr
    wrap_rsync(quick, ":")
    send(quick)
    assert (site.folder / "src" / "growing.py").read_text() == growing.read_text()
    assert not (site.folder / "src" / "gone.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["terminal", "process"])
def test_ctrl_c_during_the_transfer_submits_nothing(quick: Laptop, site: Site, whole: bool) -> None:
    wrap_rsync(quick, f"touch '{quick.folder}/started'; sleep 1")
    process = quick.start("here", "on=site", start_new_session=True)
    while not (quick.folder / "started").exists():
        assert process.poll() is None
    (os.killpg if whole else os.kill)(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted: nothing was submitted" in err, err
    assert "Traceback" not in err and not [*site.folder.glob(".remote/requests/*")]
    wrap_rsync(quick, ":")
    send(quick)


@pytest.mark.slow
def test_a_first_repository_without_a_commit(quick: Laptop, site: Site) -> None:
    subprocess.run(["rm", "-r", str(quick.project / ".git")], check=True)
    git(quick.project, "init", "-q")
    send(quick)
    commit(quick.project)
    assert "Sent 0 of" in send(quick) and Path(site.folder, "src", "quick.py").exists()
