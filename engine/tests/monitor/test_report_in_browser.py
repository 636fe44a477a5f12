"""The pages of a run and of a sweep in a real browser: they fit any screen, their axes can be read, and a click sorts."""

from pathlib import Path

import pytest

from engine.tests.browser import ask
from train_anywhere.files.atomic import dumps
from train_anywhere.monitor.report.page import write_report
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.status.find_runs import find
from train_anywhere.slurm.status.sweep_page import write_sweep

SWEEP = "20261123-154227-81a6"
PHONE, SCREEN = 375, 1280

FITS = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"

SMALLEST_TEXT = """
const svg = [...document.querySelectorAll("svg")];
const size = (text) => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a;
return Math.min(...svg.flatMap((one) => [...one.querySelectorAll(".axis text")].map(size)));
"""

OVERLAPS = """
const overlapping = [];
for (const axis of document.querySelectorAll("svg .axis")) {
  const labels = [...axis.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
  for (const one of labels) for (const other of labels)
    if (one !== other && one.left < other.right && other.left < one.right && one.top < other.bottom - 2 && other.top < one.bottom - 2)
      overlapping.push(one.left);
}
return overlapping.length;
"""

SORTED = """
const head = [...document.querySelectorAll("th")].find((one) => one.textContent === "NAME");
for (let n = 0; n < CLICKS; n++) head.click();
const rows = [...document.querySelectorAll(".compare tr")].slice(1);
return [head.ariaSort, rows.map((row) => row.cells[head.cellIndex].textContent)];
"""


ONE_LINE = """
const state = document.querySelector(".tiles b");
return state.offsetHeight < 1.6 * parseFloat(getComputedStyle(state).fontSize);
"""


def click(name: str, clicks: int = 1) -> str:
    return SORTED.replace("NAME", name).replace("CLICKS", str(clicks))


def make_sweep(results: Path, members: int) -> Path:
    """Write a sweep over two keys, with a curve for each member, and return its page."""
    for number in range(members):
        run = results / "digits" / f"{SWEEP}-{number}"
        (run / "checkpoints").mkdir(parents=True)
        (run / "config.yaml").write_text("checkpoint: {monitor: val/acc, mode: max}\n")
        rate, sizes = f"{10 ** -(number % 5)}", ["medium-sized", "small", "large"]
        words = f"optimizer.lr={rate}\nmodel.a_long_name_of_an_argument={sizes[number % 3]}\n"
        (run / "overrides.txt").write_text(words)
        metrics = {"val/acc": (number * 7 % members) / members, "val/loss": 1.0, "test/f1": 0.5}
        info = {"format": 2, "state": "completed", "step": 900 + number % 2 * 200, "metrics": metrics}
        (run / "run.json").write_text(dumps({**info, "monitor": "val/acc", "mode": "max"}))
        rows = "".join(f"{step},1,{step / 200_000}\n" for step in (25_000, 125_000))
        (run / "metrics.csv").write_text(f"step,epoch,val/acc\n{rows}")
    (results / "digits" / SWEEP).mkdir()
    return write_sweep([run for n in range(members) for run in find(f"{SWEEP}-{n}", results)])


@pytest.mark.parametrize("members", [1, 7, 40, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_page_of_a_sweep(tmp_path: Path, members: int) -> None:
    page = make_sweep(tmp_path, members).relative_to(tmp_path).as_posix()
    questions = [
        (page, width, asked) for width in (PHONE, SCREEN) for asked in (FITS, OVERLAPS, SMALLEST_TEXT)
    ]
    clicks = [("val/acc", 1), ("val/acc", 2), ("optimizer.lr", 1), ("progress", 1), ("run", 2)]
    clicks = [one for one in clicks if members > 1 or one[0] != "optimizer.lr"]
    *layout, up, down, rates, progress, runs = [
        *ask(tmp_path, [*questions, *((page, SCREEN, click(*one)) for one in clicks)]),
        *([] if members > 1 else [None]),
    ]
    assert layout[0:2] == layout[3:5] == [0, 0]
    assert min(layout[2], layout[5]) >= 9
    assert up == ["ascending", sorted(up[1], key=float)] and len(up[1]) == members
    assert down == ["descending", up[1][::-1]]
    if members > 1:
        assert rates[1] == sorted(rates[1], key=float) and runs[1] == [str(n) for n in range(members)][::-1]
        steps = [int(text.rpartition(" ")[2]) for text in progress[1]]
        assert steps == sorted(steps)


def test_the_report_of_a_run(tmp_path: Path) -> None:
    make_sweep(tmp_path, 1)
    run = tmp_path / "digits" / f"{SWEEP}-0"
    note = "a note of one's own " * 9 + "/a/path/that/is/long" * 9
    (run / "config.yaml").write_text(f"checkpoint: {{monitor: val/acc, mode: max}}\nnote: {note!r}\n")
    write_report(RunDir(run), lambda facts: (["a finding " + "x" * 300], {"Row": "y" * 200}))
    page = (run / "report.html").relative_to(tmp_path).as_posix()
    asked = [(page, width, one) for width in (PHONE, SCREEN) for one in (FITS, OVERLAPS)]
    assert ask(tmp_path, asked) == [0, 0, 0, 0]


def test_the_state_of_a_run_is_not_broken(tmp_path: Path) -> None:
    make_sweep(tmp_path, 1)
    run = tmp_path / "digits" / f"{SWEEP}-0"
    info = {"format": 2, "state": "interrupted", "metrics": {f"val/m{n}": 0.5 for n in range(12)}}
    (run / "run.json").write_text(dumps(info))
    write_report(RunDir(run), lambda facts: ([], {}))
    page = (run / "report.html").relative_to(tmp_path).as_posix()
    assert all(ask(tmp_path, [(page, width, ONE_LINE) for width in (PHONE, 730, 853, 1181, SCREEN)]))
