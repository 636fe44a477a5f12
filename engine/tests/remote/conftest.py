"""A host that is reached over ssh: a real sshd on this machine, which can write below one folder only.

site       the host: `site.folder` is the project's folder there, `site.home` all that it can write
laptop     a copy of the project with configs/hosts/site.yaml, and its commands
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.tests.confined import INSIDE
from tools.testing import warm
from tools.testing.projects import copy_project

NEEDED = {"sshd": "openssh-server", "ssh": "openssh-client", "rsync": "rsync", "unshare": "util-linux"}


SERVE = """
import os, socket, subprocess, sys
listener, running = socket.socket(fileno=int(sys.argv[1])), []
while True:
    connection, _ = listener.accept()
    running.append(subprocess.Popen(sys.argv[2:], stdin=connection, stdout=connection))
    connection.close()
"""
"""A program that starts an sshd for each connection to a socket that is listened to elsewhere."""


class Site:
    """A machine behind an sshd of its own.

    Args:
        home: the only folder that its commands can write.
        settings: more lines of sshd_config.
        environment: more variables of its commands.
        first: a command of the host before its sshd starts, which may mount.
        user: who logs in.
        pam: lines of sshd_config for a log-in by PAM; None: by key.
        enter: prefix of a command on another machine of this one, whose network is its own: there the sshd runs.
    """

    def __init__(
        self,
        home: Path,
        settings: str = "",
        environment: str = "",
        first: str = ":",
        user: str = "root",
        pam: str | None = None,
        enter: Sequence[str] = (),
    ) -> None:
        self.home, self.folder = home, home / "jobs" / "my project's ünü"
        self.first, self.user, self.enter = first, user, enter
        (home / "tmp").mkdir(parents=True)
        keys = ("host", "user")
        for name in keys:
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / f"{name}_key"], check=True
            )
        (home / "authorized").write_text((home / "user_key.pub").read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.config = home / "sshd_config"
        self.config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {home}/host_key\nAuthorizedKeysFile {home}/authorized\n"
            f"PidFile {home}/sshd.pid\nStrictModes no\nUsePAM {'no' if pam is None else 'yes'}\nPermitRootLogin yes\nMaxStartups 100\n"
            f"SetEnv XDG_STATE_HOME={home}/state TMPDIR={home}/tmp OMP_NUM_THREADS=1 LANG=C.UTF-8 {environment}\n{pam or ''}{settings}"
        )
        self.start()

    def start(self) -> None:
        """Start the sshd."""
        Path("/run/sshd").mkdir(exist_ok=True)
        inside = ["unshare", "--mount", "--propagation", "private", "bash", "-c", INSIDE, "confined"]
        sshd, passed = f"{shutil.which('sshd')} -D -e -f {self.config}", []
        if self.enter:
            listener = socket.create_server(("127.0.0.1", self.port))
            passed = [listener.fileno()]
            serve = [sys.executable, "-c", SERVE, str(passed[0]), *sshd.replace(" -D", " -i").split()]
            sshd = shlex.join(serve)
        command = [*self.enter, *inside, str(self.home), "bash", "-c", f"{self.first} && exec {sshd}"]
        with open(self.home / "sshd.log", "a") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = warm.NEW(command, pass_fds=passed, **streams)
        if self.enter:
            listener.close()
            return
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < end, (self.home / "sshd.log").read_text()
                time.sleep(0.05)

    def sessions(self) -> list[psutil.Process]:
        """Return the processes of this sshd that serve a connection."""
        with suppress(psutil.NoSuchProcess):  # it was stopped
            return psutil.Process(self.process.pid).children()
        return []

    def cut(self) -> None:
        """Kill all connections."""
        for session in self.sessions():
            with suppress(psutil.Error):
                for one in [*session.children(), session]:
                    if "sshd" in one.name():
                        one.kill()

    def stop(self) -> None:
        """Stop the sshd and its connections."""
        self.cut()
        self.process.terminate()
        self.process.wait(20)


class Laptop:
    """A copy of the project on this machine, and its commands.

    Args:
        folder: where the copy, the configuration of ssh and the state of the user are.
        project: the copy.
    """

    def __init__(self, folder: Path, project: Path) -> None:
        self.folder, self.project = folder, project
        self.runtime = tempfile.mkdtemp(prefix="ta-", dir="/tmp")  # the path of a socket is short
        self.ssh = Path(shutil.which("ssh") or "ssh")
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {self.ssh} -F {folder}/ssh_config "$@"\n')
        (folder / "bin" / "ssh").chmod(0o755)
        (folder / "ssh_config").write_text("")
        (project / "configs" / "hosts").mkdir(exist_ok=True)

    def knows(self, name: str, site: Site, **settings: Any) -> None:
        """Write what ssh and the project need for a site."""
        known = self.folder / f"known_{name}"
        key = (site.home / "host_key.pub").read_text()
        known.write_text(f"[127.0.0.1]:{site.port} {key}")
        with open(self.folder / "ssh_config", "a") as config:
            config.write(
                f"Host {name}-login\n HostName 127.0.0.1\n Port {site.port}\n User {site.user}\n IdentityFile {site.home}/user_key\n"
                f" IdentitiesOnly yes\n UserKnownHostsFile {known}\n"
            )
        lines = {
            "ssh": f"{name}-login",
            "folder": site.folder,
            "python": sys.executable,
            "setup": "echo making",
        }
        text = "".join(
            f"{key}: {'null' if v is None else repr(str(v)) if not isinstance(v, list) else v}\n"
            for key, v in {**lines, **settings}.items()
        )
        text = text.replace(repr(str(site.folder)), '"' + str(site.folder) + '"')
        (self.project / "configs" / "hosts" / f"{name}.yaml").write_text(text)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its commands."""
        mine = {"XDG_STATE_HOME": f"{self.folder}/state", "XDG_RUNTIME_DIR": self.runtime}
        path = f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"
        found = {**os.environ, **mine, "PATH": path, "OMP_NUM_THREADS": "1"}
        found.pop("PYTHONPATH", None)
        return found

    def start(self, program: str, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """Start `python src/<program>.py words...`, or `python -m train_anywhere <program> words...`."""
        script = self.project / "src" / f"{program}.py"
        start = [str(script)] if script.exists() else ["-m", "train_anywhere", program]
        command = [sys.executable, *start, *words]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return warm.NEW(
            command, **{**streams, "env": self.environ, "cwd": self.project, "text": True, **options}
        )

    def command(self, program: str, *words: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """Return what `python src/<program>.py words...` prints, and its exit code."""
        process = self.start(program, *words)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def close(self) -> None:
        """Close the shared connections, and delete their folder."""
        self.close_connections()
        shutil.rmtree(self.runtime)

    def close_connections(self) -> None:
        """Close the shared connections: the next command logs in."""
        for socket_file in Path(self.runtime).glob("ta-*"):
            subprocess.run(
                [self.ssh, "-O", "exit", "-o", f"ControlPath={socket_file}", "x"], capture_output=True
            )


@pytest.fixture(scope="session")
def site_for(
    tmp_path_factory: pytest.TempPathFactory, require: Callable[[object, str], None]
) -> Iterator[Callable[..., Site]]:
    """Start a host."""
    for program, package in NEEDED.items():
        require(shutil.which(program), f"apt-get install {package}")
    require(os.getuid() == 0, "run as root: the test starts an sshd")
    up: list[Site] = []

    def start(settings: str = "", **options: Any) -> Site:
        up.append(Site(tmp_path_factory.mktemp("site") / "home", settings, **options))
        return up[-1]

    yield start
    for site in up:
        site.stop()


@pytest.fixture
def site(site_for: Callable[..., Site]) -> Site:
    """A host with an empty home."""
    return site_for()


@pytest.fixture(scope="session")
def project_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project under git, to be copied."""
    return copy_project(tmp_path_factory.mktemp("laptop"))


@pytest.fixture
def laptop(tmp_path: Path, site: Site, project_copy: Path) -> Iterator[Laptop]:
    """A copy of the project that knows the host as `site`."""
    project = tmp_path / "a laptop" / "project"
    shutil.copytree(project_copy, project, symlinks=True)
    made = Laptop(tmp_path, project)
    made.knows("site", site)
    yield made
    made.close()
