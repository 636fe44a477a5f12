"""Resolve names to classes and functions, through re-exports, aliases and base classes."""

import ast
import builtins
from functools import cache
from typing import Any, Literal, NamedTuple, TypeGuard

from train_anywhere.config.signatures.modules import Binding, Scope, SourceModule, find_bindings

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class SourcePlace(NamedTuple):
    """A `class` or `def` in a module."""

    module: SourceModule
    node: Any
    name: str


UNKNOWN: Literal["unknown"] = "unknown"
"""Something that exists or may exist; only an import would show it."""

Thing = SourceModule | SourcePlace | Literal["unknown"]
Trail = frozenset[tuple[str, str]]
"""Names that are being followed, to detect cycles."""

Mro = tuple[SourcePlace | str, ...]
"""The method resolution order of a class; bases without source are given by name."""

_TYPING = ("typing", "typing_extensions")
EMPTY_BASES = {"abc.ABC", *(f"{module}.{name}" for module in _TYPING for name in ("Generic", "Protocol"))}
"""Bases without a constructor or attributes."""

BUILT_IN = ("builtins.", "typing.", "typing_extensions.", "abc.")
"""Modules whose classes are not read: their source is long and does not help."""

MAX_DEPTH = 60
"""The most names to follow one after the other."""


def is_class(thing: Any) -> TypeGuard[SourcePlace]:
    """Return whether something is a class with readable source."""
    return isinstance(thing, SourcePlace) and isinstance(thing.node, ast.ClassDef)


def look_up(module: SourceModule, name: str, trail: Trail = frozenset()) -> Thing | None:
    """Return what a name in a module refers to. None if the module does not have it.

    Raises TargetError: a file of the project is not valid Python.
    """
    if (module.name, name) in trail:  # `from package import x` in package/__init__.py: the submodule
        return module.modules.find(f"{module.name}.{name}")
    if module.name == "builtins":
        return UNKNOWN if hasattr(builtins, name) else None
    if len(trail) > MAX_DEPTH or module.text is None:
        return module.modules.find(f"{module.name}.{name}") or UNKNOWN
    trail |= {(module.name, name)}
    # a word that is not in the source is not bound there, so most modules of a long row of `import *` need no parser
    if name in module.text and (bound := _best_binding(module, module.scope.get(name, []), trail)):
        return bound
    if "*" in module.text and (starred := _find_star_import(module, name, trail)):
        return starred
    return module.modules.find(f"{module.name}.{name}") or (UNKNOWN if module.may_bind(name) else None)


def _best_binding(module: SourceModule, several: list[Binding], trail: Trail) -> Thing | None:
    """Return what the first binding that can be resolved refers to, or `UNKNOWN`."""
    for node, alias, value, _ in several:
        if isinstance(node, ast.ClassDef | FunctionNode):
            return SourcePlace(module, node, f"{module.name}.{node.name}")
        if isinstance(node, ast.ImportFrom) and alias:
            source = module.source_of(node)
            thing = look_up(source, alias.name, trail) if source else None
        elif alias:
            thing = module.modules.find(alias.name if alias.asname else alias.name.split(".")[0])
        else:
            thing = resolve(module, value, trail)
        if isinstance(thing, SourceModule | SourcePlace):
            return thing
    return UNKNOWN if several else None


def _find_star_import(module: SourceModule, name: str, trail: Trail) -> Thing | None:
    unknown = None
    for source in map(module.modules.find, module.stars):
        if source is None or source.text is None:
            unknown = UNKNOWN
        elif (name in source.text or "*" in source.text) and source.exports(name):
            thing = look_up(source, name, trail)
            if isinstance(thing, SourceModule | SourcePlace):
                return thing
            unknown = unknown or thing
    return unknown


def resolve(
    module: SourceModule, expression: ast.expr | None, trail: Trail = frozenset(), before_dot: bool = False
) -> Thing:
    """Return what a name or a chain of attributes refers to. Other expressions are unknown.

    `before_dot`: submodules come first, which parse faster.
    """
    if isinstance(expression, ast.Name):
        return look_up(module, expression.id, trail) or UNKNOWN
    if not isinstance(expression, ast.Attribute):
        return UNKNOWN
    above = resolve(module, expression.value, trail, True)
    below = None
    if before_dot and isinstance(above, SourceModule):
        below = module.modules.find(f"{above.name}.{expression.attr}")
    return below or find_attribute(above, expression.attr, trail) or UNKNOWN


def find_attribute(thing: Thing, name: str, trail: Trail = frozenset()) -> Thing | None:
    """Return what `thing.name` refers to. None if it certainly does not exist."""
    if isinstance(thing, SourceModule):
        return look_up(thing, name, trail)
    if not is_class(thing):
        return UNKNOWN
    for base in mro(thing):
        if isinstance(base, str):
            if base not in EMPTY_BASES:
                return UNKNOWN
        elif several := scope(base.node).get(name):
            found = SourcePlace(base.module, several[0].node, f"{base.name}.{name}")
            return found if isinstance(found.node, ast.ClassDef | FunctionNode) else UNKNOWN
        elif base.node.keywords or base.node.decorator_list:
            return UNKNOWN
    return UNKNOWN if hasattr(type, name) else None


@cache
def scope(node: ast.ClassDef) -> Scope:
    """Return the names in the body of a class."""
    return find_bindings(node.body)


_mros: dict[ast.ClassDef, Mro] = {}


def mro(place: SourcePlace) -> Mro:
    """Return the method resolution order of a class, itself first, without `object`."""
    if place.node not in _mros:
        _mros[place.node] = (place, "a circle of bases")  # found by a class that is its own base
        bases = [_base(place, expression) for expression in place.node.bases]
        bases = [base for base in bases if base != "builtins.object"]
        rows = [(base,) if isinstance(base, str) else mro(base) for base in bases]
        _mros[place.node] = (place, *_merge_orders([*rows, tuple(bases)]))
    return _mros[place.node]


def _base(place: SourcePlace, expression: ast.expr) -> SourcePlace | str:
    if isinstance(expression, ast.Subscript):  # Generic[T]
        expression = expression.value
    name = imported_name(place.module, expression)
    if name and name.startswith(BUILT_IN):
        return name
    thing = resolve(place.module, expression)
    if is_class(thing) and thing.node is place.node and isinstance(expression, ast.Name):
        # class A(A): the class that had the name before
        others = [b for b in place.module.scope[expression.id] if b.node is not place.node]
        thing = _best_binding(place.module, others, frozenset()) or UNKNOWN
    if is_class(thing) and thing.node is not place.node:
        return thing
    return name or "an expression"


def imported_name(module: SourceModule, expression: ast.expr) -> str | None:
    """Return the dotted name of an expression by the imports of its module."""
    if isinstance(expression, ast.Attribute):
        above = imported_name(module, expression.value)
        return f"{above}.{expression.attr}" if above else None
    if not isinstance(expression, ast.Name):
        return None
    several = module.scope.get(expression.id)
    if not several:
        return f"builtins.{expression.id}" if hasattr(builtins, expression.id) else None
    node, alias = several[0].node, several[0].alias
    if isinstance(node, ast.Import) and alias:
        return alias.name if alias.asname else alias.name.split(".")[0]
    if isinstance(node, ast.ImportFrom) and alias:
        return f"{module.origin_of(node) or module.name}.{alias.name}"
    return f"{module.name}.{expression.id}"


def _merge_orders(rows: list[Mro]) -> list[SourcePlace | str]:
    """Merge several orders as Python does (C3), or with the first row first."""
    rows = [row for row in rows if row]
    merged: list[SourcePlace | str] = []
    while rows:
        later = {item for row in rows for item in row[1:]}
        head = next((row[0] for row in rows if row[0] not in later), rows[0][0])
        merged.append(head)
        rows = [rest for row in rows if (rest := tuple(item for item in row if item != head))]
    return merged
