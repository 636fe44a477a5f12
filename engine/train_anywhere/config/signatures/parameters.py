"""Read the parameters of one `def` and the effect of its decorators."""

import ast
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from train_anywhere.config.signatures.definition import NO_DEFAULT, Parameter
from train_anywhere.config.signatures.hints import make_optional, read_hint
from train_anywhere.config.signatures.modules import Module
from train_anywhere.config.signatures.names import FunctionNode, Names

NEUTRAL_DECORATORS = {
    *("staticmethod", "classmethod", "abstractmethod", "override", "final", "overload", "wraps", "deprecated"),
    *("cache", "lru_cache", "contextmanager", "singledispatch", "no_grad", "enable_grad", "inference_mode", "rank_zero_only"),
    *("keras_export", "tf_export", "register_keras_serializable", "no_automatic_dependency_tracking", "filter_traceback"),
}  # fmt: skip
"""Function decorators, by their last name, that do not change the parameters."""

PROPERTY_DECORATORS = {"property", "cached_property", "abstractproperty", "setter", "getter", "deleter"}
"""Decorators whose result is not a function."""


class Signature(NamedTuple):
    """The parameters of a call. `takes_any`: it accepts, or may accept, other names too."""

    parameters: Mapping[str, Parameter]
    takes_any: bool


ANY_SIGNATURE = Signature({}, True)


def read_signature(names: Names, module: Module, node: FunctionNode, bound: bool) -> Signature:
    """Return the signature in the source; `bound` leaves out the first parameter, which is `self` or `cls`."""
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
    names: Names, module: Module, arg: ast.arg, default: ast.expr | None, positional_only: bool
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
        hint = make_optional(hint)
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
    """Return the last name of each decorator, such as `wraps` for `@functools.wraps(f)`; "" for other expressions."""
    found = []
    for node in nodes:
        node = node.func if isinstance(node, ast.Call) else node
        found.append(node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ""))
    return found


def keeps_signature(nodes: Iterable[ast.expr], known: set[str]) -> bool:
    """Return whether all decorators are among the known ones that do not change a signature."""
    return set(decorator_names(nodes)) <= known
