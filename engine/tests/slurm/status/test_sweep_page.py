"""The page of a sweep, from the folders of its members."""

import re
from pathlib import Path

from engine.tests.slurm.status.test_page import RUNNING
from train_anywhere.files.atomic import dumps
from train_anywhere.monitor.report.figures import metric_over_key
from train_anywhere.slurm.status.find_runs import find
from train_anywhere.slurm.status.gather import gather
from train_anywhere.slurm.status.sweep_page import MOST_CURVES, comparison, write_sweep

SWEEP = "20260101-000000-aaaa"


def sweep(folder: Path, members: int) -> None:
    """Write a sweep as its submission and jobs do. The last member failed at its start."""
    base = folder / "digits" / SWEEP
    base.mkdir(parents=True)
    (base / "job.sbatch").touch()
    for number in range(members):
        run = base.with_name(f"{SWEEP}-{number}")
        run.mkdir()
        (run / "config.yaml").write_text("cluster: {scheduler: slurm}\n")
        (run / "overrides.txt").write_text(f"seed={number}\nmodel=<b>\n")
        failed = number == members - 1
        state = (
            {"state": "failed"}
            if failed
            else {"state": "completed", "step": 20, "metrics": {"val/loss": number / 8}}
        )
        (run / "run.json").write_text(dumps({"format": 2, **state}))
        if not failed:
            (run / "metrics.csv").write_text(f"step,epoch,val/loss,lr\n10,1,0.5,0.1\n20,2,{number / 8},0.1\n")


def test_a_row_for_each_member_and_a_curve_in_each_drawing(tmp_path: Path) -> None:
    sweep(tmp_path, 3)
    written = write_sweep(find(SWEEP, tmp_path))
    assert written == tmp_path / "digits" / SWEEP / "report.html"
    text = written.read_text()
    assert re.findall(r"<th>(.*?)</th>", text) == ["run", "seed", "val/<wbr>loss", "state", "progress"]
    cells = re.findall(r"<td>(.*?)</td>", text)
    assert cells[:5] == ["0", "0", "0", "completed", "epoch ?, step 20"]
    assert (cells[10:12], cells[13]) == (["2", "2"], "failed")
    assert text.count("<svg") == 1 and "<h3>val/loss" in text  # the learning rate is constant
    assert "0 seed=0</li>" in text and "1 seed=1</li>" in text and "2 seed=2" not in text
    assert "<b>" not in text
    assert "A sweep of 3 runs, 2 completed.</p>" in text  # no metric is monitored, so none is the best


def test_the_best_metric_is_drawn_over_each_key(tmp_path: Path) -> None:
    base = tmp_path / "digits" / SWEEP
    for number, (rate, model) in enumerate([("0.001", "mlp"), ("0.1", "mlp"), ("0.1", "cnn"), ("1", "cnn")]):
        run = base.with_name(f"{SWEEP}-{number}")
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("checkpoint: {monitor: val/acc, mode: max}\n")
        (run / "overrides.txt").write_text(f"optimizer.lr={rate}\nmodel={model}\n")
        info = {
            "state": "completed",
            "metrics": {"val/acc": number / 8, "lr": 0},
            "monitor": "val/acc",
            "mode": "max",
        }
        (run / "run.json").write_text(dumps({"format": 2, **info}))
        (run / "metrics.csv").write_text(f"step,epoch,val/acc\n10,1,{number / 8}\n")
    (base.parent / f"{SWEEP}").mkdir()
    members = [run for number in range(4) for run in find(f"{SWEEP}-{number}", tmp_path)]
    page = comparison("sweep", gather(members).reports)
    expected = ["run", "optimizer.lr", "model", "val/acc", "state", "progress"]
    assert page["header"] == expected  # the last lr is useless
    first, second = page["figures"][:2]
    assert (first.title, second.title) == ("val/acc over optimizer.lr", "val/acc over model")
    assert first.ticks == {0: "0.001", 1: "0.1", 2: "1"} and first.scattered
    assert second.below == "model" and second.ticks == {0: "cnn", 1: "mlp"}
    assert [[x for x, _ in one.curves[""]] for one in (first, second)] == [[0, 1, 1, 2], [1, 1, 0, 0]]
    assert first.curves["mean"] == [(0, 0), (1, 3 / 16), (2, 3 / 8)]
    assert first.svg.count("<circle") == 4 and "0.001" in first.svg


def test_a_large_sweep_keeps_a_drawing_that_can_be_read() -> None:
    many = comparison("sweep", [RUNNING] * (MOST_CURVES + 5))
    assert len(many["rows"]) == MOST_CURVES + 5
    assert many["figures"] == []  # nothing was measured


ODD = [
    [("0.1", 0.5), ("inf", 0.6), ("nan", 0.7), ("-inf", 0.8)],
    [("1e308", 0.5), ("-1e308", 0.6)],
    [("1e-320", 0.5), ("1", 0.6)],
    [("1e-3", 0.5), ("0.001", 0.6)],
    [("1", float("nan")), ("2", float("inf"))],
    [("1", 1e299), ("2", -1e299)],
    [("x" * 1000, 0.5), ("<b>", 0.6)],
    [("\u202eabc", 0.5), ("مرحبا", 0.6), ("a\nb\0", 0.7)],
    [(f"v{n}", n / 7) for n in range(1000)],
    [(str(n), n / 7) for n in range(1000)],
]
"""Values of a key with the metric of their runs."""


def test_a_page_of_odd_names(tmp_path: Path) -> None:
    sweep(tmp_path, 31)
    names = ("<script>alert(1)</script>", "\u202eevil", "مرحبا", "x" * 5000, "'\"&lt;", "a b=c", "日本🎉")
    for number in range(31):
        run = tmp_path / "digits" / f"{SWEEP}-{number}"
        keys = "".join(f"task.k{n}={number}\n" for n in range(number))
        (run / "overrides.txt").write_text(f"seed={number}\nname={names[number % len(names)]}\n{keys}")
    page = write_sweep(find(str(tmp_path / "digits" / SWEEP), tmp_path)).read_text()
    assert page.count("<script>") == 1 and "&lt;script&gt;alert(1)" in page
    assert page.count("<tr") == 32 and "مرحبا" in page


def test_values_are_labels_of_the_axis_if_there_is_room() -> None:
    near = metric_over_key("val/acc", "lr", [(f"{x / 100:g}", x / 10) for x in range(1, 10)])
    assert near and [*near.ticks.values()] == ["0.01", "0.03", "0.05", "0.07", "0.09"]
    for odd in ODD:
        drawn = metric_over_key("val/acc", "lr", odd)
        assert drawn is None or (not re.search(r'="[^"]*\b(nan|inf)\b', drawn.svg) and len(drawn.below) < 200)
    seeds = metric_over_key("val/acc", "seed", [("1", 0.5), ("2", 0.75)])
    assert seeds and [*seeds.ticks.values()] == ["1", "2"]
    long = metric_over_key("val/acc", "data.dir", [("/data/" + letter * 30, 0.5) for letter in "ab"])
    assert long and long.ticks == {} and long.below.startswith("data.dir: 0 /data/a")
