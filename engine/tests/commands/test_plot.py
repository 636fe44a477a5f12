"""`jobs.py plot`: one metric of several runs in a file."""

import csv
import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from train_anywhere.commands.jobs import main


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two runs with different learning rates. The second has no val/acc in its first row."""
    for number, rate in enumerate((0.1, 0.2)):
        run = tmp_path / "results" / "digits" / f"20260101-00000{number}-aaa{number}"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("framework: lightning\n")
        (run / "overrides.txt").write_text(f"model=mlp\noptimizer.lr={rate}\n")
        (run / "run.json").write_text('{"format": 2, "state": "completed"}')
        first = "" if number else "0.25"
        (run / "metrics.csv").write_text(f"step,epoch,val/acc,val/loss\n7,1,{first},2\n14,2,0.5,1\n")
    return tmp_path / "results"


def plot(results: Path, *words: str) -> int:
    runs = sorted(str(path) for path in (results / "digits").iterdir())
    return main(["plot", *runs, runs[0], "--results", str(results), *words])


def test_the_values_are_labelled_by_what_differs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = results.parent / "values.csv"
    assert plot(results, "--metric", "val/acc", "--out", str(out)) == 0
    assert "val/acc of 2 of 2 runs" in capsys.readouterr().out
    with out.open(newline="") as file:
        assert [*csv.reader(file)] == [
            ["optimizer.lr", "run", "step", "val/acc"],
            ["0.1", "20260101-000000-aaa0", "7", "0.25"],
            ["0.1", "20260101-000000-aaa0", "14", "0.5"],
            ["0.2", "20260101-000001-aaa1", "14", "0.5"],
        ]
    assert plot(results, "--metric", "val/acc", "--out", str(out)) == 2
    assert "exists already, or" in capsys.readouterr().err


def test_an_average_over_seeds(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, run in enumerate([*(results / "digits").iterdir()]):
        (run / "overrides.txt").write_text(f"optimizer.lr=0.1\nseed={seed}\n")
        (run / "metrics.csv").write_text(f"step,epoch,val/acc\n7,1,{seed / 4}\n")
    out, mean = results.parent / "v.csv", f"0.125,{math.sqrt(1 / 32)},2"
    assert plot(results, "--over", "seed", "--metric", "val/acc", "--out", str(out)) == 0
    assert out.read_text().splitlines() == ["step,val/acc,spread,runs", f"7,{mean}"]
    shown = {"--csv": "\n0.125,0.18,2\n", "--json": '"runs": 2'}
    words = ("best", "--metric", "val/acc", "--mode", "max", "--results", str(results))
    for form, text in shown.items():
        assert main([*words, "--over", "seed", form]) == 0
        assert text in capsys.readouterr().out
    assert main([*words, "--over", "sed"]) == main([*words, "--csv"]) == 2
    assert "Did you mean 'seed'?\nerror: --csv needs --over KEY" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_a_figure(results: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    out = results.parent / f"fig.{kind}"
    code = plot(results, "--metric", "val/acc", "--out", str(out))
    if find_spec("matplotlib"):
        assert code == 0 and out.stat().st_size > 1000
    else:
        assert code == 2 and "pip install matplotlib" in capsys.readouterr().err and not out.exists()


def test_a_metric_that_only_some_runs_have(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = max((results / "digits").iterdir())
    (run / "metrics.csv").write_text("step,epoch,mine\n7,1,nan\n")
    out = results.parent / "values.CSV"
    assert plot(results, "--metric", "mine", "--out", str(out)) == 0
    assert "mine of 1 of 2 runs" in capsys.readouterr().out
    assert out.read_text().splitlines() == ["optimizer.lr,run,step,mine", f"0.2,{run.name},7,nan"]


REFUSED = {
    ("val/ac", "a.csv"): "no run has the metric val/ac. Did you mean 'val/acc'?",
    ("val/acc", "a.txt"): "--out {}/a.txt: its format is not known; use one of .pdf, .svg, .png, .eps, .csv.",
    ("val/acc", "no/a.csv"): "or its folder does not exist",
}


@pytest.mark.parametrize("metric, name", REFUSED)
def test_a_refusal_writes_nothing(results, capsys, metric, name):
    assert plot(results, "--metric", metric, "--out", f"{results.parent}/{name}") == 2
    assert REFUSED[metric, name].format(results.parent) in capsys.readouterr().err
    assert [path.name for path in results.parent.iterdir()] == ["results"]
