"""The form of refusals."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from train_anywhere.config.command.diagnose import hydra_sentence
from train_anywhere.errors import UNKNOWN_REASON, ConfigError, iterate_causes
from train_anywhere.files import ROOT
from train_anywhere.files.copy_files import find_disk_error


def test_one_problem_is_one_line_and_several_are_a_list() -> None:
    assert str(ConfigError("a is wrong.")) == "a is wrong."
    assert str(ConfigError("a", "b")) == "2 problems:\n  - a\n  - b"


@pytest.mark.parametrize("nothing", [[], [""], [" "]])
def test_every_refusal_has_a_message(nothing: list[str]) -> None:
    assert ConfigError(*nothing).problems == [UNKNOWN_REASON]


def cyclic(first: BaseException, second: BaseException, link: str) -> BaseException:
    setattr(first, link, second)
    setattr(second, link, first)
    return first


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_a_cycle_of_causes_is_walked_once(link: str) -> None:
    pair = cyclic(ValueError("a"), OSError(28, "full"), link)
    assert [type(one) for one in iterate_causes(pair)] == [ValueError, OSError]
    assert isinstance(find_disk_error(pair), OSError)
    assert find_disk_error(cyclic(ValueError("a"), TypeError("b"), link)) is None
    own = ValueError("itself")
    setattr(own, link, own)
    assert list(iterate_causes(own)) == [own]


def test_an_error_in_a_group_is_found() -> None:
    full = OSError(28, "full")
    assert find_disk_error(ExceptionGroup("many", [ValueError("a"), ExceptionGroup("more", [full])])) is full


def test_a_cycle_of_causes_becomes_one_sentence() -> None:
    pair = cyclic(ValueError("  a\nfull_key: x"), ValueError("  b\nfull_key: y"), "__cause__")
    assert "a" in hydra_sentence(pair)


def sources() -> Iterator[Path]:
    for folder in ("src", "slurm", "tools", "hydra_plugins", "engine/train_anywhere"):
        yield from (ROOT / folder).rglob("*.py")


def from_itself(node: ast.AST) -> bool:
    """Return whether an error may be raised from itself, which makes a cycle of causes."""
    if not isinstance(node, ast.Raise) or not isinstance(node.cause, ast.Name) or node.exc is None:
        return False
    raised = node.exc.values if isinstance(node.exc, ast.BoolOp) else [node.exc]
    return any(isinstance(one, ast.Name) and one.id == node.cause.id for one in raised)


def walks_causes(node: ast.AST) -> bool:
    return isinstance(node, ast.While) and any(
        isinstance(n, ast.Attribute) and n.attr in ("__cause__", "__context__") for n in ast.walk(node)
    )


def test_only_the_helper_walks_causes_and_nothing_is_raised_from_itself() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if from_itself(node) or walks_causes(node)
    }
    assert found == {"engine/train_anywhere/errors.py"}


def test_a_source_of_several_problems_is_printed_once() -> None:
    """Also next to a problem without a source, and one with another."""
    shared, other = " Source: the guide (2026-11); cluster.check=warn submits the job anyway.", " Source: x."
    error = ConfigError(f"a is wrong.{shared}", "b is wrong.", f"c is wrong.{shared}", f"d is wrong.{other}")
    assert str(error).splitlines() == [
        "4 problems:",
        "  - a is wrong.",
        "  - b is wrong.",
        "  - c is wrong.",
        f"  - d is wrong.{other}",
        f"    {shared.strip()}",
    ]
    assert error.problems[0].endswith(shared)
    assert str(ConfigError(f"a is wrong.{shared}")) == f"a is wrong.{shared}"
