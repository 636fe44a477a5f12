"""Metrics, answers and files of `src/evaluate.py`, for runs of both frameworks."""

import csv
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from src.data.digits import open_digits
from tools.testing.frameworks import FIRST
from tools.testing.processes import run_python
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.lock import RunLock
from train_anywhere.testing.plugin import FRAMEWORKS

from .conftest import SHORT, Evaluate, Trained, train_a_run

BOTH = pytest.mark.parametrize("framework", ["lightning", "keras"])
Runs = dict[str, RunDir]


def metrics_of(said: str) -> dict[str, float]:
    return dict(json.loads(said[: said.index("\n}") + 2])["metrics"])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@BOTH
@pytest.mark.slow
def test_the_metrics_are_those_of_the_run_itself(framework: str, runs: Runs, evaluated: Evaluate) -> None:
    run = runs[framework]
    known = run.read_info()["metrics"]
    for split in ("test", "val"):
        code, said, _ = evaluated(run.path, "--split", split)
        assert code == 0
        assert metrics_of(said) == {k: v for k, v in known.items() if k.startswith(split)}
    written = json.loads((run.path / "evaluations" / "test-00000026.json").read_text())
    assert (written["step"], written["metrics"]["test/acc"]) == (26, known["test/acc"])


@BOTH
@pytest.mark.quick("lightning")
def test_the_answers_are_those_of_the_rows(framework, runs, evaluated, tmp_path) -> None:
    """The share of right answers in the file is the metric, without rows of padding."""
    files = [tmp_path / "answers.npz", tmp_path / "answers.csv"]
    for file in files:
        code, said, error = evaluated(runs[framework].path, "--predict", file)
        assert code == 0, error
    labels = open_digits().test.labels
    with np.load(files[0]) as arrays:
        answers = arrays["predictions"]
    assert answers.shape == (len(labels), 10)
    assert np.mean(answers.argmax(1) == labels) == pytest.approx(metrics_of(said)["test/acc"])
    with open(files[1], newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert np.array_equal(np.array(rows, np.float32)[:, 1:], answers)


@BOTH
@pytest.mark.quick("lightning")
def test_predictions_of_pictures_name_files_and_classes(framework, trained, evaluated, tmp_path) -> None:
    for name in ("train/ant/a.png", "train/bee/b.png", "val/bee/x/\udce9.png", "val/ant/d.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (20, 20), 200 * ("bee" in name)).save(tmp_path / name)
    data = ("data=imagefolder", f"data.dir={tmp_path}", "data.image_size=16", "data.workers=0")
    run = trained(f"framework={framework}", *SHORT, *data, "data.batch_size=2", "trainer.max_epochs=1")
    files = [tmp_path / "answers.csv", tmp_path / "answers.npz"]
    for file in files:
        assert evaluated(run.path, "--predict", file)[0] == 0
    with open(files[0], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == ["row", "file", "predictions_ant", "predictions_bee", "predictions_class"]
    assert [row["file"] for row in rows] == ["val/ant/d.png", "val/bee/x/\\xe9.png"]
    for row in rows:
        ant = float(row["predictions_ant"]) > float(row["predictions_bee"])
        assert row["predictions_class"] == ("ant" if ant else "bee")
    with np.load(files[1]) as arrays:
        assert arrays["files"].tolist() == [row["file"] for row in rows]
        assert arrays["class_names"].tolist() == ["ant", "bee"]


def test_nothing_is_overwritten_and_the_run_stays_as_it_is(runs, evaluated, tmp_path) -> None:
    run, mine = runs["lightning"], tmp_path / "mine.npz"
    mine.write_text("mine")
    evaluated(run.path)
    before = contents(run.path)
    assert evaluated(run.path)[0] == 0
    assert evaluated(run.path, "--predict", mine)[0] == 2
    assert contents(run.path) == before
    code, said, _ = evaluated(run.path, "trainer.limit_test_batches=2")
    assert code == 0 and said.rstrip().endswith("test-00000026-2.json")
    assert contents(run.path).items() >= before.items()
    assert mine.read_text() == "mine"


@BOTH
@pytest.mark.quick("lightning")
def test_the_training_split_is_measured_in_order(framework, runs, evaluated, tmp_path) -> None:
    code, said, _ = evaluated(runs[framework].path, "--split", "train", "--predict", tmp_path / "a.npz")
    labels = open_digits().train.labels
    with np.load(tmp_path / "a.npz") as arrays:
        right = np.mean(arrays["predictions"].argmax(1) == labels)
    assert code == 0
    assert metrics_of(said)["train/acc"] == pytest.approx(right)


def test_a_run_that_trains_is_read_and_not_locked(runs: Runs, evaluated: Evaluate, tmp_path: Path) -> None:
    """Its newest checkpoint is half-written: the one before is used."""
    folder = tmp_path / "digits" / runs["lightning"].id
    shutil.copytree(runs["lightning"].path, folder)
    (folder / "checkpoints" / "00000026" / "model.ckpt").write_bytes(b"no")
    run = RunDir(folder)
    with RunLock(run):
        before = contents(folder / "checkpoints")
        code, said, _ = evaluated(folder, "--checkpoint", "newest")
        assert (code, json.loads(said[: said.index("\n}") + 2])["checkpoint"][-8:]) == (0, "00000013")
        assert evaluated(folder, "--checkpoint", "26")[0] == 2
        assert contents(folder / "checkpoints") == before


def test_code_of_a_foreign_run_folder_is_not_run(runs: Runs, evaluated: Evaluate, tmp_path: Path) -> None:
    folder = tmp_path / "digits" / "foreign"
    shutil.copytree(runs["lightning"].path, folder)
    config = folder / "config.yaml"
    text = config.read_text()
    config.write_text(re.sub(r"src\.models\.lightning\.mlp\.\w+", f"{__name__}.never_called", text))
    assert "never_called" in config.read_text()
    code, _, error = evaluated(folder)
    assert code == 2
    assert "never_called" in error and "trust=true" in error


def never_called(*arguments: object, **named: object) -> None:
    raise AssertionError("code of the run folder was run")


REFUSED = {
    "--export savedmodel": "framework=lightning; use one of torch, safetensors, peft, torch.export, onnx",
    "--generate hi": "task=classification has no generate",
    "--checkpoint 5": "has no checkpoint of step 5; it has 13, 26",
    "--predict a.json": r"must end in .npz or .csv",
    "--predict nowhere/a.csv": "nowhere is not a folder",
    "model.hidden=[9]": r"model.hidden=\[9\] can't be changed",
    "--to a.pt": "--to names the file of an export",
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.new_process
def test_refusals(words: str, runs: Runs, evaluated: Evaluate) -> None:
    code, _, error = evaluated(runs["lightning"].path, *words.split())
    assert code == 2
    assert re.search(REFUSED[words], error), error


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_a_run_of_two_ranks(strategy: str, train, evaluated: Evaluate, tmp_path: Path) -> None:
    """Shards are gathered in one process. Sums of two ranks differ in their last bits."""
    done = train(*SHORT, f"strategy={strategy}", "trainer.devices=2", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    run = RunDir((tmp_path / "latest").resolve())
    code, said, error = evaluated(run.path)
    known = {k: v for k, v in run.read_info()["metrics"].items() if k.startswith("test")}
    assert (code, error) == (0, "")
    assert metrics_of(said) == pytest.approx(known, rel=1e-6)
    begun = train_a_run(tmp_path / "begun", *SHORT, f"init={run.path}", "optimizer.lr=1e-9")
    assert evaluated(begun.path)[1]


def test_a_text_is_continued(trained: Trained, evaluated: Evaluate) -> None:
    speakers = "engine.tests.inference.torch_speakers"
    run = trained(
        f"task._target_={speakers}.Speaker",
        f"data._target_={speakers}.open_letters",
        "data.batch_size=96",
        *SHORT[1:],
        "model=mlp",
        "trainer.max_epochs=1",
    )
    words = ("--generate", "xy", "--tokens", 3, "--temperature", 0.5, "--seed", 3)
    assert evaluated(run.path, *words) == (0, "xyzab\n", "")


NETS = {
    "lightning": (
        "import os\nfrom torch import nn\n\nclass Net(nn.Sequential):\n"
        "    def forward(self, x):\n        {}\n        return super().forward(x)\n\n"
        "def make():\n    return Net(nn.Flatten(), nn.Linear(64, 10))\n"
    ),
    "keras": (
        "import os\nimport keras\n\nclass Net(keras.Sequential):\n"
        "    def call(self, x, **more):\n        {}\n        return super().call(x, **more)\n\n"
        "def make():\n    return Net([keras.layers.Flatten(), keras.layers.Dense(10)])\n"
    ),
}
BREAK = "if 'BREAK' in os.environ: raise LookupError('no such row')"


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.quick(FIRST)
def test_an_error_of_the_network_is_shown_at_its_line(framework, train, tmp_path) -> None:
    (tmp_path / "brought.py").write_text(NETS[framework].format(BREAK))
    words = (f"framework={framework}", "model._target_=brought.make", *SHORT[2:], "trainer.max_steps=1")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = train(*words, f"paths.results={tmp_path}/results", env=environ)
    assert done.returncode == 0, done.stderr
    latest = str(tmp_path / "results" / "latest")
    broken = run_python("src/evaluate.py", latest, env={**environ, "BREAK": "1"})
    assert broken.returncode == 1
    assert "LookupError" in broken.stderr and "no such row" in broken.stderr
    files = re.findall('File "(.*?)", line', broken.stderr)
    assert f"{tmp_path}/brought.py" in files and not any("/train_anywhere/" in file for file in files)
    [whole] = re.findall(r"left out; the whole traceback: (.*)\)$", broken.stderr, re.MULTILINE)
    assert "/train_anywhere/" in Path(whole).read_text()
