"""The metrics of a program: JSON lines, event files, printed lines, and their readers."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.tests.program.conftest import RUN, Latest, Run
from tools.testing.weights import info
from train_anywhere.commands import jobs
from train_anywhere.runs.facts import curves


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program with this source: `run(source, words, arguments)`."""

    def start(
        source: str, *words: str, arguments: tuple[str, ...] = ()
    ) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "mine.py").write_text(source)
        command = [*RUN, f"paths.results={tmp_path / 'results'}", *words, "--", "mine.py", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)

    return start


def shows(*words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert jobs.main([*words, "--results", str(tmp_path / "results")]) == 0
    return capsys.readouterr().out


LOGS = """
import sys
from train_anywhere import program
assert not {"torch", "tensorflow", "numpy", "hydra", "yaml"} & {*sys.modules}
for step in range(1, 6):
    program.log(step, loss=1 / step, **{"val/acc": step / 10 if step < 5 else 0.1})
"""


def test_a_line_of_python(run, tmp_path, latest, capsys):
    """Curves, best, report, list and diff show them. Only rank 0 writes."""
    done = run(LOGS, "trainer.devices=2", "trainer.accelerator=cpu")
    assert done.returncode == 0, done.stderr
    folder = latest()
    assert curves(folder / "metrics.csv")["loss"] == [(s, pytest.approx(1 / s, 1e-4)) for s in range(1, 6)]
    run_json = info(folder)
    assert (run_json["step"], run_json["metrics"]) == (5, {"loss": 0.2, "val/acc": 0.1})
    assert "best val/<wbr>acc" in (folder / "report.html").read_text() and "Report:" in done.stdout
    options: Any = {"tmp_path": tmp_path, "capsys": capsys}
    assert "0.4  " in shows("list", **options)
    assert "val/acc 0.4" in shows("best", **options)
    assert run("", "checkpoint.monitor=loss").returncode == 0
    assert run(LOGS, "checkpoint.monitor=loss").returncode == 0
    assert "loss 0.2" in shows("list", **options)
    both = sorted(p.name for p in folder.parent.iterdir() if (p / "metrics.csv").exists())
    assert "Results" in shows("diff", *both, **options)


def test_lines_of_json(run: Run, tmp_path: Path, latest: Latest) -> None:
    """A line that is not JSON is skipped with one note. NaN is a value, strings are not."""
    lines = [
        '{"step": 10, "loss": 0.5, "note": "x", "epoch": 2}', "no", "[1]", '{"loss": NaN}', '{"step": 12.0, "lr": 0.1}',
    ]  # fmt: skip
    source = f"import os\nopen(os.environ['TRAIN_METRICS'], 'a').write({chr(10).join(lines)!r})"
    done = run(source)
    assert done.stdout.count("note: lines of $TRAIN_METRICS that are not JSON objects are skipped") == 1
    assert (latest() / "metrics.csv").read_text() == "step,epoch,lr,loss\n10,2,,0.5\n11,2,,nan\n12,2,0.1,\n"


PRINTS = r"""
import sys
print("compiling the model... (takes a ~minute)")
for i in range(3):
    print(f"iter {i}: loss {2.5 / (i + 1):.4f}, time 3ms, mfu 1,000.5%")
    print(f"\rbar {i} \x1b[1mval loss 0.{9 - i}\x1b[0m", end="", file=sys.stderr)
"""


LOSS_ALONE = """
import sys, time
print("val loss 0.9", file=sys.stderr, flush=True)
time.sleep(0.5)
"""


def test_printed_lines(run: Run, tmp_path: Path, latest: Latest) -> None:
    """Both streams are read, with progress bars and colors. `__` in a name is a slash."""
    pattern = r"program.metrics=iter (?P<step>\d+): loss (?P<loss>[0-9.]+),|bar (?P<epoch>\d+) val loss (?P<val__loss>[0-9.]+)"
    done = run(PRINTS, pattern)
    assert done.returncode == 0, done.stderr
    found = curves(latest() / "metrics.csv")
    assert [v for _, v in found["loss"]] == [2.5, 1.25, 0.8333]
    assert [v for _, v in found["val/loss"]] == [0.9, 0.8, 0.7]
    assert "iter 2: loss" in done.stdout and "Next:" not in done.stdout
    suggested = r"'program.metrics=iter (?P<step>\d+).*loss (?P<loss>\S+)'"
    for source in (PRINTS, f"{LOSS_ALONE}\n{PRINTS}"):
        assert suggested in run(source).stdout


@pytest.mark.parametrize("framework", ["lightning", pytest.param("keras", marks=pytest.mark.slow)])
def test_event_files(run: Run, tmp_path: Path, latest: Latest, framework: str) -> None:
    """The event files are torch's, and Keras' in subfolders."""
    torch = (
        "import os; from torch.utils.tensorboard import SummaryWriter\nw = SummaryWriter(os.environ['TRAIN_TENSORBOARD'])\n"
        "for s in range(3):\n    w.add_scalar('val/loss', 1.5 - s, s); w.add_scalar('train/loss', 2 * s, s)\n"
        "w.add_text('t', 'x')\nw.close()"
    )
    keras = (
        "import os, tensorflow as tf\n"
        "w = tf.summary.create_file_writer(os.environ['TRAIN_TENSORBOARD'] + '/validation')\n"
        "with w.as_default():\n    for s in range(3): tf.summary.scalar('loss', 1.5 - s, step=s)\nw.close()"
    )
    done = run(
        {"lightning": torch, "keras": keras}[framework] + "\nimport time; time.sleep(1)",
        "monitor.sample_seconds=0.1",
    )
    assert done.returncode == 0, done.stderr
    found = curves(latest() / "metrics.csv")
    assert found["val/loss"] == [(0, 1.5), (1, 0.5), (2, -0.5)]
    assert not [name for name in found if "node/" in name]  # the node's samples are not metrics
    if framework == "lightning":
        assert found["train/loss"] == [(0, 0), (1, 2), (2, 4)]


CONTINUES = """
import os, sys
from pathlib import Path
from train_anywhere.program import log
file = Path(os.environ["TRAIN_PERSISTENT_CHECKPOINTS"], "step")
start = int(file.read_text()) if file.exists() else 0
for step in range(start + 1, 9):
    log(step, loss=start + step)
    if step == 4 and not start:
        file.write_text("4")
    if step == 6 and not start:
        sys.exit(1)
"""


def test_a_resumed_run_has_one_curve(run: Run, tmp_path: Path, latest: Latest) -> None:
    assert run(CONTINUES).returncode == 1
    folder = latest()
    assert info(folder)["attempts"][0]["step"] == 6
    assert run(CONTINUES, f"resume={folder}").returncode == 0
    expected = [(s, s if s < 5 else 4 + s) for s in range(1, 9)]
    assert curves(folder / "metrics.csv")["loss"] == expected
    _, second = info(folder)["attempts"]
    assert (second["from_step"], second["step"]) == (4, 8)


NAN = """
import time
from train_anywhere.program import log
log(1, loss=0.5)
log(2, loss=float("nan"))
{end}
"""


def test_a_loss_of_nan(run: Run, tmp_path: Path, latest: Latest) -> None:
    """Reported, as exit code 3, or the end of the program."""
    done = run(NAN.format(end=""))
    assert done.returncode == 3 and "loss is nan at step 2" in done.stderr
    assert info(latest())["state"] == "completed"
    done = run(NAN.format(end="time.sleep(100)"), "trainer.detect_nan=stop")
    assert done.returncode == 1 and "trainer.detect_nan=stop" in done.stderr
    assert info(latest())["state"] == "failed"
    assert run(NAN.format(end=""), "trainer.detect_nan=off").returncode == 0


def test_log_does_nothing_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from train_anywhere.program import log

    monkeypatch.delenv("TRAIN_METRICS", raising=False)
    log(1, loss=0.5)
    file = tmp_path / "x"
    monkeypatch.setenv("TRAIN_METRICS", str(file))
    monkeypatch.setenv("RANK", "1")
    log(1, loss=0.5)
    assert not file.exists()
    monkeypatch.setenv("RANK", "0")
    log(1, loss=0.5)
    assert json.loads(file.read_text()) == {"step": 1, "loss": 0.5}
    assert os.environ["RANK"] == "0"


LEARNS = """
import sys
from train_anywhere.program import log
lr = float(sys.argv[sys.argv.index("--lr") + 1])
if lr == 0.3:
    sys.exit(4)
for step in range(1, 4):
    log(step, loss=abs(lr - 0.05) / step)
print("arguments", sys.argv[1:])
"""


def test_a_sweep_runs_one_after_the_other(run, tmp_path, latest, capsys):
    words, arguments = (
        ("-m", "args.lr=0.1,0.3,1e-2", "args.name='a b'"),
        ("--lr", "{args.lr}", "{args.name}{x}"),
    )
    done = run(LEARNS, *words, arguments=arguments)
    assert done.returncode == 4
    assert "arguments ['--lr', '0.01', 'a b{x}']" in done.stdout
    assert "run                " in done.stdout and "lr=0.3" in done.stdout and "lr=0.01" in done.stdout
    sweep = latest().name.rpartition("-")[0]
    best = shows("best", sweep, tmp_path=tmp_path, capsys=capsys)
    assert "loss 0.0133" in best and "src/run.py" in best and "args.lr=0.01" in best and "-- " in best
    report = latest().parent / sweep / "report.html"
    assert "lr" in report.read_text()


def test_a_search_uses_the_metrics(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = (
        "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "args.lr=interval(0.01,0.1)", "checkpoint.monitor=loss",
    )  # fmt: skip
    done = run(LEARNS, *words, arguments=("--lr", "{args.lr}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Best:          loss " in done.stdout and len([*(tmp_path / "results" / "mine").glob("*-?")]) >= 3
    done = run(
        LEARNS, "-m", "hydra/sweeper=optuna", "args.lr=interval(0.01,0.1)", arguments=("--lr", "{args.lr}")
    )
    assert done.returncode == 2 and "add checkpoint.monitor=NAME" in done.stderr
