"""`make gpu-check` on a machine without a GPU: its message and its short form."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import page
from benchmarks.gpu.row import STRETCH, WARM, Clock, Row, difference, tried
from tools.testing.processes import run_python
from train_anywhere.files import ROOT


def check(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = os.environ | ({"PATH": path} if path is not None else {})
    return run_python("-m", "benchmarks.gpu", *words, cwd=ROOT / "engine", env=environ)


def test_without_a_gpu_it_says_what_to_type(tmp_path: Path) -> None:
    done = check(path=str(tmp_path))  # no nvidia-smi
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "nvidia-smi shows no GPU here; make gpu-check ARGS=--cpu" in done.stderr


def test_a_python_that_lacks_packages_is_told(tmp_path: Path) -> None:
    done = run_python("-S", "-m", "benchmarks.gpu", cwd=ROOT / "engine", env={"PYTHONPATH": ""})
    assert done.returncode == 1 and "lacks hydra-core" in done.stderr
    assert "pip install -r requirements/common.txt" in done.stderr


@pytest.mark.slow
@pytest.mark.alone  # on a busy machine its parts are given up after their few minutes
def test_the_short_form_writes_json(tmp_path: Path) -> None:
    done = check("--cpu", "--log", str(tmp_path / "log"), "--to", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["wrong"] == 0 and found["chip"] == "none (--cpu)" and len(found["rows"]) >= 5


def test_the_page_of_gpus_shows_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page.PAGE.read_text() == page.make_page()
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    result = {
        "chip": "A100",
        "date": "2026-01-01",
        "torch": "2.5",
        "wrong": 1,
        "rows": {"a kill": "other bits"},
    }
    (tmp_path / "a.json").write_text(json.dumps(result))
    text = page.make_page()
    assert "## A100\n" in text and "| a kill | other bits |" in text and "1 of 1 results are wrong" in text
    assert "Older than 90 days" in text and "another torch than this version installs, 2." in text


def test_a_difference_is_found() -> None:
    one = {"a": [np.zeros(2), {"b": np.ones(3)}], "n": 1}
    assert difference(one, {"a": [np.zeros(2), {"b": np.ones(3)}], "n": 1}) is None
    assert difference(one, {"a": [np.zeros(2), {"b": np.array([1.0, 1.0, 2.0])}], "n": 1}) == "/a/1/b"
    assert difference(one, {"a": [np.zeros(2), {"b": np.ones(4)}], "n": 1}) == "/a/1/b"
    assert difference(one, {"a": [np.zeros(2)], "n": 1}) == "/a: another number"
    assert difference(one, {"a": one["a"], "n": 2}) == "/n"
    assert difference(one, {"a": one["a"]}) == ": other names"


def test_an_error_is_a_row_that_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise RuntimeError("no\nsuch GPU")

    assert tried("it", fails) == Row("it", False, "RuntimeError: no such GPU")
    assert "Traceback" in capsys.readouterr().err
    assert tried("it", lambda: None).good


def test_the_first_steps_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = Clock()
    for step in range(WARM + 3 * STRETCH):
        now[0] += 100.0 if step < WARM else 0.5
        clock.step()
    assert clock.seconds() == pytest.approx(0.5)
