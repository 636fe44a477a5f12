"""Options of the other commands, and run folders whose files hold values of another kind."""

import json

from engine.tests.bad_inputs.row import Damage, Row, fifo, huge

QUEUE = {"squeue": "echo '4001|FAILED'", "sbatch": "echo 9", "scancel": ":", "scontrol": ":", "sacct": ":"}
JOBS = {
    "list --results {row}/none": "there is no run in .*/none yet",
    "list {job}": "unrecognized arguments",
    "list --cost --json --results {row}/results": "--json: not allowed with argument --cost",
    "status {job} --watch": "--watch: was removed: use `watch -n 5 python src/jobs.py status`",
    "best --results {row}/none": "there is no run in .*/none yet",
    "best {job} --metric val/f1": "whether a low or a high val/f1 is better is not known; add --mode min or max",
    "best {job} --metric val/f1 --mode max": "none of these 1 runs has measured val/f1 yet",
    "best {job} --metric val/acc --mode best": "invalid choice: 'best'",
    "best {job}": r"none of these runs has a checkpoint\.monitor; name a metric with --metric",
    "debug {job} --rank x": "--rank: x is not a rank: they are numbered from 0",
    "logs {job} --rank 3": r"grep -F '\[rank 3\]'",
    "logs {run} -f": "ran on this machine: what it printed went to its terminal",
    "resubmit {job} --failed --failde": "unrecognized arguments: --failde",
    "cancel {run} --trust": "unrecognized arguments: --trust",
}
MEASURED = ["best {job} --metric val/acc --mode max", "has measured val/acc yet|val/acc is nan"]
CURVES: dict[str, Damage] = {
    "nan": "epoch,step,val/acc\n1,14,nan\n",
    "a step that is a word": "epoch,step,val/acc\n1,x,0.3\n",
    "bytes": b"\xff\xfe",
    "a FIFO": fifo,
    "64 MiB of zeros": lambda path: (path.write_bytes(b""), huge(path)),
}
INFO = {
    "hosts a number": {"hosts": 5},
    "jobs that are numbers": {"job_ids": [7]},
    "a step that is a list": {"step": [1]},
    "metrics that are a number": {"metrics": 3},
    "an attempt of words": {"attempts": [{"step": "x"}]},
    "seconds that are words": {"attempts": [{"seconds": {"step": "x"}}]},
}
SCALING = {
    "devices=1,2 trainer.nodes=x": "^error: nodes=x is not a number of nodes; use nodes=1,2.$",
    "nodes=0 cluster=slurm": "^error: nodes=0 is not a number of nodes; use nodes=1,2.$",
    "strategy=": "strategy= .*empty|'strategy=' has an empty value",
    "devices=1,2 wait=1": "wait='?1'? is not true or false",
    "devices=1,2 hydra/sweeper=optuna": "hydra/sweeper= can't be given for a timing table: a table has one run of each cell",
}
HEAD = "# @package _global_\n"
EVIL = {
    "a _check_ of the system": (HEAD + "data:\n  _target_: os.mkdir\n  _check_: os.mkdir\n  path: HACKED\n", r"data\._check_=os\.mkdir would be called"),
    "a _check_ of this project that is none": (HEAD + "data:\n  _check_: train_anywhere.files.removal.remove_file\n", r"must be a function in a file checks\.py"),
    "a _check_ above the project": (HEAD + "data:\n  _check_: ..checks.x\n", r"data\._check_=\.\.checks\.x would be called"),
    "a log that calls the system": (HEAD + "hydra:\n  job_logging:\n    version: 1\n    root: {handlers: [a]}\n    handlers: {a: {'()': os.system, command: x}}\n", "Unable to configure handler 'a'"),
}  # fmt: skip
ROWS = [
    *(Row(words, says, command="jobs", programs=QUEUE, name=words) for words, says in JOBS.items()),
    *(Row(MEASURED[0], MEASURED[1], command="jobs", programs=QUEUE, files={"{job}/metrics.csv": how}, name=f"best where metrics.csv has {what}") for what, how in CURVES.items()),
    *(Row("status {job}", r"run\.json is not what this project writes there", command="jobs", programs=QUEUE, files={"{job}/run.json": json.dumps(what)}, name=f"status where run.json has {name}")
      for name, what in INFO.items()),
    Row("list --results {row}/results", r"run\.json is not what this project writes", command="jobs", programs=QUEUE, files={"{job}/run.json": '{"hosts": 5}'}, name="list where one run.json is odd"),
    Row("{run}", r"run\.json is not what this project writes", command="report", files={"{run}/run.json": '{"epoch": "x"}'}, name="report where run.json is odd"),
    Row("{run}", "run.json is damaged", command="report", files={"{run}/run.json": '{"rate": NaN}'}, name="report where run.json has NaN"),
    *(Row(words, says, command="scaling") for words, says in SCALING.items()),
    *(Row("experiment=evil dry_run=true", says, files={"project/configs/experiment/evil.yaml": text}, name=f"an experiment with {what}") for what, (text, says) in EVIL.items()),
]  # fmt: skip
