"""From an annotation to a type that `train_anywhere.config.strict` can check; nothing is evaluated but names from a short table.

An annotation of which any part is not known gives no type at all: half a check would refuse what is right.
"""

import ast
import dataclasses
import pkgutil
import types
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

from train_anywhere.config.limits import Items, Range
from train_anywhere.config.signatures.modules import Module
from train_anywhere.config.signatures.names import Names
from train_anywhere.renamed import renamed

_SCALARS: dict[str, Any] = {f"builtins.{kind.__name__}": kind for kind in (int, float, bool, str)}
_SEQUENCES = {"List", "Sequence", "Iterable", "Collection", "MutableSequence"}
_LIGHT = "train_anywhere.config."
"""Modules that a hint may be imported from: they need the standard library alone."""

DEEPEST = 20
"""Aliases and quotes within each other."""


class _NotKnown(Exception):
    """A part of an annotation has no meaning here."""


def hint_of(names: Names, module: Module, annotation: ast.expr | None) -> Any:
    """The type that an annotation in a module means, or None where it can't be checked."""
    if annotation is None:
        return None
    try:
        hint = _Reader(names, module).read(annotation, 0)
    except (_NotKnown, RecursionError):
        return None
    return _ordered(hint)


def optional(hint: Any) -> Any:
    """The type, or null."""
    return _ordered(Optional[hint])  # noqa: UP045  # hint is a value


class _Reader:
    def __init__(self, names: Names, module: Module) -> None:
        self.names, self.module = names, module

    def read(self, node: ast.expr, depth: int) -> Any:
        if depth > DEEPEST:
            raise _NotKnown
        match node:
            case ast.Constant(value=None):
                return type(None)
            case ast.Constant(value=str(text)):
                return self.read(_parsed(text), depth + 1)
            case ast.BinOp(op=ast.BitOr()):
                return Union[self.read(node.left, depth + 1), self.read(node.right, depth + 1)]  # noqa: UP007
            case ast.Subscript():
                return self._subscript(node, depth + 1)
            case ast.Name() | ast.Attribute():
                return self._name(node, depth + 1)
        raise _NotKnown

    def _name(self, node: ast.Name | ast.Attribute, depth: int) -> Any:
        name = renamed(self.names.origin(self.module, node) or "")
        if name in _SCALARS:
            return _SCALARS[name]
        if name.startswith(_LIGHT):
            return _imported(name)
        bound = self.module.scope.get(node.id) if isinstance(node, ast.Name) else None
        if bound and len(bound) == 1 and bound[0].value:  # Width = Annotated[int, ...], in this file
            return self.read(bound[0].value, depth)
        if bound and len(bound) == 1 and isinstance(bound[0].node, ast.ImportFrom) and bound[0].alias:
            return self._elsewhere(bound[0].node, bound[0].alias.name, depth)
        raise _NotKnown

    def _elsewhere(self, node: ast.ImportFrom, name: str, depth: int) -> Any:
        """What a name means in the file of this project that it is imported from; the environment's are large, and seldom say more."""
        origin = self.module.origin_of(node)
        source = self.names.modules.find(origin) if origin else None
        if source is None or not source.own or source.text is None:
            raise _NotKnown
        return _Reader(self.names, source).read(ast.Name(name), depth)

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        kind = (self.names.origin(self.module, node.value) or "").rpartition(".")
        if kind[0] not in ("typing", "typing_extensions", "collections.abc", "builtins"):
            raise _NotKnown
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if kind[2] == "Literal":
            return _literal(parts)
        if kind[2] == "Annotated" and len(parts) > 1:
            return self._annotated(parts, depth)
        if kind[2] in ("tuple", "Tuple"):
            return self._tuple(parts, depth)
        inner = [self.read(part, depth) for part in parts]
        if kind[2] == "Union" and inner:
            return Union[tuple(inner)]  # noqa: UP007
        if kind[2] == "Optional" and len(inner) == 1:
            return Optional[inner[0]]  # noqa: UP045
        if (kind[2] == "list" or kind[2] in _SEQUENCES) and len(inner) == 1:
            return list[_ordered(inner[0])]  # type: ignore[misc]
        raise _NotKnown

    def _tuple(self, parts: list[ast.expr], depth: int) -> Any:
        """A YAML list stands for a tuple whose items are of one type."""
        if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
            return list[_ordered(self.read(parts[0], depth))]  # type: ignore[misc]
        items = [_ordered(self.read(part, depth)) for part in parts]
        if not items or any(item != items[0] for item in items):
            raise _NotKnown
        return Annotated[list[items[0]], Items(count=len(items))]  # type: ignore[valid-type]

    def _annotated(self, parts: list[ast.expr], depth: int) -> Any:
        kind = self.read(parts[0], depth)
        for part in parts[1:]:
            kind = Annotated[kind, self._rule(kind, part)]
        return kind

    def _rule(self, kind: Any, node: ast.expr) -> Range | Items:
        made = None
        if isinstance(node, ast.Call):
            name = renamed(self.names.origin(self.module, node.func) or "")
            made = _resolved(name) if name.startswith(_LIGHT) else None
        if made not in (Range, Items) or not isinstance(node, ast.Call):
            raise _NotKnown
        try:
            positional = [ast.literal_eval(value) for value in node.args]
            by_name = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
            rule: Range | Items = made(*positional, **by_name)
            if isinstance(rule, Range) and _plain(kind) in (int, float):
                rule(1)  # bounds that are no numbers fail here, not in a check
            elif isinstance(rule, Items) and get_origin(_plain(kind)) is list:
                rule([1])
            else:
                raise _NotKnown
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _NotKnown from error
        return rule


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError) as error:
        raise _NotKnown from error


def _literal(parts: list[ast.expr]) -> Any:
    values = []
    for part in parts:
        if not isinstance(part, ast.Constant) or not isinstance(part.value, int | str | None):
            raise _NotKnown
        values.append(part.value)
    if not values or None in values:
        raise _NotKnown
    return Literal[tuple(values)]


def _resolved(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _NotKnown from error


def _imported(name: str) -> Any:
    hint = _resolved(name)
    if not _understood(hint):
        raise _NotKnown
    return hint


def _understood(hint: Any) -> bool:
    """Whether `train_anywhere.config.strict.convert` can check it."""
    plain = _plain(hint)
    if get_origin(plain) in (Union, types.UnionType):
        return all(map(_understood, get_args(plain)))
    if get_origin(plain) is list:
        return all(map(_understood, get_args(plain)))
    if get_origin(plain) is Literal or plain in (int, float, bool, str, type(None)):
        return True
    return isinstance(plain, type) and dataclasses.is_dataclass(plain)


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _ordered(hint: Any) -> Any:
    """A union in the order in which its types are to be tried: a number is no string where it may be a number."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    order = [type(None), bool, int, float, list, Literal, str]

    def rank(part: Any) -> int:
        kind = get_origin(_plain(part)) or _plain(part)
        return order.index(kind) if kind in order else len(order)

    return Union[tuple(sorted(get_args(hint), key=rank))]  # noqa: UP007
