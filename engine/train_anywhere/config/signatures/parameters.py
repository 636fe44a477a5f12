"""Read the parameters of one `def`, and the types of their annotations.

An annotation is evaluated with the names of typing and `train_anywhere.config` only. One with an unknown part gives no type at all: a
partial check could refuse valid values.
"""

import ast
import dataclasses
import pkgutil
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, Optional, Union, get_args, get_origin

from train_anywhere.config.limits import Items
from train_anywhere.config.signatures import names
from train_anywhere.config.signatures.modules import SourceModule, TargetError
from train_anywhere.config.signatures.names import FunctionNode

NEUTRAL_DECORATORS = {
    *("staticmethod", "classmethod", "abstractmethod", "override", "final", "overload", "wraps", "deprecated"),
    *("cache", "lru_cache", "contextmanager", "singledispatch", "no_grad", "enable_grad", "inference_mode", "rank_zero_only"),
    *("keras_export", "tf_export", "register_keras_serializable", "no_automatic_dependency_tracking", "filter_traceback"),
}  # fmt: skip
"""Function decorators, by their last name, that do not change the parameters."""

PROPERTY_DECORATORS = {"property", "cached_property", "abstractproperty", "setter", "getter", "deleter"}
"""Decorators whose result is not a function."""

_BUILTINS: dict[str, Any] = {
    f"builtins.{kind.__name__}": kind for kind in (int, float, bool, str, list, tuple)
}

_SAMPLES: dict[Any, Any] = {int: 1, float: 1.0, str: "a", list: [1]}
"""A value of each type that can have rules: a rule with bounds of another type fails on it, and not in a check."""

_OURS = "train_anywhere.config."
"""Modules from which hints are imported: they need only the standard library."""

_TYPING = ("typing", "typing_extensions", "collections")

_NODES = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Constant, ast.Call, ast.keyword),
    *(ast.BinOp, ast.BitOr, ast.UnaryOp, ast.USub, ast.Load),
)
"""The parts of annotations that are evaluated."""


NO_DEFAULT: Any = object()
"""The default of a parameter without one, or with one that is not a literal."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One argument of a target.

    Args:
        required: whether a call without it fails.
        hint: a type that `train_anywhere.config.strict.convert` can check; None: any value may be valid.
        default: its literal value, or `NO_DEFAULT`.
        positional_only: whether it can't be given by name.
    """

    name: str
    required: bool
    hint: Any = None
    default: Any = NO_DEFAULT
    positional_only: bool = False


class Signature(NamedTuple):
    """The parameters of a call. `takes_any`: it accepts, or may accept, other names too."""

    parameters: Mapping[str, Parameter]
    takes_any: bool


ANY_SIGNATURE = Signature({}, True)


def read_signature(module: SourceModule, node: FunctionNode, bound: bool) -> Signature:
    """Return the signature in the source. `bound` leaves out `self` or `cls`."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [*[None] * (len(positional) - len(args.defaults)), *args.defaults, *args.kw_defaults]
    found = []
    for arg, default in zip([*positional, *args.kwonlyargs], defaults, strict=True):
        required = default is None
        if isinstance(default, ast.Name) and len(several := module.scope.get(default.id, [])) == 1:
            default = several[0].value  # the default is a constant of the module
        hint = read_hint(module, arg.annotation)
        found.append(make_parameter(arg.arg, required, hint, literal(default), arg in args.posonlyargs))
    changed = not keeps_signature(node.decorator_list, NEUTRAL_DECORATORS)
    kept = found[1:] if bound and positional else found
    return Signature({p.name: p for p in kept}, args.kwarg is not None or changed)


def make_parameter(
    name: str, required: bool, hint: Any, default: Any, positional_only: bool = False
) -> Parameter:
    """Return a parameter. `x: int = None` accepts null although its annotation does not."""
    if default is None and hint is not None:
        hint = _sort_union(Optional[hint])  # noqa: UP045  # hint is a value
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
    """Return the last name of each decorator, such as `wraps`. "" for other expressions."""
    functions = [node.func if isinstance(node, ast.Call) else node for node in nodes]
    return [f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in functions]


def keeps_signature(nodes: Iterable[ast.expr], known: set[str]) -> bool:
    """Return whether all decorators are among the known ones that do not change a signature."""
    return set(decorator_names(nodes)) <= known


def read_hint(module: SourceModule, annotation: ast.expr | None) -> Any:
    """Return the type of an annotation in a module, or None if it can't be checked."""
    if annotation is None:
        return None
    namespace = _Namespace(module)
    try:
        return _checkable(namespace.evaluate(annotation), namespace)
    except TargetError:  # a file of the project
        raise
    except Exception:
        return None


class _Namespace(dict[str, Any]):
    """The names that annotations of a module can use; those of typing and of this package have values."""

    def __init__(self, module: SourceModule) -> None:
        self.module = module

    def evaluate(self, annotation: ast.expr) -> Any:
        for node in ast.walk(annotation):
            called = isinstance(node, ast.Call) and names.imported_name(self.module, node.func)
            if not isinstance(node, _NODES) or (called is not False and not str(called).startswith(_OURS)):
                raise TypeError
        return eval(compile(ast.Expression(annotation), "annotation", "eval"), {"__builtins__": {}}, self)

    def __missing__(self, name: str) -> Any:
        dotted = names.imported_name(self.module, ast.Name(name)) or ""
        if dotted in _BUILTINS:
            return _BUILTINS[dotted]
        if dotted.startswith(_OURS) or dotted.split(".")[0] in _TYPING:
            return pkgutil.resolve_name(dotted)
        (bound,) = self.module.scope[name]
        if bound.value:  # Width = Annotated[int, ...], in this file
            return self.evaluate(bound.value)
        source = self.module.source_of(bound.node) if isinstance(bound.node, ast.ImportFrom) else None
        if source is None or not source.in_project or source.text is None or bound.alias is None:
            raise NameError
        return _Namespace(source)[bound.alias.name]  # the file of the project that defines it


def _checkable(hint: Any, namespace: _Namespace) -> Any:
    """Return a type as `train_anywhere.config.strict.convert` can check it. YAML has lists only.

    Raises TypeError: a part of it can't be checked.
    """
    if isinstance(hint, str | ForwardRef):
        text = hint if isinstance(hint, str) else hint.__forward_arg__
        return _checkable(namespace.evaluate(ast.parse(text.strip(), mode="eval").body), namespace)
    kind, args = get_origin(hint), get_args(hint)
    if hint is None or hint in (int, float, bool, str, type(None)):
        return type(None) if hint is None else hint
    if kind is Literal and all(isinstance(value, int | str) for value in args):
        return hint
    if kind is Annotated:
        inner = _checkable(args[0], namespace)
        for rule in hint.__metadata__:
            if not type(rule).__module__.startswith(_OURS):
                raise TypeError
            rule(_SAMPLES[get_origin(inner) or inner])
        return Annotated[(inner, *hint.__metadata__)]
    if kind in (Union, types.UnionType) and args:
        return _sort_union(Union[tuple(_checkable(part, namespace) for part in args)])  # noqa: UP007
    takes_list = isinstance(kind, type) and issubclass(list, kind)  # such as Sequence
    if (takes_list and len(args) == 1) or (kind is tuple and args[1:] == (...,)):
        return list[_checkable(args[0], namespace)]  # type: ignore[misc]
    if kind is tuple and len(items := {_checkable(part, namespace) for part in args}) == 1:
        return Annotated[list[items.pop()], Items(count=len(args))]  # type: ignore[misc]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint.__module__.startswith(_OURS):
        return hint
    raise TypeError


def _sort_union(hint: Any) -> Any:
    """Sort the types of a union so that a number becomes a string only if none fits."""
    order = [type(None), bool, int, float, list, Literal, str]

    def rank(part: Any) -> int:
        plain = get_args(part)[0] if get_origin(part) is Annotated else part
        kind = get_origin(plain) or plain
        return order.index(kind) if kind in order else len(order)

    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return Union[tuple(sorted(parts, key=rank))]  # noqa: UP007
