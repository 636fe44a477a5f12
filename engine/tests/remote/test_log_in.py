"""Log-ins that ask, jump hosts, and settings of ssh: each works, or is one message."""

import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.remote.conftest import Laptop, Site
from engine.tests.remote.test_transfers import quick, send
from tools.testing.processes import wait_until
from train_anywhere.launch.command import run_command
from train_anywhere.remote import connection
from train_anywhere.remote.remote_command import run_elsewhere

pytestmark = [pytest.mark.git, pytest.mark.new_process]
__all__ = ["quick"]

PAM = """#!/bin/sh
[ "$PAM_TYPE" = auth ] || exit 0
read -r code
echo "$PAM_USER" >> {home}/asked
[ "$code" = "{code}" ]
"""
"""A program of pam_exec that checks the answer to the question of the log-in."""


def asking(site_for: Callable[..., Site], code: str) -> Site:
    """Return a host whose PAM asks for a code after the key."""
    lines = ["auth required pam_exec.so expose_authtok quiet {home}/check", "auth required pam_permit.so"]
    stack = "\n".join([*lines, "account required pam_permit.so", "session required pam_permit.so", ""])
    first = (
        f"printf %s '{PAM}' > check && printf %s '{stack}' > pam && sed -i \"s#{{home}}#$PWD#g; s#{{code}}#{code}#\" check pam && "
        "chmod 755 check && mount --bind pam /etc/pam.d/sshd"
    )
    both = "AuthenticationMethods publickey,keyboard-interactive\nKbdInteractiveAuthentication yes\n"
    return site_for(first=first, pam=both)


def answer(laptop: Laptop, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Let a program answer the questions of ssh, and return the file in which it writes them."""
    asked = laptop.folder / "questions"
    (laptop.folder / "ask").write_text(f"#!/bin/sh\necho \"$1\" >> '{asked}'\necho {text}\n")
    (laptop.folder / "ask").chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(laptop.folder / "ask"))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    return asked


def test_a_second_factor_is_asked_once_for_all_commands(quick, site_for, monkeypatch):
    site = asking(site_for, "c0de 42")
    quick.knows("two", site)
    assert "it refused your log-in" in send(quick, "on=two", code=2)  # nobody can be asked
    (site.home / "asked").unlink()  # ssh has tried empty answers
    asked = answer(quick, monkeypatch, "c0de 42")
    for _ in range(3):
        send(quick, "on=two")
    quick.command("jobs", "--on", "two", "list")
    assert asked.read_text().count("\n") == 1, asked.read_text()
    assert (site.home / "asked").read_text() == "root\n"
    quick.close_connections()
    send(quick, "on=two")
    assert (site.home / "asked").read_text() == "root\n" * 2
    quick.close_connections()
    answer(quick, monkeypatch, "wrong")
    assert "it refused your log-in" in send(quick, "on=two", code=2)


@pytest.mark.slow
def test_a_jump_host_and_an_included_file(quick: Laptop, site: Site, site_for: Callable[..., Site]) -> None:
    jump, far = site_for(), site_for()
    quick.knows("jump", jump)
    quick.knows("far", far)
    config = quick.folder / "ssh_config"
    config.write_text(
        config.read_text().replace("Host far-login\n", "Host far-login\n ProxyJump jump-login\n")
    )
    (quick.folder / "more").write_text(config.read_text())
    config.write_text(f"Include {quick.folder}/more\n")
    send(quick, "on=far")
    assert (far.folder / "src" / "quick.py").exists() and not jump.folder.exists()
    assert jump.sessions() and "Sent 0 of" in send(quick, "on=far")
    quick.close_connections()
    jump.stop()
    err = send(quick, "on=far", code=2)
    assert "far (far-login): it can't be reached" in err and f"port {jump.port}: Connection refused" in err
    assert "Trying again" not in err
    jump.start()
    far.stop()
    assert "far (far-login): it can't be reached" in send(quick, "on=far", code=2)
    quick.close_connections()
    (jump.home / "authorized").write_text("")
    assert "far (far-login): it refused your log-in" in send(quick, "on=far", code=2)


def test_addresses_of_a_host(quick: Laptop, site_for: Callable[..., Site]) -> None:
    site = site_for("ListenAddress ::1\n" if socket.has_dualstack_ipv6() else "")
    quick.knows("site", site)
    known, key = quick.folder / "known", (site.home / "host_key.pub").read_text()
    known.write_text("".join(f"[{address}]:{site.port} {key}" for address in ("127.0.0.1", "::1")))
    config = quick.folder / "ssh_config"
    config.write_text(
        f"Host *\n Port {site.port}\n User root\n IdentityFile {site.home}/user_key\n UserKnownHostsFile {known}\n"
    )
    sixth = ["::1", "root@::1"] if socket.has_dualstack_ipv6() else []
    for address in ("127.0.0.1", "root@127.0.0.1", f"ssh://root@127.0.0.1:{site.port}", *sixth):
        host = quick.project / "configs" / "hosts" / "site.yaml"
        host.write_text(re.sub("ssh: .*", f"ssh: {address!r}", host.read_text()))
        send(quick)


@pytest.mark.slow
def test_settings_for_other_uses_of_ssh_do_no_harm(quick: Laptop, site: Site) -> None:
    config = quick.folder / "ssh_config"
    right = config.read_text()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        more = ["RemoteCommand tmux attach", "RequestTTY force", f"LocalForward {port} localhost:1"]
        more += ["ExitOnForwardFailure yes", "ForwardAgent yes"]
        config.write_text(right + "".join(f" {line}\n" for line in more))
        send(quick)
    assert (site.folder / "src" / "quick.py").exists()
    quick.close_connections()
    start = time.monotonic()
    config.write_text(right + " NoSuchOption yes\n")
    assert "ssh can't read its configuration for site-login" in send(quick, code=2)
    assert time.monotonic() - start < 15
    config.write_text(right + " KexAlgorithms diffie-hellman-group1-sha1\n")
    assert "see what `ssh site-login` prints" in send(quick, code=2)


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_one_message(quick: Laptop, site: Site) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = quick.folder / "ssh_config"
        config.write_text(config.read_text().replace(str(site.port), str(silent.getsockname()[1])))
        start = time.monotonic()
        assert "it can't be reached: connect to its network" in send(quick, code=2)
        assert time.monotonic() - start < 40


@pytest.mark.slow
def test_ctrl_c_during_the_setup_and_a_second_call_that_waits_for_it(quick: Laptop, site: Site) -> None:
    setup = "mkdir one || touch two; touch begun; while [ ! -e go ]; do sleep 0.1; done; rmdir one; echo made >> setups"
    quick.knows("site", site, setup=setup)
    with open(quick.folder / "err", "w") as log:  # a pipe would be open until the setup ends
        process = quick.start("here", "on=site", start_new_session=True, stdout=log, stderr=log)
    wait_until((site.folder / "begun").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    err = (quick.folder / "err").read_text()
    assert "the command continues on site" in err and "Traceback" not in err
    again = quick.start("here", "on=site")
    assert again.stderr and any("Waiting for the setup of another call" in line for line in again.stderr)
    (site.folder / "go").touch()
    assert again.wait(60) == 0
    assert (site.folder / "setups").read_text() == "made\n" and not (site.folder / "two").exists()


@pytest.mark.slow
def test_a_reader_that_has_enough_and_too_many_arguments(quick: Laptop, site: Site) -> None:
    many = "import time\nfor i in range(100000): print(i, flush=True)\n"
    (quick.project / "src" / "quick.py").write_text(many)
    process = quick.start("here", "on=site")
    assert process.stdout and process.stderr
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    err = process.stderr.read()
    process.wait(60)
    assert "was killed" not in err and "Trying again" not in err and "Traceback" not in err, err
    words = [f"files/{'x' * 100}{i}" for i in range(2000)]
    assert "ssh can't be started: Argument list too long" in send(quick, "on=site", *words, code=2)


WRONG_HOSTS = {
    "": "", "ssh: [a\n": "", "- a\n": "", "ssh: a b\nfolder: ~/x\n": "is not a host of ssh", "ssh: a\nfolder: ''\n": "is empty",
    "ssh: a\nfolder: ~/x\nmodules: {a: 1}\n": "modules", "ssh: a\nfolder: ~/x\npython: ' '\n": "is empty",
}  # fmt: skip
"""Files of a host, and a part of the message."""


def test_wrong_host_files_are_one_message(tmp_path, monkeypatch, capsys):
    """Without a log-in, so in this process."""
    monkeypatch.setattr(connection, "HOSTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["src/quick.py"])

    def refused(word: str) -> str:
        assert run_command(lambda: run_elsewhere("src/quick.py", [word]), overrides=False) == 2
        err = capsys.readouterr().err
        assert err.count("error: ") == 1 and "Traceback" not in err
        return err

    for number, (text, says) in enumerate(WRONG_HOSTS.items()):
        (tmp_path / f"h{number}.yaml").write_text(text)
        assert says in refused(f"on=h{number}")
    for wrong in ("on=h0,", "on=,", "on=../hosts/h0", "on=a b", "on=$HOME", "on=H0"):
        assert ("name one host" if "," in wrong else "is not a host") in refused(wrong)
    shutil.rmtree(tmp_path)
    assert "configs/hosts/ has none" in refused("on=x")


def test_folders_that_can_not_be_there_are_one_message(quick: Laptop, site: Site) -> None:
    for folder, says in (
        ("$NO_SUCH/x", "NO_SUCH: is not set there"),
        ("/dev/null/x", "/dev/null/x on odd: mkdir: cannot"),
    ):
        text = f"ssh: site-login\nfolder: {folder}\n"
        (quick.project / "configs" / "hosts" / "odd.yaml").write_text(text)
        assert says in send(quick, "on=odd", code=2)
