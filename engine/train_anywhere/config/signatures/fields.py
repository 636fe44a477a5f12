"""Read constructors that are generated from annotations: dataclasses and named tuples."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.hints import read_hint
from train_anywhere.config.signatures.names import Mro, Names, Place
from train_anywhere.config.signatures.parameters import Signature, decorator_names, literal, make_parameter


class _Field(NamedTuple):
    """A field. `by_name`: it can't be given by position; `accepted`: it is an argument of the constructor."""

    parameter: Parameter
    by_name: bool
    accepted: bool


def dataclass_signature(names: Names, mro: Mro) -> Signature | None:
    """Return the constructor that `@dataclass` generates for the first class of the MRO; None if it generates none."""
    first = mro[0]
    decorator = _decorator(first) if isinstance(first, Place) else None
    if decorator is None or _option(decorator, "init") is False:
        return None
    fields: dict[str, _Field] = {}
    certain = True
    for base in reversed(mro):
        if isinstance(base, str):
            certain = certain and base.startswith(("typing.", "abc."))
        elif found := _decorator(base):
            certain = certain and _decorator_origin(names, base, found) == "dataclasses.dataclass"
            fields.update(
                (f.parameter.name, f) for f in _fields(names, base, _option(found, "kw_only") is True)
            )
    ordered = sorted(fields.values(), key=lambda field: field.by_name)  # a stable sort, as dataclasses do
    return Signature({f.parameter.name: f.parameter for f in ordered if f.accepted}, not certain)


def named_tuple_signature(names: Names, place: Place) -> Signature | None:
    """Return the constructor of a direct subclass of `NamedTuple`; None for other classes."""
    assert isinstance(place.node, ast.ClassDef)
    if "typing.NamedTuple" not in [names.imported_name(place.module, base) for base in place.node.bases]:
        return None
    found = {}
    for node in place.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            hint = read_hint(names, place.module, node.annotation)
            name, required = node.target.id, node.value is None
            found[name] = make_parameter(name, required, hint, literal(node.value))
    return Signature(found, False)


def field_default(node: ast.expr | None) -> ast.expr | None:
    """Return the default, 3, in `x: int = 3` and in `x: int = field(default=3)`."""
    if isinstance(node, ast.Call) and decorator_names([node]) == ["field"]:
        return next((k.value for k in node.keywords if k.arg == "default"), None)
    return node


def _decorator(place: Place) -> ast.expr | None:
    nodes = place.node.decorator_list
    return next((node for node in nodes if decorator_names([node]) == ["dataclass"]), None)


def _decorator_origin(names: Names, place: Place, decorator: ast.expr) -> str | None:
    return names.imported_name(place.module, decorator.func if isinstance(decorator, ast.Call) else decorator)


def _option(call: ast.expr, name: str) -> object:
    """Return the literal value of a keyword of `@dataclass(...)` or `field(...)`."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return next((literal(k.value) for k in keywords if k.arg == name), NO_DEFAULT)


def _fields(names: Names, place: Place, by_name: bool) -> Iterator[_Field]:
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
    names: Names, place: Place, name: str, annotation: ast.expr, value: ast.expr | None, by_name: bool
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
    """Return the last name: `ClassVar` for `ClassVar`, `typing.ClassVar` and a quoted annotation."""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return text.split("[")[0].strip().rpartition(".")[2]
