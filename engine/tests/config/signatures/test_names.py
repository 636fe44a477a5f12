"""Names through re-exports, aliases, `import *`, branches and packages."""

from pathlib import Path

import pytest

from engine.tests.config.signatures.conftest import Project, each_in_a_project
from train_anywhere.config.signatures import TargetError

THING = "class Thing:\n    def __init__(self, here): ...\n"

WAYS = {
    "from other import Thing": "other.Thing",
    "from other import Thing as Thing": "other.Thing",
    "from other import *": "other.Thing",
    "from first import *\nfrom other import *": "other.Thing",
    "from other import *\nfrom first import *": "first.Thing",
    "from other import *\nfrom private import *": "other.Thing",
    "import other\nThing = other.Thing": "other.Thing",
    "import other as o\nBase = o.Thing\nThing = Base": "other.Thing",
    "import pack.deep\nThing = pack.deep.Thing": "pack.deep.Thing",
    "import pack.deep as d\nThing = d.Thing": "pack.deep.Thing",
    "from pack import Thing": "pack.deep.Thing",
    "from pack.deep import Thing": "pack.deep.Thing",
    "from space.inner import Thing": "space.inner.Thing",
    "try:\n    from gone import Thing\nexcept ImportError:\n    from other import Thing": "other.Thing",
    "try:\n    from other import Thing\nexcept ImportError:\n    Thing = None": "other.Thing",
    "Thing = None\nif 1:\n    from other import Thing": "other.Thing",
    "if TYPE_CHECKING:\n    from first import Thing\nelse:\n    from other import Thing": "other.Thing",
    "if not TYPE_CHECKING:\n    from other import Thing\nelse:\n    from first import Thing": "other.Thing",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from other import Thing": "other.Thing",
    "with open('x') as f:\n    from other import Thing": "other.Thing",
    "class Thing: ...\nfrom other import Thing": "other.Thing",
    "from other import Thing\nclass Thing(Thing): ...": "mine.Thing",
}
"""Source of `mine.py` -> where its Thing is defined."""

FILES = {
    "other": THING,
    "first": THING,
    "private": "__all__ = ['Unrelated']\n" + THING,
    "pack__in____init__": "from .deep import Thing\n",
    "pack__in__deep": THING,
    "space__in__inner": THING,
}


def test_ways_to_a_definition(tmp_path: Path) -> None:
    found = {source: mine("mine.Thing") for source, mine in each_in_a_project(tmp_path, WAYS, **FILES)}
    assert {source: thing.name for source, thing in found.items()} == WAYS
    assert {(thing.kind, *thing.parameters) for thing in found.values()} == {("class", "here")}


def test_what_only_an_import_would_tell(tmp_path: Path) -> None:
    sources = [
        "def __getattr__(name): ...", "globals()['Thing'] = 1", "def f():\n    global Thing\n    Thing = 1", "print(Thing := 3)",
        "from gone import Thing", "from gone import *", "from math import *", "Thing = make()",
        "import functools\nThing = functools.partial(print)", "Thing = 3", "Thing, other = 1, 2", "for Thing in range(3): ...",
        "from mine import Thing", "from mine import *\nThing = Thing", "Thing = other\nother = Thing",
    ]  # fmt: skip
    kinds = {source: mine("mine.Thing").kind for source, mine in each_in_a_project(tmp_path, sources)}
    assert kinds == dict.fromkeys(sources, "unreadable")


def test_what_certainly_is_not_there(tmp_path: Path) -> None:
    sources = ["", "class Thing2: ...", "def f():\n    Thing = 1", "from circle import *", "del x"]
    for _, mine in each_in_a_project(tmp_path, sources, circle="from mine import *\n"):
        with pytest.raises(TargetError, match="mine has no Thing"):
            mine("mine.Thing")


def test_a_class_of_the_same_name_as_its_module(project: Project) -> None:
    mine = project(
        pack__in____init__="from pack.net import net\n",
        pack__in__net="class net:\n    @classmethod\n    def build(cls, a): ...\n",
    )
    assert mine("pack.net").name == "pack.net.net"
    assert list(mine("pack.net.build").parameters) == ["a"]
    assert mine("pack.net.net.build").name == "pack.net.net.build"


def test_a_class_and_a_property_of_it(project: Project) -> None:
    mine = project("class Lit:\n    @property\n    def width(self): ...\n    depth = 3\n")
    assert mine("mine.Lit.width").kind == "unreadable"
    assert mine("mine.Lit.depth").kind == "unreadable"
    assert mine("mine.Lit.__class__").kind == "unreadable"
