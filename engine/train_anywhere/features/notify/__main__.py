"""Send an event of RUN/monitor, or how the run ended: RUN (FILE | CODE)."""

import json
import os
import signal
import sys
from urllib.request import Request, urlopen

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.features.notify import LIMIT_S, start_each
from train_anywhere.files.atomic import read_json
from train_anywhere.files.terminal.printable import mask_urls, one_line
from train_anywhere.monitor.live import record_end
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.reopen.frozen import load_frozen


def send(run: RunDir, target: str, kind: str = "", text: str = "") -> None:
    """Send a message in JSON that Slack, Mattermost and Discord read."""
    message = one_line(f"{run.path.parent.name} {run.id} {kind}{text and ': '}{text}"[:1000])
    message = message.encode(errors="replace").decode()  # half of a surrogate pair has no bytes
    environ = {**os.environ, "TRAIN_EVENT": kind, "TRAIN_RUN": str(run.path), "TRAIN_MESSAGE": message}
    what, why, limit = "the command", "", LIMIT_S - 5
    try:
        if target.lower().startswith(("http://", "https://")):
            what = mask_urls(target.split()[0])
            headers = {"Content-Type": "application/json", "User-Agent": "train-anywhere"}
            urlopen(Request(target, json.dumps({"text": message}).encode(), headers), timeout=limit).close()
        else:
            command = ["sh", "-c", 'eval "$0" >/dev/null 2>&1', target]
            answer = programs.run(command, limit, f"{message}\n", environ)
            why = programs.describe_exit(answer) if answer.code else ""
    except Exception as error:  # the text of most others has the URL
        why = str(error) if isinstance(error, OSError | SchedulerError) else type(error).__name__
    if why:
        why = one_line(mask_urls(why.rstrip(".")))
        print(f"monitor.notify: {what} failed ({why}); the run is not affected.", file=sys.stderr)


if __name__ == "__main__":
    of, file = open_run(sys.argv[1]), sys.argv[2]
    if file.isdigit():
        record_end(of, int(file))
        for process in start_each(of):
            process.wait()
    else:
        signal.alarm(int(LIMIT_S))  # a server that sends a byte now and then would keep this process
        send(of, str(load_frozen(of).monitor.notify), **read_json(of.monitor / file))
