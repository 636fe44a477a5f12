"""Read the constructor of a class, through bases and `**kwargs`, and its literal attributes."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.names import EMPTY_BASES, FunctionNode, Mro, Names, SourcePlace
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

    popped: tuple[str, ...] = ()
    call: ast.Call | None = None
    base: ast.expr | None = None
    closed: bool = False


def read_forwarding(node: FunctionNode) -> Forwarding:
    """Return the uses of a constructor's `**kwargs`. `closed` is false for other uses."""
    kwarg = node.args.kwarg
    if kwarg is None:
        return Forwarding(closed=True)
    uses = list(_uses(node.body, kwarg.arg))
    calls = [use for use in uses if isinstance(use, ast.Call) and _passes_rest(use, kwarg.arg)]
    popped = tuple(use for use in uses if isinstance(use, str))
    if "" in popped or len(calls) > 1:
        return Forwarding()
    refused = any(isinstance(use, ast.If) for use in uses)
    # super() of super().__init__(...), and Base of Base.__init__(self, ...)
    function = calls[0].func if calls else None
    base = function.value if isinstance(function, ast.Attribute) and function.attr == "__init__" else None
    if calls and base is None:
        return Forwarding()
    after = None if isinstance(base, ast.Call) else base
    return Forwarding(popped, calls[0] if calls else None, after, bool(calls) or refused)


def _passes_rest(call: ast.Call, name: str) -> bool:
    """Return whether the call has an argument `**name`."""
    return any(_is_rest(keyword, name) for keyword in call.keywords)


def _uses(body: list[ast.stmt], name: str) -> Iterator[ast.Call | ast.If | str]:
    """Yield each use of the name: a call, a test that refuses the rest, a key, or ""."""

    def walk(node: ast.AST) -> Iterator[ast.Call | ast.If | str]:
        match node:
            case ast.Raise():
                return
            case ast.If() if _refuses(node, name):
                yield node
            case ast.Name(id=used) if used == name:
                yield ""
            case ast.Call(func=ast.Attribute(value=ast.Name(id=used), attr="pop" | "get")) if used == name:
                yield _key(node.args[0] if node.args else None)
                for other in node.args[1:]:
                    yield from walk(other)
            case ast.Compare(comparators=[ast.Name(id=used)]) if used == name:
                yield _key(node.left)
            case ast.Call() if _passes_rest(node, name):
                yield node
                for child in ast.iter_child_nodes(node):
                    if not (isinstance(child, ast.keyword) and _is_rest(child, name)):
                        yield from walk(child)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from walk(child)

    for statement in body:
        yield from walk(statement)


def _key(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_rest(keyword: ast.keyword, name: str) -> bool:
    return keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == name


def _refuses(node: ast.If, name: str) -> bool:
    """Return whether the statement is `if kwargs: raise ...`, or the same with `len()`."""
    test = ast.unparse(node.test)
    return test in (name, f"len({name})", f"len({name}) > 0", f"len({name}) != 0", f"bool({name})") and any(
        isinstance(statement, ast.Raise) for statement in node.body
    )


class _Field(NamedTuple):
    """A field that may be only `by_name`, and may be an argument of the constructor."""

    parameter: Parameter
    by_name: bool
    accepted: bool


def dataclass_signature(names: Names, mro: Mro) -> Signature | None:
    """Return the constructor that `@dataclass` generates. None if it generates none."""
    first = mro[0]
    decorator = _decorator(first) if isinstance(first, SourcePlace) else None
    if decorator is None or _option(decorator, "init") is False:
        return None
    fields: dict[str, _Field] = {}
    certain = True
    for base in reversed(mro):
        if isinstance(base, str):
            certain = certain and base.startswith(("typing.", "abc."))
        elif found := _decorator(base):
            function = found.func if isinstance(found, ast.Call) else found
            certain = certain and names.imported_name(base.module, function) == "dataclasses.dataclass"
            fields.update(
                (f.parameter.name, f) for f in _fields(names, base, _option(found, "kw_only") is True)
            )
    ordered = sorted(fields.values(), key=lambda field: field.by_name)  # a stable sort, as dataclasses do
    return Signature({f.parameter.name: f.parameter for f in ordered if f.accepted}, not certain)


def field_default(node: ast.expr | None) -> ast.expr | None:
    """Return the default, 3, in `x: int = 3` and in `x: int = field(default=3)`."""
    if isinstance(node, ast.Call) and decorator_names([node]) == ["field"]:
        return next((k.value for k in node.keywords if k.arg == "default"), None)
    return node


def _decorator(place: SourcePlace) -> ast.expr | None:
    nodes = place.node.decorator_list
    return next((node for node in nodes if decorator_names([node]) == ["dataclass"]), None)


def _option(call: ast.expr, name: str) -> object:
    """Return the literal value of a keyword of `@dataclass(...)` or `field(...)`."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return next((literal(k.value) for k in keywords if k.arg == name), NO_DEFAULT)


def _fields(names: Names, place: SourcePlace, by_name: bool) -> Iterator[_Field]:
    assert isinstance(place.node, ast.ClassDef)
    for node in place.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        outer = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
        kind = _last_name(outer)
        if kind == "KW_ONLY":
            by_name = True
        elif kind != "ClassVar":
            annotation = node.annotation
            if kind == "InitVar" and isinstance(annotation, ast.Subscript):
                annotation = annotation.slice
            yield _field(names, place, node.target.id, annotation, node.value, by_name)


def _field(
    names: Names, place: SourcePlace, name: str, annotation: ast.expr, value: ast.expr | None, by_name: bool
) -> _Field:
    accepted = True
    required = value is None
    if isinstance(value, ast.Call) and decorator_names([value]) == ["field"]:
        required = not {"default", "default_factory"} & {k.arg for k in value.keywords}
        accepted = _option(value, "init") is not False
        own = _option(value, "kw_only")
        by_name = own if isinstance(own, bool) else by_name
    hint = read_hint(names, place.module, annotation)
    return _Field(make_parameter(name, required, hint, literal(field_default(value))), by_name, accepted)


def _last_name(node: ast.expr) -> str:
    """Return the last name: `ClassVar` for `typing.ClassVar` and a quoted annotation."""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return text.split("[")[0].strip().rpartition(".")[2]


CLASS_DECORATORS = {
    *("dataclass", "final", "runtime_checkable", "total_ordering", "deprecated", "compatibility"),
    *("keras_export", "tf_export", "register_keras_serializable"),
}
"""Class decorators, by their last name, that do not change the constructor."""


def constructor_signature(names: Names, place: SourcePlace) -> Signature:
    """Return the parameters of a call of the class.

    Raises TargetError: a file of the project with a base class is not valid Python.
    """
    mro = names.mro(place)
    found = _find_constructor(names, mro, {"__init__", "__new__"})
    scopes = [
        names.scope(b.node) for b in mro if isinstance(b, SourcePlace) and isinstance(b.node, ast.ClassDef)
    ]
    # a base may generate constructors in `__init_subclass__`, as some libraries do
    if "__init__" not in scopes[0] and any("__init_subclass__" in scope for scope in scopes[1:]):
        return Signature(_make_optional(found.parameters), True)
    return Signature(found.parameters, True) if _has_metaclass_call(names, mro) else found


def literal_attributes(names: Names, place: SourcePlace) -> dict[str, Any]:
    """Return class attributes with a literal value, the nearest of each name."""
    found: dict[str, Any] = {}
    for base in names.mro(place):
        if isinstance(base, SourcePlace) and isinstance(base.node, ast.ClassDef):
            own = {name: several[0].value for name, several in names.scope(base.node).items()}
            values = {name: literal(field_default(value)) for name, value in own.items()}
            found = values | found
    return {n: v for n, v in found.items() if v is not NO_DEFAULT and not n.startswith("__")}


def _find_constructor(names: Names, mro: Mro, accepted: set[str]) -> Signature:
    """Return the first constructor in the MRO whose name is in `accepted`."""
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
        if generated := dataclass_signature(names, mro[number:]):
            return generated
        if not keeps_signature(base.node.decorator_list, CLASS_DECORATORS):
            return ANY_SIGNATURE
    return new or Signature({}, False)


def _full_signature(names: Names, base: SourcePlace, node: ast.stmt, mro: Mro) -> Signature:
    """Return a constructor's signature, with the parameters that its `**kwargs` reach."""
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


def _next_constructor(names: Names, base: SourcePlace, given: Forwarding, mro: Mro) -> Signature:
    """Return the constructor that gets the rest of `**kwargs`."""
    if given.base is None:
        return _find_constructor(names, mro[1:], {"__init__"})
    called = names.resolve(base.module, given.base)
    if (
        not isinstance(called, SourcePlace)
        or not isinstance(called.node, ast.ClassDef)
        or called.node is base.node
    ):
        return ANY_SIGNATURE
    at = next((i for i, other in enumerate(mro) if other == called), None)
    return _find_constructor(names, names.mro(called) if at is None else mro[at:], {"__init__"})


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


def _has_metaclass_call(names: Names, mro: Mro) -> bool:
    """Return whether a metaclass may handle a call before the constructor."""
    for base in mro:
        if not isinstance(base, SourcePlace) or not isinstance(base.node, ast.ClassDef):
            continue
        for value in (keyword.value for keyword in base.node.keywords if keyword.arg == "metaclass"):
            if names.imported_name(base.module, value) != "abc.ABCMeta":
                meta = names.resolve(base.module, value)
                if not isinstance(meta, SourcePlace) or names.find_attribute(meta, "__call__") is not None:
                    return True
    return False
