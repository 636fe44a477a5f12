"""The parameters of one `def`, and what its decorators leave of them."""

import ast
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.hints import hint_of, optional
from train_anywhere.config.signatures.modules import Module
from train_anywhere.config.signatures.names import FunctionNode, Names

KEEPING = {
    *("staticmethod", "classmethod", "abstractmethod", "override", "final", "overload", "wraps", "deprecated"),
    *("cache", "lru_cache", "contextmanager", "singledispatch", "no_grad", "enable_grad", "inference_mode", "rank_zero_only"),
    *("keras_export", "tf_export", "register_keras_serializable", "no_automatic_dependency_tracking", "filter_traceback"),
}  # fmt: skip
"""Decorators of functions, by their last name, whose result takes what the function takes."""

COMPUTING = {"property", "cached_property", "abstractproperty", "setter", "getter", "deleter"}
"""Those whose result is no function."""


class Signature(NamedTuple):
    """What a call takes; `takes_any`: other names too, or there may be others."""

    parameters: Mapping[str, Parameter]
    takes_any: bool


ANYTHING = Signature({}, True)


def written(names: Names, module: Module, node: FunctionNode, bound: bool) -> Signature:
    """The signature as it stands in the source.

    Args:
        bound: leave out the first parameter, which is `self` or `cls`.
    """
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
    changed = not keeps(node.decorator_list, KEEPING)
    return Signature({p.name: p for p in found}, args.kwarg is not None or changed)


def _parameter(
    names: Names, module: Module, arg: ast.arg, default: ast.expr | None, positional_only: bool
) -> Parameter:
    required, hint = default is None, hint_of(names, module, arg.annotation)
    if isinstance(default, ast.Name) and len(bound := module.scope.get(default.id, [])) == 1:
        default = bound[0].value  # a constant of the module
    return made(arg.arg, required, hint, literal(default), positional_only)


def made(name: str, required: bool, hint: Any, default: Any, positional_only: bool = False) -> Parameter:
    """A parameter; `x: int = None` may be null, whatever its annotation says."""
    if default is None and hint is not None:
        hint = optional(hint)
    return Parameter(name, required, hint, default, positional_only)


def literal(node: ast.expr | None) -> Any:
    """The value of an expression that is a literal, otherwise `NO_DEFAULT`."""
    if node is None:
        return NO_DEFAULT
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NO_DEFAULT


def decorators(nodes: Iterable[ast.expr]) -> list[str]:
    """The last name of each: `wraps` of `@functools.wraps(f)`; "" for other expressions."""
    found = []
    for node in nodes:
        node = node.func if isinstance(node, ast.Call) else node
        found.append(node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ""))
    return found


def keeps(nodes: Iterable[ast.expr], known: set[str]) -> bool:
    """Whether all decorators are known ones that leave a signature as it is."""
    return set(decorators(nodes)) <= known
