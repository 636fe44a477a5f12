"""`jobs.py plot`: one metric of several runs in a file."""

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

from train_anywhere.commands import plot as plotting
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
    return main(["plot", *runs, "--results", str(results), *words])


def test_the_values_are_labelled_by_what_differs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = results.parent / "values.csv"
    assert plot(results, "--metric", "val/acc", "--out", str(out)) == 0
    assert "val/acc of 2 of 2 runs" in capsys.readouterr().out
    with out.open(newline="") as file:
        assert [*csv.reader(file)] == [
            ["run", "step", "val/acc"],
            ["optimizer.lr=0.1", "7", "0.25"],
            ["optimizer.lr=0.1", "14", "0.5"],
            ["optimizer.lr=0.2", "14", "0.5"],
        ]
    assert plot(results, "--metric", "val/acc", "--out", str(out)) == 2
    assert "exists already, or" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_a_figure(results: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    out = results.parent / f"fig.{kind}"
    code = plot(results, "--metric", "val/acc", "--out", str(out))
    if find_spec("matplotlib"):
        assert code == 0 and out.stat().st_size > 1000
    else:
        assert code == 2 and "pip install matplotlib" in capsys.readouterr().err and not out.exists()


NAN, LINE = float("nan"), [(1.0, 0.5), (2.0, 0.6)]

ODD = {
    "one point": {"a": LINE[:1]},
    "nan": {"a": [(1.0, NAN), *LINE]},
    "only nan": {"a": [(1.0, NAN)]},
    "huge": {"a": [(1.0, 1e308), (2.0, -1e308)]},
    "mathematics": {"name=$x^$": LINE, "b_{": LINE},
    "long": {"x" * 5000: LINE, "y" * 5000: LINE},
    "right to left": {"مرحبا": LINE, "<b>": LINE},
    "31": {f"lr={n}": LINE for n in range(31)},
}
"""Curves, as `draw` gets them."""


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("kind", ODD)
def test_odd_curves(tmp_path: Path, kind: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    shown: list[tuple[str, int]] = []
    saved = matplotlib.figure.Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            matplotlib.figure.Figure,
            "savefig",
            lambda self, *given, **options: (
                shown.append(
                    (self.axes[0].lines[0].get_marker(), len(self.legends) + bool(self.axes[0].get_legend()))
                ),
                saved(self, *given, **options),
            ),
        )
        plotting.draw(ODD[kind], "val/acc_$x", tmp_path / "fig.svg")
    marker, legends = shown[0]
    assert (marker == ".") == (len(next(iter(ODD[kind].values()))) == 1)
    assert legends == (1 < len(ODD[kind]) <= plotting.MOST_NAMED)
    assert max(map(len, (tmp_path / "fig.svg").read_text().splitlines())) < 5000


def test_a_metric_that_only_some_runs_have(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = max((results / "digits").iterdir())
    (run / "metrics.csv").write_text("step,epoch,mine\n7,1,nan\n")
    out = results.parent / "values.CSV"
    assert plot(results, "--metric", "mine", "--out", str(out)) == 0
    assert "mine of 1 of 2 runs" in capsys.readouterr().out
    assert out.read_text().splitlines() == ["run,step,mine", "optimizer.lr=0.2,7,nan"]


REFUSED = {
    ("val/ac", "a.csv"): "no run has the metric val/ac. Did you mean 'val/acc'?",
    ("val/acc", "a.txt"): "--out {}/a.txt: its format is not known; use one of .pdf, .svg, .png, .eps, .csv.",
    ("val/acc", "no/a.csv"): "or its folder does not exist",
}


@pytest.mark.parametrize("metric, name", REFUSED)
def test_a_refusal_writes_nothing(
    results: Path, capsys: pytest.CaptureFixture[str], metric: str, name: str
) -> None:
    assert plot(results, "--metric", metric, "--out", f"{results.parent}/{name}") == 2
    assert REFUSED[metric, name].format(results.parent) in capsys.readouterr().err
    assert [path.name for path in results.parent.iterdir()] == ["results"]
