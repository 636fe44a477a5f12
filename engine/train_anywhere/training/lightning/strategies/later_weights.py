"""Weights whose values come later: a module is built without memory for them, and each is drawn when it is needed.

What torch's layers do to a new weight is noted, with the state of the random numbers at that moment. Done later, one weight at a time,
it gives the same bits as if the whole module had been built at once.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
OVERWRITING = {aten.uniform_.default, aten.normal_.default, aten.fill_.Scalar, aten.zero_.default}
"""What was in a tensor before these does not matter."""


@dataclass(frozen=True)
class Step:
    """One operation on tensors without memory.

    Attributes:
        versions: of the real tensors among its arguments, which must not change later.
        generator, state: what it draws from, and how that stood; None: it draws nothing.
    """

    function: Any
    arguments: tuple[Any, dict[str, Any]]
    result: Any
    versions: list[tuple[Tensor, int]]
    generator: torch.Generator | None
    state: Tensor | None

    @property
    def overwrites(self) -> bool:
        """Whether it gives all that is in a storage."""
        return self.function in OVERWRITING and _key(self.arguments[0][0])[1] == self.arguments[0][0].nbytes


class OnCpu(TorchFunctionMode):
    """Tensors without memory say that they are on the CPU: torch's own initialisation passes over those that say "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.is_meta.__get__:  # type: ignore[attr-defined]
            return False
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return torch.device("cpu") if args[0].is_meta else args[0].device
        return func(*args, **(kwargs or {}))


class Later(TorchDispatchMode):
    """Within it `torch.empty` makes tensors without memory, on torch's device "meta", and what is done to them is noted.

    All else is as it was: numbers are drawn in the same order, and what a module computes from other tensors is there at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Step] = []
        # all tensors without memory, by their storage: kept, so that no other one gets the same storage
        self._own: dict[Any, Any] = {}
        self._given: dict[Any, Callable[[], Tensor]] = {}
        # numbers of steps, by the storage that they change
        self._writing: dict[Any, list[int]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.empty.memory_format and _on_cpu(kwargs):
            made = func(*args, **{**kwargs, "device": torch.device("meta")})
            self._own[_key(made)] = made
            return made
        tensors = _tensors((args, kwargs))
        if not any(t.is_meta for t in tensors):
            return func(*args, **kwargs)
        if any(t.is_meta and _key(t) not in self._own for t in tensors):
            raise RuntimeError("a tensor without memory that was made elsewhere")
        if func is aten._local_scalar_dense.default:  # a number that the module wants to see now
            return self.value(args[0]).item()
        generator = state = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            generator = kwargs.get("generator") or torch.default_generator
            state = generator.get_state()
            func(*_room(args), **_room(kwargs))  # the next draw is another one
        result = func(*args, **kwargs)
        versions = [(t, t._version) for t in tensors if not t.is_meta]
        self._note(Step(func, (args, kwargs), result, versions, generator, state), tensors)
        return result

    def _note(self, step: Step, given: list[Tensor]) -> None:
        known = {_key(t) for t in given}
        new = {_key(t) for t in _tensors(step.result)} - known
        changed = {_key(t) for t in _mutated(step)}
        self._own |= dict.fromkeys(new, step.result)
        for key in new | changed:
            self._writing[key].append(len(self._steps))
        self._steps.append(step)

    @property
    def usable(self) -> bool:
        """Whether nothing has changed that a value depends on."""
        return all(t._version == version for step in self._steps for t, version in step.versions)

    def value(self, tensor: Tensor) -> Tensor:
        """What the tensor holds, with memory of its own, on the CPU."""
        if given := self._given.get(_key(tensor)):
            return given().to(tensor.dtype)
        made: dict[Any, torch.UntypedStorage] = {}
        for number in sorted(self._needed(_key(tensor), len(self._steps))):
            self._do(self._steps[number], made)
        return _real(tensor, made)

    def give(self, tensor: Tensor, value: Callable[[], Tensor]) -> None:
        """From now on the tensor holds what this function returns."""
        self._given[_key(tensor)] = value

    def _needed(self, key: Any, before: int) -> set[int]:
        """Numbers of the steps that make what a storage holds before a step."""
        found: set[int] = set()
        for number in reversed([n for n in self._writing[key] if n < before]):
            found.add(number)
            step = self._steps[number]
            for other in {_key(t) for t in _tensors(step.arguments) if t.is_meta} - {key}:
                found |= self._needed(other, number)
            if step.overwrites:
                break
        return found

    def _do(self, step: Step, made: dict[Any, torch.UntypedStorage]) -> None:
        args, kwargs = tree_map(lambda v: _real(v, made) if _meta(v) else v, step.arguments)
        if step.generator is None:
            result = step.function(*args, **kwargs)
        else:
            after = step.generator.get_state()
            step.generator.set_state(step.state)  # type: ignore[arg-type]
            result = step.function(*args, **kwargs)
            step.generator.set_state(after)
        for meta, real in zip(_tensors(step.result), _tensors(result), strict=True):
            made.setdefault(_key(meta), real.untyped_storage())


def build_later(build: Callable[[], Any]) -> tuple[Any, Later | None]:
    """What `build` makes, with weights of which the values come later; where it needs them at once, as it is: then None."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    later = Later()
    try:
        with later, OnCpu():
            made = build()
        if isinstance(made, nn.Module) and later.usable:
            for module in made.modules():
                _settle(module, later)
            return made, later
    except Exception:  # whatever a module raises that wants to see a value; an error of its own comes again
        pass
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    return build(), None


def _settle(module: nn.Module, later: Later) -> None:
    """Give values to what is no weight: buffers, and tensors that a module just keeps."""
    for kept in (module._buffers, vars(module)):
        for name, tree in kept.items():
            if name != "_parameters" and any(_meta(leaf) for leaf in tree_leaves(tree)):
                kept[name] = tree_map(lambda v: later.value(v) if _meta(v) else v, tree)


def _key(tensor: Tensor) -> tuple[int, int]:
    """Of its storage: address and bytes."""
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _on_cpu(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return (device is None or torch.device(device).type == "cpu") and not kwargs.get("pin_memory")


def _mutated(step: Step) -> list[Tensor]:
    """Arguments that the operation changes, by its schema."""
    args, kwargs = step.arguments
    given = {a.name: v for a, v in zip(step.function._schema.arguments, args, strict=False)} | kwargs
    writes = [a.name for a in step.function._schema.arguments if a.alias_info and a.alias_info.is_write]
    return _tensors([given.get(name) for name in writes])


def _room(tree: Any) -> Any:
    """The same tree with memory for its tensors, whatever is in it."""
    return tree_map(
        lambda v: torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) if _meta(v) else v, tree
    )


def _real(tensor: Tensor, made: dict[Any, torch.UntypedStorage]) -> Tensor:
    """The tensor in memory; what nobody has written to yet is empty."""
    key = _key(tensor)
    storage = made.setdefault(key, torch.UntypedStorage(key[1]))
    return torch.empty(0, dtype=tensor.dtype).set_(
        storage, tensor.storage_offset(), tensor.shape, tensor.stride()
    )
