"""From Hydra's tree to the typed configuration and back. Members of a sweep that do not fit together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from train_anywhere.config.checks.contradictions import batch_size_problem
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose, list_groups, parse_override
from train_anywhere.config.command.members import refuse_mixed_members
from train_anywhere.config.load import load, to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files import ROOT
from train_anywhere.plugins.launchers import list_members

MakeConfig = Callable[..., Config]
CHOICES = [
    f"{group}={choice}"
    for group in ("task", "data", "model", "optimizer", "schedule")
    for choice in list_groups()[group]
    if choice != "custom"
]


@pytest.mark.slow
def test_what_a_run_folder_holds_loads_as_the_same_configuration() -> None:
    wrong = []
    for choice in [*CHOICES, "cluster=alvis", "container=apptainer container.image=a.sif"]:
        words = choice.split()
        config = load(compose(["data.dir=/data", *words] if "imagefolder" in choice else words))
        if load(to_tree(config)) != config:
            wrong.append(choice)
    assert wrong == []


def test_folders_are_absolute_from_the_start(make_config: MakeConfig) -> None:
    config = make_config("paths.results=some/results", "data=mnist", "data.dir=d")
    assert config.paths.results == str(ROOT / "some" / "results")
    assert to_tree(config)["paths"]["results"] == config.paths.results
    assert to_tree(config)["data"]["dir"] == str(ROOT / "d")


def test_a_dollar_sign_in_a_folder_stays_one(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(f"paths.results='{tmp_path}/a\\$b'")
    assert config.paths.results == f"{tmp_path}/a$b"
    assert load(to_tree(config)).paths.results == config.paths.results


def test_home_and_variables_are_written_as_typed(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT", "/project/me")
    config = make_config("cluster=slurm", "cluster.venv='~/env'", "cluster.conda='$PROJECT/env'")
    assert config.cluster.conda == "/project/me/env"
    assert to_tree(config)["cluster"]["venv"] == "~/env"
    assert to_tree(config)["cluster"]["conda"] == "$PROJECT/env"


@pytest.mark.parametrize(
    "mapping", ["{0: 1.0, 7: 5.0}", "{true: null, 0.5: [{2: inf}, {v1.5: x}], a.b: {c: 3}}"]
)
def test_keys_of_a_mapping_keep_their_types(make_config: MakeConfig, mapping: str) -> None:
    swept = parse_override(f"task.mapping={mapping},{{}}")
    assert swept
    member = list_members([swept])[0][0]
    written = yaml.safe_load(mapping.replace("inf", ".inf"))
    for words in (f"+task.mapping={mapping}", f"++{member}"):
        config = make_config("task._target_=builtins.dict", words)
        frozen = yaml.safe_load(yaml.safe_dump(to_tree(config)))
        assert repr(frozen["task"]["mapping"]) == repr(written)
        assert repr(load(frozen).task.arguments["mapping"]) == repr(written)


def test_a_key_that_names_no_argument_is_refused() -> None:
    tree = compose(to_hydra_overrides(["task._target_=builtins.dict"]))
    tree["task"][0] = 1
    with pytest.raises(ConfigError, match="task: 0 can't name an argument of a target"):
        load(tree)


def test_a_value_from_the_environment_below_a_number_is_written_as_its_name(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    config = make_config("task._target_=builtins.dict", "task.tokens={0: '${oc.env:API_TOKEN}'}")
    assert config.task.arguments == {"tokens": {0: "secret"}}
    assert to_tree(config)["task"]["tokens"] == {0: "${oc.env:API_TOKEN}"}


def test_an_uneven_batch_names_the_nearest_that_is_even() -> None:
    assert batch_size_problem(96, 4) == ""
    for size, devices, nearest in ((96, 7, 98), (96, 5, 95), (3, 8, 8), (12, 8, 16)):
        assert batch_size_problem(size, devices, "ranks") == (
            f"data.batch_size={size} is the global batch and can't be shared evenly by {devices} ranks; "
            f"use data.batch_size={nearest}."
        )


@pytest.fixture(scope="module")
def tree() -> Callable[..., dict[str, Any]]:
    """`tree("slurm", wait=True)`: a member for that cluster."""
    composed = {name: compose([f"cluster={name}"]) for name in ("slurm", "alvis", "local", "current")}
    return lambda cluster="slurm", **keys: {**composed[cluster], **keys}


def test_a_sweep_goes_to_one_cluster(tree: Callable[..., dict[str, Any]]) -> None:
    for clusters in (("slurm", "local"), ("local", "slurm"), ("slurm", "alvis"), ("current", "local")):
        for submitted in (True, False):
            with pytest.raises(
                ConfigError, match=f"this one names {', '.join(clusters)}: give each a command"
            ):
                refuse_mixed_members([tree(c) for c in clusters], submitted)


def test_what_speaks_of_the_command_is_not_swept(tree: Callable[..., dict[str, Any]]) -> None:
    members = [tree(dry_run=True, wait=True), tree(dry_run=False, wait=False, resume="results/x")]
    with pytest.raises(ConfigError) as caught:
        refuse_mixed_members(members, submitted=True)
    assert [p.split(" ")[0] for p in caught.value.problems] == ["dry_run", "wait", "resume="]
    with pytest.raises(ConfigError, match="without -m"):
        refuse_mixed_members([tree("local", resume="results/x")], submitted=False)
    with pytest.raises(SubmitError, match="no members"):
        refuse_mixed_members([], submitted=True)


def test_members_that_differ_in_what_one_array_can_hold_pass(tree: Callable[..., dict[str, Any]]) -> None:
    refuse_mixed_members([tree(framework=f, name=f) for f in ("lightning", "keras")], submitted=True)
    refuse_mixed_members([tree("local", name=n) for n in "ab"], submitted=False)
