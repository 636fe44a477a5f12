"""Send an event of RUN/monitor, or how the run ended and the events that are left.

python -m train_anywhere.features.notify RUN (FILE | CODE)    CODE is that of the ranks' launcher, or 0 if it is not known
"""

import os
import sys

from train_anywhere.config.load import load
from train_anywhere.distributed.programs import describe_exit
from train_anywhere.distributed.programs import run as run_program
from train_anywhere.errors import STOPPED, SchedulerError
from train_anywhere.features.notify import LIMIT_S, record_event, start, take_events
from train_anywhere.files.terminal.printable import mask_urls, one_line
from train_anywhere.monitor.ranks import read_json
from train_anywhere.runs.attempts import recorded_reason, running_job
from train_anywhere.runs.debug import describe_exit_code
from train_anywhere.runs.folder import ATTEMPTS, RunDir, open_run
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import format_metric

# Slack, Mattermost and Discord (at .../slack) read `text`: https://docs.mattermost.com/developers/integrate/webhooks/incoming
POST = """
import json, os, sys
from urllib.request import Request, urlopen
headers = {"Content-Type": "application/json", "User-Agent": "train-anywhere"}
try:
    urlopen(Request(sys.stdin.read(), json.dumps({"text": os.environ["TRAIN_MESSAGE"]}).encode(), headers)).close()
except Exception as error:  # the text of most others has the URL
    sys.exit(str(error) if isinstance(error, OSError) else type(error).__name__)
"""


def send(run: RunDir, target: str, kind: str, text: str) -> None:
    """Send one message; a failure is a line without what may be a secret."""
    message = one_line(f"{run.path.parent.name} {run.id} {kind}{text and ': '}{text}"[:1000])
    message = message.encode(errors="replace").decode()  # half of a surrogate pair has no bytes
    environ = {**os.environ, "TRAIN_EVENT": kind, "TRAIN_RUN": str(run.path), "TRAIN_MESSAGE": message}
    command, text = ["sh", "-c", 'eval "$0" >/dev/null 2>&1', target], f"{message}\n"
    if webhook := target.lower().startswith(("http://", "https://")):
        command, text = [sys.executable, "-c", POST], target
    try:
        answer = run_program(command, LIMIT_S - 5, text, environ)  # the start of Python takes time too
        why = describe_exit(answer) if answer.code else ""
    except (OSError, ValueError, SchedulerError) as error:
        why = str(error).rstrip(".")
    if why:
        what = mask_urls(target.split()[0]) if webhook else "the command"
        why = one_line(mask_urls(why))
        print(f"monitor.notify: {what} failed ({why}); the run is not affected.", file=sys.stderr)


def record_end(run: RunDir, code: int) -> None:
    """Record that the run is done or has failed. One that was stopped may continue; `running` means that rank 0 was killed."""
    info = run.read_info()
    state, metrics = info.get("state"), info.get("metrics") or {}
    if state == "running" and (info.get(ATTEMPTS) or [{}])[-1].get("job") != running_job():
        return  # another job trains in this folder
    if state == "completed":
        shown = [name for name in metrics if "train" not in name and name != "lr"]
        record_event(run, "done", ", ".join(f"{name} {format_metric(metrics, name)}" for name in shown))
    elif state in ("failed", "running") or (state == "queued" and code not in (0, STOPPED)):
        lost = (
            "the ranks did not start"
            if state == "queued"
            else "its ranks were killed, or could not record why"
        )
        memory = ", often the memory limit" if code == 137 else ""
        lost += f" ({describe_exit_code(code)}{memory})" if code else ""
        record_event(run, "failed", recorded_reason(info) or lost)


if __name__ == "__main__":
    of, file = open_run(sys.argv[1]), sys.argv[2]
    if file.isdigit():
        record_end(of, int(file))
        for process in [start(of, name) for name in take_events(of)]:
            process.wait()
    else:
        event = read_json(of.monitor / file)
        send(of, str(load(read_frozen(of)).monitor.notify), str(event.get("kind")), str(event.get("text")))
