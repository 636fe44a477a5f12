"""Find the statements that bind names, in a module or in a class body."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

Scope = dict[str, "list[Binding]"]
"""The bindings of each name; the one most likely in effect comes first."""

Block = Sequence[ast.stmt]
"""The statements of a module, a class body or one branch."""


class Binding(NamedTuple):
    """One statement that binds a name.

    Args:
        node: the statement.
        alias: the alias of an import; None for other statements.
        value: the assigned expression; None for other statements, or if the name gets only a part of it (`a, b = pair`).
        rank: sort key, lower is more likely in effect: only for type checkers, branch number, literal, minus the position.
    """

    node: ast.stmt
    alias: ast.alias | None
    value: ast.expr | None
    rank: tuple[bool, int, bool, int]


def find_bindings(body: Block) -> Scope:
    """Return the bindings of all names, including those inside `if`, `try`, `with`, `match` and loops."""
    scope: Scope = {}
    for position, (name, node, source, branch, for_types) in enumerate(_walk(body, 0, False)):
        alias = source if isinstance(source, ast.alias) else None
        value = source if isinstance(source, ast.expr) else None
        rank = (for_types, branch, isinstance(value, ast.Constant), -position)
        scope.setdefault(name, []).append(Binding(node, alias, value, rank))
    for bindings in scope.values():
        bindings.sort(key=lambda binding: binding.rank)
    return scope


def star_imports(body: Block) -> list[ast.ImportFrom]:
    """Return the statements `from x import *`, the last one first."""
    found = [
        node for name, node, *_ in _walk(body, 0, False) if name == "*" and isinstance(node, ast.ImportFrom)
    ]
    return found[::-1]


_Bound = tuple[str, ast.stmt, ast.alias | ast.expr | None, int, bool]
"""Name, statement, import alias or assigned expression, branch number, and whether only type checkers read the statement."""


def _walk(body: Block, branch: int, for_types: bool) -> Iterator[_Bound]:
    """Yield the names that the statements and the blocks inside them bind, in source order."""
    for node in body:
        for name, source in _bound_names(node):
            yield name, node, source, branch, for_types
        for block, later, only_types in _blocks(node):
            yield from _walk(block, branch + later, for_types or only_types)


def _bound_names(node: ast.stmt) -> Iterator[tuple[str, ast.alias | ast.expr | None]]:
    """Yield the names that a statement itself binds, each with its import alias or assigned expression."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name, None
        case ast.Import():
            yield from ((a.asname or a.name.split(".")[0], a) for a in node.names)
        case ast.ImportFrom():
            yield from ((a.asname or a.name, a) for a in node.names)
        case ast.Assign():
            for target in node.targets:
                whole = isinstance(target, ast.Name)
                yield from ((name, node.value if whole else None) for name in _target_names(target))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.For() | ast.AsyncFor():
            yield from ((name, None) for name in _target_names(node.target))
        case ast.With() | ast.AsyncWith():
            targets = [item.optional_vars for item in node.items if item.optional_vars]
            yield from ((name, None) for target in targets for name in _target_names(target))


def _target_names(target: ast.expr) -> Iterable[str]:
    return (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _blocks(node: ast.stmt) -> Iterator[tuple[Block, int, bool]]:
    """Yield the blocks of a statement, each with its branch number (higher is less likely) and whether only type checkers read it."""
    match node:
        case ast.If():
            test = ast.unparse(node.test)
            for_types = test.endswith("TYPE_CHECKING")
            negated = for_types and test.startswith("not ")
            yield node.body, 0, for_types and not negated
            yield node.orelse, 1, negated
        case ast.Try() | ast.TryStar():
            yield node.body, 0, False
            yield from ((handler.body, 1, False) for handler in node.handlers)
            yield node.orelse, 0, False
            yield node.finalbody, 0, False
        case ast.For() | ast.AsyncFor() | ast.While():
            yield node.body, 0, False
            yield node.orelse, 0, False
        case ast.With() | ast.AsyncWith():
            yield node.body, 0, False
        case ast.Match():
            yield from ((case.body, number, False) for number, case in enumerate(node.cases))
