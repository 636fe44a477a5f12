"""Read from the body of a constructor where its `**kwargs` go."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from train_anywhere.config.signatures.names import FunctionNode


class Forwarding(NamedTuple):
    """The uses of `**kwargs` in a constructor.

    Args:
        popped: names that are removed one by one, as in `kwargs.pop("decay", None)`.
        call: the only call of another constructor that gets the rest, or None.
        base: the class of that constructor; None for `super()`.
        closed: whether the rest is only forwarded or refused.
    """

    popped: tuple[str, ...] = ()
    call: ast.Call | None = None
    base: ast.expr | None = None
    closed: bool = False


def read_forwarding(node: FunctionNode) -> Forwarding:
    """Return the uses of a constructor's `**kwargs`; `closed` is false if the body uses them in another way."""
    kwarg = node.args.kwarg
    if kwarg is None:
        return Forwarding(closed=True)
    uses = list(_uses(node.body, kwarg.arg))
    calls = [use for use in uses if isinstance(use, ast.Call) and _passes_rest(use, kwarg.arg)]
    popped = tuple(use for use in uses if isinstance(use, str))
    if "" in popped or len(calls) > 1:
        return Forwarding()
    refused = any(isinstance(use, ast.If) for use in uses)
    base = _constructor(calls[0]) if calls else None
    if calls and base is None:
        return Forwarding()
    after = None if isinstance(base, ast.Call) else base
    return Forwarding(popped, calls[0] if calls else None, after, bool(calls) or refused)


def _passes_rest(call: ast.Call, name: str) -> bool:
    """Return whether the call has an argument `**name`."""
    return any(_is_rest(keyword, name) for keyword in call.keywords)


def _uses(body: list[ast.stmt], name: str) -> Iterator[ast.Call | ast.If | str]:
    """Yield each use of the name: a call that gets it, a test that refuses the rest, a key, or "" for other uses."""

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
            case ast.Call() if _passes_rest(node, name):
                yield node
                for child in ast.iter_child_nodes(node):
                    if not (isinstance(child, ast.keyword) and _is_rest(child, name)):
                        yield from walk(child)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from walk(child)

    for statement in body:
        yield from walk(statement)


def _key(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_rest(keyword: ast.keyword, name: str) -> bool:
    return keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == name


def _refuses(node: ast.If, name: str) -> bool:
    """Return whether the statement is `if kwargs: raise ...`, or the same with `len()`."""
    test = ast.unparse(node.test)
    return test in (name, f"len({name})", f"len({name}) > 0", f"len({name}) != 0", f"bool({name})") and any(
        isinstance(statement, ast.Raise) for statement in node.body
    )


def _constructor(call: ast.Call) -> ast.expr | None:
    """Return `super()` for `super().__init__(...)` and `Base` for `Base.__init__(self, ...)`; None for other calls."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
        return call.func.value
    return None
