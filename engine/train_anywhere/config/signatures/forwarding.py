"""What a constructor does with its `**kwargs`, read from its body."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from train_anywhere.config.signatures.names import FunctionNode


class Forwarding(NamedTuple):
    """Where the extra names of a call go.

    Args:
        popped: names that are taken out one by one, as in `kwargs.pop("decay", None)`.
        call: the one constructor that is given the rest, if there is one.
        base: the class whose constructor that is; None for the next one, `super()`.
        closed: whether nothing else becomes of the rest: it is handed on, or refused.
    """

    popped: tuple[str, ...] = ()
    call: ast.Call | None = None
    base: ast.expr | None = None
    closed: bool = False


def forwarding(node: FunctionNode) -> Forwarding:
    """What becomes of the `**kwargs` of a constructor; not `closed` where the body does anything unusual with them."""
    kwarg = node.args.kwarg
    if kwarg is None:
        return Forwarding(closed=True)
    uses = list(_uses(node.body, kwarg.arg))
    calls = [use for use in uses if isinstance(use, ast.Call) and any(_starred(use, kwarg.arg))]
    popped = tuple(use for use in uses if isinstance(use, str))
    if "" in popped or len(calls) > 1:
        return Forwarding()
    refused = any(isinstance(use, ast.If) for use in uses)
    base = _constructor(calls[0]) if calls else None
    if calls and base is None:
        return Forwarding()
    after = None if isinstance(base, ast.Call) else base
    return Forwarding(popped, calls[0] if calls else None, after, bool(calls) or refused)


def _starred(call: ast.Call, name: str) -> Iterator[bool]:
    """For each `**name` in the call."""
    return (
        True for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name) and k.value.id == name
    )


def _uses(body: list[ast.stmt], name: str) -> Iterator[ast.Call | ast.If | str]:
    """Each use of the name: a call that is given it, a test that refuses what is left, a key; "" for all else."""

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
            case ast.Call() if any(_starred(node, name)):
                yield node
                for child in ast.iter_child_nodes(node):
                    if not (isinstance(child, ast.keyword) and child.arg is None and _is(child.value, name)):
                        yield from walk(child)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from walk(child)

    for statement in body:
        yield from walk(statement)


def _key(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _refuses(node: ast.If, name: str) -> bool:
    """`if kwargs: raise ...`, and the same with a `len()`."""
    test = ast.unparse(node.test)
    return test in (name, f"len({name})", f"len({name}) > 0", f"len({name}) != 0", f"bool({name})") and any(
        isinstance(statement, ast.Raise) for statement in node.body
    )


def _constructor(call: ast.Call) -> ast.expr | None:
    """`super()` of `super().__init__(...)`, `Base` of `Base.__init__(self, ...)`; None for other calls."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
        return call.func.value
    return None
