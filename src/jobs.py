"""What became of submitted runs, and what to do about it.

    python src/jobs.py status   [RUN]              where it stands: queue, steps, metrics
    python src/jobs.py logs     [RUN] [-f]         its output; -f follows it until the job ends
    python src/jobs.py cancel   [RUN]              take it out of the queue or stop it
    python src/jobs.py resubmit [RUN] [--failed]   again, in the same folder, from its newest checkpoint

RUN is a run folder, a run id, a job id or the id of a sweep; without it, the newest run. `resubmit` runs the code as it was
at submission; to go on with today's code use `python src/train.py resume=RUN`.
"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from slurm import queue, runs, scheduler, show_logs  # noqa: E402
from slurm.render import ranges  # noqa: E402
from src.errors import REFUSED, ProjectError, SubmitError  # noqa: E402
from src.history import told  # noqa: E402
from src.rundir import ROOT  # noqa: E402

FAILED = ("failed", "lost", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline")
"""States that `resubmit --failed` takes."""


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or `REFUSED` with one message."""
    parsed = _parser().parse_args(arguments)
    try:
        found = runs.find(parsed.run, Path(parsed.results))
        return int(parsed.verb(found, parsed) or 0)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except (BrokenPipeError, KeyboardInterrupt):  # `| head`, Ctrl-C in `logs -f`
        sys.stderr.close()
        return 0


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
            sub.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
        if name == "resubmit":
            sub.add_argument("--failed", action="store_true", help="only members of the sweep that failed")
    return parser


def status(found: list[runs.Submitted], parsed: argparse.Namespace) -> None:
    """Where runs stand."""
    for run in found:
        state, info = runs.states([run])[run.run.id]
        parts = [f"{run.run.id}  {state}", f"job {' -> '.join(run.job_ids) or '?'} on {info.get('cluster')}"]
        if "step" in info:
            parts.append(f"epoch {info['epoch']}, step {info['step']}")
        if resumes := told(info):
            parts.append(resumes)
        metrics = info.get("metrics") or {}
        parts += [f"{k} {metrics[k]:.4f}" for k in ("val/acc", "test/acc") if metrics.get(k) is not None]
        print("  ".join(parts))
        if len(found) == 1:
            print(run.run.path)


def logs(found: list[runs.Submitted], parsed: argparse.Namespace) -> None:
    """Print the output of runs, or follow that of one."""
    if parsed.follow:
        if len(found) > 1:
            raise SubmitError(f"-f follows one run; name a member, such as {found[0].run.id}.")
        show_logs.follow(found[0])
        return
    for run in found:
        show_logs.show(run, heading=len(found) > 1)


def cancel(found: list[runs.Submitted], parsed: argparse.Namespace) -> None:
    """Take runs out of the queue, or stop them."""
    for run in found:
        known = queue.states(run.scheduler, run.job_ids)
        living = [i for i in run.job_ids if queue.alive(known.get(i, ""))]
        if not living:
            print(f"{run.run.id}: no job of it is queued or running.")
            continue
        queue.cancel(run.scheduler, living)
        if run.run.info().get("state") == "queued":
            run.run.update(state="cancelled")
        print(f"{run.run.id}: cancelled job {', '.join(living)}.")


def resubmit(found: list[runs.Submitted], parsed: argparse.Namespace) -> None:
    """Submit runs again: same folder, same code, from the newest checkpoint."""
    states = {run_id: state for run_id, (state, _) in runs.states(found).items()}
    if parsed.failed:
        again = [r for r in found if states[r.run.id] in FAILED]
    else:
        again = [
            r for r in found if states[r.run.id] != "completed" and not queue.alive(states[r.run.id].upper())
        ]
    if not again:
        listed = ", ".join(f"{i} is {s}" for i, s in states.items())
        raise SubmitError(f"there is nothing to submit again: {listed}.")
    members = [r.member for r in again if r.member is not None]
    before = {r.run.id: r.run.info().get("state") for r in again}
    for r in again:
        r.run.update(state="queued")
    try:
        job_id = scheduler.submit_script(again[0].scheduler, again[0].script, members=ranges(members) or None)
    except SubmitError:
        for r in again:
            r.run.update(state=before[r.run.id])
        raise
    for r in again:
        with open(r.run.path / "jobs.txt", "a") as file:
            file.write(f"{job_id}\n" if r.member is None else f"{job_id}_{r.member}\n")
    print(f"Submitted job {job_id}: {', '.join(r.run.id for r in again)}")


if __name__ == "__main__":
    sys.exit(main())
