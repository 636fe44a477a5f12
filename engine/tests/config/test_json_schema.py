"""The schemas of editors and docs/reference/keys.md list every key and choice, and refuse what the project refuses."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
import yaml

from engine.tools import json_schema, keys_page
from train_anywhere.config import schema, strict
from train_anywhere.config.command.compose import CONFIGS, compose, list_groups
from train_anywhere.config.keys import flatten
from train_anywhere.config.limits import Count, Probability
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


REFUSED = [
    ("config", "sed: 1"), ("config", "seed: -1"), ("config", "seed: one"), ("config", "trainer: {max_epoch: 3}"),
    ("config", "trainer: {precision: 31}"), ("config", "cluster: {site: {nodes: [{gpus: some}]}}"),
    ("optimizer", "{name: adamw, lr: fast}"), ("strategy", "{name: ddp, bucket: 1}"), ("data", "{batch_size: 0}"), ("callbacks", "[a]"),
]  # fmt: skip
FITS = [
    ("config", "{seed: '${oc.env:SEED}', trainer: {precision: 32, nodes: 2-4}, name: 2026}"),
    ("optimizer", "{name: custom, _target_: {lightning: torch.optim.Muon}, lr: 0.1, nesterov: true}"),
    ("model", "{_target_: mine.net, hidden: [1, {a: 2}]}"),
    ("loggers", "{mine: {_target_: mine.Logger, path: x}}"),
]


def test_what_is_refused_and_what_fits() -> None:
    assert [text for name, text in REFUSED if not check(name, yaml.safe_load(text))] == []
    assert [found for name, text in FITS if (found := check(name, yaml.safe_load(text)))] == []


def numbers(node: Any) -> Iterator[dict[str, Any]]:
    """Yield each number of a schema."""
    if isinstance(node, dict) and node.get("type") in ("integer", "number"):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from numbers(inner)


def test_every_number_has_a_range() -> None:
    found = [*numbers(json_schema.make_schemas()["config"])]
    assert (
        len(found) > 50 and [one for one in found if not one.keys() & {"minimum", "exclusiveMinimum"}] == []
    )


def test_the_page_is_up_to_date() -> None:
    assert keys_page.PAGE.read_text() == keys_page.make_page(), "make schemas"


def test_every_key_is_on_the_page_with_its_type_and_meaning() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| `(.*?)` \| (.*) \|$", keys_page.PAGE.read_text(), re.M)
    shown = {key for key, *_ in rows}
    known = {
        key.partition("._target_")[0] if key.startswith(("loggers", "callbacks")) else key
        for key in flatten(compose([]))
        if not re.search(r"_target_|_check_|from_data|monitors|^\w+\.name$|^cluster.scheduler$", key)
    }
    assert len(known) > 120 and known - shown == set()
    bare = [key for key, kind, _, meaning in rows if key in known and (kind == "any" or not meaning.strip())]
    assert bare == []


def test_every_choice_is_on_the_page() -> None:
    page = keys_page.PAGE.read_text()
    for group, choices in list_groups().items():
        table = page.partition(f"| {group}= | meaning |\n")[2].partition("\n\n")[0]
        assert group == "local" or re.findall(r"^\| `(\w+)` \| [^ |]", table, re.M) != [], group
        assert group == "local" or set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(choices)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int | None, "int or `null`"),
        (Count, "int ≥ 1"),
        (Probability, "float ≥ 0, &lt; 1"),
        (Literal["auto", "cpu"], "`auto` \\| `cpu`"),
        (None | bool | Literal["test"], "bool or `test` or `null`"),
        (list[str], "list of strings"),
        (strict.field_types(schema.Trainer)["nodes"], "int ≥ 1 or a range such as 2-4"),
        (strict.field_types(schema.Paths)["data"], "path"),
        (Any, "any"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert keys_page.type_words(hint) == words


def test_a_choice_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with only a target and a comment has a row with the types of the signature."""
    configs = tmp_path / "configs"
    shutil.copytree(CONFIGS, configs)
    (configs / "model/mine.yaml").write_text(
        "# My *best* net, see docs/how-to/your-code.md.\n_target_: src.models.lightning.mlp.mlp\nhidden: [3]  # a | b\n"
    )
    (configs / "callbacks/stop.yaml").write_text("_target_: mine.Stop\nrows: [{a: 1}]\n")
    for module in ("compose", "help_comments"):
        monkeypatch.setattr(f"train_anywhere.config.command.{module}.CONFIGS", configs)
    monkeypatch.setattr(keys_page, "CONFIGS", configs)
    page = keys_page.make_page()
    assert "| `mine` | My \\*best\\* net, see [how-to/your-code](../how-to/your-code.md). |\n" in page
    assert "### model=mine\n\n| key |" in page
    assert "| `model.hidden` | list of int ≥ 1 | `[3]` | a \\| b |\n" in page
    assert "| `callbacks.stop.rows` | any | `[{a: 1}]` |  |\n" in page
