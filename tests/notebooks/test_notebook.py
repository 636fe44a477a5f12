"""All cells of notebooks/run.ipynb run, on a run of each framework."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.files import ROOT
from train_anywhere.testing.plugin import FRAMEWORKS, Command

CELLS = json.loads((ROOT / "notebooks/run.ipynb").read_text())["cells"]


def run(source: str, names: dict[str, Any]) -> Any:
    """Return the value of the last expression, which a notebook shows."""
    *statements, last = ast.parse(source).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_cells_open_a_run(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    done = train(f"framework={framework}", "trainer.max_epochs=2", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("RUN", str(tmp_path / "latest"))
    monkeypatch.chdir(ROOT / "notebooks")
    names: dict[str, Any] = {}
    shown = [run("".join(cell["source"]), names) for cell in CELLS if cell["cell_type"] == "code"]
    facts, chart, model, answers = shown
    assert facts["state"] == "completed" and facts["metrics"]["val/loss"] > 0
    assert "polyline" in chart._repr_svg_() or "<path" in chart._repr_svg_()
    assert model is names["model"]
    assert answers and all(shape[0] > 100 for shape, _ in answers.values())


def test_the_notebook_is_kept_without_what_it_showed() -> None:
    assert all(not cell.get("outputs") for cell in CELLS)
