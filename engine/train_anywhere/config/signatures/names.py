"""From a name to the class or function that it means: through re-exports, aliases, `import *` and base classes."""

import ast
import builtins
from typing import NamedTuple

from train_anywhere.config.signatures.bindings import Binding, Scope, bindings
from train_anywhere.config.signatures.modules import Module, Modules

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A `class` or `def` in a module; `owner` is the class in whose body it stands."""

    module: Module
    node: ast.ClassDef | FunctionNode
    name: str
    owner: "Place | None" = None


class Unknown:
    """The type of `UNKNOWN`."""


UNKNOWN = Unknown()
"""Something is there, or may be: only an import would tell."""

Thing = Module | Place | Unknown
Trail = frozenset[tuple[str, str]]
"""Names that are being followed: one that leads back to itself leads nowhere."""

Line = tuple[Place | str, ...]
"""A class and its bases in the order in which they are searched; those without source by name."""

BARE = {
    "typing.Generic",
    "typing.Protocol",
    "typing_extensions.Generic",
    "typing_extensions.Protocol",
    "abc.ABC",
}
"""Bases without a constructor and attributes of their own."""

BUILT_IN = ("builtins.", "typing.", "typing_extensions.", "abc.")
"""Where bases come from whose source would say nothing, and is long."""

DEEPEST = 60
"""Names followed in a row."""


class Names:
    """Resolves names in the modules of one project and its environment."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self._scopes: dict[ast.ClassDef, Scope] = {}
        self._lines: dict[ast.ClassDef, Line] = {}

    def member(self, module: Module, name: str, trail: Trail = frozenset()) -> Thing | None:
        """What a name in a module means; None if the module certainly has no such name.

        Raises:
            TargetError: a file of the project is not valid Python.
        """
        if (module.name, name) in trail:  # `from package import part` in package/__init__.py: the submodule
            return self.modules.find(f"{module.name}.{name}")
        if module.name == "builtins":
            return UNKNOWN if hasattr(builtins, name) else None
        if len(trail) > DEEPEST or module.text is None:
            return self.modules.find(f"{module.name}.{name}") or UNKNOWN
        trail |= {(module.name, name)}
        # a word that does not occur in the source is not bound there: most of a long row of `import *` needs no parser
        if name in module.text and (bound := self._best(module, module.scope.get(name, []), trail)):
            return bound
        if "*" in module.text:
            starred = self._starred(module, name, trail)
            if starred:
                return starred
        return self.modules.find(f"{module.name}.{name}") or (UNKNOWN if module.may_bind(name) else None)

    def _best(self, module: Module, several: list[Binding], trail: Trail) -> Thing | None:
        """The first binding that leads to something; unknown if each leads nowhere."""
        for binding in several:
            thing = self._bound(module, binding, trail)
            if isinstance(thing, Module | Place):
                return thing
        return UNKNOWN if several else None

    def _bound(self, module: Module, binding: Binding, trail: Trail) -> Thing | None:
        node, alias = binding.node, binding.alias
        if isinstance(node, ast.ClassDef | FunctionNode):
            return Place(module, node, f"{module.name}.{node.name}")
        if isinstance(node, ast.Import) and alias:
            return self.modules.find(alias.name if alias.asname else alias.name.split(".")[0])
        if isinstance(node, ast.ImportFrom) and alias:
            origin = module.origin_of(node)
            source = self.modules.find(origin) if origin else None
            return self.member(source, alias.name, trail) if source else None
        return self.value(module, binding.value, trail)

    def _starred(self, module: Module, name: str, trail: Trail) -> Thing | None:
        unknown = None
        for origin in module.stars:
            source = self.modules.find(origin)
            if source is None or source.text is None:
                unknown = UNKNOWN
            elif (name in source.text or "*" in source.text) and source.exports(name):
                thing = self.member(source, name, trail)
                if isinstance(thing, Module | Place):
                    return thing
                unknown = unknown or thing
        return unknown

    def value(self, module: Module, expression: ast.expr | None, trail: Trail = frozenset()) -> Thing:
        """What an expression means that is a name or a chain of attributes; all others are unknown."""
        if isinstance(expression, ast.Name):
            return self.member(module, expression.id, trail) or UNKNOWN
        if isinstance(expression, ast.Attribute):
            return (
                self.attribute(self._above(module, expression.value, trail), expression.attr, trail)
                or UNKNOWN
            )
        return UNKNOWN

    def _above(self, module: Module, expression: ast.expr, trail: Trail) -> Thing:
        """As `value`, for what stands before a dot: a submodule is taken unread, since that of a large package takes long to parse."""
        if isinstance(expression, ast.Attribute):
            above = self._above(module, expression.value, trail)
            if isinstance(above, Module) and (below := self.modules.find(f"{above.name}.{expression.attr}")):
                return below
            return self.attribute(above, expression.attr, trail) or UNKNOWN
        return self.value(module, expression, trail)

    def attribute(self, thing: Thing, name: str, trail: Trail = frozenset()) -> Thing | None:
        """What `thing.name` means; None if there certainly is no such attribute."""
        if isinstance(thing, Module):
            return self.member(thing, name, trail)
        if isinstance(thing, Place) and isinstance(thing.node, ast.ClassDef):
            return self._of_class(thing, name)
        return UNKNOWN

    def _of_class(self, place: Place, name: str) -> Thing | None:
        for base in self.line(place):
            if isinstance(base, str):
                if base not in BARE:
                    return UNKNOWN
                continue
            assert isinstance(base.node, ast.ClassDef)
            several = self.scope(base.node).get(name)
            if several:
                node = several[0].node
                known = isinstance(node, ast.ClassDef | FunctionNode)
                return Place(base.module, node, f"{base.name}.{name}", base) if known else UNKNOWN  # type: ignore[arg-type]
            if base.node.keywords or base.node.decorator_list:
                return UNKNOWN
        return UNKNOWN if hasattr(type, name) else None

    def scope(self, node: ast.ClassDef) -> Scope:
        """The names in the body of a class."""
        if node not in self._scopes:
            self._scopes[node] = bindings(node.body)
        return self._scopes[node]

    def line(self, place: Place) -> Line:
        """The method resolution order of a class, itself first, without `object`."""
        assert isinstance(place.node, ast.ClassDef)
        if place.node not in self._lines:
            self._lines[place.node] = (place, "a circle of bases")  # what a circle finds
            bases = [self._base(place, expression) for expression in place.node.bases]
            bases = [base for base in bases if base != "builtins.object"]
            rows = [self.line(base) if isinstance(base, Place) else (base,) for base in bases]
            self._lines[place.node] = (place, *_merged([*rows, tuple(bases)]))
        return self._lines[place.node]

    def _base(self, place: Place, expression: ast.expr) -> Place | str:
        if isinstance(expression, ast.Subscript):  # Generic[T]
            expression = expression.value
        name = self.origin(place.module, expression)
        if name and name.startswith(BUILT_IN):
            return name
        thing = self.value(place.module, expression)
        if isinstance(thing, Place) and thing.node is place.node and isinstance(expression, ast.Name):
            # class A(A): the one that had the name before
            others = [b for b in place.module.scope[expression.id] if b.node is not place.node]
            thing = self._best(place.module, others, frozenset()) or UNKNOWN
        if isinstance(thing, Place) and isinstance(thing.node, ast.ClassDef) and thing.node is not place.node:
            return thing
        return name or "an expression"

    def origin(self, module: Module, expression: ast.expr) -> str | None:
        """Dotted name of an expression as the imports of the module give it, without following it into other files."""
        if isinstance(expression, ast.Attribute):
            above = self.origin(module, expression.value)
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


def _merged(rows: list[Line]) -> list[Place | str]:
    """Several orders made one, as Python merges them; where that is impossible, the first row's comes first."""
    rows = [row for row in rows if row]
    merged: list[Place | str] = []
    while rows:
        later = {item for row in rows for item in row[1:]}
        head = next((row[0] for row in rows if row[0] not in later), rows[0][0])
        merged.append(head)
        rows = [rest for row in rows if (rest := tuple(item for item in row if item != head))]
    return merged
