"""Inference with a user's model has all of a native run, or one message."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from train_anywhere.inference import load_model
from train_anywhere.runs.folder import RunDir

from .conftest import SHORT, Evaluate, Trained, train_a_run

ROWS, KERAS, STRANGERS = (
    "engine.tests.training.lightning.strangers", "engine.tests.training.keras.strangers", "engine.tests.inference.torch_strangers",
)  # fmt: skip
COMMON = ("data.batch_size=10", *SHORT[2:])
LIGHTNING = (f"data._target_={ROWS}.rows", "checkpoint.monitor=val_loss", *COMMON)
WORDS = {
    "lightning": (f"task._target_={STRANGERS}.Answering", *LIGHTNING),
    "silent": (f"task._target_={STRANGERS}.NeverCalled", *LIGHTNING),
    "keras": (
        "framework=keras",
        f"task._target_={KERAS}.OwnStep",
        f"data._target_={KERAS}.open_rows",
        "checkpoint.monitor=val/loss",
        *COMMON,
    ),
}
BOTH = pytest.mark.parametrize("framework", ["lightning", "keras"])
STILL = ("optimizer=sgd", "optimizer.lr=1e-30", "trainer.max_steps=1", "seed=9")
Strange = dict[str, RunDir]


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Strange:
    folder = tmp_path_factory.mktemp("strange")
    return {name: train_a_run(folder, *words) for name, words in WORDS.items()}


def inputs(framework: str, count: int = 3) -> np.ndarray:
    if framework == "keras":
        from engine.tests.training.keras.strangers import open_rows

        return np.stack([open_rows()["test"][n][0] for n in range(count)]).astype(np.float32)
    from engine.tests.training.lightning.strangers import rows

    return np.stack([np.asarray(rows()["test"][n]["x"]) for n in range(count)])


def answers(framework: str, run: RunDir, count: int = 3) -> np.ndarray:
    model, x = load_model(run.path), inputs(framework, count)
    if framework == "keras":
        return np.asarray(model(x))
    import torch

    assert not model.training
    with torch.no_grad():
        return model(torch.from_numpy(x)).numpy()


@BOTH
def test_measured_and_predicted(framework, strange, evaluated, tmp_path) -> None:
    run, file = strange[framework], tmp_path / "answers.npz"
    code, said, error = evaluated(run.path, "--predict", file)
    assert code == 0, error
    metrics = json.loads(said[: said.index("\n}") + 2])["metrics"]
    assert metrics and metrics.items() <= run.read_info()["metrics"].items()
    with np.load(file) as arrays:
        assert np.allclose(arrays["predictions"][:3], answers(framework, run), atol=1e-6)


@pytest.mark.slow
def test_keras_opens_it_where_it_can_be_made_again(strange, trained, evaluated, tmp_path) -> None:
    """Keras passes every layer's arguments, such as its name. Other models are refused."""
    import keras

    from engine.tests.inference.tf_strangers import Reopened

    code, _, error = evaluated(strange["keras"].path, "--export", "keras", "--to", tmp_path / "no.keras")
    assert code == 2 and not (tmp_path / "no.keras").exists()
    assert re.search("can't be written so: .*use --export savedmodel", error.replace("\n", " ")), error
    words = [w for w in WORDS["keras"] if not w.startswith("task.")]
    run = trained("task._target_=engine.tests.inference.tf_strangers.Reopened", *words)
    assert evaluated(run.path, "--export", "keras", "--to", tmp_path / "model.keras")[0] == 0
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={"Reopened": Reopened})
    assert np.allclose(np.asarray(loaded(inputs("keras", 4))), answers("keras", run, 4), atol=1e-6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--predict {tmp}/a.npz", "NeverCalled has no predict_step, which a prediction needs"),
        ("--export torch.export", "the steps of this module do not call it, so its arguments are not known"),
        ("--export onnx", "the steps of this module do not call it"),
        ("--split train", r"NeverCalled has no step for --split train; use --split test or val"),
        ("--generate hi", "has no generate"),
    ],
)
@pytest.mark.quick(
    "--generate hi-has no generate",
    "--predict {tmp}/a.npz-NeverCalled has no predict_step, which a prediction needs",
)
def test_what_it_can_t_do_is_one_sentence(words, says, strange, evaluated, tmp_path) -> None:
    code, _, error = evaluated(strange["silent"].path, *words.format(tmp=tmp_path).split())
    assert code == 2
    assert error.startswith("error: ") and "Traceback" not in error
    assert re.search(says, error), error


TORCH_DATA = "engine.tests.training.lightning.data_strangers"
UNTESTED = {
    "val": ("task._target_=engine.tests.inference.torch_strangers.Answering", f"data._target_={ROWS}.untested", *LIGHTNING[1:]),
    "module": (f"task._target_={TORCH_DATA}.OwnValidation", *COMMON[1:]),
    "train": (f"task._target_={TORCH_DATA}.OnlyTrains", f"data._target_={TORCH_DATA}.only_train", *COMMON),
    "keras": (
        "framework=keras", f"task._target_={KERAS}.OwnStep", f"data._target_={KERAS}.untested",
        "checkpoint.monitor=val/loss", *COMMON,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNTESTED)
@pytest.mark.quick("train")
def test_no_test_split_is_needed(kind: str, trained: Trained, evaluated: Evaluate, tmp_path: Path) -> None:
    """Metrics and answers are those of the validation. A module that only trains can predict."""
    run = trained(*UNTESTED[kind])
    split = "train" if kind == "train" else "val"
    code, said, error = evaluated(run.path, "--predict", tmp_path / "answers.npz")
    assert (code, json.loads(said[: said.index("\n}") + 2])["split"]) == (0, split), error
    format = "savedmodel" if kind == "keras" else "torch.export"
    assert evaluated(run.path, "--export", format)[0] == 0
    assert (evaluated(run.path)[0] == 0) == (kind != "train")


OWN_FILES = "engine.tests.inference.own_files"
FROM_FILES = {
    "lightning": (f"task._target_={OWN_FILES}.FromFiles", f"data._target_={OWN_FILES}.Rows", *COMMON),
    "keras": ("framework=keras", f"task._target_={KERAS}.OwnStep", f"data._target_={OWN_FILES}.keras_rows", *COMMON),
}  # fmt: skip


@BOTH
def test_files_become_rows_as_the_data_says(framework: str, trained: Trained, tmp_path: Path) -> None:
    """A LightningModule answers by `predict_step`, after the hooks of its data module."""
    for name, number in (("a.txt", 1), ("b.txt", 2)):
        (tmp_path / name).write_text(" ".join([str(number)] * (4 if framework == "lightning" else 6)))
    model = load_model(trained(*FROM_FILES[framework]).path)
    found = model.predict([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert found.files == (str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    (outputs,) = found.outputs.values()
    if framework == "lightning":
        assert outputs.tolist() == [[8, -8], [16, -16]]
    else:
        rows = np.stack([np.full(6, number, np.float32) for number in (1, 2)])
        np.testing.assert_allclose(outputs, np.asarray(model(rows)), rtol=1e-5)


def test_data_without_rows_of_files_names_the_method(strange: Strange) -> None:
    from train_anywhere.errors import ConfigError

    with pytest.raises(ConfigError, match=r"give its data set, data module or model a method row_of\(item\)"):
        load_model(strange["lightning"].path).predict(["a.png"])
