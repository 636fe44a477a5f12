"""Send the messages of a run to a command or a webhook. Whatever that does, the run continues.

At the end of a job, its batch script calls

    python -m train_anywhere.features.notify.messages RUN
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from train_anywhere.config.load import load
from train_anywhere.errors import ProjectError
from train_anywhere.features.notify.events import Kind, record_event
from train_anywhere.files.removal import print_once
from train_anywhere.files.terminal.printable import mask_urls, one_line
from train_anywhere.monitor.ranks import read_json
from train_anywhere.runs.attempts import recorded_reason
from train_anywhere.runs.folder import RunDir, open_run
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
        for path in run.monitor.glob("event-*.json*"):
            _mark_sent(path)

    def poll(self, now: float) -> None:
        """Send new events. Raises OSError if the run folder can't be written."""
        send_events(self.run, self.target, "event-*.json")

    def close(self) -> None:
        """Do nothing: `send_end` sends what is left."""


def send_end(run: RunDir, target: str) -> None:
    """Record whether the run is done or has failed, and send all events that the monitor of the first node has left.

    A run that was stopped, and may continue, has no message. A state of `running` means that rank 0 was killed.
    """
    try:
        info = run.read_info()
        kind: Kind | None = {"completed": "done", "failed": "failed", "running": "failed"}.get(
            info.get("state", "")
        )  # type: ignore[assignment]
        metrics = info.get("metrics") or {}
        shown = [
            f"{name} {format_metric(metrics, name)}"
            for name in metrics
            if "train" not in name and name != "lr"
        ]
        killed = "its ranks were killed, or could not record why"
        if kind:
            record_event(run, kind, ", ".join(shown) if kind == "done" else recorded_reason(info) or killed)
        send_events(run, target, "event-*.json*")
    except (OSError, ProjectError) as error:
        _warn(target, str(error))


def send_events(run: RunDir, target: str, pattern: str) -> None:
    """Send the events in these files of RUN/monitor. Raises OSError if they can't be renamed."""
    for path in sorted(run.monitor.glob(pattern)):
        path = path.rename(path.with_name(path.name.removesuffix(".sending") + ".sending"))
        event = read_json(path)
        if why := send(run, target, str(event.get("kind")), str(event.get("text"))):
            _warn(target, why)
        _mark_sent(path)


def send(run: RunDir, target: str, kind: str, text: str) -> str:
    """Send one message; return why it failed, or an empty string."""
    message = one_line(f"{run.path.parent.name} {run.id} {kind}{text and ': '}{text}"[:MOST_CHARACTERS])
    if not target.startswith(("http://", "https://")):
        return _call(
            target, message, {"TRAIN_EVENT": kind, "TRAIN_RUN": str(run.path), "TRAIN_MESSAGE": message}
        )
    # Slack, Mattermost and Discord (at .../slack) read `text`: https://docs.mattermost.com/developers/integrate/webhooks/incoming
    headers = {"Content-Type": "application/json", "User-Agent": "train-anywhere"}
    try:
        with urlopen(Request(target, json.dumps({"text": message}).encode(), headers), timeout=PATIENCE_S):
            return ""
    except HTTPError as error:
        return f"HTTP status {error.code}"
    except Exception as error:  # a broken answer raises other errors than OSError
        return f"{getattr(error, 'reason', error)}"


def _call(command: str, message: str, variables: dict[str, str]) -> str:
    """Run a shell command with the message as its input; return why it failed, or an empty string."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command,
        shell=True,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        process.communicate(f"{message}\n".encode(errors="replace"), PATIENCE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"no end within {PATIENCE_S:.0f} s"
    return f"exit code {process.returncode}" if process.returncode else ""


def _mark_sent(path: Path) -> None:
    with suppress(OSError):
        path.rename(path.with_name(path.name.replace("event-", "sent-", 1).removesuffix(".sending")))


def _warn(target: str, why: str) -> None:
    print_once(
        f"monitor.notify: {mask_urls(target)} failed ({one_line(mask_urls(why))}); the run is not affected."
    )


if __name__ == "__main__":
    ended = open_run(sys.argv[1])
    send_end(ended, str(load(read_frozen(ended)).monitor.notify))
