"""The table of strategies: refusals, the meaning of `auto`, the choices of `strategy=`."""

import pytest

from train_anywhere.config.checks.strategy_table import LAUNCHERS, SUPPORTED, resolve_strategy
from train_anywhere.config.command.compose import compose, list_groups
from train_anywhere.config.load import load
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT


def test_every_row_is_a_choice_and_every_choice_a_row() -> None:
    rows = {name for cells in SUPPORTED.values() for name in cells}
    assert {"auto", *rows} == set(list_groups()["strategy"])
    assert all(
        cell.launch and {*cell.launch} <= {*LAUNCHERS}
        for cells in SUPPORTED.values()
        for cell in cells.values()
    )


AUTO = {
    ("lightning", 1, 1): "single",
    ("lightning", 4, 1): "ddp",
    ("lightning", 8, 2): "ddp",
    ("keras", 1, 1): "single",
    ("keras", 4, 1): "mirrored",
    ("keras", 8, 2): "multiworker_mirrored",
}
"""Framework, devices and nodes -> what strategy=auto is."""


def test_auto() -> None:
    assert {
        (f, devices, nodes): resolve_strategy(f, "auto", devices, nodes) for f, devices, nodes in AUTO
    } == AUTO
    assert [name for (framework, *_), name in AUTO.items() if name not in SUPPORTED[framework]] == []


REFUSED = {
    "strategy=single trainer.nodes=2": "strategy=single works on one node only, but trainer.nodes=2; use strategy=ddp",
    "framework=keras strategy=mirrored trainer.nodes=2": "but trainer.nodes=2; use strategy=multiworker_mirrored",
    "strategy=fsdp strategy.shard_within_node=true trainer.total_devices=3 trainer.nodes=2": "use trainer.total_devices=4, or",
    "strategy=ddp strategy.static_graph=true trainer.accumulate_grad_batches=2": "does not work with trainer.accumulate_grad_batches=2",
    "strategy=horovod trainer.sync_batchnorm=true": "use strategy=ddp, or trainer.sync_batchnorm",
    "strategy=fsdp trainer.sync_batchnorm=true trainer.devices=2 trainer.accelerator=cpu": "trainer.sync_batchnorm=true needs GPUs",
    "framework=keras trainer.sync_batchnorm=true trainer.compile=true": "use trainer.compile=false, or trainer.sync_batchnorm=false",
}
"""What does not go together, and its refusal; engine/tests/bad_inputs/rows/together.py has more."""


def test_refused_with_what_works() -> None:
    wrong = {}
    for words, says in REFUSED.items():
        with pytest.raises(ConfigError) as caught:
            load(compose(words.split()))
        if says not in "\n".join(caught.value.problems):
            wrong[words] = caught.value.problems
    assert wrong == {}


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs/concepts/strategies.md").read_text()
    for framework, name, cell in ((f, n, c) for f, cells in SUPPORTED.items() for n, c in cells.items()):
        devices, nodes = "one" if name == "single" else "several", "several" if cell.several_nodes else "one"
        launch = ", ".join(cell.launch) if cell.ranks else "any"
        assert f"| {framework} | `{name}` | {devices} | {nodes} | {launch} | {cell.about} |\n" in page
