"""Resolve names to classes and functions, through re-exports, aliases and base classes."""

import ast
import builtins
from typing import NamedTuple

from train_anywhere.config.signatures.modules import Binding, Modules, Scope, SourceModule, find_bindings

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class SourcePlace(NamedTuple):
    """A `class` or `def` in a module. `owner` is the class whose body contains it."""

    module: SourceModule
    node: ast.ClassDef | FunctionNode
    name: str
    owner: "SourcePlace | None" = None


class Unknown:
    """The type of `UNKNOWN`."""


UNKNOWN = Unknown()
"""Something that exists or may exist; only an import would show it."""

Thing = SourceModule | SourcePlace | Unknown
Trail = frozenset[tuple[str, str]]
"""Names that are being followed, to detect cycles."""

Mro = tuple[SourcePlace | str, ...]
"""The method resolution order of a class; bases without source are given by name."""

EMPTY_BASES = {
    "typing.Generic",
    "typing.Protocol",
    "typing_extensions.Generic",
    "typing_extensions.Protocol",
    "abc.ABC",
}
"""Bases without a constructor or attributes."""

BUILT_IN = ("builtins.", "typing.", "typing_extensions.", "abc.")
"""Modules whose classes are not read: their source is long and does not help."""

MAX_DEPTH = 60
"""The most names to follow one after the other."""


class Names:
    """Resolver of names in the modules of a project and its environment."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self._scopes: dict[ast.ClassDef, Scope] = {}
        self._mros: dict[ast.ClassDef, Mro] = {}

    def look_up(self, module: SourceModule, name: str, trail: Trail = frozenset()) -> Thing | None:
        """Return what a name in a module refers to. None if the module does not have it.

        Raises TargetError: a file of the project is not valid Python.
        """
        if (module.name, name) in trail:  # `from package import x` in package/__init__.py: the submodule
            return self.modules.find(f"{module.name}.{name}")
        if module.name == "builtins":
            return UNKNOWN if hasattr(builtins, name) else None
        if len(trail) > MAX_DEPTH or module.text is None:
            return self.modules.find(f"{module.name}.{name}") or UNKNOWN
        trail |= {(module.name, name)}
        # a word that is not in the source is not bound there, so most modules of a long row of `import *` need no parser
        if name in module.text and (bound := self._best_binding(module, module.scope.get(name, []), trail)):
            return bound
        if "*" in module.text:
            starred = self._find_star_import(module, name, trail)
            if starred:
                return starred
        return self.modules.find(f"{module.name}.{name}") or (UNKNOWN if module.may_bind(name) else None)

    def _best_binding(self, module: SourceModule, several: list[Binding], trail: Trail) -> Thing | None:
        """Return what the first binding that can be resolved refers to, or `UNKNOWN`."""
        for binding in several:
            thing = self._resolve_binding(module, binding, trail)
            if isinstance(thing, SourceModule | SourcePlace):
                return thing
        return UNKNOWN if several else None

    def _resolve_binding(self, module: SourceModule, binding: Binding, trail: Trail) -> Thing | None:
        node, alias = binding.node, binding.alias
        if isinstance(node, ast.ClassDef | FunctionNode):
            return SourcePlace(module, node, f"{module.name}.{node.name}")
        if isinstance(node, ast.Import) and alias:
            return self.modules.find(alias.name if alias.asname else alias.name.split(".")[0])
        if isinstance(node, ast.ImportFrom) and alias:
            origin = module.origin_of(node)
            source = self.modules.find(origin) if origin else None
            return self.look_up(source, alias.name, trail) if source else None
        return self.resolve(module, binding.value, trail)

    def _find_star_import(self, module: SourceModule, name: str, trail: Trail) -> Thing | None:
        unknown = None
        for origin in module.stars:
            source = self.modules.find(origin)
            if source is None or source.text is None:
                unknown = UNKNOWN
            elif (name in source.text or "*" in source.text) and source.exports(name):
                thing = self.look_up(source, name, trail)
                if isinstance(thing, SourceModule | SourcePlace):
                    return thing
                unknown = unknown or thing
        return unknown

    def resolve(self, module: SourceModule, expression: ast.expr | None, trail: Trail = frozenset()) -> Thing:
        """Return what a name or a chain of attributes refers to. Other expressions are unknown."""
        if isinstance(expression, ast.Name):
            return self.look_up(module, expression.id, trail) or UNKNOWN
        if isinstance(expression, ast.Attribute):
            prefix = self._resolve_prefix(module, expression.value, trail)
            return self.find_attribute(prefix, expression.attr, trail) or UNKNOWN
        return UNKNOWN

    def _resolve_prefix(self, module: SourceModule, expression: ast.expr, trail: Trail) -> Thing:
        """Resolve the expression before a dot, submodules first, which parse faster."""
        if isinstance(expression, ast.Attribute):
            above = self._resolve_prefix(module, expression.value, trail)
            if isinstance(above, SourceModule) and (
                below := self.modules.find(f"{above.name}.{expression.attr}")
            ):
                return below
            return self.find_attribute(above, expression.attr, trail) or UNKNOWN
        return self.resolve(module, expression, trail)

    def find_attribute(self, thing: Thing, name: str, trail: Trail = frozenset()) -> Thing | None:
        """Return what `thing.name` refers to. None if it certainly does not exist."""
        if isinstance(thing, SourceModule):
            return self.look_up(thing, name, trail)
        if isinstance(thing, SourcePlace) and isinstance(thing.node, ast.ClassDef):
            return self._class_attribute(thing, name)
        return UNKNOWN

    def _class_attribute(self, place: SourcePlace, name: str) -> Thing | None:
        for base in self.mro(place):
            if isinstance(base, str):
                if base not in EMPTY_BASES:
                    return UNKNOWN
                continue
            assert isinstance(base.node, ast.ClassDef)
            several = self.scope(base.node).get(name)
            if several:
                node = several[0].node
                known = isinstance(node, ast.ClassDef | FunctionNode)
                return SourcePlace(base.module, node, f"{base.name}.{name}", base) if known else UNKNOWN  # type: ignore[arg-type]
            if base.node.keywords or base.node.decorator_list:
                return UNKNOWN
        return UNKNOWN if hasattr(type, name) else None

    def scope(self, node: ast.ClassDef) -> Scope:
        """Return the names in the body of a class."""
        if node not in self._scopes:
            self._scopes[node] = find_bindings(node.body)
        return self._scopes[node]

    def mro(self, place: SourcePlace) -> Mro:
        """Return the method resolution order of a class, itself first, without `object`."""
        assert isinstance(place.node, ast.ClassDef)
        if place.node not in self._mros:
            self._mros[place.node] = (place, "a circle of bases")  # found by a class that is its own base
            bases = [self._base(place, expression) for expression in place.node.bases]
            bases = [base for base in bases if base != "builtins.object"]
            rows = [self.mro(base) if isinstance(base, SourcePlace) else (base,) for base in bases]
            self._mros[place.node] = (place, *_merge_orders([*rows, tuple(bases)]))
        return self._mros[place.node]

    def _base(self, place: SourcePlace, expression: ast.expr) -> SourcePlace | str:
        if isinstance(expression, ast.Subscript):  # Generic[T]
            expression = expression.value
        name = self.imported_name(place.module, expression)
        if name and name.startswith(BUILT_IN):
            return name
        thing = self.resolve(place.module, expression)
        if isinstance(thing, SourcePlace) and thing.node is place.node and isinstance(expression, ast.Name):
            # class A(A): the class that had the name before
            others = [b for b in place.module.scope[expression.id] if b.node is not place.node]
            thing = self._best_binding(place.module, others, frozenset()) or UNKNOWN
        if (
            isinstance(thing, SourcePlace)
            and isinstance(thing.node, ast.ClassDef)
            and thing.node is not place.node
        ):
            return thing
        return name or "an expression"

    def imported_name(self, module: SourceModule, expression: ast.expr) -> str | None:
        """Return the dotted name of an expression by the imports of its module."""
        if isinstance(expression, ast.Attribute):
            above = self.imported_name(module, expression.value)
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
