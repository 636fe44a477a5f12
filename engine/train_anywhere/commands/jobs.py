"""Show and control runs, submitted or not.

With --on NAME a verb looks at the runs of a host of configs/hosts/, over ssh.
RUN is a run folder, a run id, a job id or the id of a sweep; without it, the newest run. `resubmit` runs the code as it was
at submission; to continue with the current code use `python src/train.py resume=RUN`.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from fnmatch import fnmatch
from typing import Any

from train_anywhere.commands import plot as plots
from train_anywhere.commands import prune as folders
from train_anywhere.commands import running_job
from train_anywhere.commands.jobs_options import add_options
from train_anywhere.errors import ConfigError, ProjectError, SchedulerError, SubmitError, listed
from train_anywhere.features import describe
from train_anywhere.files.atomic import dumps
from train_anywhere.files.terminal.fit import FittedHelp, fit, terminal_width
from train_anywhere.files.terminal.printable import one_line, printable_output
from train_anywhere.launch.command import run_command
from train_anywhere.monitor.report.compare_runs import compare_runs
from train_anywhere.runs.folder import finish_deletions
from train_anywhere.runs.summary import as_typed, display_path
from train_anywhere.slurm.status import find_runs, show_logs
from train_anywhere.slurm.status.best import find_best as best_of
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.status.gather import FAILED, RunReports, gather, sum_costs
from train_anywhere.slurm.status.text_page import format_costs, format_status, parse_since, select, to_json
from train_anywhere.slurm.submission.submit import resubmit as submit_again

Options = argparse.Namespace

MOST_LISTED = 50
"""Runs that `list` shows without --all."""

ON = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
ON.add_argument("--on", metavar="NAME")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or `REFUSED` after one message per run that could not be handled."""
    where, words = ON.parse_known_args(arguments)
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] VERB ...", description=as_typed(__doc__ or ""), formatter_class=FittedHelp
    )
    verbs = parser.add_subparsers(prog=parser.prog, required=True, metavar="VERB", title="verbs")
    for name, verb in VERBS.items():
        text = (verb.__doc__ or "").rstrip(".")
        shown: dict[str, Any] = {} if verb is push else {"help": text[:1].lower() + text[1:]}
        sub = verbs.add_parser(name, description=text, **shown)
        sub.set_defaults(verb=name)
        add_options(name, sub)
    parsed = parser.parse_args(words, where)
    with printable_output(log=parsed.verb == "logs"):
        return run_command(lambda: _serve(parsed, words), overrides=False)


def _serve(parsed: Options, words: Sequence[str]) -> int:
    """Serve a verb, on the host that --on names; return the exit code."""
    try:
        if parsed.verb == "pull" and parsed.on is None:
            raise ConfigError("name the host: python src/jobs.py pull --on NAME.")
        if parsed.on is None or parsed.verb in ("pull", "push"):
            return VERBS[parsed.verb](parsed) or 0
        if (parsed.on, parsed.verb) == ("all", "list"):
            raise ConfigError(
                "`list --on all` was removed; list one host after the other: for host in a b; do python src/jobs.py list --on $host; done"
            )
        from train_anywhere.remote.remote_command import run_verb  # a verb here needs no ssh

        return run_verb(parsed.on, parsed.verb, words)
    except KeyboardInterrupt:
        if getattr(parsed, "follow", False):  # it normally ends so
            return 0
        raise


def _find(parsed: Options, *names: str | None) -> list[RunEntry]:
    """Return the runs that RUN names, or other names, each once. Raises SubmitError: there are none."""
    found = [run for name in names or (parsed.run,) for run in find_runs.find(name, parsed.results)]
    return [*{run.folder.path: run for run in found}.values()]


def for_each(found: Sequence[RunEntry], do: Callable[[RunEntry], None]) -> int:
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


def refuse_sweep(found: Sequence[RunEntry], name: str, wanted: str = "one") -> RunEntry:
    """Return the only run. Raises SubmitError: it is a sweep of several."""
    if len(found) > 1:
        raise SubmitError(
            f"{name} is a sweep of {len(found)} members; name {wanted}, such as {found[0].folder.id}."
        )
    return found[0]


def status(parsed: Options) -> int:
    """Print the state of runs."""
    return _show_status(gather(_find(parsed)), parsed)


def list_(parsed: Options) -> int:
    """Print a line for each run, newest first."""
    costs, paths = parsed.cost or parsed.csv, find_runs.find_folders(parsed.results)
    if parsed.name:
        paths = [path for path in paths if fnmatch(path.parent.name, parsed.name)]
    newest = None if parsed.all or parsed.state or parsed.since or costs else MOST_LISTED
    found = [find_runs.read_entry(path) for path in paths[:newest]]
    gathered = gather(found, ended_too=False, brief=not parsed.json)
    reports = select(gathered.reports, parsed.name, parsed.state, parsed.since)
    if costs:
        if not (sums := sum_costs([report.path for report in reports])):
            raise SubmitError("no run is selected.")
        print(format_costs(sums, terminal_width(), parsed.csv))
        return gathered.code
    most = len(reports) if parsed.all else MOST_LISTED
    older = (len(paths) if newest else len(reports)) - most
    notes = [f"{older:,} older runs are not listed; --all lists them."] if older > 0 else []
    shown = replace(gathered, reports=reports[:most], notes=(*gathered.notes, *notes))
    return _show_status(shown, parsed, many=True)


def _show_status(gathered: RunReports, parsed: Options, many: bool = False) -> int:
    """Print the status of runs; what is unknown goes to standard error."""
    if parsed.json:
        print(to_json(gathered), end="")
    elif page_text := format_status(gathered, many):
        # each line of a page is printable already, apart from the colors of states
        print(page_text, file=getattr(sys.stdout, "stream", sys.stdout))
    for line in [*(f"note: {n}" for n in gathered.notes), *(f"error: {t}" for t in gathered.trouble)]:
        print(line, file=sys.stderr)
    return gathered.code


def best(parsed: Options) -> None:
    """Print the run with the best value of its metric."""
    shown, found = "", _find(parsed) if parsed.run else find_runs.find_all(parsed.results)
    if parsed.run is None:  # runs of different data have nothing in common: those of one name are compared
        name, everything = parsed.name or found[0].folder.path.parent.name, found
        found = [run for run in found if fnmatch(run.folder.path.parent.name, name)]
        if not found:
            raise SubmitError(f"no run has the name {name}.")
        others = len(found) < len(everything) and not parsed.name
        shown = f" named {name}{' (--name PATTERN: others)' if others else ''}"
    form = "csv" if parsed.csv else "json" if parsed.json else ""
    if parsed.over:
        print(plots.summarize(found, parsed.over, parsed.metric, parsed.mode, form))
        return
    if parsed.csv:
        raise SubmitError("--csv needs --over KEY, such as --over seed.")
    winner = best_of(found, parsed.metric, parsed.mode)
    if parsed.json:
        print(dumps(asdict(winner)), end="")
        return
    without = f"; {winner.left_out} have no such values" if winner.left_out else ""
    print(one_line(f"{winner.metric} {winner.value:.6g}  {winner.id}  step {winner.step}"))
    extreme = "highest" if winner.mode == "max" else "lowest"
    compared = one_line(f"the {extreme} of {winner.compared} runs{shown}{without}")
    print(fit(compared, terminal_width(sys.stderr)), file=sys.stderr)
    if winner.command:
        print(fit(f"Again: {one_line(winner.command)}", terminal_width()))
    print(display_path(winner.path))


def logs(parsed: Options) -> int:
    """Print the output of runs, or follow it."""
    found = _find(parsed)
    if not parsed.follow:
        return for_each(found, lambda run: show_logs.show(run, len(found) > 1))
    if trouble := next((run.trouble for run in found if run.trouble), ""):
        raise SubmitError(trouble)
    show_logs.follow(found)
    return 0


def cancel(parsed: Options) -> int:
    """Remove runs from the queue, or stop them."""
    found = _find(parsed)
    refuse_shared(found)
    return for_each(found, lambda run: print(running_job.cancel(run)))


def refuse_shared(found: Sequence[RunEntry]) -> None:
    """Refuse to cancel a job that other members of a sweep share. Raises SubmitError."""
    folders = {run.folder.path for run in found}
    for run in found:
        info, newest = run.folder.read_info(), run.job_ids[-1:]
        if not info.get("pack") or info.get("state") in ("completed", "failed", "cancelled") or not newest:
            continue
        there = find_runs.find(newest[0], run.folder.path.parent.parent)
        others = [r.folder.id for r in there if r.folder.path not in folders and r.job_ids[-1:] == newest]
        if others:
            raise SubmitError(
                f"{run.folder.id} shares job {newest[0]} with {listed(others)}, which would end too: "
                f"`jobs.py save --stop {run.folder.id}` ends only this one, `jobs.py cancel {newest[0]}` all of them."
            )


def save(parsed: Options) -> int:
    """Make runs write a checkpoint, and print its path."""
    return for_each(_find(parsed), lambda run: running_job.save(run, parsed.stop, parsed.timeout))


def debug(parsed: Options) -> int:
    """Print where the ranks are: the stacks of their threads."""
    return for_each(_find(parsed), lambda run: running_job.debug(run, parsed.rank))


def shell(parsed: Options) -> int:
    """Open a shell in the job, next to its ranks."""
    run = refuse_sweep(_find(parsed), parsed.run)
    return for_each([run], lambda run: running_job.shell(run, parsed.node))


def profile(parsed: Options) -> int:
    """Profile the next steps, and print the slowest operations."""
    words = (parsed.steps, parsed.ranks, parsed.timeout)
    return for_each(_find(parsed), lambda run: running_job.profile(run, *words))


def resubmit(parsed: Options) -> None:
    """Submit runs again in the same folder, with the same code, from the newest checkpoint."""
    found = _find(parsed)
    for run in found:
        if run.trouble:
            raise SubmitError(run.trouble)
        if run.scheduler is None:
            raise SubmitError(find_runs.resume_message(run))
    with running_job.explain_unreachable_scheduler("Nothing was submitted."):
        found, known = find_runs.query_scheduler(found, wait=True)
    states = {r.folder.id: find_runs.read_state(r, known)[0] for r in found}
    again = [r for r in found if states[r.folder.id] != "completed" and not known.active(r.job_ids)]
    if parsed.failed:
        again = [r for r in found if states[r.folder.id] in FAILED]
    if not again:
        reasons = [f"{listed(f'{i} is {s}' for i, s in states.items())}.", *filter(None, [known.gap])]
        raise SubmitError(f"there is nothing to submit again: {' '.join(reasons)}")
    for run in again:
        find_runs.refuse_unclear(run)
    job_id = submit_again(again, parsed.results, parsed.trust)
    print(f"Submitted job {job_id}: {listed(r.folder.id for r in again)}")


def diff(parsed: Options) -> None:
    """Print what differs between two runs."""
    names = (parsed.first, parsed.second)
    found = [(_find(parsed, name), name) for name in names]
    first, second = (refuse_sweep(runs, name, "two runs").folder for runs, name in found)
    for line in "\n".join(compare_runs(first, second, terminal_width())).split("\n"):
        print(one_line(line))


def plot(parsed: Options) -> None:
    """Draw one metric of runs into a file."""
    found = _find(parsed, *(parsed.runs or [None]))
    print(one_line(plots.plot(found, parsed.metric, parsed.out, parsed.over)))


def report(parsed: Options) -> None:
    """Write report.html of a run, or the page that compares the members of a sweep."""
    from train_anywhere.monitor.report.page import write_report  # the other verbs need no report
    from train_anywhere.slurm.status.sweep_page import write_sweep

    found = _find(parsed)
    if len(found) > 1:
        print(f"{'Report:':<15}{display_path(write_sweep(found))}")
    else:
        [known] = gather(found).reports
        print("\n".join(write_report(found[0].folder, describe, None if known.alive else known.state)))


def pull(parsed: Options) -> None:
    """Copy runs of the host of --on to this machine, and write their reports."""
    from train_anywhere.remote import run_copies  # a verb here needs no ssh

    for path in run_copies.pull(parsed.on, parsed.run, parsed.results, parsed.all):
        print(display_path(path))
        report(Options(run=str(path), results=parsed.results))


def push(parsed: Options) -> None:
    """Refuse a verb of earlier versions."""
    raise ConfigError("`push` was removed; copy a run to a host with rsync: docs/how-to/move-a-run.md")


def prune(parsed: Options) -> int:
    """Delete run folders, after asking."""
    if not parsed.runs and parsed.name is parsed.state is parsed.until is None:
        raise SubmitError("name runs, or select them: --state failed, --until 30d, --name 'digits*'.")
    finish_deletions(parsed.results)
    found = _find(parsed, *parsed.runs) if parsed.runs else find_runs.find_all(parsed.results)
    with suppress(SchedulerError):  # what stays unclear is kept
        found = find_runs.with_unrecorded_jobs(found)
    reports = gather(found).reports
    before = math.inf if parsed.until is None else parse_since(parsed.until).timestamp()
    wanted = select(reports, parsed.name, parsed.state, None)
    chosen = {r.path for r in wanted if before == math.inf or (r.started or math.inf) < before}
    pairs = [(run, report) for run, report in zip(found, reports, strict=True) if report.path in chosen]
    if not pairs:
        raise SubmitError("no run is selected.")
    return folders.prune(pairs, parsed.yes)


VERBS: dict[str, Callable[[Options], int | None]] = {
    verb.__name__.rstrip("_"): verb
    for verb in (
        status, list_, best, diff, plot, report, logs, save, debug, shell, profile, cancel, resubmit, pull, push, prune,
    )
}  # fmt: skip
