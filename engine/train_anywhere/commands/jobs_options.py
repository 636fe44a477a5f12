"""Options of the verbs of `jobs.py`."""

import argparse
import re


def _show_options(sub: argparse.ArgumentParser) -> None:
    how = sub.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="refresh it until no run is active")
    how.add_argument("--json", action="store_true", help="print one JSON document")


def _list_options(sub: argparse.ArgumentParser) -> None:
    _show_options(sub)
    _filter_options(sub)
    sub.add_argument("--all", action="store_true", help="all runs, not only the newest 50")
    sub.add_argument("--since", metavar="TIME", help="only runs that started since: 30m, 2h, 3d or a date")


def _filter_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--name", metavar="PATTERN", help="only runs of this name, such as 'digits*'")
    sub.add_argument(
        "--state", metavar="STATE", help="only runs in this state, or in one of several: failed,lost"
    )


def _diff_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("first", metavar="RUN", help="run folder, run id or job id")
    sub.add_argument("second", metavar="RUN", help="the run to compare with")


def _prune_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="run folders, run ids, job ids or sweeps (default: all)",
    )
    _filter_options(sub)
    sub.add_argument("--until", metavar="TIME", help="only runs that started before: 30d, 2w or a date")
    sub.add_argument("--yes", action="store_true", help="do not ask")


def _plot_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="run folders, run ids, job ids or sweeps (default: the newest run)",
    )
    sub.add_argument("--metric", required=True, help="a column of metrics.csv, such as val/acc")
    sub.add_argument(
        "--out", required=True, metavar="FILE", help="a new .pdf, .svg, .png or .eps, or .csv of the values"
    )


def _best_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--name", metavar="PATTERN", help="compare runs of this name (default: that of the newest run)"
    )
    sub.add_argument("--metric", help="metric to compare (default: checkpoint.monitor)")
    sub.add_argument("--mode", choices=("min", "max"), help="which is better (default: checkpoint.mode)")
    sub.add_argument("--json", action="store_true", help="print one JSON document")


def _logs_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-f", "--follow", action="store_true", help="follow it until the job ends")
    sub.add_argument("--rank", type=_rank, metavar="N", help="the output of this rank")


def _save_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--stop", action="store_true", help="then end the run; it can be resumed")
    _timeout_option(sub)


def _timeout_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--timeout", type=_seconds, default=600.0, metavar="SECONDS", help="how long to wait (%(default)g)"
    )


def _profile_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--steps", type=_steps, default=10, metavar="N", help="number of steps (%(default)s)")
    sub.add_argument(
        "--ranks", default="0", metavar="LIST", help="which ranks, such as 0,3 or 0-3 (%(default)s)"
    )
    _timeout_option(sub)


def _steps(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of steps, such as 10")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds, such as 600")
    return float(text)


def _debug_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--rank", type=_rank, metavar="N", help="only this rank")


def _shell_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--node", metavar="N", help="number of the node, from 0, or its name (default: that of rank 0)"
    )


def _rank(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a rank: they are numbered from 0")
    return int(text)


def _resubmit_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--failed", action="store_true", help="only members of the sweep that failed")
    sub.add_argument("--trust", action="store_true", help="accept batch scripts that another user wrote")


def _pull_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--all", action="store_true", help="all checkpoints, exports and the code too")


OPTIONS = {
    "pull": _pull_options,
    "status": _show_options,
    "list_": _list_options,
    "diff": _diff_options,
    "prune_": _prune_options,
    "plot_": _plot_options,
    "best": _best_options,
    "logs": _logs_options,
    "save": _save_options,
    "debug": _debug_options,
    "shell": _shell_options,
    "profile": _profile_options,
    "resubmit": _resubmit_options,
}
"""Options of each verb besides RUN."""
