"""What a class takes and has: its constructor, through bases and `**kwargs`, and its literal attributes."""

import ast
from typing import Any

from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.fields import field_default, of_dataclass, of_named_tuple
from train_anywhere.config.signatures.forwarding import Forwarding, forwarding
from train_anywhere.config.signatures.names import BARE, FunctionNode, Line, Names, Place
from train_anywhere.config.signatures.parameters import ANYTHING, KEEPING, Signature, keeps, literal, written

CLASS_KEEPING = {
    *("dataclass", "final", "runtime_checkable", "total_ordering", "deprecated", "compatibility"),
    *("keras_export", "tf_export", "register_keras_serializable"),
}
"""Decorators of classes, by their last name, that leave the constructor as it is written."""


def constructor(names: Names, place: Place) -> Signature:
    """What a call of the class takes.

    Raises:
        TargetError: a file of the project, reached through a base, is not valid Python.
    """
    line = names.line(place)
    found = _first(names, line, {"__init__", "__new__"})
    if _made_elsewhere(names, line):
        return Signature(_optional(found.parameters), True)
    return Signature(found.parameters, True) if _called_otherwise(names, line) else found


def attributes(names: Names, place: Place) -> dict[str, Any]:
    """Class attributes with a literal value; one that is anything else hides those of the same name further up."""
    found: dict[str, Any] = {}
    for base in names.line(place):
        if isinstance(base, Place) and isinstance(base.node, ast.ClassDef):
            own = {name: several[0].value for name, several in names.scope(base.node).items()}
            values = {name: literal(field_default(value)) for name, value in own.items()}
            found = values | found
    return {n: v for n, v in found.items() if v is not NO_DEFAULT and not n.startswith("__")}


def _first(names: Names, line: Line, wanted: set[str]) -> Signature:
    """The constructor that the line finds first: an `__init__`, or else, where `wanted`, a `__new__`."""
    new: Signature | None = None
    for number, base in enumerate(line):
        if isinstance(base, str):
            if base in BARE:
                continue
            return new or ANYTHING
        assert isinstance(base.node, ast.ClassDef)
        scope = names.scope(base.node)
        for name in ("__init__", "__new__"):
            node = scope[name][0].node if name in scope else None
            if node is None or name not in wanted or (name == "__new__" and new):
                continue
            found = _whole(names, base, node, line[number:])
            if name == "__init__":
                if new and (new.parameters or not new.takes_any):
                    return new  # the nearer one takes the call first, and says what it takes
                certain = keeps(base.node.decorator_list, CLASS_KEEPING)
                return found if certain else Signature(found.parameters, True)
            new = found
        made = of_dataclass(names, line[number:]) or (None if new else of_named_tuple(names, base))
        if made:
            return made
        if not keeps(base.node.decorator_list, CLASS_KEEPING):
            return ANYTHING
    return new or Signature({}, False)


def _whole(names: Names, base: Place, node: ast.stmt, line: Line) -> Signature:
    """The signature of a constructor of `base`, with those that its `**kwargs` reach; the line begins with `base`."""
    if not isinstance(node, FunctionNode):
        return ANYTHING
    own = written(names, base.module, node, bound=True)
    if node.args.kwarg is None or node.name == "__new__" or not keeps(node.decorator_list, KEEPING):
        return own
    given = forwarding(node)
    if not given.closed:
        return own
    parameters = dict(own.parameters)
    for name in given.popped:
        parameters.setdefault(name, Parameter(name, False))
    if given.call is None:
        return Signature(parameters, False)
    below = _below(names, base, given, line)
    for name, parameter in _left(given, below, node).items():
        parameters.setdefault(name, parameter)
    return Signature(parameters, below.takes_any)


def _below(names: Names, base: Place, given: Forwarding, line: Line) -> Signature:
    """The constructor that is called with the rest."""
    if given.base is None:
        return _first(names, line[1:], {"__init__"})
    called = names.value(base.module, given.base)
    if not isinstance(called, Place) or not isinstance(called.node, ast.ClassDef) or called.node is base.node:
        return ANYTHING
    at = next((i for i, other in enumerate(line) if other == called), None)
    return _first(names, names.line(called) if at is None else line[at:], {"__init__"})


def _left(given: Forwarding, below: Signature, node: FunctionNode) -> dict[str, Parameter]:
    """Parameters of the constructor below that the call leaves to `**kwargs`."""
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
    return _optional(left) if unclear or dictionaries else left


def _optional(parameters: Any) -> dict[str, Parameter]:
    return {
        p.name: Parameter(p.name, False, p.hint, p.default, p.positional_only) for p in parameters.values()
    }


def _made_elsewhere(names: Names, line: Line) -> bool:
    """Whether a base gives each subclass a constructor, as some libraries do in `__init_subclass__`."""
    scopes = [names.scope(b.node) for b in line if isinstance(b, Place) and isinstance(b.node, ast.ClassDef)]
    return "__init__" not in scopes[0] and any("__init_subclass__" in scope for scope in scopes[1:])


def _called_otherwise(names: Names, line: Line) -> bool:
    """Whether a metaclass may take a call before the constructor does."""
    for base in line:
        keywords = (
            base.node.keywords if isinstance(base, Place) and isinstance(base.node, ast.ClassDef) else []
        )
        for keyword in keywords:
            assert isinstance(base, Place)
            if keyword.arg == "metaclass" and names.origin(base.module, keyword.value) != "abc.ABCMeta":
                meta = names.value(base.module, keyword.value)
                if not isinstance(meta, Place) or names.attribute(meta, "__call__") is not None:
                    return True
    return False
