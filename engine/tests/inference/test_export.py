"""An export is read by the plain framework and answers as the model does."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.data.digits import open_digits
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.inference import load_model
from train_anywhere.runs.folder import RunDir

from .conftest import Evaluate

Runs = dict[str, RunDir]


def images(count: int = 3) -> np.ndarray:
    return open_digits().test.read(np.arange(count), 0, False)[0]


def torch_images() -> Any:
    import torch

    return torch.from_numpy(images()).permute(0, 3, 1, 2)


def test_torch_opens_what_lightning_wrote(runs: Runs, evaluated: Evaluate, tmp_path: Path) -> None:
    import torch

    model = load_model(runs["lightning"].path)
    assert isinstance(model.network, torch.nn.Module) and not model.training
    for file in (tmp_path / "weights.pt", tmp_path / "model.pt2"):
        format = {".pt": "torch", ".pt2": "torch.export"}[file.suffix]
        code, _, error = evaluated(runs["lightning"].path, "--export", format, "--to", file)
        assert code == 0, error
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    x = torch_images()
    with torch.no_grad():
        answer = torch.export.load(tmp_path / "model.pt2").module()(
            x
        )  # of another number of rows than the example
        assert torch.allclose(answer, model(x), atol=1e-6)
    code, _, error = evaluated(runs["lightning"].path, "--export", "torch", "--to", tmp_path / "weights.pt")
    assert code == 2 and "is not overwritten" in error


@pytest.mark.slow
def test_onnxruntime_answers_as_the_model_does(runs: Runs, evaluated: Evaluate, tmp_path: Path) -> None:
    import onnxruntime

    file = tmp_path / "model.onnx"
    code, _, error = evaluated(runs["lightning"].path, "--export", "onnx", "--to", file)
    assert code == 0, error
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]  # with its weights
    session = onnxruntime.InferenceSession(file)
    x = torch_images()  # of another number of rows than the example
    (answer,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert np.allclose(answer, load_model(runs["lightning"].path)(x).detach(), atol=1e-6)


def test_onnx_says_what_to_install(runs: Runs, evaluated: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not there
    code, _, error = evaluated(runs["lightning"].path, "--export", "onnx")
    assert code == 2
    assert "--export onnx needs onnxscript: pip install onnxscript" in error


@pytest.mark.parametrize(
    ("framework", "format"), [("lightning", "torch"), ("lightning", "torch.export"), ("keras", "savedmodel")]
)
def test_exports_and_calls_need_no_data(framework, format, runs, evaluated, tmp_path, monkeypatch) -> None:
    rows = images() if framework == "keras" else torch_images()
    expected = load_model(runs[framework].path)(rows)
    monkeypatch.setattr("src.data.digits.FILE", tmp_path / "gone.npz")
    assert (load_model(runs[framework].path)(rows) == expected).numpy().all()
    code, _, error = evaluated(runs[framework].path, "--export", format, "--to", tmp_path / "model")
    assert code == 0 and (tmp_path / "model").exists(), error
    code, _, error = evaluated(runs[framework].path)
    assert code != 0 and "gone.npz" in error
    with pytest.raises(ConfigError, match=r"can't be opened here: .*gone\.npz"):
        load_model(runs[framework].path).predict(np.zeros((1, 8, 8)))


def test_load_model_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run folder"):
        load_model(tmp_path)
