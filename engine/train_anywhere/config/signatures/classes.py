"""Read the constructor of a class, through bases and `**kwargs`, and its literal attributes."""

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from train_anywhere.config.signatures import names
from train_anywhere.config.signatures.names import EMPTY_BASES, FunctionNode, Mro, SourcePlace
from train_anywhere.config.signatures.parameters import (
    ANY_SIGNATURE,
    NEUTRAL_DECORATORS,
    NO_DEFAULT,
    Parameter,
    Signature,
    decorator_names,
    keeps_signature,
    literal,
    make_parameter,
    read_hint,
    read_signature,
)


def read_forwarding(node: FunctionNode, name: str) -> tuple[list[str], ast.Call | None] | None:
    """Return the uses of a constructor's `**name`: it is only forwarded or refused. None for other uses.

    They are the names that are removed one by one, as in `kwargs.pop("decay", None)`, and the only call of another constructor that gets
    the rest, `super().__init__(**name)` or `Base.__init__(self, **name)`.
    """
    inside = [inner for statement in node.body for inner in ast.walk(statement)]
    uses = {use for use in inside if isinstance(use, ast.Name) and use.id == name}
    popped, calls, refused = list[str](), list[ast.Call](), False
    for inner in inside:
        match inner:
            case ast.Raise():
                uses -= {*ast.walk(inner)}
            case ast.If(test=test) if _refuses(inner, name):
                refused, uses = True, uses - {*ast.walk(test)}
            case (
                ast.Call(
                    func=ast.Attribute(value=use, attr="pop" | "get"), args=[ast.Constant(value=str(key)), *_]
                )
                | ast.Compare(left=ast.Constant(value=str(key)), comparators=[use])
            ):
                popped += [key] if use in uses else []
                uses -= {use}
            case ast.Call() if given := {k.value for k in inner.keywords if not k.arg} & uses:
                calls.append(inner)
                uses -= given
    forwarded = [
        call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"
    ]
    if uses or len(calls) > 1 or calls != forwarded or not (calls or refused):
        return None
    return popped, calls[0] if calls else None


def _refuses(node: ast.If, name: str) -> bool:
    """Return whether the statement is `if kwargs: raise ...`, or the same with `len()`."""
    tests = (name, f"len({name})", f"len({name}) > 0", f"len({name}) != 0", f"bool({name})")
    return ast.unparse(node.test) in tests and any(isinstance(one, ast.Raise) for one in node.body)


def dataclass_signature(mro: Mro) -> Signature | None:
    """Return the constructor that `@dataclass` generates. None if it generates none."""
    classes = [base for base in mro if isinstance(base, SourcePlace)]
    found = {c: d for c in classes for d in c.node.decorator_list if decorator_names([d]) == ["dataclass"]}
    if mro[0] not in found or _options(found[mro[0]]).get("init") is False:
        return None
    parameters: dict[str, Parameter] = {}
    for base in reversed(found):
        for node in base.node.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            by_field = node.value is not None and decorator_names([node.value]) == ["field"]
            options = _options(node.value) if by_field else {"default": literal(node.value)}
            if options.get("init") is False or NO_FIELD.match(ast.unparse(node.annotation)):
                continue
            required = node.value is None or not {"default", "default_factory"} & options.keys()
            hint, default = read_hint(base.module, node.annotation), options.get("default", NO_DEFAULT)
            parameters[node.target.id] = make_parameter(node.target.id, required, hint, default)
    calls = [(base.module, one.func if isinstance(one, ast.Call) else one) for base, one in found.items()]
    own = all(names.imported_name(*call) == "dataclasses.dataclass" for call in calls)
    known = all(base in classes or str(base).startswith(("typing.", "abc.")) for base in mro)
    return Signature(parameters, not (own and known))


NO_FIELD = re.compile(r"['\"]?([\w.]*\.)?(ClassVar|KW_ONLY)\b")
"""Matches annotations in a dataclass that are no argument of its constructor."""


def _options(call: ast.expr | None) -> dict[str | None, Any]:
    """Return the literal values of the keywords of `@dataclass(...)` or `field(...)`."""
    return {k.arg: literal(k.value) for k in call.keywords} if isinstance(call, ast.Call) else {}


CLASS_DECORATORS = {
    *("dataclass", "final", "runtime_checkable", "total_ordering", "deprecated", "compatibility"),
    *("keras_export", "tf_export", "register_keras_serializable"),
}
"""Class decorators, by their last name, that do not change the constructor."""


def constructor_signature(place: SourcePlace) -> Signature:
    """Return the parameters of a call of the class.

    Raises TargetError: a file of the project with a base class is not valid Python.
    """
    mro = names.mro(place)
    found = _find_constructor(mro)
    classes = [base for base in mro if isinstance(base, SourcePlace)]
    scopes = [names.scope(base.node) for base in classes]
    # a base may generate constructors in `__init_subclass__`, as some libraries do
    if "__init__" not in scopes[0] and any("__init_subclass__" in scope for scope in scopes[1:]):
        return Signature(_make_optional(found.parameters), True)
    # a metaclass other than that of `abc.ABC` may handle a call before the constructor
    metas = [(base.module, k.value) for base in classes for k in base.node.keywords if k.arg == "metaclass"]
    known = all(names.imported_name(*meta) == "abc.ABCMeta" for meta in metas)
    return found if known else Signature(found.parameters, True)


def literal_attributes(place: SourcePlace) -> dict[str, Any]:
    """Return class attributes with a literal value, the nearest of each name."""
    found: dict[str, Any] = {}
    for base in (base for base in names.mro(place) if isinstance(base, SourcePlace)):
        for name, several in names.scope(base.node).items():
            found.setdefault(name, literal(several[0].value))
    return {n: v for n, v in found.items() if v is not NO_DEFAULT and not n.startswith("__")}


def _find_constructor(mro: Mro) -> Signature:
    """Return the first constructor in the MRO. A `__new__` that takes any arguments leaves them to `__init__`."""
    makes = False
    for number, base in enumerate(mro):
        if isinstance(base, str):
            if base in EMPTY_BASES:
                continue
            return ANY_SIGNATURE
        scope = names.scope(base.node)
        init, new = (scope[name][0].node if name in scope else None for name in ("__init__", "__new__"))
        makes |= new is not None
        known = keeps_signature(base.node.decorator_list, CLASS_DECORATORS)
        if init:
            found = _full_signature(base, init, mro[number:])
            return found if known else Signature(found.parameters, True)
        if isinstance(new, FunctionNode) and not (new.args.vararg and new.args.kwarg):
            return read_signature(base.module, new, bound=True)
        if generated := dataclass_signature(mro[number:]):
            return generated
        if not known:
            return ANY_SIGNATURE
    return Signature({}, makes)


def _full_signature(base: SourcePlace, node: ast.stmt, mro: Mro) -> Signature:
    """Return a constructor's signature, with the parameters that its `**kwargs` reach."""
    if not isinstance(node, FunctionNode):
        return ANY_SIGNATURE
    own = read_signature(base.module, node, bound=True)
    if node.args.kwarg is None or not keeps_signature(node.decorator_list, NEUTRAL_DECORATORS):
        return own
    if (given := read_forwarding(node, node.args.kwarg.arg)) is None:
        return own
    popped, call = given
    parameters = {**own.parameters, **{name: Parameter(name, False) for name in popped}, **own.parameters}
    if call is None:
        return Signature(parameters, False)
    named = None if isinstance(call.func.value, ast.Call) else call.func.value  # type: ignore[attr-defined]
    below = _next_constructor(base, named, mro)
    rest = _remaining_parameters(call, named is not None, below, node)
    return Signature(parameters | rest | parameters, below.takes_any)  # its own come first, and count


def _next_constructor(base: SourcePlace, named: ast.expr | None, mro: Mro) -> Signature:
    """Return the constructor that gets the rest of `**kwargs`: of the named class, or of `super()`."""
    if named is None:
        return _find_constructor(mro[1:])
    called = names.resolve(base.module, named)
    if not names.is_class(called) or called.node is base.node:
        return ANY_SIGNATURE
    at = next((i for i, other in enumerate(mro) if other == called), None)
    return _find_constructor(names.mro(called) if at is None else mro[at:])


def _remaining_parameters(
    call: ast.Call, by_name: bool, below: Signature, node: FunctionNode
) -> dict[str, Parameter]:
    """Return the parameters of the next constructor that `**kwargs` can set. `by_name`: the call passes `self`, too."""
    args = call.args[by_name:]
    plain = [arg for arg in args if not isinstance(arg, ast.Starred)]
    own_rest = node.args.vararg.arg if node.args.vararg else None
    handed_on = [a.value for a in args if isinstance(a, ast.Starred)]
    unclear = any(not isinstance(rest, ast.Name) or rest.id != own_rest for rest in handed_on)
    dictionaries = sum(keyword.arg is None for keyword in call.keywords) > 1
    explicit = {keyword.arg for keyword in call.keywords}
    free = list(below.parameters.values())[len(plain) :]
    left = {p.name: p for p in free if p.name not in explicit and not p.positional_only}
    return _make_optional(left) if unclear or dictionaries else left


def _make_optional(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    return {name: replace(parameter, required=False) for name, parameter in parameters.items()}
