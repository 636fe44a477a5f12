"""Each failure between the laptop and a host is one message, and a lost connection never submits twice."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

from engine.tests.remote.conftest import Laptop, Site
from tools.testing.processes import wait_until
from train_anywhere.remote import request_there
from train_anywhere.remote.connection import shell_path, wrap

pytestmark = [pytest.mark.git, pytest.mark.new_process]

SUBMIT = """
import sys, time
from pathlib import Path
home = Path({home!r})
(home / "started").touch()
end = time.monotonic() + {seconds}
while time.monotonic() < end and not (home / "go").exists():
    time.sleep(0.05)
with open(home / "submitted", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
print("Submitted job 7")
"""
"""A program that submits one job each time it runs, after some seconds, or when a file exists."""


def refused(laptop: Laptop, *words: str) -> str:
    """Return the one message of a command that is refused."""
    done = laptop.command("train", *words)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
    return errors[0]


def test_an_unknown_host_and_a_wrong_file(laptop: Laptop, site: Site) -> None:
    assert "'stie' is not a host (configs/hosts/ has site). Did you mean 'site'?" in refused(
        laptop, "on=stie"
    )
    assert "name one host" in refused(laptop, "on=")
    for words, says in (
        (("pull",), "python src/jobs.py pull --on NAME"),
        (("push", "1", "--on", "site"), "`push` was removed"),
        (("list", "--on", "all"), "`list --on all` was removed"),
    ):
        done = laptop.command("jobs", *words)
        assert done.returncode == 2 and says in done.stderr
    laptop.knows("bad", site, ssh="-oProxyCommand=x", sheep="yes")
    done = laptop.command("train", "on=bad")
    assert done.returncode == 2 and "hosts/bad.sheep" in done.stderr and "is not a host of ssh" in done.stderr


def test_no_route_no_address_and_a_refused_key(laptop: Laptop, site: Site) -> None:
    config = laptop.folder / "ssh_config"
    right = config.read_text()
    config.write_text(right.replace(f"Port {site.port}", "Port 1"))
    assert "can't be reached" in refused(laptop, "on=site")
    config.write_text(right.replace("127.0.0.1\n", "no-such-host.invalid\n"))
    assert "its name has no address" in refused(laptop, "on=site")
    other = laptop.folder / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    config.write_text(right.replace(f"{site.home}/user_key", str(other)))
    assert "it refused your log-in: try `ssh site-login`" in refused(laptop, "on=site")
    assert not site.folder.exists()


def test_a_changed_and_an_unknown_host_key(laptop: Laptop, site: Site) -> None:
    known = laptop.folder / "known_site"
    other = (site.home / "user_key.pub").read_text()
    known.write_text(f"[127.0.0.1]:{site.port} {other}")
    assert "its host key is not the one that you know" in refused(laptop, "on=site")
    known.write_text("")
    assert "its host key is not known yet" in refused(laptop, "on=site")


@pytest.mark.slow
def test_a_full_disk_or_quota(laptop: Laptop, site_for: Callable[..., Site]) -> None:
    small = site_for(first="mkdir jobs && mount -t tmpfs -o size=1m none jobs")
    laptop.knows("small", small)
    assert "the disk or your quota is full in" in refused(laptop, "on=small")


@pytest.mark.slow
def test_a_missing_or_old_python_and_a_setup_that_fails(laptop: Laptop, site: Site) -> None:
    old = site.home / "old"
    old.write_text(f'#!/bin/sh\n[ "$1" = -SEc ] && exit 1\nexec {sys.executable} "$@"\n')
    old.chmod(0o755)
    for python in ("/no/python3", old):
        laptop.knows("none", site, python=python, setup=None)
        said = refused(laptop, "on=none")
        assert f"none has no Python at {python}: correct `python:` or `setup:`" in said
        assert "it needs 3.11 or newer" in said
    laptop.knows("fails", site, setup="echo too old >&2; false")
    done = laptop.command("train", "on=fails", "dry_run=true")
    assert done.returncode == 2 and "`echo too old >&2; false` failed on fails" in done.stderr
    laptop.knows("module", site, modules=["python/3.12"])
    assert "`module load python/3.12` failed on module." in refused(laptop, "on=module")


@pytest.mark.slow
def test_the_environment_is_made_again_when_the_requirements_change(laptop: Laptop, site: Site) -> None:
    made = [laptop.command("train", "on=site", "dry_run=true").stderr.count("\nmaking\n") for _ in range(2)]
    with open(laptop.project / "requirements" / "common.txt", "a") as file:
        file.write("# changed\n")
    made.append(laptop.command("train", "on=site", "dry_run=true").stderr.count("\nmaking\n"))
    assert made == [1, 0, 1]


def replace_train(laptop: Laptop, site: Site, seconds: float) -> None:
    """Let the host submit a job after some seconds, and remember each submission."""
    start = (laptop.project / "src" / "train.py").read_text()
    there = SUBMIT.format(home=str(site.home), seconds=seconds)
    main = 'if __name__ == "__main__":\n'
    body = "".join(f"        {line}\n" for line in there.strip().splitlines())
    here = '__import__("os").path.realpath(__file__)'
    first = f"    import sys\n    if {here}.startswith({str(site.home)!r}):\n{body}        sys.exit(0)\n"
    (laptop.project / "src" / "train.py").write_text(start.replace(main, main + first))


def submitted(site: Site) -> list[str]:
    """Return the arguments of each submission."""
    file = site.home / "submitted"
    return file.read_text().splitlines() if file.exists() else []


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Return exit code and output of a command."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize("points", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_connection_that_is_cut_at_any_time_submits_one_job(laptop, site, points):
    replace_train(laptop, site, 0.6)
    assert laptop.command("train", "on=site", "seed=0").returncode == 0
    for point in range(1, points + 1):
        # a transfer that takes a while
        (laptop.project / "src" / "more.py").write_text("a = 1\n" * 100_000 * point)
        process = laptop.start("train", "on=site", f"seed={point}")
        time.sleep(0.3 + 2.2 * point / points)
        site.cut()
        code, out, err = finish(process)
        while code:  # typed again
            assert "type it again" in err or "type the command again" in err, err
            code, out, err = finish(laptop.start("train", "on=site", f"seed={point}"))
        assert "Submitted job 7" in out
        assert submitted(site) == [f"seed={n}" for n in range(point + 1)]


@pytest.mark.slow
def test_an_answer_that_never_came_is_shown_when_the_command_is_typed_again(laptop, site):
    replace_train(laptop, site, 2)
    process = laptop.start("train", "on=site", "seed=1")
    wait_until((site.home / "started").exists)
    site.stop()
    code, _, err = finish(process)
    assert code == 2 and "Whether the command was executed is not known: type it again." in err
    site.start()
    code, out, err = finish(laptop.start("train", "on=site", "seed=1"))
    assert code == 0 and out == "Submitted job 7\n" and "its answer was lost, and is shown now" in err
    assert submitted(site) == ["seed=1"]
    assert finish(laptop.start("train", "on=site", "seed=1"))[0] == 0
    assert submitted(site) == ["seed=1"] * 2  # a new one: the answer has arrived


def test_the_same_command_in_two_terminals_is_two_submissions(laptop: Laptop, site: Site) -> None:
    replace_train(laptop, site, 3)
    first = laptop.start("train", "on=site", "seed=1")
    wait_until((site.home / "started").exists)
    second = finish(laptop.start("train", "on=site", "seed=1"))
    for code, out, err in (finish(first), second):
        assert (code, out) == (0, "Submitted job 7\n") and "its answer was lost" not in err
    assert submitted(site) == ["seed=1"] * 2
    assert not [*(laptop.folder / "state").rglob("*.request")]


def test_ctrl_c_leaves_the_command_there_alone(laptop: Laptop, site: Site) -> None:
    replace_train(laptop, site, 120)
    process = laptop.start("train", "on=site", "seed=1", start_new_session=True)
    wait_until((site.home / "started").exists)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    (site.home / "go").touch()
    assert code == 130 and "the command continues on site; type it again to see its answer" in err, err
    code, out, _ = finish(laptop.start("train", "on=site", "seed=1"))
    assert (code, out) == (0, "Submitted job 7\n") and submitted(site) == ["seed=1"]


def test_a_command_that_was_killed_there_is_reported(laptop: Laptop, site: Site) -> None:
    replace_train(laptop, site, 60)
    process = laptop.start("train", "on=site", "seed=1")
    wait_until((site.home / "started").exists)
    [record] = site.folder.glob(".remote/requests/*/process")
    os.killpg(int(record.read_text().split()[0]), signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 2 and "was killed on" in err and "may have submitted a job" in err, err


def test_a_record_that_is_still_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / request_there.REQUESTS / "7f"
    folder.mkdir(parents=True)
    for name in ("out", "err", "process"):
        (folder / name).touch()
    Timer(0.3, (folder / "code").write_text, ["7"]).start()
    assert request_there.main(["7f", "src/train.py"]) == 7


def test_the_remote_command_means_the_same_to_every_shell() -> None:
    """In single quotes csh and fish change `!`, a backslash and a line break only."""
    text = wrap("printf '%s' 'a\\b!'\n" * 100)
    assert re.fullmatch(r"exec bash -c '[^']*' '[^']*'", text) and not {"!", "\\", "\n"} & {*text}


def test_paths_there_expand_the_home_and_variables_only(tmp_path: Path) -> None:
    environ = {"HOME": "/home/me", "SCRATCH": "/scratch dir/me", "PATH": os.environ["PATH"]}
    for path, meant in {
        "~/a b": "/home/me/a b",
        "~": "/home/me",
        "$SCRATCH/x": "/scratch dir/me/x",
        "/x/${SCRATCH}'y'": "/x//scratch dir/me'y'",
        '$SCRATCH/it\'s "x"`}$HOME': '/scratch dir/me/it\'s "x"`}/home/me',
        "/a/`touch x`$(touch y)/ü;!*": "/a/`touch x`$(touch y)/ü;!*",
        "a/~": "a/~",
    }.items():
        script = f"printf %s {shell_path(path)}"
        done = subprocess.run(
            ["bash", "-c", script], env=environ, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.stdout == meant, done.stderr
    assert not any(tmp_path.iterdir())
