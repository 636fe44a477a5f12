"""State that training changes and no `state_dict` holds: attributes of modules, callbacks, samplers and data sets.

A walk starts at the `vars()` of some objects and compares their attributes with the start of training. Plain values, arrays, generators
of random numbers and objects with a `state_dict` are kept if they have changed. What can't be kept gets one line. The walk reads no
property, calls no method of user code but `state_dict`, and writes through `__dict__` or in place.
"""

import ast
import dataclasses
import datetime
import functools
import io
import json
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
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

import numpy as np

from train_anywhere.errors import CheckpointError

DEPTH, OBJECTS, BYTES, SECONDS = 6, 20_000, 64 * 2**20, 0.02
"""Limits of a walk: levels below a root and in a value, values, bytes of the arrays that are kept, CPU seconds to find changes."""

ENTRIES = 10_000
"""Entries of a container above which only numbers are kept, and a change is looked for in as many of them at most."""

SAMPLED = 8 * 2**20
"""Bytes of an array above which a change is looked for in 4,096 of its elements."""

ATOMS = (type(None), bool, int, float, str, complex, bytes)
NUMBERS = {bool, int, float}
MUTABLE = (list, deque, set, dict)
SEQUENCES: dict[str, type] = {
    "list": list,
    "deque": deque,
    "set": set,
    "frozenset": frozenset,
    "tuple": tuple,
}
MAPPINGS: dict[str, type] = {"OrderedDict": OrderedDict, "Counter": Counter, "dict": dict}

QUIET = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial, PurePath, io.IOBase,
    datetime.date, datetime.time, datetime.timedelta, weakref.ref, re.Pattern, socket.socket, threading.Thread, type(threading.Lock()),
    type(threading.RLock()),
)  # fmt: skip
"""Types of values whose change is not a change of the training, or belongs to this process."""

QUIET_PACKAGES = {
    "wandb",
    "mlflow",
    "tqdm",
    "tensorboard",
    "logging",
    "matplotlib",
    "pandas",
    "PIL",
    "rich",
    "threading",
}
"""Packages whose objects report or show: their state does not reach the training."""

CLOCKS = re.compile(r"(^|_)(time|start|started|begin|tic|t0|clock|last)(_|$)")
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
    """

    own: tuple[type, ...] = ()
    walked: tuple[type, ...] = ()

    def is_array(self, kind: type) -> bool:
        """Return whether values of this type are arrays of the framework."""
        return False

    def version(self, array: Any) -> Any:
        """Return a value that differs after each change of an array in place. None if there is none."""

    def read(self, array: Any) -> np.ndarray | None:
        """Return the values of an array; as bytes (uint8) if numpy lacks the type, None if it has no values."""

    def describe(self, array: Any) -> list[Any]:
        """Return what `write` needs to make such an array, as JSON data."""

    def write(self, old: Any, values: np.ndarray, described: list[Any]) -> Any:
        """Return `old` with new values if it is such an array, else a new array."""

    def random_state(self, value: Any) -> Any:
        """Return the state of a generator of random numbers. None for any other value."""
        if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
            return value.getstate()
        if isinstance(value, np.random.Generator):
            return value.bit_generator.state
        return value.get_state(legacy=False) if isinstance(value, np.random.RandomState) else None

    def set_random_state(self, value: Any, state: Any) -> bool:
        """Set the state of a generator. Return False for any other value."""
        if isinstance(value, random.Random):
            value.setstate(state)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = state
        elif isinstance(value, np.random.RandomState):
            value.set_state(state)
        else:
            return False
        return True

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes of an object of the framework that are looked at. None for any other object."""


class Attributes:
    """Keeps the attributes of some objects that have changed since this object was made, and restores them.

    Args:
        roots: the objects by name. An object that can be reached twice has the first path.
        held: returns what a checkpoint holds anyway, by name.
        report: called with each line, once.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        framework: Framework,
        held: Callable[[], Mapping[str, Any]] = dict,
        report: Callable[[str], None] = print,
    ) -> None:
        self.roots, self.framework, self.held, self.report = dict(roots), framework, held, report
        self._changed: dict[str, None] = {}
        self._reported: set[str] = set()
        walk = self._walk()
        self._alive = walk.alive if walk else []
        self._first, self._made = (walk.marks, set(walk.owners)) if walk else ({}, set[str]())

    def _walk(self) -> "Walk | None":
        try:
            return Walk(self.roots, self.framework, self.held())
        except LimitReached as error:
            place = str(error).split("[")[0]
            self._report(
                f"{place} has more objects than can be compared at each checkpoint, so attributes that training changes are not in the "
                "checkpoints; keep data behind fewer objects, such as an array."
            )
            return None

    def save(self) -> bytes:
        """Return the attributes that have changed since the start, for `restore`. Report those that can't be kept."""
        if not (walk := self._walk()):
            return b""
        for path in {**self._first, **walk.marks}:
            gone = path not in walk.marks and walk.has(path)  # it is a path or a time now
            if not gone and [walk.marks.get(path, MISSING)] != [self._first.get(path, MISSING)]:
                self._changed[path] = None  # once changed, it is always saved, even if it changes back
        kept, encoder = {}, Encoder(walk, self._made)
        for path in self._changed:
            try:
                kept[path] = encoder.encode_path(path)
            except NotKept as error:
                self._report_not_kept(error)
        return pack(kept, encoder.arrays) if kept else b""

    def restore(self, saved: Iterable[bytes], leave: tuple[str, ...] = ()) -> None:
        """Restore what `save` has returned on this rank, or on each rank of a run with another number of ranks.

        Of several ranks only what is equal on all of them is restored, and nothing whose path starts with one of `leave`.

        Raises:
            CheckpointError: the data is damaged.
        """
        ranks = [unpack(part) for part in saved] or [({}, {})]
        walk = self._walk()
        if not walk:
            return
        decoder = Decoder(walk, ranks[0][1])
        paths = [path for tree, _ in ranks for path in tree if not path.startswith(leave)]
        # a second name of an object comes after the object
        for path in sorted(dict.fromkeys(paths), key=lambda path: is_second_name(ranks[0][0].get(path))):
            value = ranks[0][0].get(path)
            if value is None or any(tree.get(path) != value for tree, _ in ranks):
                self._report(
                    f"{path} differed between the ranks, and the number of ranks has changed: it starts anew."
                )
                continue
            try:
                decoder.set_path(path, value)
                self._changed[path] = None
            except NotKept as error:
                self._report_not_kept(error)
            except Exception as error:
                raise CheckpointError(
                    f"the checkpoint's state of {path} can't be read: {error!r}."
                ) from error

    def _report_not_kept(self, error: NotKept) -> None:
        path, what = error.args
        self._report(
            f"{path} ({what}) changes in training and is not in a checkpoint; give it state_dict and load_state_dict."
        )

    def _report(self, line: str) -> None:
        if line not in self._reported:
            self._reported.add(line)
            self.report(line)


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
                    if not belongs_to_process(name, value):
                        self._look_at(f"{path}.{name}", value, depth)

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes that are looked at. None for an object that is kept as a whole, or not at all."""
        kind = type(owner)
        is_array = issubclass(kind, np.ndarray) or self.framework.is_array(kind)
        if id(owner) in self.names or is_array or issubclass(kind, self.framework.own):
            return None
        if (own := self.framework.attributes(owner)) is not None:
            return own
        if (
            issubclass(kind, QUIET)
            or has_state(kind)
            or self.framework.random_state(owner) is not None
            or is_iterator(kind)
        ):
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

    def _look_at(self, path: str, value: Any, depth: int) -> None:
        if depth < DEPTH:
            self._queue += self._objects(path, value, depth + 1, 0)
        self.marks[path] = self._mark(value, path, 0)
        if type(value) not in ATOMS:
            self.first.setdefault(id(value), path)

    def _objects(self, path: str, value: Any, depth: int, level: int) -> Iterator[tuple[str, Any, int]]:
        """Yield the objects behind a value that may have attributes: itself, or those in a container."""
        kind = type(value)
        if kind in ATOMS or id(value) in self.names or level > DEPTH:
            return
        if not issubclass(kind, (*SEQUENCES.values(), dict)):
            yield path, value, depth
        elif len(value) <= ENTRIES:
            for key, item in list(value.items() if issubclass(kind, dict) else enumerate(value)):
                if type(item) not in ATOMS:
                    self._count_one(path)
                    yield from self._objects(
                        f"{path}[{key!r}]" if type(key) in ATOMS else path, item, depth, level + 1
                    )

    def _count_one(self, path: str) -> None:
        self._count += 1
        if self._count > OBJECTS or (self._count % 64 == 0 and time.thread_time() > self._end):
            raise LimitReached(path)

    def _mark(self, value: Any, path: str, level: int, is_copy: bool = False) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        self._count_one(path)
        self.alive.append(value)
        if name := self.names.get(id(value)):
            return "held", name
        if issubclass(kind, self.framework.walked):
            return "object", id(value)
        if issubclass(kind, (np.ndarray, np.generic)) or self.framework.is_array(kind):
            return 0 if is_copy else id(value), self._array_mark(value, kind, is_copy)
        if issubclass(kind, QUIET):
            return "quiet", kind.__name__
        if is_iterator(kind):
            return object()  # it may have moved
        is_mapping = issubclass(kind, dict)
        if is_mapping or issubclass(kind, tuple(SEQUENCES.values())):
            if len(value) > ENTRIES and not is_mapping:
                step = len(value) // ENTRIES
                few = (
                    value[::step]
                    if issubclass(kind, list)
                    else [value[0], value[-1]]
                    if issubclass(kind, deque)
                    else []
                )
                return id(value), len(value), [v if type(v) in ATOMS else id(v) for v in few]
            if len(value) > ENTRIES or level > DEPTH:
                return id(value), len(value)
            marks = [
                self._mark(v, path, level + 1, is_copy) for v in list(value.values() if is_mapping else value)
            ]
            return (
                kind.__name__,
                [k if type(k) in ATOMS else id(k) for k in value] if is_mapping else None,
                marks,
            )
        if (state := self.framework.random_state(value)) is not None:
            return "random", repr(state) if isinstance(state, dict) else self._mark(
                state, path, level + 1, True
            )
        if has_state(kind) and not issubclass(kind, (*self.framework.own, *self.framework.walked)):
            return id(value), self._mark(value.state_dict(), path, level + 1, True)
        return "object", id(value), [v for f in fields(kind) if type(v := getattr(value, f)) in ATOMS]

    def _array_mark(self, array: Any, kind: type, is_copy: bool) -> Any:
        is_numpy = issubclass(kind, (np.ndarray, np.generic))
        if not is_numpy and not is_copy and (version := self.framework.version(array)) is not None:
            return version
        values = array if is_numpy else self.framework.read(array)
        if values is None or values.dtype.hasobject:
            return None
        if values.nbytes > SAMPLED:
            values = values.reshape(-1)[:: values.size // 4096]
        return values.shape, values.dtype.str, zlib.crc32(values.tobytes())

    def find(self, path: str) -> tuple[Any, str]:
        """Return the object that has an attribute, and the attribute's name. Raises NotKept without the object."""
        for end in range(len(path) - 1, 0, -1):
            if path[end] == "." and (owner := self.owners.get(path[:end])) is not None:
                if is_library(type(owner)) and self.framework.attributes(owner) is None:
                    raise NotKept(path[:end], type(owner).__name__)
                return owner, path[end + 1 :]
        raise NotKept(path.rpartition(".")[0], "made in training")

    def has(self, path: str) -> bool:
        """Return whether there is such an attribute."""
        owner, _, name = path.rpartition(".")
        return owner in self.owners and name in (self.attributes(self.owners[owner]) or {})

    def value(self, owner: Any, name: str) -> Any:
        """Return an attribute, or MISSING."""
        return (self.attributes(owner) or {}).get(name, MISSING)


class Encoder:
    """Converts attributes to JSON data and arrays.

    Args:
        made: the paths of the objects that were made before training. A new process makes them, too.

    Attributes:
        arrays: the arrays by the digest of their values, so that equal ones are stored once.
    """

    def __init__(self, walk: Walk, made: set[str]) -> None:
        self.walk, self.made = walk, made
        self.arrays: dict[str, np.ndarray] = {}
        self._seen: dict[int, str] = {}
        self._bytes = 0

    def encode_path(self, path: str) -> list[Any]:
        """Return a list with the data of an attribute, empty if it was removed. Raises NotKept."""
        owner, name = self.walk.find(path)
        value = self.walk.value(owner, name)
        return [] if value is MISSING else [self._encode(value, path, 0)]

    def _encode(self, value: Any, path: str, level: int) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return {"literal": repr(value)} if kind in (complex, bytes) else value
        walk = self.walk
        if name := walk.names.get(id(value)):
            return {"held": name}
        if (seen := self._seen.get(id(value)) or walk.first.get(id(value), path)) != path:
            return {"same": seen}
        if seen in walk.owners:
            if seen not in self.made:
                raise NotKept(path, kind.__name__)
            return {"same": seen}
        if not issubclass(kind, tuple):
            self._seen[id(value)] = path
            walk.alive.append(value)
        if issubclass(kind, (np.ndarray, np.generic)):
            return {
                "scalar" if issubclass(kind, np.generic) else "array": self._keep(np.asarray(value), path),
                "at": path,
            }
        if walk.framework.is_array(kind):
            described = walk.framework.describe(value)
            return {"tensor": self._keep(walk.framework.read(value), path), "of": described, "at": path}
        if level <= DEPTH:
            if issubclass(kind, (dict, *SEQUENCES.values())):
                return self._container(value, kind, path, level) | {"at": path}
            if (state := walk.framework.random_state(value)) is not None:
                return {"random": self._encode(state, f"{path}.state", level + 1), "at": path}
            if has_state(kind) and not issubclass(kind, (*walk.framework.own, *walk.framework.walked)):
                return {"state": self._encode(value.state_dict(), f"{path}.state", level), "at": path}
            if fields(kind):
                inside = {f: self._encode(getattr(value, f), f"{path}.{f}", level + 1) for f in fields(kind)}
                return {"fields": inside, "class": class_name(kind), "at": path}
        raise NotKept(path, kind.__name__)

    def _container(self, value: Any, kind: type, path: str, level: int) -> dict[str, Any]:
        if len(value) > ENTRIES and (issubclass(kind, dict) or not {*map(type, value)} <= NUMBERS):
            raise NotKept(path, f"{kind.__name__} with {len(value):,} entries")
        if issubclass(kind, dict):
            pairs = [
                [self._encode(k, path, level + 1), self._encode(v, f"{path}[{n}]", level + 1)]
                for n, (k, v) in enumerate(value.items())
            ]
            return {next(name for name, base in MAPPINGS.items() if issubclass(kind, base)): pairs}
        name = next(name for name, base in SEQUENCES.items() if issubclass(kind, base))
        simple = {*map(type, value)} <= NUMBERS
        items = (
            [*value] if simple else [self._encode(v, f"{path}[{n}]", level + 1) for n, v in enumerate(value)]
        )
        named = hasattr(kind, "_fields") and name == "tuple"
        return {
            name: items,
            **({"class": class_name(kind)} if named else {}),
            **({"most": value.maxlen} if name == "deque" else {}),
        }

    def _keep(self, values: np.ndarray | None, path: str) -> str:
        if values is None or values.dtype.hasobject:
            raise NotKept(path, "array without values")
        self._bytes += values.nbytes
        if self._bytes > BYTES:
            raise NotKept(path, f"beyond {BYTES >> 20} MB in all")
        values = np.array(values, order="C")  # training changes the original
        digest = blake2b(
            values.tobytes() + f"{values.shape}{values.dtype.str}".encode(), digest_size=16
        ).hexdigest()
        self.arrays[digest] = values
        return digest


class Decoder:
    """Converts JSON data and arrays back, in place if an object of the same kind is there."""

    def __init__(self, walk: Walk, arrays: Mapping[str, np.ndarray]) -> None:
        self.walk, self.arrays = walk, arrays
        self._decoded: dict[str, Any] = {}

    def set_path(self, path: str, saved: list[Any]) -> None:
        """Set an attribute, or remove it if `saved` is empty. Raises NotKept."""
        owner, name = self.walk.find(path)
        own, old = object.__getattribute__(owner, "__dict__"), self.walk.value(owner, name)
        if not saved:
            own.pop(name, None)
        elif (new := self._decode(saved[0], old, path)) is not old:
            if old is not MISSING and name not in own:
                raise NotKept(path, "of another shape")
            own[name] = new

    def _decode(self, saved: Any, old: Any, path: str) -> Any:
        if not isinstance(saved, dict):
            return saved
        kind, value = next(iter(saved.items()))
        if kind == "held":
            return self.walk.held[value]
        if kind == "same":
            return self._same(value, path)
        if kind in SEQUENCES or kind in MAPPINGS:
            new = self._container(kind, saved, old, path)
        elif kind in ("random", "state"):
            state = self._decode(value, None, path)
            if old is MISSING or not (
                has_state(type(old)) if kind == "state" else self.walk.framework.set_random_state(old, state)
            ):
                raise NotKept(path, "made in training")
            if kind == "state":
                old.load_state_dict(state)
            new = old
        elif kind == "fields":
            cls = find_class(saved["class"])
            new = old if type(old) is cls else object.__new__(cls)
            for name, item in value.items():
                object.__setattr__(new, name, self._decode(item, getattr(new, name, None), path))
        else:
            new = self._plain(kind, saved, old)
        if "at" in saved:
            self._decoded[saved["at"]] = new
        return new

    def _plain(self, kind: str, saved: dict[str, Any], old: Any) -> Any:
        value = saved[kind]
        if kind == "literal":
            return ast.literal_eval(value)
        values = self.arrays[value]
        if kind == "tensor":
            return self.walk.framework.write(old, values, saved["of"])
        if kind == "scalar":
            return values[()]
        if (
            isinstance(old, np.ndarray)
            and (old.shape, old.dtype) == (values.shape, values.dtype)
            and old.flags.writeable
        ):
            old[...] = values
            return old
        return values.copy()

    def _same(self, path: str, of: str) -> Any:
        if path in self._decoded:
            return self._decoded[path]
        if path in self.walk.owners:
            return self.walk.owners[path]
        value = self.walk.value(*self.walk.find(path))
        if value is MISSING:
            raise NotKept(of, "made in training")
        return value

    def _container(self, kind: str, saved: dict[str, Any], old: Any, path: str) -> Any:
        base, items = {**SEQUENCES, **MAPPINGS}[kind], saved[kind]
        in_place = isinstance(old, base) and issubclass(base, MUTABLE)
        if kind in MAPPINGS:
            known = old if in_place else {}
            keys = [self._decode(key, None, path) for key, _ in items]
            pairs = [
                (key, self._decode(item, known.get(key), path))
                for key, (_, item) in zip(keys, items, strict=True)
            ]
            if not in_place:
                return base(pairs)
            dict.clear(old)
            old.update(dict(pairs)) if not isinstance(old, Counter) else dict.update(old, pairs)
            return old
        known = list(old) if kind in ("list", "tuple") and isinstance(old, (list, tuple)) else []
        new = [self._decode(item, known[n] if n < len(known) else None, path) for n, item in enumerate(items)]
        if not in_place:
            if "class" in saved:
                return find_class(saved["class"])(*new)
            return deque(new, saved["most"]) if kind == "deque" else base(new)
        old.clear()
        old.update(new) if kind == "set" else old.extend(new)
        return old


def belongs_to_process(name: str, value: Any) -> bool:
    """Return whether a value is a path, host, process id or time, which is another one in another process."""
    kind = type(value)
    if kind is str:
        return value.startswith(("/", "~/")) or value == socket.gethostname()
    if kind is float:
        day = abs(value - time.time()) < 10 * 365 * 86400
        return day or (bool(CLOCKS.search(name)) and 1 < value <= time.perf_counter())
    return kind is int and ((value == os.getpid() and "pid" in name) or name.endswith("port"))


def has_state(kind: type) -> bool:
    """Return whether objects of this type have `state_dict` and `load_state_dict`."""
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def is_iterator(kind: type) -> bool:
    """Return whether objects of this type yield values once."""
    return hasattr(kind, "__next__") and not issubclass(kind, io.IOBase)


@functools.cache
def is_library(kind: type) -> bool:
    """Return whether a type is of Python or of an installed package."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ != "__main__" and (file is None or str(file).startswith(LIBRARIES))


@functools.cache
def fields(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass of user code. Empty for any other type."""
    known = dataclasses.is_dataclass(kind) and not is_library(kind)
    return tuple(field.name for field in dataclasses.fields(kind)) if known else ()


def class_name(kind: type) -> str:
    """Return the name by which `find_class` finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str) -> type:
    """Return a dataclass or named tuple of a module that is imported. Raises ValueError for anything else."""
    module, _, dotted = name.partition(":")
    found: Any = functools.reduce(getattr, dotted.split("."), sys.modules[module])
    if not (
        isinstance(found, type)
        and (fields(found) or (issubclass(found, tuple) and hasattr(found, "_fields")))
    ):
        raise ValueError(f"{name} is not a dataclass or named tuple")
    return found


def is_second_name(saved: list[Any] | None) -> bool:
    """Return whether saved data is another name of an object that is saved under its first name."""
    return bool(saved) and isinstance(saved[0], dict) and "same" in saved[0]


def pack(tree: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return JSON data and arrays as the bytes of an npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, tree=np.frombuffer(json.dumps(tree).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the arguments of `pack`. Raises CheckpointError for damaged data."""
    if not data:
        return {}, {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return json.loads(arrays.pop("tree").tobytes()), arrays
    except Exception as error:  # numpy raises many types for damaged files
        raise CheckpointError(f"the checkpoint's attributes can't be read: {error!r}.") from error
