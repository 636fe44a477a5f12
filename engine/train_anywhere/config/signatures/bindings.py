"""Find the statements that give names their values, in a module or in the body of a class."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

Scope = dict[str, "list[Binding]"]
"""The bindings of each name, the most likely one first."""

Block = Sequence[ast.stmt]


class Binding(NamedTuple):
    """One statement that binds a name.

    Args:
        node: the statement.
        alias: the alias of an import.
        value: the value of an assignment; None for a part of it, such as an item of a tuple.
        rank: sort key by likelihood. Names for type checkers, later branches and literals come last, later statements first.
    """

    node: ast.stmt
    alias: ast.alias | None
    value: ast.expr | None
    rank: tuple[bool, int, bool, int]


def find_bindings(body: Block) -> Scope:
    """Return all names that the statements bind, including those inside `if`, `try`, `with` and loops."""
    found: Scope = {}
    for number, (name, node, extra, branch, typing) in enumerate(_walk(body, 0, False)):
        alias = extra if isinstance(extra, ast.alias) else None
        value = extra if isinstance(extra, ast.expr) else None
        rank = (typing, branch, isinstance(value, ast.Constant), -number)
        found.setdefault(name, []).append(Binding(node, alias, value, rank))
    for several in found.values():
        several.sort(key=lambda binding: binding.rank)
    return found


def star_imports(body: Block) -> list[ast.ImportFrom]:
    """Return the statements `from x import *`, the last one first."""
    found = [
        node for name, node, *_ in _walk(body, 0, False) if name == "*" and isinstance(node, ast.ImportFrom)
    ]
    return found[::-1]


_Bound = tuple[str, ast.stmt, ast.alias | ast.expr | None, int, bool]


def _walk(body: Block, branch: int, typing: bool) -> Iterator[_Bound]:
    for node in body:
        for name, extra in _own(node):
            yield name, node, extra, branch, typing
        for block, later, for_types in _blocks(node):
            yield from _walk(block, branch + later, typing or for_types)


def _own(node: ast.stmt) -> Iterator[tuple[str, ast.alias | ast.expr | None]]:
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
                yield from ((name, node.value if whole else None) for name in _names(target))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.For() | ast.AsyncFor():
            yield from ((name, None) for name in _names(node.target))
        case ast.With() | ast.AsyncWith():
            targets = [item.optional_vars for item in node.items if item.optional_vars]
            yield from ((name, None) for target in targets for name in _names(target))


def _names(target: ast.expr) -> Iterable[str]:
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
