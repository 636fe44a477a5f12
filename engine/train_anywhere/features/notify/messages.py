"""Send the messages of a run to a command or a webhook. Whatever that does, the run continues.

At the end of a job, its batch script calls

    python -m train_anywhere.features.notify.messages RUN CODE

with the exit code of the ranks' launcher. A message that the end of a monitor interrupts is sent again.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from train_anywhere.config.load import load
from train_anywhere.errors import STOPPED, ProjectError
from train_anywhere.features.notify.events import Kind, record_event
from train_anywhere.files.removal import print_once
from train_anywhere.files.terminal.printable import mask_urls, one_line
from train_anywhere.monitor.ranks import read_json
from train_anywhere.runs.attempts import recorded_reason, running_job
from train_anywhere.runs.debug import describe_exit_code
from train_anywhere.runs.folder import ATTEMPTS, RunDir, open_run
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import format_metric

MOST_CHARACTERS = 1000
"""Largest length of a message, which is an environment variable too."""

PATIENCE_S = 15.0
"""Longest time for a message in seconds."""


class Sender:
    """Service that sends each event soon after it was recorded; those of an earlier attempt are left out."""

    every_seconds = 2.0

    def __init__(self, run: RunDir, target: str) -> None:
        self.run, self.target = run, target
        self.command: subprocess.Popen[bytes] | None = None
        self.closed = False
        for path in run.monitor.glob("event-*.json*"):
            _mark_sent(path)

    def poll(self, now: float) -> None:
        """Send new events. Raises OSError if the run folder can't be written."""
        send_events(self.run, self.target, "event-*.json", self)

    def close(self) -> None:
        """Kill a command that still runs: `send_end` sends what is left."""
        self.closed = True
        if self.command:
            _kill(self.command)


def send_end(run: RunDir, target: str, code: int | None = None) -> None:
    """Record whether the run is done or has failed, and send all events that the monitor of the first node has left.

    A run that was stopped, and may continue, has no message. A state of `running` means that rank 0 was killed.

    Args:
        run: the run folder.
        target: a command or the URL of a webhook.
        code: exit code of the ranks' launcher; None if it is not known.
    """
    try:
        info = run.read_info()
        state = info.get("state", "")
        if state == "running" and (info.get(ATTEMPTS) or [{}])[-1].get("job") != running_job():
            return  # another job trains in this folder
        kinds: dict[str, Kind] = {"completed": "done", "failed": "failed", "running": "failed"}
        kind, lost = kinds.get(state), "its ranks were killed, or could not record why"
        if state == "queued" and code not in (None, 0, STOPPED):
            kind, lost = "failed", "the ranks did not start"
        metrics = info.get("metrics") or {}
        shown = [
            f"{name} {format_metric(metrics, name)}"
            for name in metrics
            if "train" not in name and name != "lr"
        ]
        memory = ", often the memory limit" if code == 128 + signal.SIGKILL else ""
        lost += f" ({describe_exit_code(code)}{memory})" if code else ""
        if kind:
            record_event(run, kind, ", ".join(shown) if kind == "done" else recorded_reason(info) or lost)
        send_events(run, target, "event-*.json*")
    except (OSError, ProjectError) as error:
        _warn(target, str(error))


def send_events(run: RunDir, target: str, pattern: str, sender: Sender | None = None) -> None:
    """Send the events in these files of RUN/monitor, until `sender` is closed. Raises OSError if they can't be renamed."""
    for path in sorted(run.monitor.glob(pattern)):
        path = path.rename(path.with_name(path.name.removesuffix(".sending") + ".sending"))
        event = read_json(path)
        why = send(run, target, str(event.get("kind")), str(event.get("text")), sender)
        if why and sender and sender.closed:
            return
        if why:
            _warn(target, why)
        _mark_sent(path)


def send(run: RunDir, target: str, kind: str, text: str, sender: Sender | None = None) -> str:
    """Send one message; return why it failed, or an empty string."""
    message = one_line(f"{run.path.parent.name} {run.id} {kind}{text and ': '}{text}"[:MOST_CHARACTERS])
    message = message.encode(errors="replace").decode()  # half of a surrogate pair has no bytes
    if not is_webhook(target):
        variables = {"TRAIN_EVENT": kind, "TRAIN_RUN": str(run.path), "TRAIN_MESSAGE": message}
        return _call(target, message, variables, sender)
    answers: list[str] = []
    # urlopen may wait longer: for the name of the host, and for each of its addresses
    thread = threading.Thread(target=lambda: answers.append(_post(target, message)), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return answers[0] if answers else f"no answer within {PATIENCE_S:.0f} s"


def _post(url: str, message: str) -> str:
    """Post the message to a webhook; return why it failed, or an empty string."""
    # Slack, Mattermost and Discord (at .../slack) read `text`: https://docs.mattermost.com/developers/integrate/webhooks/incoming
    headers = {"Content-Type": "application/json", "User-Agent": "train-anywhere"}
    try:
        with urlopen(Request(url, json.dumps({"text": message}).encode(), headers), timeout=PATIENCE_S):
            return ""
    except HTTPError as error:
        return f"HTTP status {error.code}"
    except OSError as error:
        return f"{getattr(error, 'reason', error)}"
    except Exception as error:  # such as a broken answer; the message may have the URL
        return type(error).__name__


def _call(command: str, message: str, variables: dict[str, str], sender: Sender | None) -> str:
    """Run a shell command with the message as its input; return why it failed, or an empty string."""
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            command,
            shell=True,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # such as a character that the locale does not have
        return str(error)
    if sender:
        sender.command = process
    try:
        process.communicate(f"{message}\n".encode(errors="replace"), PATIENCE_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()
        return f"no end within {PATIENCE_S:.0f} s"
    return f"exit code {process.returncode}" if process.returncode else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command, and what it has started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _mark_sent(path: Path) -> None:
    with suppress(OSError):
        path.rename(path.with_name(path.name.replace("event-", "sent-", 1).removesuffix(".sending")))


def _warn(target: str, why: str) -> None:
    print_once(
        f"monitor.notify: {describe_target(target)} failed ({one_line(mask_urls(why))}); the run is not affected."
    )


def is_webhook(target: str) -> bool:
    """Return whether the value of `monitor.notify` is the URL of a webhook, not a command."""
    return target.lower().startswith(("http://", "https://"))


def describe_target(target: str) -> str:
    """Return the host of a webhook, or the name of a command: the rest may hold a secret."""
    if is_webhook(target):
        return mask_urls(target)
    with suppress(ValueError):
        words = [word for word in shlex.split(target) if "=" not in word]  # without variables of the command
        if words and re.fullmatch(r"[\w./+-]+", words[0]):
            return words[0]
    return "the command"


if __name__ == "__main__":
    ended = open_run(sys.argv[1])
    send_end(ended, str(load(read_frozen(ended)).monitor.notify), int(sys.argv[2]))
