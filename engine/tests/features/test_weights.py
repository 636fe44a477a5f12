"""`cluster.cache`, `train_anywhere fetch`, and the message of a job that can't download a file."""

import os
import subprocess
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import run_python
from train_anywhere.commands.fetch import make_environment
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.features import Features, problems
from train_anywhere.files import ROOT
from train_anywhere.launch.failure import missing_file_error
from train_anywhere.runs.folder import RunDir

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
MODEL = ("model._target_=engine.tests.features.hub_model.pretrained", "model.from_data={outputs: outputs}")


def folders(cache: str) -> dict[str, str]:
    return {"HF_HOME": f"{cache}/huggingface", "TORCH_HOME": f"{cache}/torch", "KERAS_HOME": f"{cache}/keras"}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {}),
        (["cluster.cache=/c"], folders("/c")),
        (["cluster=slurm"], {}),
        (["cluster=slurm", "cluster.site.internet=false"], {}),
        (["cluster=narval", "cluster.cache=null"], {}),
        (["cluster=narval"], folders(str(ROOT / "data/cache")) | OFFLINE),
        (["cluster=slurm", "cluster.cache=/c"], folders("/c")),
    ],
)
def test_variables_of_a_job(make_config: Any, overrides: list[str], expected: dict[str, str]) -> None:
    variables = Features.of(make_config(*overrides)).variables
    assert {name: value for name, value in variables.items() if not name.startswith("TRAIN_")} == expected


def test_a_cache_on_the_node_is_refused(make_config: Any) -> None:
    config = make_config("cluster=slurm", "cluster.cache=$SLURM_TMPDIR/cache")
    assert any("fills the cache on the login node" in problem for problem in problems(config, "any"))


def test_a_cache_that_is_a_file_is_refused(make_config: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = make_config("cluster=slurm", f"cluster.cache={tmp_path}/file")
    assert any("file is not a folder" in problem for problem in problems(config, "any"))
    refused = run("fetch", f"cluster.cache={tmp_path}/file")
    assert refused.returncode == 2 and refused.stderr.count("error: ") == 1, refused.stderr
    assert f"{tmp_path}/file" in refused.stderr and "Traceback" not in refused.stderr + refused.stdout


def test_fetching_keeps_the_login_at_the_hub(make_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_HOME", "KERAS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", "/own")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
    environ = make_environment(make_config("cluster=narval", "cluster.cache=/c"))
    assert environ["HF_TOKEN_PATH"] == "/own/token"
    assert (environ["HF_HOME"], environ["TORCH_HOME"]) == ("/own", "/c/torch")
    assert not OFFLINE.keys() & environ.keys()


def run(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    return run_python("-m", "train_anywhere", *words, env=environment)


def test_a_job_without_network_runs_after_a_fetch(train: Any, tmp_path: Path) -> None:
    import torch

    hub, gone = tmp_path / "hub", tmp_path / "gone"
    hub.mkdir()
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    torch.save(network.state_dict(), hub / "weights.pt")
    words = (
        *MODEL,
        f"cluster.cache={tmp_path / 'cache'}",
        "trainer.max_steps=1",
        f"paths.results={tmp_path / 'r'}",
    )
    offline = {"HUB": str(gone), "HF_HUB_OFFLINE": "1"}  # a network that refuses
    refused = train(*words, env=offline)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "Type on a login node, which has internet: python -m train_anywhere fetch" in refused.stderr
    assert "model._target_=engine.tests.features.hub_model.pretrained" in refused.stderr
    assert run("fetch", *words, HUB=str(gone)).returncode == 2
    fetched = run("fetch", *words, HUB=str(hub))
    assert fetched.returncode == 0, fetched.stderr
    assert [p.name for p in (tmp_path / "cache").rglob("*.pt")] == ["weights.pt"]
    done = train(*words, env=offline)
    assert done.returncode == 0, done.stderr


def test_fetch_refuses_bad_arguments() -> None:
    bad = run("fetch", "trainer.max_epoch=1")
    assert bad.returncode == 2 and "Did you mean" in bad.stderr
    flags = run("fetch", "-m", "seed=1,2")
    assert flags.returncode == 2 and "this command takes key=value of one run only" in flags.stderr


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def raised_in(module: str, error: BaseException) -> BaseException:
    """The error after a function of a module has raised it."""
    names: dict[str, Any] = {"__name__": module}
    exec("def load(error):\n    raise error", names)
    try:
        names["load"](error)
    except BaseException as raised:
        return raised
    raise AssertionError


def hub_error() -> BaseException:
    from huggingface_hub.errors import LocalEntryNotFoundError

    return LocalEntryNotFoundError("Cannot find the requested files in the disk cache")


@pytest.mark.parametrize(
    "error",
    [
        raised_in("torch.hub", urllib.error.URLError("Name or service not known")),
        raised_in("transformers.utils.hub", OSError("We couldn't connect to 'https://huggingface.co' to load the files")),
        hub_error,
        caused(ConfigError("model can't be made"), raised_in("timm.models", urllib.error.URLError("refused"))),
        raised_in("keras.src.utils.file_utils", Exception("URL fetch failure on https://storage.googleapis.com/w.h5: None")),
    ],
)  # fmt: skip
def test_downloads_that_fail_get_one_message(make_config: Any, tmp_path: Path, error: Any) -> None:
    error = error() if callable(error) else error
    config = make_config("cluster=narval", "cluster.account=def-x", "cluster.check=warn")
    message = missing_file_error(config, RunDir(tmp_path), error)
    assert isinstance(message, DataError) and "python -m train_anywhere fetch" in str(message)
    assert missing_file_error(make_config(), RunDir(tmp_path), error) is None  # this machine has internet


@pytest.mark.parametrize(
    "error",
    [
        *(ConnectionResetError("by peer"), RuntimeError("shape"), DataError("no file"), KeyboardInterrupt()),
        raised_in("src.callbacks", urllib.error.URLError("the server of a callback refused")),
        raised_in("keras.src.trainers", OSError("couldn't connect to server")),
    ],
)
def test_other_errors_stay(make_config: Any, tmp_path: Path, error: BaseException) -> None:
    config = make_config("cluster=narval", "cluster.account=def-x", "cluster.check=warn")
    assert missing_file_error(config, RunDir(tmp_path), error) is None
