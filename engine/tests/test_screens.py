"""What a person sees on a terminal: nothing is cut off, and no line is broken within a word."""

import re
from pathlib import Path

import pytest

from engine.tests.training.test_progress import lines, screen
from train_anywhere.files import ROOT

SHORT = [
    "framework=lightning",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=2",
    "data.batch_size=256",
]
COMMAND = re.compile(r" *`[^`]+`\.?")


def shown(width: int, *words: str, code: int = 0, **environment: str) -> list[str]:
    """Return the lines that a command of src/ prints on a terminal."""
    program = f"""
import runpy, sys
sys.argv = {list(words)!r}
try:
    runpy.run_path({str(ROOT / "src" / words[0])!r}, run_name='__main__')
except SystemExit as end:
    assert end.code == {code}, end.code
"""
    return lines(re.sub(r"\x1b\[[0-9;]*m", "", screen(program, width, **environment)))


def too_wide(printed: list[str], width: int) -> list[str]:
    """Return the lines that a terminal breaks within a word, unless they are a long word such as a path, or a command to copy."""
    lines = [line for line in printed if not COMMAND.fullmatch(line)]
    return [line for line in lines if len(line) > width and " " in line.strip().removesuffix(" \\")]


@pytest.mark.parametrize(
    "width", [80, pytest.param(60, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.slow)]
)
def test_a_run_and_a_sweep_and_what_jobs_shows_of_them(tmp_path: Path, width: int) -> None:
    where = f"paths.results={tmp_path}"
    run = shown(width, "train.py", where, *SHORT)
    heads = [line.split(":")[0] for line in run if ":" in line]
    assert heads[:2] == ["Run folder", "Starting"] and run[-1].split()[-1].startswith(str(tmp_path))
    assert {"train/acc", "lr", "step"} <= set(re.findall(r"[\w/]+(?= \d)", "\n".join(run)))
    keys = [
        "optimizer.lr=0.001,0.002", "optimizer.weight_decay=0.01", "model.dropout=0.125,0.25", "seed=1234567",
    ]  # fmt: skip
    sweep = shown(width, "train.py", "-m", where, *SHORT, *keys, "name=a-name-that-is-long")
    assert "[1/4] optimizer.lr=0.001 model.dropout=0.125" in sweep
    ids = sorted(path.name for path in tmp_path.glob("a-name*/*-0"))
    asked = [["status"], ["list"], ["best"], ["best", ids[0].rpartition("-")[0]], ["status", ids[0]]]
    pages = [shown(width, "jobs.py", *words, "--results", str(tmp_path)) for words in asked]
    for printed in (run, sweep, *pages):
        assert too_wide(printed, width) == [] and "…" not in "".join(printed)
    assert all(f"{key}" in "\n".join(pages[1]) for key in ("lr=0.002", "dropout=0.25"))


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_refusals_and_dry_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    wrong = ["cluster=neuron", "trainer.nodes=4", "trainer.devices=16", "cluster.time=5-00:00:00"]
    refused = shown(80, "train.py", f"paths.results={tmp_path}", *wrong, code=2, **environment)
    dry = shown(80, "train.py", f"paths.results={tmp_path}", "dry_run=true", **environment)
    assert too_wide(refused, 80) == [] == too_wide(dry, 80)
    assert any(COMMAND.fullmatch(line) for line in refused)  # it has a line of its own, and can be copied
