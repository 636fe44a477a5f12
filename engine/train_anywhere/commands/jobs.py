"""Show and control runs, submitted or not.

    python src/jobs.py status   [RUN] [--watch | --json]   show its state; for a sweep, one line per member
    python src/jobs.py list     [--watch | --json]         show one line per run, newest first
    python src/jobs.py best     [RUN] [--json]             show the best member of a sweep, or of all runs
    python src/jobs.py logs     [RUN] [-f] [--rank N]      show its output; -f follows it until the job ends
    python src/jobs.py cancel   [RUN]                      remove it from the queue or stop it
    python src/jobs.py resubmit [RUN] [--failed] [--trust] submit it again in the same folder, from its newest checkpoint

RUN is a run folder, a run id, a job id or the id of a sweep; without it, the newest run. `resubmit` runs the code as it was
at submission; to continue with the current code use `python src/train.py resume=RUN`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from train_anywhere.errors import INTERRUPTED, ProjectError, SchedulerError, SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.plain_json import dumps
from train_anywhere.files.terminal.printable import one_line, printable_output
from train_anywhere.files.typed_paths import shell_folder
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.scheduler import ownership, queue
from train_anywhere.slurm.status import find_runs, local_runs, show_logs
from train_anywhere.slurm.status.as_json import to_json, to_plain
from train_anywhere.slurm.status.best import find_best as best_of
from train_anywhere.slurm.status.run_status import FAILED
from train_anywhere.slurm.status.sources.gather import RunReports, gather
from train_anywhere.slurm.status.text_page import next_lines, page, table
from train_anywhere.slurm.status.watch_runs import watch
from train_anywhere.slurm.submission.resubmit import resubmit as submit_again

Runs = list[find_runs.RunEntry]

FOLLOWING = ("follow", "watch")
"""Options that Ctrl-C normally ends."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or `REFUSED` after one message per run that could not be handled."""
    parsed = _parser().parse_args(arguments)
    with printable_output(log=parsed.verb is logs):
        return _serve(parsed)


def _serve(parsed: argparse.Namespace) -> int:
    try:
        every = parsed.run is None and parsed.verb in (list_, best)
        results = _results(parsed)
        found = find_runs.find_all(results) if every else find_runs.find(parsed.run, results)
        return int(parsed.verb(found, parsed) or 0)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        if any(getattr(parsed, option, False) for option in FOLLOWING):
            return 0
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in (status, list_, best, logs, cancel, resubmit):
        sub = verbs.add_parser(verb.__name__.rstrip("_"), help=(verb.__doc__ or "").split("\n")[0])
        if verb is not list_:
            newest = "all runs" if verb is best else "the newest run"
            sub.add_argument(
                "run",
                nargs="?",
                metavar="RUN",
                help=f"run folder, run id, job id or sweep (default: {newest})",
            )
        sub.add_argument("--results", default=ROOT / "results", help="where run folders are (%(default)s)")
        sub.set_defaults(verb=verb, run=None)
        OPTIONS.get(verb.__name__, lambda sub: None)(sub)
    return parser


def _show_options(sub: argparse.ArgumentParser) -> None:
    how = sub.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="refresh it until no run is active")
    how.add_argument("--json", action="store_true", help="print one JSON document")


def _best_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--metric", help="metric to compare (default: checkpoint.monitor)")
    sub.add_argument("--mode", choices=("min", "max"), help="which is better (default: checkpoint.mode)")
    sub.add_argument("--json", action="store_true", help="print one JSON document")


def _logs_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-f", "--follow", action="store_true", help="follow it until the job ends")
    sub.add_argument("--rank", type=_rank, metavar="N", help="the output of this rank")


def _rank(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a rank: they are numbered from 0")
    return int(text)


def _resubmit_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--failed", action="store_true", help="only members of the sweep that failed")
    sub.add_argument("--trust", action="store_true", help="accept batch scripts that another user wrote")


OPTIONS = {
    "status": _show_options,
    "list_": _show_options,
    "best": _best_options,
    "logs": _logs_options,
    "resubmit": _resubmit_options,
}
"""Options of each verb besides RUN."""


def _results(parsed: argparse.Namespace) -> Path:
    return shell_folder() / parsed.results


def for_each(found: Runs, do: Callable[[find_runs.RunEntry], None]) -> int:
    """Handle each run, even after one that fails; return the exit code."""
    code = 0
    for run in found:
        try:
            if run.trouble:
                raise SubmitError(run.trouble)
            do(run)
        except ProjectError as error:
            print(f"error: {run.folder.id}: {error}", file=sys.stderr)
            code = error.exit_code
    return code


def status(found: Runs, parsed: argparse.Namespace) -> int:
    """Print the state of runs."""
    return _show_status(lambda: gather(find_runs.find(parsed.run, _results(parsed))), parsed)


def list_(found: Runs, parsed: argparse.Namespace) -> int:
    """Print a line for each run, newest first."""
    results = _results(parsed)
    return _show_status(lambda: gather(find_runs.find_all(results), ended_too=False), parsed, many=True)


def _show_status(look: Callable[[], RunReports], parsed: argparse.Namespace, many: bool = False) -> int:
    """Print the status that `look` gathers; what is unknown goes to standard error."""

    def text(gathered: RunReports) -> str:
        known = [report for report in gathered.reports if not report.trouble]
        if len(gathered.reports) == 1 and not many:
            return page(known[0]) if known else ""
        return "\n".join([table(known), *next_lines(gathered.next)]) if known else ""

    gathered = watch(look, text) if parsed.watch else look()
    if parsed.json:
        print(to_json(gathered), end="")
    elif not parsed.watch and (page_text := text(gathered)):
        print(page_text)
    for line in [*(f"note: {n}" for n in gathered.notes), *(f"error: {t}" for t in gathered.trouble)]:
        print(line, file=sys.stderr)
    return gathered.code


def best(found: Runs, parsed: argparse.Namespace) -> int:
    """Print the run with the best value of its metric."""
    winner = best_of(found, parsed.metric, parsed.mode)
    if parsed.json:
        print(dumps(to_plain(asdict(winner))), end="")
        return 0
    without = f"; {winner.left_out} have no such values" if winner.left_out else ""
    print(one_line(f"{winner.metric} {winner.value:.6g}  {winner.id}  step {winner.step}"))
    print(f"{winner.mode}imum of {winner.compared} runs{without}", file=sys.stderr)
    if winner.command:
        print(f"Again: {one_line(winner.command)}")
    print(display_path(winner.path))
    return 0


def logs(found: Runs, parsed: argparse.Namespace) -> int:
    """Print the output of runs, or follow it."""
    if parsed.follow:
        if trouble := next((run.trouble for run in found if run.trouble), ""):
            raise SubmitError(trouble)
        show_logs.follow(found, parsed.rank)
        return 0
    return for_each(found, lambda run: show_logs.show(run, len(found) > 1, parsed.rank))


@contextmanager
def explain_unreachable_scheduler(consequence: str) -> Iterator[None]:
    """Add the consequence, what was not done, to the error of an unreachable scheduler."""
    try:
        yield
    except SchedulerError as error:
        raise SchedulerError(f"what is queued is not known: {error} {consequence}") from None


def cancel(found: Runs, parsed: argparse.Namespace) -> int:
    """Remove runs from the queue, or stop them."""

    def end(run: find_runs.RunEntry) -> None:
        if run.scheduler is None:
            raise SubmitError(local_runs.stop_message(run))
        with explain_unreachable_scheduler("Nothing was cancelled."):
            run = find_runs.with_unrecorded_jobs(run)
            living = [*queue.query_queue(run.scheduler or "", run.job_ids).active(run.job_ids)]
            ownership.refuse_other_jobs(run, living)
        if not living:
            find_runs.refuse_unclear(run)
            print(f"{run.folder.id} has no queued or running job.")
            return
        ending = queue.cancel(run.scheduler or "", living)
        if run.folder.read_info().get("state") == "queued":
            run.folder.update(state="cancelled")
        print(f"{run.folder.id}: cancelled job {', '.join(living)}{', which is ending' if ending else ''}.")

    return for_each(found, end)


def resubmit(found: Runs, parsed: argparse.Namespace) -> None:
    """Submit runs again in the same folder, with the same code, from the newest checkpoint."""
    for run in found:
        if run.trouble:
            raise SubmitError(run.trouble)
        if run.scheduler is None:
            raise SubmitError(local_runs.resume_message(run))
    with explain_unreachable_scheduler("Nothing was submitted."):
        found, known = find_runs.query_scheduler(found)
    states = {r.folder.id: find_runs.read_state(r, known)[0] for r in found}
    if parsed.failed:
        again = [r for r in found if states[r.folder.id] in FAILED]
    else:
        again = [r for r in found if states[r.folder.id] != "completed" and not known.active(r.job_ids)]
    if not again:
        listed = ", ".join(f"{i} is {s}" for i, s in states.items())
        raise SubmitError(
            f"there is nothing to submit again: {listed}.{f' {known.gap}' if known.gap else ''}"
        )
    for run in again:
        find_runs.refuse_unclear(run)
    job_id = submit_again(again, _results(parsed), parsed.trust)
    print(f"Submitted job {job_id}: {', '.join(r.folder.id for r in again)}")
