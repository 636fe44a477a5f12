"""The table that a search prints at the end: its trials, the best first."""

import shlex

from optuna.trial import FrozenTrial, TrialState

from train_anywhere.files import ROOT
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.summary import command_path, display_path
from train_anywhere.search.study import Study


def format_table(study: Study) -> str:
    """Return a line for each trial, and the next command."""
    trials = sorted(study.trials, key=lambda trial: _sort_key(trial, study.settings.mode))
    keys = list(study.space.distributions)
    lines = [["trial", study.settings.metric, *keys]]
    lines += [
        [str(t.number), _format_result(t), *(format_value(t.params.get(k)) for k in keys)] for t in trials
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    end = [f"Study:       {display_path(study.folder)}", f"Next:        {_next_command(study)}"]
    return printable("\n".join([*rows, "", *end]))


def format_value(value: object) -> str:
    """Format the value of a hyperparameter."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _sort_key(trial: FrozenTrial, mode: str) -> tuple[bool, float, int]:
    value = trial.value if trial.state == TrialState.COMPLETE and trial.value is not None else None
    return value is None, (value or 0.0) * (1 if mode == "min" else -1), trial.number


def _format_result(trial: FrozenTrial) -> str:
    if trial.state == TrialState.COMPLETE and trial.value is not None:
        return f"{trial.value:.6g}"
    return {TrialState.PRUNED: "pruned", TrialState.RUNNING: "running"}.get(trial.state, "failed")


def _next_command(study: Study) -> str:
    """Return the command `jobs.py best` of this study, which prints how to train the best trial again."""
    results = study.folder.parent.parent
    there = "" if results == ROOT / "results" else f" --results {shlex.quote(display_path(results))}"
    program = f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'jobs.py'))}"
    return f"{program} best {study.folder.name}{there}"
