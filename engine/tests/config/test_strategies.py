"""The table of strategies: the meaning of `auto`, the choices of `strategy=`."""

from train_anywhere.config.checks.strategy_table import LAUNCHERS, SUPPORTED, resolve_strategy
from train_anywhere.config.command.compose import list_groups
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


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs/concepts/strategies.md").read_text()
    for framework, name, cell in ((f, n, c) for f, cells in SUPPORTED.items() for n, c in cells.items()):
        devices, nodes = "one" if name == "single" else "several", "several" if cell.several_nodes else "one"
        launch = ", ".join(cell.launch) if cell.several_nodes else "any"
        assert f"| {framework} | `{name}` | {devices} | {nodes} | {launch} | {cell.about} |\n" in page
