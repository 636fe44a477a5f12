"""What a search prints at the end: its trials, the best first."""

import shlex

from optuna.trial import FrozenTrial, TrialState

from train_anywhere.files import ROOT
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.summary import command_path, display_path
from train_anywhere.search.study import Study


def table(study: Study) -> str:
    """A line for each trial, and what to type next."""
    trials = sorted(study.trials, key=lambda trial: _order(trial, study.wanted.mode))
    keys = list(study.space.drawn)
    lines = [["trial", study.wanted.metric, *keys]]
    lines += [[str(t.number), _value(t), *(short(t.params.get(key)) for key in keys)] for t in trials]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return printable(
        "\n".join([*rows, "", f"Study:       {display_path(study.folder)}", f"Next:        {_next(study)}"])
    )


def short(value: object) -> str:
    """A value to read."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _order(trial: FrozenTrial, mode: str) -> tuple[bool, float, int]:
    value = trial.value if trial.state == TrialState.COMPLETE and trial.value is not None else None
    return value is None, (value or 0.0) * (1 if mode == "min" else -1), trial.number


def _value(trial: FrozenTrial) -> str:
    if trial.state == TrialState.COMPLETE and trial.value is not None:
        return f"{trial.value:.6g}"
    return {TrialState.PRUNED: "pruned", TrialState.RUNNING: "running"}.get(trial.state, "failed")


def _next(study: Study) -> str:
    """`jobs.py best` of this study: it says how to train the best one again."""
    results = study.folder.parent.parent
    there = "" if results == ROOT / "results" else f" --results {shlex.quote(display_path(results))}"
    program = f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'jobs.py'))}"
    return f"{program} best {study.folder.name}{there}"
