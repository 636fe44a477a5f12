"""Annotations become types that `strict` can check, or nothing."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from engine.tests.config.signatures.conftest import Project
from train_anywhere.config.choices import AdamW, Width
from train_anywhere.config.limits import MAX_COUNT, Items, Probability, Range
from train_anywhere.config.paths import AbsoluteFolder
from train_anywhere.config.strict import UNUSABLE, convert

HEAD = """
import collections.abc
import typing
import typing as t
from collections.abc import Sequence
from pathlib import Path
from typing import *

from typing import Annotated, Any, Iterable, List, Literal, Optional, Tuple, Union
from train_anywhere.config import choices
from train_anywhere.config.choices import AdamW, BatchSize, Width
from train_anywhere.config.limits import Items, MAX_COUNT, Probability, Range
from train_anywhere.config.paths import AbsoluteFolder as Folder
import torch

Side = Annotated[int, Range(at_least=1)]
Circle = Circle
"""

KNOWN: dict[str, Any] = {
    "int": int, "'int'": int, "None": type(None), "int | None": int | None, "Optional['str']": str | None,
    "t.Optional[float]": float | None, "Union[str, int]": int | str, "Literal['a', 'b']": Literal["a", "b"],
    "list[int]": list[int], "List[str | int]": list[int | str], "Sequence[float]": list[float],
    "collections.abc.Iterable[bool]": list[bool], "tuple[int, ...]": list[int],
    "Tuple[float, float]": Annotated[list[float], Items(count=2)],
    "Annotated[int, Range(at_least=1, at_most=9)]": Annotated[int, Range(at_least=1, at_most=9)],
    "Annotated[list[int], Items(2)]": Annotated[list[int], Items(count=2)], "Width": Width,
    "choices.Width": Width, "Folder": AbsoluteFolder, "Probability | None": Probability | None,
    "AdamW": AdamW, "Annotated[int, Range(at_most=MAX_COUNT)]": Annotated[int, Range(at_most=MAX_COUNT)],
    "Side": Annotated[int, Range(at_least=1)],
    "Union[str, bool, list[int], float, None]": None | bool | float | list[int] | str,
}  # fmt: skip

UNKNOWN = [
    *("torch.Tensor", "Path", "Any", "list", "dict[str, int]", "list[Any]", "int | Path", "Optional[torch.Tensor]"),
    *("Tuple[int, str]", "Callable[[int], int]", "list[int, int]", "Literal[None]", "Literal[x]", "Union[()]"),
    *("Annotated[int, Range(2 ** 9 ** 9)]", "Annotated[int, Range('a')]", "Annotated[int, Range(nothing=1)]"),
    *("Annotated[str, Range(1)]", "Annotated[int, Items(1)]", "Annotated[int, 'words']", "Annotated[int, print('x')]"),
    *("MAX_COUNT", "Circle", "'int['", "print('x')", "3", "lambda: 0", "choices.NoSuchName", "__import__('os')"),
]  # fmt: skip


def hints(project: Project, *annotations: str, default: str = "") -> list[Any]:
    """Return the hint of one argument for each annotation, all read from one file."""
    functions = [f"def f{n}(x: {annotation}{default}): ..." for n, annotation in enumerate(annotations)]
    read = project("\n".join([HEAD, *functions, ""]))
    return [read(f"mine.f{n}").parameters["x"].hint for n in range(len(annotations))]


def test_known_and_unknown(project: Project) -> None:
    found = dict(zip([*KNOWN, *UNKNOWN], hints(project, *KNOWN, *UNKNOWN), strict=True))
    assert found == KNOWN | dict.fromkeys(UNKNOWN)


def test_strict_can_check_every_hint(project: Project) -> None:
    values: list[object] = [None, True, 3, 0.5, "a", [1, 2], [], {"a": 1}]
    silent = []
    for annotation, found in zip(KNOWN, hints(project, *KNOWN), strict=True):
        for value in values:
            problems: list[str] = []
            if convert(found, value, problems, "x") is UNUSABLE and not problems:
                silent.append((annotation, value))
    assert silent == []


def test_a_number_stays_a_number_where_a_string_would_do_too(project: Project) -> None:
    assert convert(hints(project, "Union[list[int], str, int]")[0], 2, [], "devices") == 2


def test_a_default_of_none_allows_null(project: Project) -> None:
    assert hints(project, "int", default=" = None") == [int | None]


def test_no_annotation_no_hint(project: Project) -> None:
    found = project("def f(a, b=3): ...")("mine.f").parameters
    assert (found["a"].hint, found["b"].hint, found["b"].default) == (None, None, 3)


def test_nothing_of_a_hint_runs(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert hints(project, "print('run')", "Annotated[int, Range(print('run'))]") == [None, None]
    assert capsys.readouterr().out == ""


def test_an_alias_of_another_file_of_the_project(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project's folder need not be on Python's search path. Circular imports give no hint."""
    numbers = f"{HEAD}\nLayers = Annotated[int, Range(at_least=2)]\nfrom mine import Twice\n"
    mine = "from numbers_of_mine import Layers as Deep, Twice\ndef f(x: Deep | None, y: Twice): ...\n"
    for searched in (False, True):
        if searched:
            monkeypatch.syspath_prepend(str(tmp_path))
        found = project(mine, numbers_of_mine=numbers)("mine.f").parameters
        assert found["x"].hint == (Annotated[int, Range(at_least=2)] | None)
        assert found["y"].hint is None


def test_an_alias_of_another_package_of_the_project(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers = "from typing import Annotated\nfrom train_anywhere.config.limits import Range\nLayers = Annotated[int, Range(2)]"
    files = {"ours__in__numbers": numbers, "ours__in____init__": ""}
    found = project("from ours.numbers import Layers\ndef f(x: Layers): ...\n", **files)("mine.f")
    assert found.parameters["x"].hint == Annotated[int, Range(2)]
