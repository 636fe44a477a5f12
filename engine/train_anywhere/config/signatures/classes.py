"""Read the constructor of a class, through bases and `**kwargs`, and its literal attributes."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from train_anywhere.config.signatures import names
from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.names import EMPTY_BASES, FunctionNode, Mro, SourceClass
from train_anywhere.config.signatures.parameters import (
    ANY_SIGNATURE,
    NEUTRAL_DECORATORS,
    Signature,
    decorator_names,
    keeps_signature,
    literal,
    make_parameter,
    read_hint,
    read_signature,
)


class Forwarding(NamedTuple):
    """The uses of `**kwargs` in a constructor.

    Args:
        popped: names that are removed one by one, as in `kwargs.pop("decay", None)`.
        call: the only call of another constructor that gets the rest, or None.
        base: the class of that constructor; None for `super()`.
        closed: whether the rest is only forwarded or refused.
    """

    popped: Sequence[str] = ()
    call: ast.Call | None = None
    base: ast.expr | None = None
    closed: bool = False


def read_forwarding(node: FunctionNode, name: str) -> Forwarding:
    """Return the uses of a constructor's `**name`. `closed` is false for other uses."""
    inside = [inner for statement in node.body for inner in ast.walk(statement)]
    uses = {use for use in inside if isinstance(use, ast.Name) and use.id == name}
    popped, calls, refused = [], [], False
    for inner in inside:
        match inner:
            case ast.Raise():
                uses -= {*ast.walk(inner)}
            case ast.If(test=test) if _refuses(inner, name):
                refused, uses = True, uses - {*ast.walk(test)}
            case ast.Call(
                func=ast.Attribute(value=use, attr="pop" | "get"), args=[ast.Constant(value=str(key)), *_]
            ):
                popped += [key] if use in uses else []
                uses -= {use}
            case ast.Compare(left=ast.Constant(value=str(key)), comparators=[use]):
                popped += [key] if use in uses else []
                uses -= {use}
            case ast.Call() if given := {k.value for k in inner.keywords if not k.arg} & uses:
                calls.append(inner)
                uses -= given
    function = calls[0].func if calls else None
    # super() of super().__init__(...), and Base of Base.__init__(self, ...)
    base = function.value if isinstance(function, ast.Attribute) and function.attr == "__init__" else None
    if uses or len(calls) > 1 or (calls and base is None):
        return Forwarding()
    after = None if isinstance(base, ast.Call) else base
    return Forwarding(popped, calls[0] if calls else None, after, bool(calls) or refused)


def _refuses(node: ast.If, name: str) -> bool:
    """Return whether the statement is `if kwargs: raise ...`, or the same with `len()`."""
    tests = (name, f"len({name})", f"len({name}) > 0", f"len({name}) != 0", f"bool({name})")
    return ast.unparse(node.test) in tests and any(isinstance(one, ast.Raise) for one in node.body)


def dataclass_signature(mro: Mro) -> Signature | None:
    """Return the constructor that `@dataclass` generates. None if it generates none."""
    classes = [base for base in mro if isinstance(base, SourceClass)]
    found = {c: d for c in classes for d in c.node.decorator_list if decorator_names([d]) == ["dataclass"]}
    if mro[0] not in found or _options(found[mro[0]]).get("init") is False:
        return None
    parameters: dict[str, Parameter] = {}
    for base in reversed(found):
        for node in base.node.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            by_field = node.value is not None and decorator_names([node.value]) == ["field"]
            options = _options(node.value) if by_field else {"default": literal(node.value)}
            if options.get("init") is False or NO_FIELD.match(ast.unparse(node.annotation)):
                continue
            required = node.value is None or not {"default", "default_factory"} & options.keys()
            hint, default = read_hint(base.module, node.annotation), options.get("default", NO_DEFAULT)
            parameters[node.target.id] = make_parameter(node.target.id, required, hint, default)
    functions = [
        (base.module, call.func if isinstance(call, ast.Call) else call) for base, call in found.items()
    ]
    own = all(names.imported_name(*function) == "dataclasses.dataclass" for function in functions)
    known = all(base in classes or str(base).startswith(("typing.", "abc.")) for base in mro)
    return Signature(parameters, not (own and known))


NO_FIELD = re.compile(r"['\"]?([\w.]*\.)?(ClassVar|KW_ONLY)\b")
"""Matches annotations in a dataclass that are no argument of its constructor."""


def _options(call: ast.expr | None) -> dict[str | None, Any]:
    """Return the literal values of the keywords of `@dataclass(...)` or `field(...)`."""
    return {k.arg: literal(k.value) for k in call.keywords} if isinstance(call, ast.Call) else {}


CLASS_DECORATORS = {
    *("dataclass", "final", "runtime_checkable", "total_ordering", "deprecated", "compatibility"),
    *("keras_export", "tf_export", "register_keras_serializable"),
}
"""Class decorators, by their last name, that do not change the constructor."""


def constructor_signature(place: SourceClass) -> Signature:
    """Return the parameters of a call of the class.

    Raises TargetError: a file of the project with a base class is not valid Python.
    """
    mro = names.mro(place)
    found = _find_constructor(mro, {"__init__", "__new__"})
    scopes = [names.scope(base.node) for base in mro if isinstance(base, SourceClass)]
    # a base may generate constructors in `__init_subclass__`, as some libraries do
    if "__init__" not in scopes[0] and any("__init_subclass__" in scope for scope in scopes[1:]):
        return Signature(_make_optional(found.parameters), True)
    return Signature(found.parameters, True) if _has_metaclass_call(mro) else found


def literal_attributes(place: SourceClass) -> dict[str, Any]:
    """Return class attributes with a literal value, the nearest of each name."""
    found: dict[str, Any] = {}
    for base in (base for base in names.mro(place) if isinstance(base, SourceClass)):
        for name, several in names.scope(base.node).items():
            value = several[0].value
            if value and decorator_names([value]) == ["field"]:
                found.setdefault(name, _options(value).get("default", NO_DEFAULT))
            found.setdefault(name, literal(value))
    return {n: v for n, v in found.items() if v is not NO_DEFAULT and not n.startswith("__")}


def _find_constructor(mro: Mro, accepted: set[str]) -> Signature:
    """Return the first constructor in the MRO whose name is in `accepted`."""
    new: Signature | None = None
    for number, base in enumerate(mro):
        if isinstance(base, str):
            if base in EMPTY_BASES:
                continue
            return new or ANY_SIGNATURE
        scope = names.scope(base.node)
        for name in ("__init__", "__new__"):
            node = scope[name][0].node if name in scope else None
            if node is None or name not in accepted or (name == "__new__" and new):
                continue
            found = _full_signature(base, node, mro[number:])
            if name == "__init__":
                if new and (new.parameters or not new.takes_any):
                    return new  # the `__new__` of a nearer class gets the call first
                certain = keeps_signature(base.node.decorator_list, CLASS_DECORATORS)
                return found if certain else Signature(found.parameters, True)
            new = found
        if generated := dataclass_signature(mro[number:]):
            return generated
        if not keeps_signature(base.node.decorator_list, CLASS_DECORATORS):
            return ANY_SIGNATURE
    return new or Signature({}, False)


def _full_signature(base: SourceClass, node: ast.stmt, mro: Mro) -> Signature:
    """Return a constructor's signature, with the parameters that its `**kwargs` reach."""
    if not isinstance(node, FunctionNode):
        return ANY_SIGNATURE
    own = read_signature(base.module, node, bound=True)
    neutral = keeps_signature(node.decorator_list, NEUTRAL_DECORATORS)
    if node.args.kwarg is None or node.name == "__new__" or not neutral:
        return own
    given = read_forwarding(node, node.args.kwarg.arg)
    if not given.closed:
        return own
    parameters = dict(own.parameters)
    for name in given.popped:
        parameters.setdefault(name, Parameter(name, False))
    if given.call is None:
        return Signature(parameters, False)
    below = _next_constructor(base, given, mro)
    for name, parameter in _remaining_parameters(given, below, node).items():
        parameters.setdefault(name, parameter)
    return Signature(parameters, below.takes_any)


def _next_constructor(base: SourceClass, given: Forwarding, mro: Mro) -> Signature:
    """Return the constructor that gets the rest of `**kwargs`."""
    if given.base is None:
        return _find_constructor(mro[1:], {"__init__"})
    called = names.resolve(base.module, given.base)
    if not isinstance(called, SourceClass) or called.node is base.node:
        return ANY_SIGNATURE
    at = next((i for i, other in enumerate(mro) if other == called), None)
    return _find_constructor(names.mro(called) if at is None else mro[at:], {"__init__"})


def _remaining_parameters(given: Forwarding, below: Signature, node: FunctionNode) -> dict[str, Parameter]:
    """Return the parameters of the next constructor that `**kwargs` can set."""
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


def _has_metaclass_call(mro: Mro) -> bool:
    """Return whether a metaclass may handle a call before the constructor."""
    for base in (base for base in mro if isinstance(base, SourceClass)):
        for value in (keyword.value for keyword in base.node.keywords if keyword.arg == "metaclass"):
            if names.imported_name(base.module, value) != "abc.ABCMeta":
                meta = names.resolve(base.module, value)
                if not isinstance(meta, SourceClass) or names.find_attribute(meta, "__call__") is not None:
                    return True
    return False
