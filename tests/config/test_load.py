"""From Hydra's tree to the typed configuration and back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from src.config.compose import compose, groups
from src.config.load import as_tree, load
from src.config.schema import Config
from src.files import ROOT

MakeConfig = Callable[..., Config]
CHOICES = [
    f"{group}={choice}"
    for group in ("task", "data", "model", "optimizer", "schedule")
    for choice in groups()[group]
    if choice != "custom"
]


@pytest.mark.parametrize("choice", [*CHOICES, "cluster=alvis", "container=apptainer container.image=a.sif"])
def test_what_a_run_folder_holds_loads_as_the_same_configuration(choice: str) -> None:
    words = choice.split()
    config = load(compose(["data.dir=/data", *words] if "imagefolder" in choice else words))
    assert load(as_tree(config)) == config


def test_folders_are_absolute_from_the_start(make_config: MakeConfig) -> None:
    config = make_config("paths.results=some/results", "data=mnist", "data.dir=d")
    assert config.paths.results == str(ROOT / "some" / "results")
    assert as_tree(config)["paths"]["results"] == config.paths.results
    assert as_tree(config)["data"]["dir"] == str(ROOT / "d")


def test_a_dollar_sign_in_a_folder_stays_one(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(f"paths.results='{tmp_path}/a\\$b'")
    assert config.paths.results == f"{tmp_path}/a$b"
    assert load(as_tree(config)).paths.results == config.paths.results


def test_home_and_variables_are_written_as_typed(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT", "/project/me")
    config = make_config("cluster=slurm", "cluster.venv='~/env'", "cluster.conda='$PROJECT/env'")
    assert config.cluster.conda == "/project/me/env"
    assert as_tree(config)["cluster"]["venv"] == "~/env"
    assert as_tree(config)["cluster"]["conda"] == "$PROJECT/env"


def test_a_value_from_the_environment_is_written_as_its_name(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_FOLDER", "/disk/secret")
    config = make_config("checkpoint.local=${oc.env:LOCAL_FOLDER}")
    assert config.checkpoint.local == "/disk/secret"
    assert as_tree(config)["checkpoint"]["local"] == "${oc.env:LOCAL_FOLDER}"
    assert "secret" not in str(as_tree(config))
