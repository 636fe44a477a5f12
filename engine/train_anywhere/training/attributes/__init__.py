"""State that training changes and no `state_dict` holds: attributes of modules, callbacks, samplers and data sets.

A walk starts at the `vars()` of some objects and compares their attributes with the start of training. Plain values, arrays, generators
of random numbers and objects with a `state_dict` are kept if they have changed. What can't be kept gets one line. The walk reads no
property, calls no method of user code but `state_dict`, and writes through `__dict__` or in place.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from train_anywhere.errors import CheckpointError
from train_anywhere.training.attributes.encoding import Decoder, Encoder, pack, unpack
from train_anywhere.training.attributes.walk import MISSING, Framework, LimitReached, NotKept, Walk


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
        made = {path: type(owner) for path, owner in self._start.owners.items()}
        kept, encoder, lost = {}, Encoder(walk, made), tuple[str, ...]()
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
