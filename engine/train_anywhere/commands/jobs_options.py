"""Options of the verbs of `jobs.py`."""

import argparse
import re
from collections.abc import Callable
from typing import Any

from train_anywhere.files import WORK
from train_anywhere.files.root import shell_folder

Option = tuple[tuple[str, ...], dict[str, Any]]
"""Names of an option, and the other arguments of `add_argument`."""


def option(*names: str, **about: Any) -> Option:
    """Return an option; it is a flag unless it has a `metavar`, `choices` or `required`."""
    value = {"metavar", "choices", "required"} & about.keys()
    return names, about if value else {"action": "store_true", **about}


def parse(pattern: str, kind: type, what: str) -> Callable[[str], Any]:
    """Return a type for argparse: a value of `kind` that matches the pattern."""

    def read(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text} is not {what}")
        return kind(text)

    return read


read_rank = parse("[0-9]{1,9}", int, "a rank: they are numbered from 0")
read_seconds = parse(r"[0-9]{1,9}(\.[0-9]+)?", float, "a number of seconds, such as 600")
read_steps = parse("[1-9][0-9]{0,5}", int, "a number of steps, such as 10")


def removed(name: str, instead: str) -> Option:
    """Return an option of earlier versions, which is refused."""

    def refuse(text: str) -> None:
        raise argparse.ArgumentTypeError(f"was removed: {instead.format(text)}")

    return option(name, metavar="N", nargs="?", const="", type=refuse, help=argparse.SUPPRESS)


JSON = option("--json", help="print one JSON document")
COST = option("--cost", help="GPU hours, and kWh if they were sampled, of all runs by name and user")
SHOW = [removed("--watch", "use `watch -n 5 python src/jobs.py status`; `logs -f` ends with the job"), JSON]
FILTER = [
    option("--name", metavar="PATTERN", help="only runs of this name, such as 'digits*'"),
    option("--state", metavar="STATE", help="only runs in this state, or in one of several: failed,lost"),
]
TIMEOUT = option(
    "--timeout", type=read_seconds, default=600.0, metavar="SECONDS", help="how long to wait (%(default)g)"
)
RUN = "run folder, run id, job id or sweep (default: {})"
NEWEST = option("run", nargs="?", metavar="RUN", help=RUN.format("the newest run"))

OPTIONS: dict[str, list[Option]] = {
    "pull": [NEWEST, option("--all", help="all checkpoints, exports and the code too")],
    "status": [NEWEST, *SHOW],
    "list": [
        *(*SHOW, *FILTER, COST),
        option("--csv", help="the same as a CSV file"),
        option("--all", help="all runs, not only the newest 50"),
        option("--since", metavar="TIME", help="only runs that started since: 30m, 2h, 3d or a date"),
    ],
    "diff": [
        option("first", metavar="RUN", help="run folder, run id or job id"),
        option("second", metavar="RUN", help="the run to compare with"),
    ],
    "prune": [
        option("runs", nargs="*", metavar="RUN", help=RUN.format("all")),
        *FILTER,
        option("--until", metavar="TIME", help="only runs that started before: 30d, 2w or a date"),
        option("--yes", help="do not ask"),
    ],
    "plot": [
        option("runs", nargs="*", metavar="RUN", help=RUN.format("the newest run")),
        option("--metric", required=True, help="a column of metrics.csv, such as val/acc"),
        option("--over", metavar="KEY", help="draw mean and spread over a key, such as seed"),
        option(
            "--out", required=True, metavar="FILE", help="a new .pdf, .svg, .png, .eps, or .csv of values"
        ),
    ],
    "best": [
        option("run", nargs="?", metavar="RUN", help=RUN.format("all runs")),
        option("--over", metavar="KEY", help="mean and spread of the runs' best values over a key: seed"),
        option("--csv", help="with --over: print comma-separated values"),
        removed("--latex", "--csv prints the values, of which pandas' to_latex makes a table"),
        option("--name", metavar="PATTERN", help="compare runs of this name (default: the newest run's)"),
        option("--metric", metavar="METRIC", help="metric to compare (default: checkpoint.monitor)"),
        option("--mode", choices=("min", "max"), help="which is better (default: checkpoint.mode)"),
        JSON,
    ],
    "logs": [
        NEWEST,
        option("-f", "--follow", help="follow it until the job ends"),
        removed("--rank", "use `python src/jobs.py logs | grep -F '[rank {}]'`"),
    ],
    "save": [NEWEST, option("--stop", help="then end the run; it can be resumed"), TIMEOUT],
    "debug": [NEWEST, option("--rank", type=read_rank, metavar="N", help="only this rank")],
    "shell": [
        NEWEST,
        option("--node", metavar="N", help="number, from 0, or name (default: that of rank 0)"),
    ],
    "profile": [
        NEWEST,
        option("--steps", type=read_steps, default=10, metavar="N", help="number of steps (%(default)s)"),
        option("--ranks", default="0", metavar="LIST", help="which ranks, such as 0,3 or 0-3 (%(default)s)"),
        TIMEOUT,
    ],
    "resubmit": [
        NEWEST,
        option("--failed", help="only members of the sweep that failed"),
        option("--trust", help="accept batch scripts that another user wrote"),
    ],
}
"""Arguments of each verb; without an entry, it is RUN. `--json` and `--cost` exclude each other."""


def add_options(verb: str, sub: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb to its parser."""
    options = OPTIONS.get(verb, [NEWEST])
    where = "where run folders are (%(default)s)"
    sub.add_argument("--results", type=lambda t: shell_folder() / t, default=WORK / "results", help=where)
    exclusive = sub.add_mutually_exclusive_group() if JSON in options else sub
    for names, about in options:
        (exclusive if (names, about) in (JSON, COST) else sub).add_argument(*names, **about)
