"""Find the attributes of objects, and a mark of each that differs if it has changed."""

import argparse
import array
import dataclasses
import datetime
import enum
import functools
import io
import math
import os
import random
import re
import socket
import sys
import sysconfig
import threading
import time
import types
import weakref
import zlib
from collections import Counter, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

DEPTH, OBJECTS, BYTES, SECONDS = 6, 20_000, 64 * 2**20, 0.02
"""Limits of a walk: levels below a root and in a value, values, bytes of the arrays that are kept, CPU seconds to find changes."""

ENTRIES = 10_000
"""Entries of a container above which only numbers are kept, and a change is looked for in as many of them at most."""

SAMPLED = 8 * 2**20
"""Bytes of an array above which a change is looked for in 4,096 of its elements."""

ATOMS = (type(None), bool, int, float, str, complex, bytes)
NUMBERS = {bool, int, float}
CONTAINERS = (list, deque, set, frozenset, tuple, OrderedDict, Counter, dict)
NAMESPACES = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList)
"""Types of Python whose attributes are the user's."""

QUIET = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial, PurePath, io.IOBase,
    datetime.date, datetime.time, datetime.timedelta, weakref.ref, re.Pattern, socket.socket, threading.Thread, type(threading.Lock()),
    type(threading.RLock()),
)  # fmt: skip
"""Types of values whose change is not a change of the training, or belongs to this process."""

QUIET_PACKAGES = {
    *["wandb", "mlflow", "tqdm", "tensorboard", "logging", "matplotlib", "pandas", "PIL", "rich", "threading"]
}
"""Packages whose objects report or show: their state does not reach the training."""

CLOCKS = re.compile(r"(^|_)(time|tic|t0|clock)(_|$)")
MOMENTS = re.compile(r"(^|_)(start|started|begin|last)(_|$)")
"""Names of times, and those that may also be a value such as `last_loss`: a time if this process could have read it from its clock."""

IMPORTED_AT = time.perf_counter()
PORT = re.compile("(^|_)port$")
LIBRARIES = tuple({str(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib", "platlib")})
MISSING: Any = object()


class LimitReached(Exception):
    """A walk has more to look at than its limits. The message is the path at which it stopped."""


class NotKept(Exception):
    """A value that can't be kept. The arguments are its path and what it is."""


class Framework:
    """What a walk knows about the objects of a framework. Each framework has a subclass.

    Attributes:
        own: types of objects that are not looked at, because the checkpoint holds them or they belong to the framework.
        walked: types of objects whose `attributes` are looked at, though they have a `state_dict`.
        arrays: types of arrays.
        generators: types of generators of random numbers, and functions that return and set the state of one.
    """

    own: tuple[type, ...] = ()
    walked: tuple[type, ...] = ()
    arrays: tuple[type, ...] = ()
    generators: tuple[tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]], ...] = (
        (random.Random, random.Random.getstate, random.Random.setstate),
        (
            np.random.Generator,
            lambda g: g.bit_generator.state,
            lambda g, s: setattr(g.bit_generator, "state", s),
        ),
        (np.random.RandomState, lambda g: g.get_state(legacy=False), np.random.RandomState.set_state),
    )

    def version(self, array: Any) -> Any:
        """Return a value that differs after each change of an array in place. None if there is none."""

    def read(self, array: Any) -> np.ndarray | None:
        """Return the values of an array; as bytes (uint8) if numpy lacks the type, None if it has no values."""

    def describe(self, array: Any) -> list[Any]:
        """Return what `write` needs to make such an array, as JSON data."""
        return []

    def write(self, old: Any, values: np.ndarray, described: list[Any]) -> Any:
        """Return `old` with new values if it is such an array, else a new array."""

    def generator(self, value: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
        """Return the functions that get and set the state of a generator of random numbers. None for any other value."""
        found = ((get, put) for kind, get, put in self.generators if isinstance(value, kind))
        return None if isinstance(value, random.SystemRandom) else next(found, None)

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes of an object of the framework that are looked at. None for any other object."""
        return None


class Walk:
    """One pass over all attributes.

    Attributes:
        marks: a mark of each attribute by path. Another mark differs if the attribute has changed.
        owners: the objects with attributes, by path.
        first: the first path of each value that is not an atom, by its id.
    """

    def __init__(self, roots: Mapping[str, Any], framework: Framework, held: Mapping[str, Any]) -> None:
        self.framework, self.held = framework, held
        self.names = {id(value): name for name, value in held.items()}
        self.marks: dict[str, Any] = {}
        self.owners: dict[str, Any] = {}
        self.first: dict[int, str] = {}
        self.alive: list[Any] = []  # an id belongs to a value while it lives
        self._count, self._end = 0, time.thread_time() + SECONDS
        self._queue = [(name, root, 0) for name, root in roots.items()]
        visited = set[int]()
        for path, owner, depth in self._queue:
            if id(owner) not in visited and (attributes := self.attributes(owner)) is not None:
                self.owners[path] = owner
                self.first[id(owner)] = path
                visited.add(id(owner))
                for name, value in attributes.items():
                    registered = id(value) in self.names and not is_plain(owner, name)
                    if not registered and not belongs_to_process(name, value):
                        place = f"{path}.{name}"
                        self.marks[place] = self._mark(value, place, depth)
                        if type(value) not in ATOMS:
                            self.first.setdefault(id(value), place)

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes that are looked at. None for an object that is kept as a whole, or not at all."""
        kind = type(owner)
        left = (np.ndarray, *self.framework.arrays, *self.framework.own)
        if id(owner) in self.names or issubclass(kind, left):
            return None
        if (own := self.framework.attributes(owner)) is not None:
            return own
        if issubclass(kind, (*QUIET, enum.Enum)) or has_state(kind) or is_iterator(kind):
            return None
        if self.framework.generator(owner):
            return None
        try:
            attributes = object.__getattribute__(owner, "__dict__")
        except AttributeError:
            return None
        if type(attributes) is not dict:
            return None
        if is_library(kind):
            quiet = kind.__module__.split(".")[0] in QUIET_PACKAGES
            return None if quiet else {n: v for n, v in attributes.items() if not n.startswith("_")}
        return attributes.copy()

    def _mark(self, value: Any, path: str, depth: int, level: int = 0, is_copy: bool = False) -> Any:
        """Return the mark of a value, and queue the objects behind it, which may have attributes."""
        kind = type(value)
        if kind in ATOMS:
            return value
        self._count += 1
        if self._count > OBJECTS or (self._count % 64 == 0 and time.thread_time() > self._end):
            raise LimitReached(path)
        self.alive.append(value)
        if name := self.names.get(id(value)):
            return "held", name
        if issubclass(kind, (np.ndarray, np.generic, *self.framework.arrays)):
            return 0 if is_copy else id(value), self._array_mark(value, kind, is_copy)
        if issubclass(kind, CONTAINERS):
            return self._container_mark(value, kind, path, depth, level, is_copy)
        if depth < DEPTH and not is_copy:
            self._queue.append((path, value, depth + 1))
        if issubclass(kind, self.framework.walked):
            return "object", id(value)
        if issubclass(kind, QUIET) or (callable(value) and is_library(kind)):
            return "quiet", kind.__name__
        if issubclass(kind, enum.Enum):
            return kind.__name__, value.name
        if issubclass(kind, (bytearray, array.array)):
            return id(value), zlib.crc32(value)
        if is_iterator(kind):
            return object()  # it may have moved
        if generator := self.framework.generator(value):
            return "random", self._mark(generator[0](value), path, depth, level + 1, True)
        if has_state(kind) and not issubclass(kind, self.framework.own):
            return id(value), self._mark(value.state_dict(), path, depth, level + 1, True)
        # what is behind an object with a `__dict__` is looked at by itself
        deep = level <= DEPTH and not kind.__dictoffset__
        inside = {f: v for f in fields(kind) if type(v := getattr(value, f, None)) in ATOMS or deep}
        marks = [self._mark(v, f"{path}.{f}", depth, level + 1, is_copy) for f, v in inside.items()]
        return "object", id(value), marks

    def _container_mark(
        self, value: Any, kind: type, path: str, depth: int, level: int, is_copy: bool
    ) -> Any:
        is_mapping = issubclass(kind, dict)
        if len(value) > ENTRIES and not is_mapping:
            few = value[:: len(value) // ENTRIES] if issubclass(kind, list) else ()
            few = (value[0], value[-1]) if issubclass(kind, deque) else few
            return id(value), len(value), [v if type(v) in ATOMS else id(v) for v in few]
        if len(value) > ENTRIES or level > DEPTH:
            return id(value), len(value)
        marks = []
        for key, item in [*(value.items() if is_mapping else enumerate(value))]:
            inner = path if type(item) in ATOMS or type(key) not in ATOMS else f"{path}[{key!r}]"
            marks.append(self._mark(item, inner, depth, level + 1, is_copy))
        keys = [k if type(k) in ATOMS else id(k) for k in value] if is_mapping else None
        return kind.__name__, keys, marks

    def _array_mark(self, array: Any, kind: type, is_copy: bool) -> Any:
        is_numpy = issubclass(kind, (np.ndarray, np.generic))
        if not is_numpy and not is_copy and (version := self.framework.version(array)) is not None:
            return version
        values = array if is_numpy else self.framework.read(array)
        if values is None:
            return None
        if values.dtype.hasobject:
            return [v if type(v) in ATOMS else id(v) for v in values.flat[:ENTRIES]]
        if values.nbytes > SAMPLED:
            values = values.reshape(-1)[:: values.size // 4096]
        return values.shape, values.dtype.str, zlib.crc32(values.tobytes())

    def find(self, path: str) -> tuple[Any, str]:
        """Return the object that has an attribute, and the attribute's name. Raises NotKept without the object."""
        for end in range(len(path) - 1, 0, -1):
            if path[end] == "." and (owner := self.owners.get(path[:end])) is not None:
                kind = type(owner)
                known = self.framework.attributes(owner) is not None or issubclass(kind, NAMESPACES)
                if is_library(kind) and not known:
                    raise NotKept(path[:end], kind.__name__)
                return owner, path[end + 1 :]
        raise NotKept(path.rpartition(".")[0], "made in training")

    def value(self, owner: Any, name: str) -> Any:
        """Return an attribute, or MISSING, also without an owner."""
        return (self.attributes(owner) or {}).get(name, MISSING)


def belongs_to_process(name: str, value: Any) -> bool:
    """Return whether a value is a path, host, process id or time, which is another one in another process."""
    kind = type(value)
    if kind is str:
        return value.startswith(("/", "~/")) or value == socket.gethostname()
    if kind is float:
        day = abs(value - time.time()) < 10 * 365 * 86400
        least = 1 if CLOCKS.search(name) else IMPORTED_AT if MOMENTS.search(name) else math.inf
        return day or least < value <= time.perf_counter()
    return kind is int and ((value == os.getpid() and "pid" in name) or bool(PORT.search(name)))


def is_plain(owner: Any, name: str) -> bool:
    """Return whether an attribute stands in the `__dict__` of its object, and not among the weights of a layer."""
    return name in object.__getattribute__(owner, "__dict__")


def has_state(kind: type) -> bool:
    """Return whether objects of this type have `state_dict` and `load_state_dict`."""
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def is_iterator(kind: type) -> bool:
    """Return whether objects of this type yield values once."""
    return hasattr(kind, "__next__") and not issubclass(kind, io.IOBase)


def is_library(kind: type) -> bool:
    """Return whether a type is of Python or of an installed package."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ != "__main__" and (file is None or str(file).startswith(LIBRARIES))


def fields(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass of user code, or of its slots. Empty for any other type."""
    if is_library(kind):
        return ()
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    slots = [getattr(base, "__slots__", ()) for base in kind.__mro__]
    names = [name for one in slots for name in ([one] if isinstance(one, str) else one)]
    return tuple(name for name in names if not name.startswith("__"))
