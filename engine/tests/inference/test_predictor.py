"""`load_model(RUN).predict`: new inputs get the run's preprocessing and class names."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.inference import load_model
from train_anywhere.inference.predictor import Predictions, Predictor
from train_anywhere.runs.folder import RunDir

from .conftest import train_a_run

COLORS = {"blue": (30, 30, 200), "green": (30, 200, 30), "red": (200, 30, 30)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three classes of pictures, which have their colors."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, color in COLORS.items():
        (folder / name).mkdir()
        for number in range(20):
            pixels = np.clip(np.array(color) + random.normal(0, 30, (40, 40, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def runs(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDir]:
    data = (
        "data=imagefolder", f"data.dir={pictures}", "data.val_fraction=0.2", "data.test_fraction=0.2", "data.image_size=16",
    )  # fmt: skip
    sizes = (
        "data.batch_size=12", "data.workers=0", "model=mlp", "model.hidden=[16]", "trainer.max_epochs=12",
    )  # fmt: skip
    return {
        framework: train_a_run(
            tmp_path_factory.mktemp(framework),
            f"framework={framework}",
            *data,
            *sizes,
            "monitor.progress=none",
        )
        for framework in ("lightning", "keras")
    }


@pytest.fixture
def model(runs: dict[str, RunDir], request: pytest.FixtureRequest) -> Predictor:
    return load_model(runs[request.param].path)


both = pytest.mark.parametrize("model", ["lightning", "keras"], indirect=True)


@both
def test_files_and_arrays(model: Predictor, pictures: Path) -> None:
    found = model.predict([pictures / "red/3.png", str(pictures / "blue/5.png")])
    assert found.labels == ["red", "blue"] and model.class_names == ("blue", "green", "red")
    assert found.probabilities.shape == (2, 3) and np.allclose(found.probabilities.sum(axis=1), 1)
    assert found.table().splitlines()[0] == "file,label,probability"
    assert (
        found.table().splitlines()[1].startswith(f"{pictures}/red/3.png,red,0.")
        or ",1.000000" in found.table()
    )
    array = np.full((5, 60, 50, 3), COLORS["green"], dtype=np.uint8)
    assert model.predict(array).labels == ["green"] * 5
    assert model.predict(pictures / "green/1.png").labels == ["green"]


@both
def test_they_are_prepared_like_the_run(model: Predictor, pictures: Path, runs: dict[str, RunDir]) -> None:
    """The outputs for the files of the test split are those of `evaluate.py --predict`."""
    one, many = model.predict([pictures / "red/3.png"]), model.predict([pictures / "red/3.png"] * 30)
    (name, outputs), (_, repeated) = *one.outputs.items(), *many.outputs.items()
    assert name == "predictions" and np.allclose(repeated, outputs[0], atol=1e-5)


@both
def test_what_can_not_be_predicted(model: Predictor, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to predict"):
        model.predict([])
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(DataError, match=r"a\.png is not a picture that can be read"):
        model.predict([tmp_path / "a.png"])


def test_the_command_prints_or_writes_the_table(runs, pictures, evaluated, tmp_path) -> None:
    code, out, error = evaluated(runs["lightning"].path, "--predict-files", f"{pictures}/*/1.png")
    assert code == 0, error
    assert [line.split(",")[1] for line in out.splitlines()] == ["label", "blue", "green", "red"]
    table = tmp_path / "table.csv"
    code, out, error = evaluated(
        runs["lightning"].path, "--predict-files", f"{pictures}/red/*.png", "--output", table
    )
    assert code == 0 and len(table.read_text().splitlines()) == 21, error
    for words, says in (
        (("--predict-files", f"{pictures}/none/*.png"), "no file matches"),
        (("--predict-files", f"{pictures}/red/*.png", "--output", table), "not overwritten"),
        (("--output", tmp_path / "other.csv"), "--output keeps the table of --predict-files"),
    ):
        code, _, error = evaluated(runs["lightning"].path, *words)
        assert code == 2 and says in error


def test_a_folder_of_classes_is_split(pictures: Path) -> None:
    from src.data.imagefolder import open_imagefolder

    splits = open_imagefolder(str(pictures), 16, 3, 1, val_fraction=0.2, test_fraction=0.1)
    names = [set(part.row_names()) for part in (splits.train, splits.val, splits.test)]
    assert [*map(len, names)] == [42, 12, 6] and len(set.union(*names)) == 60
    assert [*map(len, names)] == [len(part) for part in (splits.train, splits.val, splits.test)]
    other_seed = open_imagefolder(str(pictures), 16, 3, 2, val_fraction=0.2, test_fraction=0.1)
    assert set(other_seed.val.row_names()) == names[1]
    with pytest.raises(DataError, match="use smaller fractions"):
        open_imagefolder(str(pictures), 16, 3, 1, val_fraction=0.6, test_fraction=0.4)


def test_outputs_that_are_probabilities_stay() -> None:
    shares = np.array([[0.9, 0.1], [0.2, 0.8]], dtype=np.float32)
    assert np.allclose(Predictions({"predictions": shares}).probabilities, shares)
    assert np.allclose(Predictions({"predictions": shares * 3}).probabilities.sum(axis=1), 1)


def test_a_user_s_model_gets_the_type_it_was_trained_with(make_config: Callable[..., Config]) -> None:
    got: list[np.ndarray] = []
    model = SimpleNamespace(network=None, facts={}, predict_arrays=lambda rows: got.append(rows) or rows)
    config = make_config("task._target_=examples.lightning_module.LitDigits")
    Predictor(model, config).predict(np.ones((2, 3)))
    assert got[0].dtype == np.float32
