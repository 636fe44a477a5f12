"""Read the constructor of a class, through bases and `**kwargs`, and its literal attributes."""

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.fields import dataclass_signature, field_default, named_tuple_signature
from train_anywhere.config.signatures.forwarding import Forwarding, read_forwarding
from train_anywhere.config.signatures.names import EMPTY_BASES, FunctionNode, Mro, Names, Place
from train_anywhere.config.signatures.parameters import (
    ANY_SIGNATURE,
    NEUTRAL_DECORATORS,
    Signature,
    keeps_signature,
    literal,
    read_signature,
)

CLASS_DECORATORS = {
    *("dataclass", "final", "runtime_checkable", "total_ordering", "deprecated", "compatibility"),
    *("keras_export", "tf_export", "register_keras_serializable"),
}
"""Class decorators, by their last name, that do not change the constructor."""


def constructor_signature(names: Names, place: Place) -> Signature:
    """Return the parameters of a call of the class.

    Raises:
        TargetError: a file of the project with a base class is not valid Python.
    """
    mro = names.mro(place)
    found = _find_constructor(names, mro, {"__init__", "__new__"})
    if _has_generated_constructor(names, mro):
        return Signature(_make_optional(found.parameters), True)
    return Signature(found.parameters, True) if _has_metaclass_call(names, mro) else found


def literal_attributes(names: Names, place: Place) -> dict[str, Any]:
    """Return class attributes with a literal value. Other attributes hide those of the same name in bases."""
    found: dict[str, Any] = {}
    for base in names.mro(place):
        if isinstance(base, Place) and isinstance(base.node, ast.ClassDef):
            own = {name: several[0].value for name, several in names.scope(base.node).items()}
            values = {name: literal(field_default(value)) for name, value in own.items()}
            found = values | found
    return {n: v for n, v in found.items() if v is not NO_DEFAULT and not n.startswith("__")}


def _find_constructor(names: Names, mro: Mro, accepted: set[str]) -> Signature:
    """Return the first constructor in the MRO whose name is in `accepted`; an `__init__` goes before a `__new__`."""
    new: Signature | None = None
    for number, base in enumerate(mro):
        if isinstance(base, str):
            if base in EMPTY_BASES:
                continue
            return new or ANY_SIGNATURE
        assert isinstance(base.node, ast.ClassDef)
        scope = names.scope(base.node)
        for name in ("__init__", "__new__"):
            node = scope[name][0].node if name in scope else None
            if node is None or name not in accepted or (name == "__new__" and new):
                continue
            found = _full_signature(names, base, node, mro[number:])
            if name == "__init__":
                if new and (new.parameters or not new.takes_any):
                    return new  # the `__new__` of a nearer class gets the call first
                certain = keeps_signature(base.node.decorator_list, CLASS_DECORATORS)
                return found if certain else Signature(found.parameters, True)
            new = found
        generated = dataclass_signature(names, mro[number:])
        if generated is None and new is None:
            generated = named_tuple_signature(names, base)
        if generated:
            return generated
        if not keeps_signature(base.node.decorator_list, CLASS_DECORATORS):
            return ANY_SIGNATURE
    return new or Signature({}, False)


def _full_signature(names: Names, base: Place, node: ast.stmt, mro: Mro) -> Signature:
    """Return the signature of a constructor of `base`, with the parameters that its `**kwargs` reach. `mro` starts with `base`."""
    if not isinstance(node, FunctionNode):
        return ANY_SIGNATURE
    own = read_signature(names, base.module, node, bound=True)
    neutral = keeps_signature(node.decorator_list, NEUTRAL_DECORATORS)
    if node.args.kwarg is None or node.name == "__new__" or not neutral:
        return own
    given = read_forwarding(node)
    if not given.closed:
        return own
    parameters = dict(own.parameters)
    for name in given.popped:
        parameters.setdefault(name, Parameter(name, False))
    if given.call is None:
        return Signature(parameters, False)
    below = _next_constructor(names, base, given, mro)
    for name, parameter in _remaining_parameters(given, below, node).items():
        parameters.setdefault(name, parameter)
    return Signature(parameters, below.takes_any)


def _next_constructor(names: Names, base: Place, given: Forwarding, mro: Mro) -> Signature:
    """Return the constructor that gets the rest of `**kwargs`."""
    if given.base is None:
        return _find_constructor(names, mro[1:], {"__init__"})
    called = names.resolve(base.module, given.base)
    if not isinstance(called, Place) or not isinstance(called.node, ast.ClassDef) or called.node is base.node:
        return ANY_SIGNATURE
    at = next((i for i, other in enumerate(mro) if other == called), None)
    return _find_constructor(names, names.mro(called) if at is None else mro[at:], {"__init__"})


def _remaining_parameters(given: Forwarding, below: Signature, node: FunctionNode) -> dict[str, Parameter]:
    """Return the parameters of the next constructor that the call does not set, and that `**kwargs` can."""
    assert given.call is not None
    args = given.call.args[given.base is not None :]  # Base.__init__(self, ...)
    plain = [arg for arg in args if not isinstance(arg, ast.Starred)]
    own_rest = node.args.vararg.arg if node.args.vararg else None
    handed_on = [a for a in args if isinstance(a, ast.Starred)]
    unclear = any(not isinstance(a.value, ast.Name) or a.value.id != own_rest for a in handed_on)
    dictionaries = sum(keyword.arg is None for keyword in given.call.keywords) > 1
    explicit = {keyword.arg for keyword in given.call.keywords}
    free = list(below.parameters.values())[len(plain) :]
    left = {p.name: p for p in free if p.name not in explicit and not p.positional_only}
    return _make_optional(left) if unclear or dictionaries else left


def _make_optional(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    return {name: replace(parameter, required=False) for name, parameter in parameters.items()}


def _has_generated_constructor(names: Names, mro: Mro) -> bool:
    """Return whether a base may generate constructors in `__init_subclass__`, as some libraries do."""
    scopes = [names.scope(b.node) for b in mro if isinstance(b, Place) and isinstance(b.node, ast.ClassDef)]
    return "__init__" not in scopes[0] and any("__init_subclass__" in scope for scope in scopes[1:])


def _has_metaclass_call(names: Names, mro: Mro) -> bool:
    """Return whether a metaclass may handle a call before the constructor."""
    for base in mro:
        if not isinstance(base, Place) or not isinstance(base.node, ast.ClassDef):
            continue
        for value in (keyword.value for keyword in base.node.keywords if keyword.arg == "metaclass"):
            if names.imported_name(base.module, value) != "abc.ABCMeta":
                meta = names.resolve(base.module, value)
                if not isinstance(meta, Place) or names.find_attribute(meta, "__call__") is not None:
                    return True
    return False
