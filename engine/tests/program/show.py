"""Write this program's arguments, variables, signals, umask, folder and path to a file."""

import json
import os
import sys
from pathlib import Path

status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
umask = os.umask(0)
facts = {
    "arguments": sys.argv[1:],
    "environ": {**os.environ},
    "signals": [status["SigIgn"], status["SigBlk"]],
    "umask": umask,
    "folder": os.getcwd(),
    "path": sys.path,
    "python": sys.executable,
    "tty": os.isatty(1),
}
rank = os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"
target = os.environ.get("SHOW_IN") or os.environ["TRAIN_RUN"]
Path(target, f"shown-{rank}.json").write_text(json.dumps(facts))
print("from rank", rank)
if "--fails" in sys.argv and rank == "1":
    sys.exit(7)
