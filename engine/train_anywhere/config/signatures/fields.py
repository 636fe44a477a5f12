"""Classes whose constructor is made from their annotations: dataclasses and named tuples."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.hints import hint_of
from train_anywhere.config.signatures.names import Line, Names, Place
from train_anywhere.config.signatures.parameters import Signature, decorators, literal, made


class _Field(NamedTuple):
    """`by_name`: can't be given by position; `accepted`: is an argument of the constructor."""

    parameter: Parameter
    by_name: bool
    accepted: bool


def of_dataclass(names: Names, line: Line) -> Signature | None:
    """The constructor that `@dataclass` makes for the first class of the line; None if it makes none."""
    first = line[0]
    decorator = _decorator(first) if isinstance(first, Place) else None
    if decorator is None or _option(decorator, "init") is False:
        return None
    fields: dict[str, _Field] = {}
    certain = True
    for base in reversed(line):
        if isinstance(base, str):
            certain = certain and base.startswith(("typing.", "abc."))
        elif found := _decorator(base):
            certain = certain and _name(names, base, found) == "dataclasses.dataclass"
            fields.update(
                (f.parameter.name, f) for f in _fields(names, base, _option(found, "kw_only") is True)
            )
    ordered = sorted(fields.values(), key=lambda field: field.by_name)  # a stable sort, as dataclasses do
    return Signature({f.parameter.name: f.parameter for f in ordered if f.accepted}, not certain)


def of_named_tuple(names: Names, place: Place) -> Signature | None:
    """The constructor of a class that is a `NamedTuple` itself; None for other classes."""
    assert isinstance(place.node, ast.ClassDef)
    if "typing.NamedTuple" not in [names.origin(place.module, base) for base in place.node.bases]:
        return None
    found = {}
    for node in place.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            hint = hint_of(names, place.module, node.annotation)
            found[node.target.id] = made(node.target.id, node.value is None, hint, literal(node.value))
    return Signature(found, False)


def field_default(node: ast.expr | None) -> ast.expr | None:
    """The default in `x: int = 3` and in `x: int = field(default=3)`."""
    if isinstance(node, ast.Call) and decorators([node]) == ["field"]:
        return next((k.value for k in node.keywords if k.arg == "default"), None)
    return node


def _decorator(place: Place) -> ast.expr | None:
    return next((node for node in place.node.decorator_list if decorators([node]) == ["dataclass"]), None)


def _name(names: Names, place: Place, decorator: ast.expr) -> str | None:
    return names.origin(place.module, decorator.func if isinstance(decorator, ast.Call) else decorator)


def _option(call: ast.expr, name: str) -> object:
    """The literal value of a keyword of `@dataclass(...)` or `field(...)`."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return next((literal(k.value) for k in keywords if k.arg == name), NO_DEFAULT)


def _fields(names: Names, place: Place, by_name: bool) -> Iterator[_Field]:
    assert isinstance(place.node, ast.ClassDef)
    for node in place.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        outer = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
        kind = _last(outer)
        if kind == "KW_ONLY":
            by_name = True
        elif kind != "ClassVar":
            annotation = node.annotation
            if kind == "InitVar" and isinstance(annotation, ast.Subscript):
                annotation = annotation.slice
            yield _field(names, place, node.target.id, annotation, node.value, by_name)


def _field(
    names: Names, place: Place, name: str, annotation: ast.expr, value: ast.expr | None, by_name: bool
) -> _Field:
    accepted = True
    required = value is None
    if isinstance(value, ast.Call) and decorators([value]) == ["field"]:
        required = not {"default", "default_factory"} & {k.arg for k in value.keywords}
        accepted = _option(value, "init") is not False
        own = _option(value, "kw_only")
        by_name = own if isinstance(own, bool) else by_name
    hint = hint_of(names, place.module, annotation)
    return _Field(made(name, required, hint, literal(field_default(value))), by_name, accepted)


def _last(node: ast.expr) -> str:
    """`ClassVar` of `ClassVar`, `typing.ClassVar` and a quoted one."""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return text.split("[")[0].strip().rpartition(".")[2]
