"""See what became of submitted runs, and act on them.

    python src/jobs.py status   [RUN]              its state: queue, steps, metrics
    python src/jobs.py logs     [RUN] [-f]         its output; -f follows it until the job ends
    python src/jobs.py cancel   [RUN]              take it out of the queue or stop it
    python src/jobs.py resubmit [RUN] [--failed] [--trust]   again, in the same folder, from its newest checkpoint

RUN is a run folder, a run id, a job id or the id of a sweep; without it, the newest run. `resubmit` runs the code as it was
at submission; to continue with today's code use `python src/train.py resume=RUN`.
"""

import argparse
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from slurm import queue, ran_here, runs, show_logs  # noqa: E402
from slurm.resubmit import again as submit_again  # noqa: E402
from src.errors import INTERRUPTED, ProjectError, SchedulerError, SubmitError  # noqa: E402
from src.files import ROOT  # noqa: E402
from src.runs.attempts import resume_summary  # noqa: E402

FAILED = ("failed", "lost", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline")
"""States that `resubmit --failed` takes."""

Runs = list[runs.Submitted]


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or `REFUSED` with one message per run that could not be served."""
    parsed = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a log may hold what the terminal has no letters for
        sys.stdout.reconfigure(errors="replace")
    try:
        found = runs.find(parsed.run, Path(parsed.results).absolute())
        return int(parsed.verb(found, parsed) or 0)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        if getattr(parsed, "follow", False):  # the usual end of `logs -f`
            return 0
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, verb in {"status": status, "logs": logs, "cancel": cancel, "resubmit": resubmit}.items():
        sub = verbs.add_parser(name, help=(verb.__doc__ or "").split("\n")[0])
        sub.add_argument(
            "run",
            nargs="?",
            metavar="RUN",
            help="run folder, run id, job id or sweep (default: the newest run)",
        )
        sub.add_argument("--results", default=ROOT / "results", help="where run folders are (%(default)s)")
        sub.set_defaults(verb=verb)
        if name == "logs":
            sub.add_argument("-f", "--follow", action="store_true", help="follow it until the job ends")
        if name == "resubmit":
            sub.add_argument("--failed", action="store_true", help="only members of the sweep that failed")
            sub.add_argument(
                "--trust", action="store_true", help="also a script that someone else has left there"
            )
    return parser


def each(found: Runs, do: Callable[[runs.Submitted], None]) -> int:
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
    """Print the state of runs."""
    code, known = 0, None
    try:
        found, known = runs.ask(found)
        if known.gap:
            print(f"note: how jobs ended that left the queue is not known: {known.gap}", file=sys.stderr)
    except SchedulerError as error:
        print(f"error: where jobs stand is not known: {error}", file=sys.stderr)
        code = error.exit_code

    def line(run: runs.Submitted) -> None:
        if run.scheduler is None:
            state, where, info = ran_here.state(run)
            where = where or "on this machine"
        else:
            state, info = runs.state(run, known) if known else ("", run.folder.info())
            jobs = [*run.job_ids, *(["?"] if run.unclear or not run.job_ids else [])]
            where = f"job {' -> '.join(jobs)} on {info.get('cluster')}"
        written = f"run.json says {info.get('state', 'nothing')}"
        parts = [f"{run.folder.id}  {state or written}", *([written] if state == "unknown" else []), where]
        print("  ".join([*parts, *progress(info)]))
        if len(found) == 1:
            print(run.folder.path)

    return each(found, line) or code


def progress(info: Mapping[str, Any]) -> list[str]:
    """How far a run has come, from its run.json."""
    parts = [f"epoch {info.get('epoch', '?')}, step {info['step']}"] if "step" in info else []
    parts += [resumes] if (resumes := resume_summary(info)) else []
    metrics = info.get("metrics") or {}
    return parts + [f"{k} {v:.4f}" for k, v in metrics.items() if "train" not in k and isinstance(v, float)]


def logs(found: Runs, parsed: argparse.Namespace) -> int:
    """Print the output of runs, or follow that of one."""
    if not parsed.follow:
        return each(found, lambda run: show_logs.show(run, heading=len(found) > 1))
    if len(found) > 1:
        raise SubmitError(f"-f follows one run; name a member, such as {found[0].folder.id}.")
    return each(found, show_logs.follow)


@contextmanager
def asking(so: str) -> Iterator[None]:
    """Within, an unreachable scheduler is an error that ends with `so`: what was therefore not done."""
    try:
        yield
    except SchedulerError as error:
        raise SchedulerError(f"what is queued is not known: {error} {so}") from None


def cancel(found: Runs, parsed: argparse.Namespace) -> int:
    """Take runs out of the queue, or stop them."""

    def end(run: runs.Submitted) -> None:
        if run.scheduler is None:
            raise SubmitError(ran_here.how_to_stop(run))
        with asking("Nothing was cancelled."):
            run = runs.with_unrecorded_jobs(run)
            living = [*queue.queued(run.scheduler or "", run.job_ids).living(run.job_ids)]
        if not living:
            runs.refuse_unclear(run)
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
            raise SubmitError(ran_here.how_to_resume(run))
    with asking("Nothing was submitted."):
        found, known = runs.ask(found)
    states = {r.folder.id: runs.state(r, known)[0] for r in found}
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
        runs.refuse_unclear(run)
    job_id = submit_again(again, Path(parsed.results).absolute(), parsed.trust)
    print(f"Submitted job {job_id}: {', '.join(r.folder.id for r in again)}")


if __name__ == "__main__":
    sys.exit(main())
