"""Remote machines, configs/hosts/NAME.yaml, and calls of ssh and rsync for them.

One log-in serves all calls, they are quoted for any login shell, and each kind of failure has one message.
"""

import base64
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from train_anywhere.config.command.yaml_files import read_mapping
from train_anywhere.config.strict import build, did_you_mean
from train_anywhere.errors import ConfigError, SubmitError, listed
from train_anywhere.files import OWN

HOSTS = OWN / "hosts"

LOST = 255
"""Exit code of ssh if it can't connect, or if the connection is lost."""

FAILURES = {
    r"offending .* key in|identification has changed": "its host key is not the one that you know: it was reinstalled, or another "
    "machine answers. Ask its administrators; if the new key is right, delete the line that ssh names, then `ssh {ssh}`.",
    r"host key verification failed|no .* host key is known": "its host key is not known yet: type `ssh {ssh}` once, and compare the "
    "fingerprint with that of its documentation.",
    r"permission denied \(|too many authentication|no supported authentication": "it refused your log-in: try `ssh {ssh}`. `ssh-add -l` "
    "lists your keys, and ~/.ssh/config may name another user.",
    r"could not resolve|name or service not known|nodename nor servname": "its name has no address: correct `ssh:` in "
    "configs/hosts/{name}.yaml, or connect to its network (VPN).",
    r"no route to host|network is unreachable|timed out|connection refused|host is down": "it can't be reached: connect to its network "
    "(VPN), or see whether it is down.",
}
"""Messages of ssh, and what each means."""

MARK = "@train-anywhere"
"""Line of a script: below it is what it prints, and not the profile of the login shell."""

REFUSALS = {
    r"no space left|quota exceeded|exceeded .*quota": "the disk or your quota is full in {where}: make room there.",
    r"rsync: (command )?not found|Unknown command:? '?rsync": "{name} has no rsync, which brings the files: ask its administrators, or "
    "install one for yourself, such as `conda install rsync` in the base environment.",
    r"is your shell clean": "your login shell on {name} prints something: let `ssh {ssh} true` print nothing, by a silent ~/.bashrc, "
    "~/.cshrc, ~/.zshenv or config.fish there.",
}
"""Messages of programs there, and what each means."""

MOST_BYTES = 256 << 20
"""Most bytes of an answer."""

Answer = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Host:
    """A remote machine.

    Attributes:
        ssh: the host as `ssh` takes it: an alias of ~/.ssh/config, or user@host.
        folder: the project's folder there. `~` and $NAME are those of the host, {branch} is the current branch.
        cluster: the preset for commands without `cluster=`; None adds nothing.
        python: the Python of the project there, by name or by path; a relative path is below the folder.
        setup: command that makes it, run again when the requirements change; None: nothing has to be made.
        modules: environment modules that are loaded first.
        conda: conda environment that is activated.
        name: name of the file.
    """

    ssh: str
    folder: str
    cluster: str | None = None
    python: str = ".venv/bin/python"
    setup: str | None = "make setup WHEELS=gpu"
    modules: list[str] = field(default_factory=list)
    conda: str | None = None
    name: str = ""

    def activation(self) -> list[str]:
        """Return lines of bash that load the modules and activate the conda environment."""
        lines = [f"module load {shlex.quote(name)}" for name in self.modules]
        script = '"$(conda info --base)/etc/profile.d/conda.sh"'
        lines += [f"source {script} && conda activate {shlex.quote(self.conda)}"] if self.conda else []
        return [f"{line} || {refusal(f'`{line}` failed on {self.name}.')}" for line in lines]


def read_host(name: str) -> Host:
    """Return a host. Raises ConfigError for an unknown one and for a wrong file."""
    if name not in (known := sorted(path.stem for path in HOSTS.glob("*.yaml"))):
        have = f"configs/hosts/ has {listed(known)}" if known else "configs/hosts/ has none"
        raise ConfigError(
            f"'{name}' is not a host ({have}){did_you_mean(name, known)} `python slurm/new_cluster.py NAME --on SSH_HOST` "
            "writes the file of a new one."
        )
    problems: list[str] = []
    host = build(Host, read_mapping(HOSTS / f"{name}.yaml"), problems, f"hosts/{name}")
    if host and not re.fullmatch(r"[^\s-]\S*", host.ssh):
        problems.append(f"hosts/{name}.ssh={host.ssh} is not a host of ssh, such as an alias or user@host.")
    if host and not (host.folder.strip() and host.python.strip()):
        problems.append(f"hosts/{name}: `folder:` or `python:` is empty; name a path there.")
    if host is None or problems:
        raise ConfigError(*problems)
    return replace(host, name=name)


def shell_path(path: str) -> str:
    """Return a word of bash for a path in which only a leading `~` and $NAME have a meaning; an unset name is an error."""
    head, rest = ('"$HOME"', path[1:]) if re.match(r"~(/|$)", path) else ("", path)
    parts = re.split(r"\$(?:(\w+)|\{(\w+)\})", rest)
    words = [shlex.quote(parts[0]) if parts[0] else ""]
    for bare, braced, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        value = f'"${{{bare or braced}:?is not set there, and a path of this host has it}}"'
        words.append(value + (text and shlex.quote(text)))
    return head + "".join(words)


def refusal(message: str) -> str:
    """Return a command of bash that prints an error and exits with code 2."""
    return f"{{ echo {shlex.quote(f'error: {message}')} >&2; exit 2; }}"


class LostConnectionError(SubmitError):
    """The connection was lost; the command there may have started, and may have ended."""


class Connection:
    """Calls of ssh and rsync for one host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        settings = self._call(["ssh", "-G", host.ssh])
        if settings.returncode:
            why = " ".join(settings.stderr.split())
            raise SubmitError(f"ssh can't read its configuration for {host.ssh}: {why}.")
        options = ["ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4", "LogLevel=ERROR"]
        options += ["ClearAllForwardings=yes", "RemoteCommand=none"]  # those of a user's own log-ins
        options += _sharing(settings.stdout)
        self.has_proxy = bool(re.search(r"^proxy(jump|command) (?!none)", settings.stdout, re.M))
        self.ssh = ["ssh", "-a", "-x", "-T", *(word for option in options for word in ("-o", option))]

    def run(self, script: str, tty: bool = False) -> int:
        """Run a script of bash there with the streams of this process; return its exit code. Raises LostConnectionError."""
        command = [*self.ssh, *(["-t"] if tty else []), self.host.ssh, wrap(script)]
        code = self._execute(command, stdin=None if tty else subprocess.DEVNULL)
        if code == LOST:
            raise self._explain_lost("")
        return code

    def capture(self, script: str, stdin: bytes = b"", login: bool = True) -> Answer:
        """Run a script of bash there, with the user's profile if `login`, and return what it prints.

        Raises LostConnectionError: the connection was lost. Raises SubmitError: the host can't be reached, or prints too much.
        """
        marked = f"echo {MARK}; echo {MARK} >&2\n{script}"
        return self._reach([*self.ssh, self.host.ssh, wrap(marked, login)], stdin)

    def rsync(
        self, folder: str, options: Sequence[str], paths: tuple[str, str], stdin: bytes = b"", then: str = ""
    ) -> str:
        """Copy files from the first path to the second; a path that starts with a colon is below `folder` there.

        `then` is a script of bash that runs there if all files were copied. Returns what rsync prints. Raises like `capture`.
        """
        enter = f"echo {MARK} >&2; cd -- {shlex.quote(folder)} || exit"
        there = wrap(f'{enter}\n"$@" || exit\n{then}', login=False)
        # the address of the host, and quotes in quotes, would mean something to rsync
        places = [f"there{path}" if path.startswith(":") else path for path in paths]
        start = f'exec {shlex.join([*self.ssh, self.host.ssh, there])} "$@"'
        words = ["rsync", *options, "-e", "sh -c 'eval \"$TRAIN_ANYWHERE_SSH\"'", *places]
        done = self._reach(words, stdin, env={**os.environ, "TRAIN_ANYWHERE_SSH": start})
        broken = (12, 30, 35)  # the stream broke, or a time-out
        if done.returncode in broken and not _meaning(REFUSALS, done.stderr):
            raise self._explain_lost(done.stderr)
        if done.returncode not in (0, 24):  # 24: a file was removed meanwhile
            where = f"{folder} on {self.host.name}" if paths[1].startswith(":") else paths[1]
            raise SubmitError(self.describe_failure(done, where))
        return done.stdout

    def rsync_protocol(self) -> int:
        """Return the version of the protocol of the rsync here."""
        shown = re.search(r"protocol version (\d+)", self._call(["rsync", "--version"]).stdout)
        return int(shown[1]) if shown else 0

    def describe_failure(self, done: Answer, where: str) -> str:
        """Return the message for a call that failed in a folder."""
        if found := _meaning(REFUSALS, done.stderr):
            return found[0].format(where=where, name=self.host.name, ssh=self.host.ssh)
        words = " ".join((done.stderr.strip() or done.stdout).split()).replace("error: ", "") or "no answer"
        return f"{where}: {words[:600]} (exit code {done.returncode})"

    def _explain_lost(self, said: str) -> SubmitError:
        if self.has_proxy and "kex_exchange_identification" in said:  # only without sharing ssh shows why
            plain = ["ssh", "-o", "ControlPath=none", "-o", "ControlPersist=no", *self.ssh[1:]]
            said += self._call([*plain, self.host.ssh, "true"]).stderr
        if found := _meaning(FAILURES, said):
            advice = found[0].format(ssh=self.host.ssh, name=self.host.name)
            return SubmitError(f"{self.host.name} ({self.host.ssh}): {advice} ssh: {found[1]}")
        last = ("", *filter(None, map(str.strip, said.splitlines())))[-1]
        return LostConnectionError(f"the connection to {self.host.name} was lost{last and f' ({last})'}.")

    def _reach(self, command: Sequence[str], stdin: bytes, **options: Any) -> Answer:
        """Return what a command that connects to the host prints. Raises like `capture`."""
        done = self._call(command, stdin, **options)
        if done.returncode == LOST:
            raise self._explain_lost(done.stderr)
        return done

    def _call(self, command: Sequence[str], stdin: bytes = b"", **options: Any) -> Answer:
        # files, not pipes: the process that keeps the connection open may inherit them
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            code = self._execute(command, stdin=given, stdout=out, stderr=err, **options)
            out.seek(0)
            err.seek(0)
            # above the mark is what the profile prints
            texts = (os.fsdecode(file.read()).rpartition(f"{MARK}\n")[2] for file in (out, err))
            return Answer(command, code, *texts)

    def _execute(self, command: Sequence[str], **streams: Any) -> int:
        """Run a process, which does not outlive this call; return its exit code. Raises SubmitError, also if it prints too much."""
        try:
            process = subprocess.Popen(command, **streams)
        except FileNotFoundError:
            raise SubmitError(
                f"{command[0]} is not installed here: install openssh-client and rsync with your system's packages."
            ) from None
        except OSError as error:  # such as too many arguments
            raise SubmitError(
                f"{command[0]} can't be started: {error.strerror}; nothing was submitted."
            ) from None
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(1.0)
                if (out := streams.get("stdout")) and os.fstat(out.fileno()).st_size > MOST_BYTES:
                    size = f"{MOST_BYTES >> 20} MiB"
                    raise SubmitError(f"{self.host.name} did not answer: it printed more than {size}.")
        except BaseException:
            process.kill()
            raise


def wrap(script: str, login: bool = True) -> str:
    """Return a command that runs a script of bash, whatever the login shell is: csh and fish quote in other ways.

    `login` reads the profile of the user, where sites put Slurm and modules on the PATH; what it prints goes to standard error.
    """
    code = base64.b64encode(os.fsencode(script)).decode()
    inner = f'exec >&3 3>&-; unset CDPATH; eval "`echo {code} | base64 -d`"'
    profile = "-l " if login else ""
    return f"exec bash -c 'exec 3>&1 >&2; exec bash {profile}-c \"$0\" bash \"$@\"' '{inner}'"


def _meaning(known: dict[str, str], text: str) -> tuple[str, str] | None:
    """Return what a message means, and its line; None if no pattern of `known` matches."""
    for pattern, meaning in known.items():
        for line in reversed(text.splitlines()):
            if re.search(pattern, line, re.IGNORECASE):
                return meaning, line.strip().removeprefix("ssh: ")
    return None


def _sharing(settings: str) -> list[str]:
    """Return options of ssh with which all calls share one log-in; none if the user's configuration has its own."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(runtime if os.path.isdir(runtime) else os.path.expanduser("~/.ssh")).absolute()
    # the longest name of a socket has 104 bytes with its end; %C has 40, and ssh adds 17 for a moment
    long = len(f"{folder}/ta-") + 40 + 18 > 104
    if re.search(r"^controlpath (?!none)", settings, re.M) or long or re.search(r"[\s%]", str(folder)):
        return []
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:  # without a home folder
        return []
    return ["ControlMaster=auto", f"ControlPath={folder}/ta-%C", "ControlPersist=10m"]
