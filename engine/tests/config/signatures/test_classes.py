"""The arguments of a class equal those of `inspect.signature` for the imported class."""

import importlib
import inspect
import operator
import sys
from pathlib import Path

import pytest

from engine.tests.config.signatures.conftest import Project, each_in_a_project
from train_anywhere.config.signatures import TargetError, read

SAMPLE = """
import abc
import contextlib
import dataclasses
import functools
from dataclasses import InitVar, KW_ONLY, dataclass, field
from typing import ClassVar, Generic, TypeVar, Protocol

T = TypeVar("T")

class Plain:
    pass

class Own:
    def __init__(self, a, b=2, *rest, c, d=4): ...

class Inherits(Own):
    pass

class Positional:
    def __init__(self, a, /, b, c=None): ...

class New:
    def __new__(cls, a, *, b=1):
        return super().__new__(cls)

class NewFirst(Own):
    def __new__(cls, task, *, b=1):
        return Own(task, c=b)

class NewOfAny(Own):
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

class Parametrised(Generic[T], abc.ABC):
    def __init__(self, a: T): ...

class OfParametrised(Parametrised[int]):
    pass

class Left(Plain):
    pass

class Right(Plain):
    def __init__(self, right): ...

class Diamond(Left, Right):
    pass

@dataclass
class Data:
    a: int
    b: str = "x"
    c: list = field(default_factory=list)
    hidden: int = field(default=1, init=False)
    shared: ClassVar[int] = 3
    given: InitVar[int] = 7
    not_a_field = 5

@dataclass
class MoreData(Data):
    d: float = 2.0
    a: int = 9

@dataclasses.dataclass(kw_only=True)
class ByName:
    z: int = 1
    a: int

@dataclass
class Mixed:
    x: int
    _: KW_ONLY
    y: int = 1
    w: int

@dataclass
class OwnInit:
    x: int
    def __init__(self, other): ...

class Outer:
    class Inner:
        def __init__(self, deep): ...

    @classmethod
    def build(cls, a, b=1): ...

    @staticmethod
    def make(a, b=1): ...

    def method(self, a): ...

class OfOuter(Outer):
    pass

@functools.lru_cache(maxsize=3)
def cached(a, b=1): ...

@contextlib.contextmanager
def manager(a, *, b): yield

async def later(a): ...

def plain(a, /, b, *c, d, e=1): ...

if True:
    def branch(a): ...
else:
    def branch(b): ...

try:
    from json import JSONEncoder
except ImportError:
    JSONEncoder = None

Alias = Own
outer = Outer
"""

EXACT = [
    *("Plain", "Own", "Inherits", "Positional", "New", "NewFirst", "Parametrised", "OfParametrised", "Diamond", "Data", "MoreData"),
    *("ByName", "Mixed", "OwnInit", "Outer.Inner", "Outer.build", "Outer.make"),
    *("Outer.method", "OfOuter.build", "cached", "manager", "later", "plain", "branch", "JSONEncoder", "Alias", "outer.make"),
]  # fmt: skip


def test_the_same_as_an_import_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"sample_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(SAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    read_names = {name: read(f"{module}.{name}", tmp_path) for name in EXACT}
    assert module not in sys.modules
    imported = importlib.import_module(module)
    for name, found in read_names.items():
        target = operator.attrgetter(name)(imported)
        real = [p for p in inspect.signature(target).parameters.values() if p.kind != p.VAR_POSITIONAL]
        assert [(p.name, p.required, p.positional_only) for p in found.parameters.values()] == [
            (p.name, p.default is p.empty, p.kind == p.POSITIONAL_ONLY) for p in real
        ], name
        assert not found.takes_any, name
        bases = [b.__name__ for b in getattr(target, "__mro__", ())[1:-1]]
        assert [b.rpartition(".")[2] for b in found.bases] == bases, name


FORWARDING = """
class Base:
    def __init__(self, a, b=2, *, c=3): ...

class Hands(Base):
    def __init__(self, own, **kwargs):
        super().__init__(**kwargs)

class Names(Base):
    def __init__(self, own, **kwargs):
        super().__init__(a=own, **kwargs)

class Positions(Base):
    def __init__(self, own, **kwargs):
        Base.__init__(self, own, **kwargs)

class Through(Hands):
    def __init__(self, *args, **kwargs):
        super(Through, self).__init__(*args, **kwargs)

class Pops(Base):
    def __init__(self, **kwargs):
        self.decay = kwargs.pop("decay", None)
        super().__init__(**kwargs)

class Refuses:
    def __init__(self, a, **kwargs):
        if kwargs.pop("decay", None):
            pass
        if kwargs:
            raise TypeError(f"{kwargs}")

class Ends:
    def __init__(self, a=1, **kwargs):
        super().__init__(**kwargs)

class Swallows:
    def __init__(self, a, **kwargs): ...

class Passes(Base):
    def __init__(self, **kwargs):
        kwargs["a"] = 1
        super().__init__(**kwargs)

class Twice(Base):
    def __init__(self, **kwargs):
        if self.odd:
            super().__init__(**kwargs)
        else:
            Plain.__init__(self, **kwargs)

class Inside(Base):
    def __init__(self, **kwargs):
        def later():
            return kwargs
        super().__init__(**kwargs)
"""


TAKES = {
    "Hands": ("own a", "b c", False),
    "Names": ("own", "b c", False),
    "Positions": ("own", "b c", False),
    "Through": ("own a", "b c", False),
    "Pops": ("a", "b c decay", False),
    "Refuses": ("a", "decay", False),
    "Ends": ("", "a", False),
    "Swallows": ("a", "", True),
    "Passes": ("", "", True),
    "Twice": ("", "", True),
    "Inside": ("", "", True),
}
"""Class -> the arguments that it needs, those that it may have, and whether it takes any name."""


def test_where_extra_names_go(project: Project) -> None:
    mine, taken = project(FORWARDING), {}
    for name in TAKES:
        found = mine(f"mine.{name}")
        needed = [p.name for p in found.parameters.values() if p.required]
        others = sorted(found.parameters.keys() - {*needed})
        taken[name] = (" ".join(needed), " ".join(others), found.takes_any)
    assert taken == TAKES


def test_what_may_take_more_than_is_written(tmp_path: Path) -> None:
    sources = [
        "import attr\n@attr.s\nclass A:\n    x: int = 1",
        "class A:\n    def __new__(cls, *a, **k): ...",
        "class A(dict): pass", "class A(Exception): pass",
        "from gone import Base\nclass A(Base): pass", "class A(make()): pass",
        "class M(type):\n    def __call__(cls, *a, **k): ...\nclass A(metaclass=M): pass",
        "class B:\n    def __init_subclass__(cls): ...\nclass A(B): pass", "class A:\n    __init__ = other", "@unknown\ndef A(x): ...",
        "class A:\n    @unknown\n    def __init__(self, x): ...", "import torch\nclass A(torch.Tensor): pass",
    ]  # fmt: skip
    for source, mine in each_in_a_project(tmp_path, sources):
        assert mine("mine.A").takes_any and mine("mine.A").kind != "unreadable", source


def test_attributes_are_literals_and_the_nearest_ones(project: Project) -> None:
    found = project(
        "class Base:\n    a = 1\n    b: str = 'x'\n    c = {'k': [1, None]}\n    shadowed = 2\n"
        "class Lit(Base):\n    a = (1, 2)\n    d: int = 4\n    shadowed = compute()\n"
        "    only: int\n    def b2(self): ...\n    minus = -1\n"
    )("mine.Lit")
    assert found.attributes == {"a": (1, 2), "b": "x", "c": {"k": [1, None]}, "d": 4, "minus": -1}


def test_a_circle_of_bases_ends(project: Project) -> None:
    found = project("class A(B): pass\nclass B(A): pass\n")("mine.A")
    assert found.kind == "class"
    assert found.takes_any


def test_a_broken_file_of_a_base_is_the_users(project: Project) -> None:
    mine = project("from base import Base\nclass Lit(Base): pass\n", base="class Base(:\n")
    with pytest.raises(TargetError, match=r"base.py is not valid Python \(line 1\)"):
        mine("mine.Lit")


def test_a_new_that_takes_anything_leaves_the_check_to_init(project: Project) -> None:
    found = project(SAMPLE)("mine.NewOfAny")
    assert list(found.parameters) == ["a", "b", "c", "d"]
    assert not found.takes_any
