"""Run a command of the project on a host: send the files, make the environment there, start it once, and show its output here.

`run_verb` runs one of `jobs.py`, which sends nothing.
"""

import fcntl
import hashlib
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TextIO

from train_anywhere.errors import REFUSED, ConfigError, SubmitError, SubmitInterrupted, UnclearError
from train_anywhere.files import HAS_PROJECT, WORK
from train_anywhere.files.terminal.printable import one_line, printable
from train_anywhere.remote import connection as hosts
from train_anywhere.remote import request_there
from train_anywhere.remote.connection import Answer, Connection, Host, LostConnectionError, read_host
from train_anywhere.remote.sent_files import SentFiles, find_files, remote_folder, transfer
from train_anywhere.runs.reopen.trust import state_folder
from train_anywhere.runs.summary import ON

PAUSES_S = (1.0, 5.0, 15.0)
"""Pauses before each new try after a lost connection."""

START = Path(request_there.__file__).read_text()
"""Program for the Python of the project there, which starts a request or shows its answer."""

SETUP = r"""
exec 9>.remote/lock
flock -n 9 || {{ echo "Waiting for the setup of another call" >&2; flock 9; }}
if [ "$(cat .remote/setup 2>/dev/null)" != {digest} ] || ! command -v -- {python} >/dev/null; then
    echo {title} >&2
    {{ {setup}
    }} </dev/null >&2 || {failed}
    echo {digest} > .remote/setup
fi 9>&-
exec 9>&-"""
"""Script that makes the environment if the requirements have changed, or Python is missing; one call at a time."""


def run_elsewhere(start: str, words: Sequence[str]) -> int | None:
    """Run a command on the host that `on=` names, and return the exit code; None: run it here.

    Raises:
        ProjectError: the host is not known, can't be reached, or refused the files; nothing was submitted.
        UnclearError: the connection was lost, and the command may have been executed.
        SubmitInterrupted: Ctrl-C was pressed; the command there continues.
    """
    program = Path(start.split()[-1]).stem
    end = words.index("--") if "--" in words else len(words)
    named = [word.removeprefix("on=") for word in words[:end] if word.startswith("on=")]
    own = [word for word in words[:end] if not word.startswith("on=")]
    sys.argv[1:] = [*own, *words[end:]]
    if not named or {"-h", "--help"} & {*own}:
        return None
    if len(named) > 1 or not named[0] or "," in named[0]:
        raise ConfigError(f"{' '.join(f'on={name}' for name in named)}: name one host, such as on=neuron.")
    host = read_host(named[0])
    keys = {word.lstrip("+").partition("=")[0] for word in own}
    shows = program == "evaluate" or (program == "scaling" and len(own) == 1 and "=" not in own[0])
    preset = [f"cluster={host.cluster}"] if host.cluster and "cluster" not in keys and not shows else []
    code = run_once(host, [*start.split(), *preset, *own, *words[end:]])
    if not code and "dry_run" not in keys and program not in ("evaluate", "fetch"):
        print(f"On {host.name}: python src/jobs.py --on {host.name} status, logs -f, cancel", file=sys.stderr)
    if code == REFUSED:
        values = [word.rpartition("=")[2] for word in own]
        for run in (value for value in values if Path(value, "config.yaml").is_file()):
            note = f"note: {run} is a run of this machine; if {host.name} has none of this name, copy it: docs/how-to/move-a-run.md."
            print(printable(note), file=sys.stderr)
    return code


@contextmanager
def _open_record(host: Host, command: Sequence[str]) -> Iterator[TextIO]:
    """Open the file with the id of the request for a command whose answer has not arrived; an empty one is removed at the end.

    The same command in another terminal, which waits for its answer now, has its own.
    """
    digest = hashlib.sha256("\0".join([str(WORK), host.name, *command]).encode(errors="surrogateescape"))
    start = state_folder() / "remote" / digest.hexdigest()[:16]
    start.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in count():
        with open(f"{start}-{number}.request", "a+") as record:
            try:
                fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not os.fstat(record.fileno()).st_nlink:  # its call has just ended
                continue
            record.seek(0)
            try:
                yield record
            finally:
                if not os.fstat(record.fileno()).st_size:
                    os.unlink(record.name)
            return


def run_once(host: Host, command: Sequence[str], sends: bool = True) -> int:
    """Send the project and run a command there, at most once however often the connection is lost; return its exit code.

    The id of the request stays here until its answer arrives, so that the same command typed again asks for that answer.
    Without `sends` nothing is sent before. Raises what `run_elsewhere` raises.
    """
    files = find_files() if sends else None
    tried, why, connection = False, "", Connection(host)
    with _open_record(host, command) as record:
        known = record.read()
        request = known or os.urandom(8).hex()
        for pause in (0.0, *PAUSES_S):
            try:
                if why:
                    print(f"{why} Trying again ...", file=sys.stderr, flush=True)
                    time.sleep(pause)
                folder = shlex.quote(transfer(connection, files)) if files else remote_folder(host)
                if not known:
                    print(request, end="", file=record, flush=True)
                known, tried = request, True
                code = connection.run(_script(host, folder, ["-Pc", START, request, *command], files))
                record.truncate(0)
                return code
            except SubmitError as error:
                if not (tried or isinstance(error, LostConnectionError)):
                    raise
                why = str(error)
            except KeyboardInterrupt:
                there = f"the command continues on {host.name}; type it again to see its answer."
                raise SubmitInterrupted(
                    f"interrupted: {there if tried else 'nothing was submitted.'}"
                ) from None
    if not tried:
        raise LostConnectionError(
            f"{why} Nothing was submitted: type the command again, or see what `ssh {host.ssh}` prints."
        )
    raise UnclearError(
        f"{why} Whether the command was executed is not known: type it again. If it was, you get its answer: it is executed once."
    )


def run_new(host: Host, command: Sequence[str]) -> Answer:
    """Send the project, make its environment with the progress shown here, and return what a command prints there."""
    if code := run_once(host, ["-c", ""]):
        raise SubmitError(
            f"the environment on {host.name} could not be made (exit code {code}); see the lines above."
        )
    return Connection(host).capture(in_folder(host, command))


def _script(host: Host, folder: str, words: Sequence[str], files: SentFiles | None = None) -> str:
    """Return a script of bash that enters the folder on a host, makes the environment for `files`, and runs `python words...`."""
    python, file, setup = hosts.shell_path(host.python), f"configs/hosts/{host.name}.yaml", ""
    no_folder = hosts.refusal(
        f"{host.name} has no project in {host.folder} yet: python src/train.py on={host.name} sends it."
    )
    no_python = hosts.refusal(
        f"{host.name} has no Python at {host.python}: correct `python:` or `setup:` in {file}; it needs 3.11 or newer."
    )
    enter = f"export {ON}={shlex.quote(host.name)}; cd -- {folder} 2>/dev/null || {no_folder}"
    version = f"{python} -SEc 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {no_python}"
    if files and host.setup:
        digest = hashlib.sha256(f"{host.setup} {host.python} {host.modules} {host.conda}".encode())
        for name in sorted(name for name in files.names if name.startswith(("requirements/", "wheels/"))):
            with suppress(OSError):  # such as a broken link
                digest.update(os.fsencode(name) + (WORK / name).read_bytes())
        setup = SETUP.format(
            digest=digest.hexdigest()[:16],
            python=python,
            title=shlex.quote(f"On {host.name}: {host.setup}"),
            setup=host.setup,
            failed=hosts.refusal(
                f"`{host.setup}` failed on {host.name}, see above: correct `setup:` in {file}, such as `make setup WHEELS=gpu "
                "PYTHON=python3.12`, or its `modules:`. Nothing was submitted."
            ),
        )
    return "\n".join([enter, *host.activation(), setup, version, f"exec {python} {shlex.join(words)}"])


def in_folder(host: Host, words: Sequence[str]) -> str:
    """Return a script of bash that runs `python words...` in the project's folder on a host."""
    return _script(host, remote_folder(host), words)


VERB = ["src/jobs.py"] if HAS_PROJECT else ["-m", "train_anywhere"]
"""Start of a verb's command, for Python."""


def run_verb(name: str, verb: str, words: Sequence[str]) -> int:
    """Run `jobs.py words...` on a host with the streams of this process; return its exit code.

    Raises ProjectError: the host is not known or can't be reached, or nothing was sent to it yet.
    """
    host = read_host(name)
    if verb == "resubmit":
        return run_once(host, [*VERB, *words], sends=False)
    connection = Connection(host)
    query(connection, ["-c", ""])
    follows = {"-f", "--follow"} & {*words} and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        return connection.run(in_folder(host, [*VERB, *words]), verb in ("shell", "prune") or bool(follows))
    except LostConnectionError:
        raise SubmitError(f"the connection to {name} was lost; the run there is not affected.") from None


def query(connection: Connection, words: Sequence[str]) -> str:
    """Return what Python prints in the project's folder on a host. Raises SubmitError with its message if it fails."""
    done = connection.capture(in_folder(connection.host, words))
    if done.returncode:
        said = re.split("[eE]rror: ", done.stderr.strip())[-1]
        raise SubmitError(f"{connection.host.name}: {one_line(' '.join(said.split()))[:600]}")
    return done.stdout
