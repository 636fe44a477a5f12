"""State that training changes and no `state_dict` holds: attributes of modules, callbacks, samplers and data sets.

A walk starts at the `vars()` of some objects and compares their attributes with the start of training. Plain values, arrays, generators
of random numbers and objects with a `state_dict` are kept if they have changed. What can't be kept gets one line. The walk reads no
property, calls no method of user code but `state_dict`, and writes through `__dict__` or in place.
"""

import ast
import functools
import io
import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import numpy as np

from train_anywhere.errors import CheckpointError
from train_anywhere.training.attributes.walk import (
    ATOMS,
    BYTES,
    CONTAINERS,
    DEPTH,
    ENTRIES,
    MISSING,
    NUMBERS,
    Framework,
    LimitReached,
    NotKept,
    Walk,
    fields,
    has_state,
    is_plain,
)


class Attributes:
    """Keeps the attributes of objects, `roots` by name, that have changed since this object was made, and restores them.

    An object that can be reached twice has the first path. `held` returns what a checkpoint holds anyway, by name.
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
        self._start = self._walk()

    def _walk(self) -> "Walk | None":
        try:
            return Walk(self.roots, self.framework, self.held())
        except LimitReached as error:
            place = str(error).split("[")[0]
            self._report(
                f"{place} has more objects than can be compared at each checkpoint, so attributes that training changes are not in the "
                "checkpoints; keep data behind fewer objects, such as an array."
            )
        # objects of user code may do anything; training continues as without this walk
        except Exception as error:
            self._report(
                f"attributes that training changes are not in the checkpoints: reading them failed ({error!r})."
            )
        return None

    def save(self) -> bytes:
        """Return the attributes that have changed since the start, for `restore`. Report those that can't be kept."""
        if not (self._start and (walk := self._walk())):
            return b""
        first = self._start.marks
        for path in {**first, **walk.marks}:
            owner, _, name = path.rpartition(".")
            if path not in walk.marks and walk.value(walk.owners.get(owner), name) is not MISSING:
                continue  # it is a path or a time now
            if [walk.marks.get(path, MISSING)] != [first.get(path, MISSING)]:
                self._changed[path] = None  # once changed, it is always saved, even if it changes back
        kept, encoder, lost = {}, Encoder(walk, self._start.owners), tuple[str, ...]()
        for path in self._changed:
            if path.startswith(lost):  # the line of the object is enough
                continue
            try:
                kept[path] = encoder.encode_path(path)
            except Exception as error:  # also of user code, such as its state_dict
                found = error if isinstance(error, NotKept) else NotKept(path, repr(error))
                self._report_not_kept(found)
                lost += (f"{found.args[0]}.",)
        return pack(kept, encoder.arrays) if kept else b""

    def restore(self, saved: Iterable[bytes], leave: Callable[[str], bool] = lambda path: False) -> None:
        """Restore what `save` has returned on this rank, or on each rank of a run with another number of ranks.

        Of several ranks only what is equal on all of them is restored, and no path for which `leave` returns True.
        Raises CheckpointError: the data is damaged.
        """
        ranks = [unpack(part) for part in saved] or [({}, {})]
        walk = self._walk()
        if not walk:
            return
        decoder = Decoder(walk, ranks[0][1])
        paths = [path for tree, _ in ranks for path in tree if not leave(path)]
        # another name of an object comes after the first, under which it is saved
        first = {path: (ranks[0][0].get(path) or [None])[0] for path in paths}
        for path in sorted(first, key=lambda path: isinstance(first[path], dict) and "same" in first[path]):
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


class Encoder:
    """Converts attributes to JSON data and `arrays`, by the digest of their values, so that equal ones are stored once.

    `made` are the objects that were made before training, by path. A new process makes them, too.
    """

    def __init__(self, walk: Walk, made: Mapping[str, Any]) -> None:
        self.walk, self.made = walk, made
        self.arrays: dict[str, np.ndarray] = {}
        self._seen: dict[int, str] = {}
        self._bytes = 0

    def encode_path(self, path: str) -> list[Any]:
        """Return a list with the data of an attribute, and whether it is plain; empty if it was removed. Raises NotKept."""
        owner, name = self.walk.find(path)
        value = self.walk.value(owner, name)
        return [] if value is MISSING else [self._encode(value, path, 0), is_plain(owner, name)]

    def _encode(self, value: Any, path: str, level: int) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return {"literal": repr(value)} if kind in (complex, bytes) else value
        walk = self.walk
        if name := walk.names.get(id(value)):
            return {"held": name}
        if issubclass(kind, Enum):
            return {"enum": value.name, "class": class_name(kind)}
        if (seen := self._seen.get(id(value)) or walk.first.get(id(value), path)) != path:
            return {"same": seen}
        if seen in walk.owners:
            if type(self.made.get(seen)) is not kind:
                raise NotKept(path, kind.__name__)
            return {"same": seen}
        if not issubclass(kind, tuple):
            self._seen[id(value)] = path
            walk.alive.append(value)
        if issubclass(kind, (np.ndarray, np.generic)):
            name = "scalar" if issubclass(kind, np.generic) else "array"
            return {name: self._keep(np.asarray(value), path), "at": path}
        if issubclass(kind, walk.framework.arrays):
            described = walk.framework.describe(value)
            return {"tensor": self._keep(walk.framework.read(value), path), "of": described, "at": path}
        if level <= DEPTH:
            if issubclass(kind, CONTAINERS):
                return self._container(value, kind, path, level) | {"at": path}
            if generator := walk.framework.generator(value):
                state = self._encode(generator[0](value), f"{path}.state", level + 1)
                return {"random": state, "at": path}
            if has_state(kind) and not issubclass(kind, (*walk.framework.own, *walk.framework.walked)):
                return {"state": self._encode(value.state_dict(), f"{path}.state", level), "at": path}
            if fields(kind):
                inside = {f: self._encode(getattr(value, f), f"{path}.{f}", level + 1) for f in fields(kind)}
                return {"fields": inside, "class": class_name(kind), "at": path}
        raise NotKept(path, kind.__name__)

    def _container(self, value: Any, kind: type, path: str, level: int) -> dict[str, Any]:
        base, inner = next(base for base in CONTAINERS if issubclass(kind, base)), level + 1
        is_mapping = issubclass(base, dict)
        simple = not is_mapping and {*map(type, value)} <= NUMBERS
        if len(value) > ENTRIES and not simple:
            raise NotKept(path, f"{kind.__name__} with {len(value):,} entries")
        items: list[Any] = [*(value.items() if is_mapping else value)]
        if base in (set, frozenset) and not all(map(_keeps_order, items)):
            items.sort(key=repr)  # each process has another order, and ranks compare them
        if is_mapping:
            items = [
                [self._encode(k, path, inner), self._encode(v, f"{path}[{n}]", inner)]
                for n, (k, v) in enumerate(items)
            ]
        elif not simple:
            items = [self._encode(v, f"{path}[{n}]", inner) for n, v in enumerate(items)]
        found: dict[str, Any] = {base.__name__: items}
        if base is tuple and hasattr(kind, "_fields"):
            found["class"] = class_name(kind)
        return found | {"most": value.maxlen} if base is deque else found

    def _keep(self, values: np.ndarray | None, path: str) -> str:
        if values is None or values.dtype.hasobject:
            raise NotKept(path, "array without values")
        self._bytes += values.nbytes
        if self._bytes > BYTES:
            raise NotKept(path, f"beyond {BYTES >> 20} MB in all")
        values = np.array(values, order="C")  # training changes the original
        content = values.tobytes() + f"{values.shape}{values.dtype.str}".encode()
        digest = blake2b(content, digest_size=16).hexdigest()
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
            if not saved[1] or (old is not MISSING and name not in own):
                raise NotKept(path, "made in training")
            own[name] = new

    def _decode(self, saved: Any, old: Any, path: str) -> Any:
        if not isinstance(saved, dict):
            return saved
        kind, value = next(iter(saved.items()))
        if kind == "held":
            if value not in self.walk.held:
                raise NotKept(path, "made in training")
            return self.walk.held[value]
        if kind == "same":
            return self._same(value, path)
        if base := next((base for base in CONTAINERS if base.__name__ == kind), None):
            new = self._container(base, saved, old, path)
        elif kind in ("random", "state"):
            state = self._decode(value, None, path)
            if kind == "state" and old is not MISSING and has_state(type(old)):
                old.load_state_dict(state)
            elif kind == "random" and (generator := self.walk.framework.generator(old)):
                generator[1](old, state)
            else:
                raise NotKept(path, "made in training")
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
        if kind == "enum":
            return find_class(saved["class"])[value]  # type: ignore[index]
        values = self.arrays[value]
        if kind == "tensor":
            return self.walk.framework.write(old, values, saved["of"])
        if kind == "scalar":
            return values[()]
        fits = isinstance(old, np.ndarray) and (old.shape, old.dtype) == (values.shape, values.dtype)
        if not fits or not old.flags.writeable:
            return values.copy()
        old[...] = values
        return old

    def _same(self, path: str, of: str) -> Any:
        if path in self._decoded:
            return self._decoded[path]
        if path in self.walk.owners:
            return self.walk.owners[path]
        value = self.walk.value(*self.walk.find(path))
        if value is MISSING:
            raise NotKept(of, "made in training")
        return value

    def _container(self, base: Any, saved: dict[str, Any], old: Any, path: str) -> Any:
        items, in_place = saved[base.__name__], isinstance(old, base) and hasattr(base, "clear")
        if issubclass(base, dict):
            known = old if in_place else {}
            decoded = ((self._decode(key, None, path), item) for key, item in items)
            new: Any = {key: self._decode(item, known.get(key), path) for key, item in decoded}
        else:
            known = list(old) if base in (list, tuple) and isinstance(old, (list, tuple)) else []
            new = [self._decode(item, one, path) for item, one in zip_longest(items, known[: len(items)])]
        if in_place:
            dict.clear(old) if issubclass(base, dict) else old.clear()
            if isinstance(old, Counter):
                dict.update(old, new)  # its own one adds
            else:
                old.extend(new) if base in (list, deque) else old.update(new)
            return old
        if "class" in saved:
            return find_class(saved["class"])(*new)
        return deque(new, saved["most"]) if base is deque else base(new)


SAME_HASHES = os.environ.get("PYTHONHASHSEED", "random") != "random"
"""Whether strings have the same hash in each process (https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED)."""


def _keeps_order(value: Any) -> bool:
    """Return whether a value has the same hash, and so the same place in a set, in each process."""
    if type(value) is tuple:
        return all(map(_keeps_order, value))
    return type(value) in NUMBERS or (SAME_HASHES and isinstance(value, str | bytes))


def class_name(kind: type) -> str:
    """Return the name by which `find_class` finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str) -> type:
    """Return a class of values that is imported, such as a dataclass or enum. Raises ValueError for anything else."""
    module, _, dotted = name.partition(":")
    found: Any = functools.reduce(getattr, dotted.split("."), sys.modules[module])
    if isinstance(found, type):
        named = issubclass(found, tuple) and hasattr(found, "_fields")
        if named or issubclass(found, Enum) or fields(found):
            return found
    raise ValueError(f"{name} is not a class of values")


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
