"""The schemas of editors fit every file of configs/ and refuse what the project refuses."""

from typing import Any

import jsonschema
import pytest
import yaml

from engine.tools import json_schema
from train_anywhere.files import ROOT

FILES = [path for path in sorted((ROOT / "configs").rglob("*.yaml")) if path.parent.name != "local"]


def check(name: str, tree: Any) -> str:
    """Return the schema's problem with a file, or ""."""
    validator = jsonschema.Draft7Validator(json_schema.make_schemas()[name])
    return "; ".join(f"{error.json_path}: {error.message}" for error in validator.iter_errors(tree))


def test_the_files_are_up_to_date() -> None:
    differing = [
        str(p) for p, text in json_schema.schema_files().items() if not p.exists() or p.read_text() != text
    ]
    assert differing == [], "make schemas"


def test_every_file_of_configs_fits() -> None:
    wrong = []
    for path in FILES:
        name = path.parent.name if path.parent.name in json_schema.GROUPS else "config"
        if path.read_text().startswith("# @package _global_"):
            name = "config"
        wrong += [
            f"{path.relative_to(ROOT)}: {found}"
            for found in [check(name, yaml.safe_load(path.read_text()))]
            if found
        ]
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config", "sed: 1"),
        ("config", "seed: -1"),
        ("config", "seed: one"),
        ("config", "trainer: {max_epoch: 3}"),
        ("config", "trainer: {precision: 31}"),
        ("config", "cluster: {site: {nodes: [{gpus: some}]}}"),
        ("optimizer", "{name: adamw, lr: fast}"),
        ("strategy", "{name: ddp, bucket: 1}"),
        ("data", "{batch_size: 0}"),
        ("callbacks", "[a]"),
    ],
)
def test_what_is_refused(name: str, text: str) -> None:
    assert check(name, yaml.safe_load(text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config", "{seed: '${oc.env:SEED}', trainer: {precision: 32, nodes: 2-4}, name: 2026}"),
        ("optimizer", "{name: custom, _target_: {lightning: torch.optim.Muon}, lr: 0.1, nesterov: true}"),
        ("model", "{_target_: mine.net, hidden: [1, {a: 2}]}"),
        ("loggers", "{mine: {_target_: mine.Logger, path: x}}"),
    ],
)
def test_what_fits(name: str, text: str) -> None:
    assert check(name, yaml.safe_load(text)) == ""
