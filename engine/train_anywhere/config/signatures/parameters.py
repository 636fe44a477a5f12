"""Read the parameters of one `def`, and the types of their annotations.

Annotations are not evaluated. One with an unknown part gives no type at all: a partial check could refuse valid values.
"""

import ast
import dataclasses
import pkgutil
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union, get_args, get_origin

from train_anywhere.config.limits import Items, Range
from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.modules import SourceModule
from train_anywhere.config.signatures.names import FunctionNode, Names

NEUTRAL_DECORATORS = {
    *("staticmethod", "classmethod", "abstractmethod", "override", "final", "overload", "wraps", "deprecated"),
    *("cache", "lru_cache", "contextmanager", "singledispatch", "no_grad", "enable_grad", "inference_mode", "rank_zero_only"),
    *("keras_export", "tf_export", "register_keras_serializable", "no_automatic_dependency_tracking", "filter_traceback"),
}  # fmt: skip
"""Function decorators, by their last name, that do not change the parameters."""

PROPERTY_DECORATORS = {"property", "cached_property", "abstractproperty", "setter", "getter", "deleter"}
"""Decorators whose result is not a function."""

_SCALARS: dict[str, Any] = {f"builtins.{kind.__name__}": kind for kind in (int, float, bool, str)}

_SEQUENCES = {"List", "Sequence", "Iterable", "Collection", "MutableSequence"}

_IMPORTABLE = "train_anywhere.config."
"""Modules from which hints are imported: they need only the standard library."""

MAX_DEPTH = 20
"""The most aliases and quotes inside each other."""


class Signature(NamedTuple):
    """The parameters of a call. `takes_any`: it accepts, or may accept, other names too."""

    parameters: Mapping[str, Parameter]
    takes_any: bool


ANY_SIGNATURE = Signature({}, True)


def read_signature(names: Names, module: SourceModule, node: FunctionNode, bound: bool) -> Signature:
    """Return the signature in the source. `bound` leaves out `self` or `cls`."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    without = len(positional) - len(args.defaults)
    defaults: list[ast.expr | None] = [*[None] * without, *args.defaults]
    found = [
        _parameter(names, module, arg, default, number < len(args.posonlyargs))
        for number, (arg, default) in enumerate(zip(positional, defaults, strict=True))
    ]
    found = found[1:] if bound else found
    found += [
        _parameter(names, module, arg, default, False)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    changed = not keeps_signature(node.decorator_list, NEUTRAL_DECORATORS)
    return Signature({p.name: p for p in found}, args.kwarg is not None or changed)


def _parameter(
    names: Names, module: SourceModule, arg: ast.arg, default: ast.expr | None, positional_only: bool
) -> Parameter:
    required, hint = default is None, read_hint(names, module, arg.annotation)
    if isinstance(default, ast.Name) and len(bound := module.scope.get(default.id, [])) == 1:
        default = bound[0].value  # the default is a constant of the module
    return make_parameter(arg.arg, required, hint, literal(default), positional_only)


def make_parameter(
    name: str, required: bool, hint: Any, default: Any, positional_only: bool = False
) -> Parameter:
    """Return a parameter. `x: int = None` accepts null although its annotation does not."""
    if default is None and hint is not None:
        hint = _sort_union(Optional[hint])  # noqa: UP045  # hint is a value
    return Parameter(name, required, hint, default, positional_only)


def literal(node: ast.expr | None) -> Any:
    """Return the value of a literal expression, or `NO_DEFAULT` for others."""
    if node is None:
        return NO_DEFAULT
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NO_DEFAULT


def decorator_names(nodes: Iterable[ast.expr]) -> list[str]:
    """Return the last name of each decorator, such as `wraps`. "" for other expressions."""
    found = []
    for node in nodes:
        node = node.func if isinstance(node, ast.Call) else node
        found.append(node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ""))
    return found


def keeps_signature(nodes: Iterable[ast.expr], known: set[str]) -> bool:
    """Return whether all decorators are among the known ones that do not change a signature."""
    return set(decorator_names(nodes)) <= known


class _UnknownHint(Exception):
    """A part of an annotation is unknown."""


def read_hint(names: Names, module: SourceModule, annotation: ast.expr | None) -> Any:
    """Return the type of an annotation in a module, or None if it can't be checked."""
    if annotation is None:
        return None
    try:
        hint = _ParameterReader(names, module).read(annotation, 0)
    except (_UnknownHint, RecursionError):
        return None
    return _sort_union(hint)


class _ParameterReader:
    def __init__(self, names: Names, module: SourceModule) -> None:
        self.names, self.module = names, module

    def read(self, node: ast.expr, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _UnknownHint
        match node:
            case ast.Constant(value=None):
                return type(None)
            case ast.Constant(value=str(text)):
                return self.read(_parse(text), depth + 1)
            case ast.BinOp(op=ast.BitOr()):
                return Union[self.read(node.left, depth + 1), self.read(node.right, depth + 1)]  # noqa: UP007
            case ast.Subscript():
                return self._read_subscript(node, depth + 1)
            case ast.Name() | ast.Attribute():
                return self._read_name(node, depth + 1)
        raise _UnknownHint

    def _read_name(self, node: ast.Name | ast.Attribute, depth: int) -> Any:
        name = self.names.imported_name(self.module, node) or ""
        if name in _SCALARS:
            return _SCALARS[name]
        if name.startswith(_IMPORTABLE):
            if _is_checkable(hint := _import_name(name)):
                return hint
            raise _UnknownHint
        bound = self.module.scope.get(node.id) if isinstance(node, ast.Name) else None
        if bound and len(bound) == 1 and bound[0].value:  # Width = Annotated[int, ...], in this file
            return self.read(bound[0].value, depth)
        if bound and len(bound) == 1 and isinstance(bound[0].node, ast.ImportFrom) and bound[0].alias:
            return self._read_import(bound[0].node, bound[0].alias.name, depth)
        raise _UnknownHint

    def _read_import(self, node: ast.ImportFrom, name: str, depth: int) -> Any:
        """Read a name in the file of the project that defines it."""
        origin = self.module.origin_of(node)
        source = self.names.modules.find(origin) if origin else None
        if source is None or not source.in_project or source.text is None:
            raise _UnknownHint
        return _ParameterReader(self.names, source).read(ast.Name(name), depth)

    def _read_subscript(self, node: ast.Subscript, depth: int) -> Any:
        kind = (self.names.imported_name(self.module, node.value) or "").rpartition(".")
        if kind[0] not in ("typing", "typing_extensions", "collections.abc", "builtins"):
            raise _UnknownHint
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if kind[2] == "Literal":
            return _read_literal(parts)
        if kind[2] == "Annotated" and len(parts) > 1:
            hint = self.read(parts[0], depth)
            for part in parts[1:]:
                hint = Annotated[hint, self._read_rule(hint, part)]
            return hint
        if kind[2] in ("tuple", "Tuple"):
            return self._read_tuple(parts, depth)
        inner = [self.read(part, depth) for part in parts]
        if kind[2] == "Union" and inner:
            return Union[tuple(inner)]  # noqa: UP007
        if kind[2] == "Optional" and len(inner) == 1:
            return Optional[inner[0]]  # noqa: UP045
        if (kind[2] == "list" or kind[2] in _SEQUENCES) and len(inner) == 1:
            return list[_sort_union(inner[0])]  # type: ignore[misc]
        raise _UnknownHint

    def _read_tuple(self, parts: list[ast.expr], depth: int) -> Any:
        """Return the list type for a tuple whose items have one type, since YAML has lists only."""
        if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
            return list[_sort_union(self.read(parts[0], depth))]  # type: ignore[misc]
        items = [_sort_union(self.read(part, depth)) for part in parts]
        if not items or any(item != items[0] for item in items):
            raise _UnknownHint
        return Annotated[list[items[0]], Items(count=len(items))]  # type: ignore[valid-type]

    def _read_rule(self, kind: Any, node: ast.expr) -> Range | Items:
        rule_class = None
        if isinstance(node, ast.Call):
            name = self.names.imported_name(self.module, node.func) or ""
            rule_class = _import_name(name) if name.startswith(_IMPORTABLE) else None
        if rule_class not in (Range, Items) or not isinstance(node, ast.Call):
            raise _UnknownHint
        try:
            positional = [ast.literal_eval(value) for value in node.args]
            by_name = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
            rule: Range | Items = rule_class(*positional, **by_name)
            if isinstance(rule, Range) and _plain(kind) in (int, float):
                rule(1)  # bounds that are not numbers fail here and not in a check
            elif isinstance(rule, Items) and get_origin(_plain(kind)) is list:
                rule([1])
            else:
                raise _UnknownHint
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _UnknownHint from error
        return rule


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError) as error:
        raise _UnknownHint from error


def _read_literal(parts: list[ast.expr]) -> Any:
    values = []
    for part in parts:
        if not isinstance(part, ast.Constant) or not isinstance(part.value, int | str | None):
            raise _UnknownHint
        values.append(part.value)
    if not values or None in values:
        raise _UnknownHint
    return Literal[tuple(values)]


def _import_name(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _UnknownHint from error


def _is_checkable(hint: Any) -> bool:
    """Return whether `train_anywhere.config.strict.convert` can check the type."""
    plain = _plain(hint)
    if get_origin(plain) in (Union, types.UnionType, list):
        return all(map(_is_checkable, get_args(plain)))
    simple = get_origin(plain) is Literal or plain in (int, float, bool, str, type(None))
    return simple or (isinstance(plain, type) and dataclasses.is_dataclass(plain))


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _sort_union(hint: Any) -> Any:
    """Sort the types of a union so that a number becomes a string only if none fits."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    order = [type(None), bool, int, float, list, Literal, str]

    def rank(part: Any) -> int:
        kind = get_origin(_plain(part)) or _plain(part)
        return order.index(kind) if kind in order else len(order)

    return Union[tuple(sorted(get_args(hint), key=rank))]  # noqa: UP007
