"""Build a module without memory for its weights, and compute each when it is needed.

The operations of torch's layers on new weights are recorded, with the state of the random numbers. Replaying them later, one weight
at a time, gives the same bits as building the whole module at once.
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
"""Operations for which the old content of a tensor does not matter."""


@dataclass(frozen=True)
class Operation:
    """A recorded operation on tensors without memory.

    Attributes:
        versions: versions of the real tensors among its arguments, which must not change later.
        generator, state: the random generator that it uses, and its state before the operation; None without one.
    """

    function: Any
    arguments: tuple[Any, dict[str, Any]]
    result: Any
    versions: list[tuple[Tensor, int]]
    generator: torch.Generator | None
    state: Tensor | None

    @property
    def overwrites(self) -> bool:
        """Whether it sets the whole content of a storage."""
        return self.function in OVERWRITING and _key(self.arguments[0][0])[1] == self.arguments[0][0].nbytes


class OnCpu(TorchFunctionMode):
    """Make tensors on "meta" report the CPU: torch would not initialize them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.is_meta.__get__:
            return False
        if func == Tensor.device.__get__:
            return torch.device("cpu") if args[0].is_meta else args[0].device
        return func(*args, **(kwargs or {}))


class DeferredWeights(TorchDispatchMode):
    """A mode that records operations on tensors without memory, which `torch.empty` returns.

    Nothing else changes: random numbers are drawn in the same order, and other tensors are computed at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[Operation] = []
        # all tensors without memory, by storage; keeping them ensures that no other tensor gets the same storage
        self._own: dict[Any, Any] = {}
        self._values: dict[Any, Callable[[], Tensor]] = {}
        # numbers of operations, by the storage that they change
        self._writes: dict[Any, list[int]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.empty.memory_format and _on_cpu(kwargs):
            empty = func(*args, **{**kwargs, "device": torch.device("meta")})
            self._own[_key(empty)] = empty
            return empty
        tensors = _tensors((args, kwargs))
        if not any(t.is_meta for t in tensors):
            return func(*args, **kwargs)
        if any(t.is_meta and _key(t) not in self._own for t in tensors):
            raise RuntimeError("a tensor without memory that was created elsewhere")
        if func is aten._local_scalar_dense.default:  # the module needs the number now
            return self.value(args[0]).item()
        generator = state = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            generator = kwargs.get("generator") or torch.default_generator
            state = generator.get_state()
            func(*_allocate(args), **_allocate(kwargs))  # advances the generator
        result = func(*args, **kwargs)
        versions = [(t, t._version) for t in tensors if not t.is_meta]
        self._record(Operation(func, (args, kwargs), result, versions, generator, state), tensors)
        return result

    def _record(self, operation: Operation, inputs: list[Tensor]) -> None:
        known = {_key(t) for t in inputs}
        new = {_key(t) for t in _tensors(operation.result)} - known
        changed = {_key(t) for t in _written_tensors(operation)}
        self._own |= dict.fromkeys(new, operation.result)
        for key in new | changed:
            self._writes[key].append(len(self._operations))
        self._operations.append(operation)

    @property
    def usable(self) -> bool:
        """Whether the real tensors that values depend on are unchanged."""
        return all(t._version == version for o in self._operations for t, version in o.versions)

    def value(self, tensor: Tensor) -> Tensor:
        """Return the value of a tensor, on the CPU and in its own memory."""
        if value := self._values.get(_key(tensor)):
            return value().to(tensor.dtype)
        storages: dict[Any, torch.UntypedStorage] = {}
        for number in sorted(self._needed_operations(_key(tensor), len(self._operations))):
            self._replay(self._operations[number], storages)
        return _materialize(tensor, storages)

    def set_value(self, tensor: Tensor, value: Callable[[], Tensor]) -> None:
        """Set the function that returns the value of a tensor."""
        self._values[_key(tensor)] = value

    def _needed_operations(self, key: Any, before: int) -> set[int]:
        """Return the numbers of the operations that set a storage before operation `before`."""
        found: set[int] = set()
        for number in reversed([n for n in self._writes[key] if n < before]):
            found.add(number)
            operation = self._operations[number]
            for other in {_key(t) for t in _tensors(operation.arguments) if t.is_meta} - {key}:
                found |= self._needed_operations(other, number)
            if operation.overwrites:
                break
        return found

    def _replay(self, operation: Operation, storages: dict[Any, torch.UntypedStorage]) -> None:
        args, kwargs = tree_map(lambda v: _materialize(v, storages) if _meta(v) else v, operation.arguments)
        if operation.generator is None:
            result = operation.function(*args, **kwargs)
        else:
            after = operation.generator.get_state()
            operation.generator.set_state(operation.state)
            result = operation.function(*args, **kwargs)
            operation.generator.set_state(after)
        for meta, real in zip(_tensors(operation.result), _tensors(result), strict=True):
            storages.setdefault(_key(meta), real.untyped_storage())


def build_deferred(build: Callable[[], Any]) -> tuple[Any, DeferredWeights | None]:
    """Return the result of `build` and its deferred weights, or None if it needs them at once."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    deferred = DeferredWeights()
    try:
        with deferred, OnCpu():
            built = build()
        if isinstance(built, nn.Module) and deferred.usable:
            for module in built.modules():
                _fill_buffers(module, deferred)
            return built, deferred
    except Exception:  # a module that needs a value raises any error; its own errors are raised again below
        pass
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    return build(), None


def _fill_buffers(module: nn.Module, deferred: DeferredWeights) -> None:
    """Set the values of tensors that are not weights, such as buffers."""
    for attributes in (module._buffers, vars(module)):
        for name, tree in attributes.items():
            if name != "_parameters" and any(_meta(leaf) for leaf in tree_leaves(tree)):
                attributes[name] = tree_map(lambda v: deferred.value(v) if _meta(v) else v, tree)


def _key(tensor: Tensor) -> tuple[int, int]:
    """Return the address and size in bytes of a tensor's storage."""
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _on_cpu(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return (device is None or torch.device(device).type == "cpu") and not kwargs.get("pin_memory")


def _written_tensors(operation: Operation) -> list[Tensor]:
    """Return the arguments that an operation changes, by its schema."""
    args, kwargs = operation.arguments
    schema = operation.function._schema.arguments
    values = {a.name: v for a, v in zip(schema, args, strict=False)} | kwargs
    writes = [a.name for a in schema if a.alias_info and a.alias_info.is_write]
    return _tensors([values.get(name) for name in writes])


def _allocate(tree: Any) -> Any:
    """Return the tree with uninitialized memory for its tensors."""
    return tree_map(
        lambda v: torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) if _meta(v) else v, tree
    )


def _materialize(tensor: Tensor, storages: dict[Any, torch.UntypedStorage]) -> Tensor:
    """Return the tensor in memory, uninitialized if nothing has been written to it yet."""
    key = _key(tensor)
    storage = storages.setdefault(key, torch.UntypedStorage(key[1]))
    return torch.empty(0, dtype=tensor.dtype).set_(
        storage, tensor.storage_offset(), tensor.shape, tensor.stride()
    )
