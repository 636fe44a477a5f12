"""Start a search: check its first and last trial, then submit all of them as one array, or run them here.

Hydra's sweeps become Optuna's distributions in their JSON form, without importing Optuna.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Sweep

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.members import Member, load_members, refuse_mixed_members
from train_anywhere.config.keys import flatten
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.errors import ConfigError, ProjectError, SubmitError, SubmitInterrupted, listed
from train_anywhere.files.atomic import read_json
from train_anywhere.files.removal import remove
from train_anywhere.files.terminal.output import protect_output
from train_anywhere.launch import local_run
from train_anywhere.launch.command import Checks
from train_anywhere.launch.processes import run_members
from train_anywhere.runs import study as studies
from train_anywhere.runs.attempts import describe_exit_code
from train_anywhere.runs.folder import RunDir, claim, new_run_id, no_empty_folders, point_latest
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.reopen.resume import read_run_overrides, select_group_choices
from train_anywhere.runs.reopen.trust import refuse_untrusted
from train_anywhere.runs.study import ENDED, Space, Study, members
from train_anywhere.slurm.script.job import Job
from train_anywhere.slurm.status.find_runs import read_entry
from train_anywhere.slurm.status.sweep_page import sweep_lines
from train_anywhere.slurm.submission.prepare import common_job, refusals, start


def search(
    overrides: Sequence[Override],
    options: Mapping[str, Any],
    make_tree: Callable[[Sequence[str]], Mapping[str, Any]],
    checks: Checks,
    submits: bool,
) -> None:
    """Check the first and the last trial, then submit or run all of them. A dry run only checks and prints.

    `overrides` are those of the command line and of `hydra.sweeper.params`, and `options` the other keys. `make_tree` composes a
    configuration. `submits`: the trials are jobs; else they run on this machine. Raises ProjectError: a refusal. A new study is removed if
    it has no run folder yet; any other study is kept. Raises SubmitInterrupted: Ctrl-C; the same command resumes the study of this machine.
    """
    if find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install optuna.")
    if problems := option_problems(options):
        raise ConfigError(*problems)
    space, at_once = make_space(overrides), options["n_jobs"]
    trees = [{**make_tree(words)} for words in space.extremes()]
    for tree in trees if submits else ():
        tree["cluster"] = {**tree["cluster"], "max_running": tree["cluster"].get("max_running") or at_once}
    member = check_trials(space, trees, checks, submits)
    config, arguments = member.config, sorted(o.input_line or "" for o in overrides)
    study = Study(arguments, options["n_trials"], options["sampler"], options["pruner"], config.seed, space)
    runs = Path(config.paths.results) / config.name
    folder = find_folder(runs, study, options["study_name"], resumes=not submits)
    if config.dry_run:
        compared = f"{config.checkpoint.monitor} ({config.checkpoint.mode})"
        print(f"Searched keys; trials are compared by {compared}:")
        print("".join(f"{key:<18}{form}\n" for key, form in space.describe().items()))
    if submits:
        submit(study, folder, trees[0], member, checks)
    elif config.dry_run:
        print(local_run.format_dry_run(config, local_layout(config), checks))
    else:
        with written(study, folder):
            trial = replace(config, study=folder.name)
            run_trials(trial, member.overrides, folder, at_once, study.trials)
    if not config.dry_run and (config.wait or not submits):
        print(sweep_lines([read_entry(run.path) for run in members(folder).values()]), flush=True)


def submit(study: Study, folder: Path, tree: Mapping[str, Any], member: Member, checks: Checks) -> None:
    """Submit the trials that the study does not have yet as one array."""
    first = len(members(folder))
    if first >= study.trials:
        raise ConfigError(
            f"the study {folder.name} has {first} trials already: use a higher hydra.sweeper.n_trials, `src/jobs.py resubmit --failed "
            f"{folder.name}`, or another hydra.sweeper.study_name."
        )
    trees = [{**tree, "study": folder.name}] * (study.trials - first)
    with nullcontext() if member.config.dry_run else written(study, folder):
        words = [member.overrides] * len(trees)
        start(trees, words, checks.problems, checks.refuse_unreadable, first=first)


@contextmanager
def written(study: Study, folder: Path) -> Iterator[None]:
    """Write the folder of a study. A new one is removed after an error if it has no run folder yet."""
    created = not folder.exists()
    with no_empty_folders(folder.parent):
        try:
            study.write(folder)
            yield
        except ProjectError:
            if created and not members(folder):
                remove(studies.owned_folder(folder))
            raise


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """Return one message for each invalid key of `hydra.sweeper`."""
    problems = [
        f"hydra.sweeper.{key}={options[key]} is not a whole number from 1 to {MAX_COUNT}."
        for key in ("n_trials", "n_jobs")
        if type(options[key]) is not int or not 1 <= options[key] <= MAX_COUNT
    ]
    problems += [
        f"hydra.sweeper.{key}={options[key]} is not known; use one of {listed(names)}."
        for key, names in {"sampler": studies.SAMPLERS, "pruner": studies.PRUNERS}.items()
        if options[key] not in names
    ]
    name = options["study_name"]
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,80}", str(name)):
        problems.append(
            f"hydra.sweeper.study_name={name} can't name a folder; use up to 81 letters, digits and . _ - = +, "
            "the first one a letter or digit."
        )
    return problems


def make_space(overrides: Sequence[Override]) -> Space:
    """Split overrides into fixed and searched ones. Raises ConfigError with all problems."""
    by_key = {o.get_key_element(): o for o in overrides}
    fixed = [f"{k}={o.get_value_element_as_str()}" for k, o in by_key.items() if not o.is_sweep_override()]
    distributions: dict[str, dict[str, Any]] = {}
    problems = []
    for key, override in by_key.items():
        if override.is_sweep_override():
            try:
                distributions[key.lstrip("+")] = make_distribution(override)
            except ValueError as error:
                problems.append(f"{str(override.input_line).lstrip('+')}: {error}.")
    if not by_key or not (distributions or problems):
        problems.append(
            "hydra/sweeper=optuna has nothing to search: give a key several values, such as 'optimizer.lr=tag(log,interval(1e-4,1e-1))' "
            "or model=cnn,mlp."
        )
    if problems:
        raise ConfigError(*problems)
    return Space(fixed, distributions, [key.lstrip("+") for key in by_key if key.startswith("+")])


def make_distribution(override: Override) -> dict[str, Any]:
    """Return the distribution of one override. Raises ValueError if there is none."""
    value = override.value()
    if unknown := set(getattr(value, "tags", ())) - ({"log"} if isinstance(value, IntervalSweep) else set()):
        raise ValueError(
            f"the tag {listed(sorted(unknown))} can't be used here: only an interval can have a tag, log"
        )
    if isinstance(value, ChoiceSweep) and any(isinstance(choice, Sweep) for choice in value.list):
        raise ValueError("one of its values is a sweep itself")
    low = high = step = None
    if isinstance(value, IntervalSweep):
        low, high = value.start, value.end
        if low is None or high is None or not low < high:
            raise ValueError(f"an interval goes from a lower to a higher number, not from {low} to {high}")
        if "log" in value.tags and low <= 0:
            raise ValueError(f"a logarithmic interval starts above 0, and this one at {low}")
    elif isinstance(value, RangeSweep) and not value.shuffle:
        low, step = value.start or 0, value.step
        if value.stop is None or step <= 0 or not low < value.stop:
            raise ValueError("an empty range, it has no values")
        high = low + int((value.stop - low) / step - 1e-9) * step  # Hydra excludes the end
    if low is not None and high is not None:
        whole = all(isinstance(number, int) for number in (low, high, step or 1))
        form: Callable[[float], float] = int if whole else float
        ends = {"low": form(low), "high": form(high), "step": form(step) if step else 1 if whole else None}
        attributes = {"log": "log" in getattr(value, "tags", ()), **ends}
        return {"name": "IntDistribution" if whole else "FloatDistribution", "attributes": attributes}
    if not (choices := list(override.sweep_string_iterator())):
        raise ValueError("an empty sweep, it has no values")
    return {"name": "CategoricalDistribution", "attributes": {"choices": choices}}


def check_trials(space: Space, trees: Sequence[Mapping[str, Any]], checks: Checks, submits: bool) -> Member:
    """Check the trials with all lowest and all highest values, and return the first.

    Raises ConfigError if a trial has problems or uses resume=, or has no metric for comparing trials.
    """
    jobs: list[Job] = []

    def check(config: Config) -> list[str]:
        if not submits:
            return local_run.local_problems(config, checks)
        return refusals(config, None, range(2), None, checks.problems, jobs)

    for tree in trees:
        refuse_mixed_members([tree], submitted=submits)
    searched = [[o.lstrip("+") for o in words if o not in space.fixed] for words in space.extremes()]
    config = load_members(trees, searched, check)[0].config
    if config.resume:
        raise ConfigError(
            "hydra/sweeper=optuna starts its own runs, so resume= can't be used; leave it out. To resume an interrupted study, repeat its "
            "command."
        )
    if config.checkpoint.monitor is None or config.checkpoint.mode is None:
        raise ConfigError(
            "hydra/sweeper=optuna compares trials by a metric, but checkpoint.monitor or checkpoint.mode is not set; "
            "add checkpoint.monitor=NAME and checkpoint.mode=min (or max)."
        )
    if jobs:
        common_job(jobs)
    return Member(config, space.extremes()[0])


def find_folder(runs: Path, study: Study, study_name: str | None, resumes: bool) -> Path:
    """Return the named folder, with `resumes` the newest unfinished one of the command, or a new one."""
    if study_name:
        return runs / study_name
    for path in sorted(runs.glob(f"*/{studies.COMMAND}"), reverse=True) if resumes else ():
        same = read_json(path).get("arguments") == list(study.arguments)
        if same and sum(run.read_state() in ENDED for run in members(path.parent).values()) < study.trials:
            return path.parent
    return runs / new_run_id()


def run_trials(config: Config, overrides: Sequence[str], folder: Path, at_once: int, trials: int) -> None:
    """Run the trials of a study that have not ended as processes of this machine; several at once have a log each.

    `config` and `overrides` are those of a trial before it has its values. Raises SubmitInterrupted: Ctrl-C; the same command resumes the
    study. Raises SubmitError: all of the first trials have failed.
    """
    packed, known = config.cluster.pack > 1, members(folder)
    slots = local_run.count_slots(config) if packed else at_once
    todo = [n for n in range(trials) if n not in known or known[n].read_state() not in ENDED]
    protect_output()

    def ended(number: int, run: RunDir, code: int) -> None:
        info = run.read_info()
        if slots > 1:
            # of a killed trial run.json says that it runs
            state = describe_exit_code(code) if code > 128 else info.get("state")
            print(f"{folder.name}  trial {number}: {state}", flush=True)
        if info.get("why") and not (run.path / studies.TRIAL).exists():
            raise SubmitError(info["why"])

    if known:
        print(f"{folder.name}  resumed: {trials - len(todo)} of {trials} trials are done", flush=True)
    make = partial(open_trial, config, overrides, folder)
    if run_members(dict.fromkeys(todo, config), make, ended, slots, log=slots > 1, share=packed):
        live = [one for n, one in members(folder).items() if n in todo and one.read_state() not in ENDED]
        stopped = f"{len(live)} trial{'s'[: len(live) != 1]} stopped"
        raise SubmitInterrupted(f"interrupted; {stopped}. The same command resumes {folder}.")


def open_trial(config: Config, overrides: Sequence[str], folder: Path, number: int) -> RunDir:
    """Return the run folder of a trial: that of an earlier start, or a new one."""
    if run := members(folder).get(number):
        typed = flatten(compose(select_group_choices(read_run_overrides(run))))
        refuse_untrusted(run.path, flatten(read_frozen(run)), typed)
        return run
    run = claim(folder.with_name(f"{folder.name}-{number}"))
    local_run.freeze(run, config, overrides, local_layout(config))
    point_latest(folder.parent.parent, run.path)
    return run
