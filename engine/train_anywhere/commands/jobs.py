"""See what became of runs, submitted or not, and act on them.

    python src/jobs.py status   [RUN] [--watch | --json]   what it is doing; of a sweep, a line for each member
    python src/jobs.py list     [--watch | --json]         a line for each run, newest first
    python src/jobs.py best     [RUN] [--json]             the best member of a sweep, or of all runs
    python src/jobs.py logs     [RUN] [-f] [--rank N]      its output; -f follows it until the job ends
    python src/jobs.py cancel   [RUN]                      take it out of the queue or stop it
    python src/jobs.py resubmit [RUN] [--failed] [--trust] again, in the same folder, from its newest checkpoint

RUN is a run folder, a run id, a job id or the id of a sweep; without it, the newest run. `resubmit` runs the code as it was
at submission; to continue with today's code use `python src/train.py resume=RUN`.
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
from train_anywhere.slurm.status.as_json import document, plain
from train_anywhere.slurm.status.best import best as best_of
from train_anywhere.slurm.status.run_status import FAILED
from train_anywhere.slurm.status.sources.gather import Gathered, gather
from train_anywhere.slurm.status.text_page import next_lines, page, table
from train_anywhere.slurm.status.watch_runs import watch
from train_anywhere.slurm.submission.resubmit import again as submit_again

Runs = list[find_runs.Submitted]

FOLLOWING = ("follow", "watch")
"""Options whose usual end is Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or `REFUSED` with one message per run that could not be served."""
    parsed = _parser().parse_args(arguments)
    with printable_output(log=parsed.verb is logs):
        return _serve(parsed)


def _serve(parsed: argparse.Namespace) -> int:
    try:
        every = parsed.run is None and parsed.verb in (list_, best)
        found = find_runs.every(_results(parsed)) if every else find_runs.find(parsed.run, _results(parsed))
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
    how.add_argument("--watch", action="store_true", help="renew it until no run is alive")
    how.add_argument("--json", action="store_true", help="print one JSON document")


def _best_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--metric", help="what is compared (default: checkpoint.monitor)")
    sub.add_argument("--mode", choices=("min", "max"), help="which is best (default: checkpoint.mode)")
    sub.add_argument("--json", action="store_true", help="print one JSON document")


def _logs_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-f", "--follow", action="store_true", help="follow it until the job ends")
    sub.add_argument("--rank", type=_rank, metavar="N", help="what this rank has printed")


def _rank(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a rank: they are numbered from 0")
    return int(text)


def _resubmit_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--failed", action="store_true", help="only members of the sweep that failed")
    sub.add_argument("--trust", action="store_true", help="also a script that someone else has left there")


OPTIONS = {
    "status": _show_options,
    "list_": _show_options,
    "best": _best_options,
    "logs": _logs_options,
    "resubmit": _resubmit_options,
}
"""What each verb takes besides RUN."""


def _results(parsed: argparse.Namespace) -> Path:
    return shell_folder() / parsed.results


def each(found: Runs, do: Callable[[find_runs.Submitted], None]) -> int:
    """Serve every run, also after one that can't be served; returns the exit code."""
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
    """Print what runs are doing."""
    return _tell(lambda: gather(find_runs.find(parsed.run, _results(parsed))), parsed)


def list_(found: Runs, parsed: argparse.Namespace) -> int:
    """Print a line for each run, newest first."""
    return _tell(lambda: gather(find_runs.every(_results(parsed)), ended_too=False), parsed, many=True)


def _tell(look: Callable[[], Gathered], parsed: argparse.Namespace, many: bool = False) -> int:
    """Show what was gathered; what is not known goes to the standard error."""

    def text(gathered: Gathered) -> str:
        known = [report for report in gathered.reports if not report.trouble]
        if len(gathered.reports) == 1 and not many:
            return page(known[0]) if known else ""
        return "\n".join([table(known), *next_lines(gathered.next)]) if known else ""

    gathered = watch(look, text) if parsed.watch else look()
    if parsed.json:
        print(document(gathered), end="")
    elif not parsed.watch and (said := text(gathered)):
        print(said)
    for line in [*(f"note: {n}" for n in gathered.notes), *(f"error: {t}" for t in gathered.trouble)]:
        print(line, file=sys.stderr)
    return gathered.code


def best(found: Runs, parsed: argparse.Namespace) -> int:
    """Print the run that has reached the best value of its metric."""
    winner = best_of(found, parsed.metric, parsed.mode)
    if parsed.json:
        print(dumps(plain(asdict(winner))), end="")
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
    return each(found, lambda run: show_logs.show(run, len(found) > 1, parsed.rank))


@contextmanager
def asking(so: str) -> Iterator[None]:
    """Within, an unreachable scheduler is an error that ends with `so`: what was therefore not done."""
    try:
        yield
    except SchedulerError as error:
        raise SchedulerError(f"what is queued is not known: {error} {so}") from None


def cancel(found: Runs, parsed: argparse.Namespace) -> int:
    """Take runs out of the queue, or stop them."""

    def end(run: find_runs.Submitted) -> None:
        if run.scheduler is None:
            raise SubmitError(local_runs.how_to_stop(run))
        with asking("Nothing was cancelled."):
            run = find_runs.with_unrecorded_jobs(run)
            living = [*queue.queued(run.scheduler or "", run.job_ids).living(run.job_ids)]
            ownership.refuse_others(run, living)
        if not living:
            find_runs.refuse_unclear(run)
            print(f"{run.folder.id}: no job of it is queued or running.")
            return
        ending = queue.cancel(run.scheduler or "", living)
        if run.folder.info().get("state") == "queued":
            run.folder.update(state="cancelled")
        print(f"{run.folder.id}: cancelled job {', '.join(living)}{', which is ending' if ending else ''}.")

    return each(found, end)


def resubmit(found: Runs, parsed: argparse.Namespace) -> None:
    """Submit runs again: same folder, same code, from the newest checkpoint."""
    for run in found:
        if run.trouble:
            raise SubmitError(run.trouble)
        if run.scheduler is None:
            raise SubmitError(local_runs.how_to_resume(run))
    with asking("Nothing was submitted."):
        found, known = find_runs.ask(found)
    states = {r.folder.id: find_runs.state(r, known)[0] for r in found}
    if parsed.failed:
        again = [r for r in found if states[r.folder.id] in FAILED]
    else:
        again = [r for r in found if states[r.folder.id] != "completed" and not known.living(r.job_ids)]
    if not again:
        listed = ", ".join(f"{i} is {s}" for i, s in states.items())
        raise SubmitError(
            f"there is nothing to submit again: {listed}.{f' {known.gap}' if known.gap else ''}"
        )
    for run in again:
        find_runs.refuse_unclear(run)
    job_id = submit_again(again, _results(parsed), parsed.trust)
    print(f"Submitted job {job_id}: {', '.join(r.folder.id for r in again)}")
