"""The report of real runs: complete, self-contained, and of any run folder that there may be."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.testing.processes import run_python, wait_until
from train_anywhere import features
from train_anywhere.files import ROOT
from train_anywhere.monitor.report.figures import MOST_POINTS, Figure, describe, thin_out
from train_anywhere.monitor.report.page import page, period, provenance, set_keys, tiles
from train_anywhere.monitor.run_facts import Facts, read_facts
from train_anywhere.monitor.verdicts import goodput
from train_anywhere.runs.folder import RunDir, open_run

SMALL = ("model=mlp", "trainer.max_epochs=2", "trainer.log_every_n_steps=2", "trainer.accelerator=cpu")


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "train_anywhere", "report", *map(str, arguments))


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed once and went on."""
    results = tmp_path_factory.mktemp("results")
    options = (*SMALL, "checkpoint.every_n_steps=4", f"paths.results={results}")
    command = [sys.executable, str(ROOT / "src" / "train.py"), *options, "trainer.max_epochs=200"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    times = results / "latest" / "monitor" / "times.json"
    wait_until(lambda: times.exists() and json.loads(times.read_text())["seconds"]["step"] >= 2, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    run = (results / "latest").resolve()
    done = train(
        f"resume={run}", "trainer.max_epochs=2", "trainer.max_steps=null", f"paths.results={results}"
    )
    assert done.returncode == 0, done.stderr
    assert f"Report:        {run / 'report.html'}" in done.stdout
    return run


@pytest.mark.slow
def test_a_run_that_was_killed_and_went_on(trained: Path) -> None:
    text = (trained / "report.html").read_text()
    assert [v for v in re.findall(r'(?:src|href)="([^"]+)"', text) if not v.startswith(("#", "data:"))] == []
    headings = re.findall(r"<h[1-3]>([^<]+)", text)
    wanted = ["Attempts", "Curves", "This run", "Configuration: keys that were set"]
    assert [h for h in wanted if h not in headings] == []
    assert {"loss", "loss (logarithmic)"} & {*headings}
    assert "killed" in text and "completed" in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(svg)


def test_the_parts_are_the_whole(trained: Path) -> None:
    """Beside the figures by hand: from the first to the last time in run.json."""
    facts = read_facts(open_run(trained))
    found = goodput(facts.attempts)
    assert found is not None
    for attempt in facts.attempts:
        assert {"seconds", "until", "from_step", "step"} <= attempt.keys()
    assert sum(found.seconds.values()) == pytest.approx(found.whole)
    assert found.seconds["progress"] > 0
    assert found.seconds["unknown"] <= 2.0  # times in run.json are whole seconds


@pytest.mark.new_process
def test_the_command_writes_it_again(trained: Path) -> None:
    (trained / "report.html").unlink()
    done = report(trained)
    assert done.returncode == 0, done.stderr
    assert (trained / "report.html").is_file()


@pytest.mark.parametrize("damage", ["monitor", "metrics.csv", "checkpoints"])
def test_of_what_is_missing_nothing_is_said(trained: Path, damage: str) -> None:
    hidden = trained / f"{damage}.hidden"
    (trained / damage).rename(hidden)
    try:
        done = report(trained)
        assert done.returncode == 0, done.stderr
    finally:
        hidden.rename(trained / damage)


@pytest.mark.parametrize("what", ["nothing/here", "."])
def test_what_is_no_run_folder_is_one_sentence(what: str, tmp_path: Path) -> None:
    done = report(tmp_path / what)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no run is called ")
    assert "Traceback" not in done.stderr


def test_a_hostile_name_is_text(trained: Path) -> None:
    """A value of the configuration or a host's name is no HTML."""
    info = trained / "run.json"
    kept = info.read_text()
    info.write_text(kept.replace('"strategy": "single"', '"strategy": "<script>alert(1)</script>"'))
    done = report(trained)
    info.write_text(kept)
    assert done.returncode == 0
    assert "<script>" not in (trained / "report.html").read_text()


def test_a_day_is_named_once() -> None:
    times = {"started": "2026-11-26T05:21:10+00:00", "ended": "2026-11-26T05:26:10+00:00"}
    assert period(times) == "2026-11-26 05:21 to 05:26 UTC"


def test_tiles_have_what_was_measured(tmp_path: Path) -> None:
    """Neither training metrics nor a step that is not known, and several validation sets in their order."""
    sets = {f"val_loss/dataloader_idx_{n}": n for n in (1, 0)}
    info = {"state": "completed", "step": 1200, "metrics": {"train_loss": 1.0, "lr": 0.1, **sets}}
    facts = Facts(info=info, config={}, run=RunDir(tmp_path))
    assert [*tiles(facts, None)] == [
        "state",
        "step",
        "val_loss/dataloader_idx_0",
        "val_loss/dataloader_idx_1",
    ]
    assert tiles(facts, None)["step"] == "1,200"
    assert tiles(Facts(info={"state": "failed", "step": None}, config={}), None) == {"state": "failed"}


def test_ticks_of_a_flat_curve_differ() -> None:
    svg = Figure("lr", {"lr": [(1, 0.002), (60, 0.001998)]}, "step").svg
    ticks = re.findall(r'<text x="-5"[^>]*>([^<]+)', svg)
    assert len(ticks) == len({*ticks}) > 2


def test_a_logarithmic_axis_has_powers_of_ten() -> None:
    shown = Figure("perplexity", {"train": [(0, 200.0), (9, 4.0)]}, "optimizer step")
    assert shown.title == "perplexity (logarithmic)"
    assert re.findall(r'<text x="-5"[^>]*>([^<]+)', shown.svg) == ["1", "10", "100", "1000"]


def test_a_failed_run_shows_its_reason(tmp_path: Path) -> None:
    attempt = {"ended_by": "failed", "reason": "ValueError: <no rows>", "from_step": 0, "step": 4}
    facts = Facts({"state": "failed", "attempts": [attempt]}, {})
    assert "<li>Failed: ValueError: &lt;no rows&gt;</li>" in page(
        RunDir(tmp_path), facts, *features.describe(facts)
    )
    assert describe(attempt) == "steps 0 to 4: failed (ValueError: <no rows>)"
    assert describe({"from_step": 0, "step": 7, "ended_by": "SIGUSR1"}) == "steps 0 to 7: stopped by SIGUSR1"


def test_who_ended_a_run_early_and_notes_of_the_training_are_shown(tmp_path: Path) -> None:
    info = {
        "state": "completed",
        "ended_by": "EarlyStopping ended it",
        "notes": ["module.env changes <often>"],
    }
    html = page(RunDir(tmp_path), Facts(info, {}), *features.describe(Facts(info, {})))
    assert "<li>EarlyStopping ended it</li>" in html and "<li>module.env changes &lt;often&gt;</li>" in html


def test_long_curves_keep_their_end() -> None:
    points = [(float(i), float(i)) for i in range(10 * MOST_POINTS + 3)]
    assert len(thin_out(points)) <= MOST_POINTS
    assert thin_out(points)[-1] == points[-1]
    assert thin_out(points[:5]) == points[:5]


@pytest.mark.slow
def test_without_a_report(train: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    done = train(*SMALL, "trainer.max_epochs=1", "monitor.report=false", f"paths.results={tmp_path}")
    assert done.returncode == 0
    assert not (tmp_path / "latest" / "report.html").exists()


def test_a_note_and_the_hyperparameters_with_their_defaults(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.config.write_text(
        "note: the <new> loss\nname: a\nseed: 1\nframework: lightning\nmodel: {}\nstrategy: {}\ntrainer: {}\n"
        "task: {_target_: examples.lightning_module.LitDigits}\ndata: {url: 'https://me:secret@host/x'}\n"
        "optimizer: {lr: 0.01}\npaths: {results: /x}\n"
    )
    run.info_file.write_text('{"format": 2, "state": "completed", "monitor": "val/acc", "mode": "max"}')
    run.metrics_csv.write_text("step,epoch,val/acc\n10,1,0.75\n20,2,0.5\n")
    facts = read_facts(run)
    text = page(run, facts, *features.describe(facts))
    assert "<p><b>the &lt;new&gt; loss</b></p>" in text
    rows = dict(
        re.findall(r"<tr><td><code>([\w.]+)</code></td><td>(.*?)</td></tr>", text.replace("<wbr>", ""))
    )
    assert rows["task.hidden"] == "64" and rows["optimizer.lr"] == "0.01" and "secret" not in text
    assert "paths.results" not in rows
    assert "<b>0.75</b><span>best val/<wbr>acc, at step 10</span>" in text


def test_a_run_of_another_version_has_what_can_be_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    facts = Facts({"rows": {"training rows": "many", "test": 1200}, "parameters": "?", "model": "cnn"}, {})
    assert provenance(run, facts) == {"Model": "cnn", "Data": "1,200 test"}
    assert set_keys(run) == {}
    run.overrides.write_text("experiment=a b\n++trainer.extra={a: 1}\nwait=true\n")
    command = "python src/train.py 'experiment=a b' 'trainer.extra={a: 1}'"
    assert provenance(run, facts)["Command"] == command
