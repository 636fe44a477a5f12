"""Find calls that train while a file is imported, which each rank would do."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from train_anywhere.config.signatures import names
from train_anywhere.config.signatures.modules import Block, Scope, SourceModule, blocks, find_bindings
from train_anywhere.config.signatures.names import SourcePlace

KINDS = {
    "trainer": re.compile(r"(lightning|lightning\.pytorch(\..+)?|pytorch_lightning(\..+)?)\.Trainer"),
    "cli": re.compile(r"(lightning\.pytorch|pytorch_lightning)(\..+)?\.LightningCLI"),
    "keras": re.compile(
        r"(tf_|tensorflow\.(python\.)?)?keras\.(.+\.)?(Sequential|Model|Functional|load_model)"
    ),
    "other": re.compile(r"(sklearn|scipy)\..+"),
}
"""What a call creates, by the dotted name of the function or class; `fit` of others is quick, and not about the model of a run."""

METHODS = {"trainer": ("fit", "test", "validate", "predict"), "keras": ("fit",)}
"""Methods that run a loop, by the kind of their object; `LightningCLI(...)` runs one itself."""


class ImportCall(NamedTuple):
    """A call that runs when the file is imported.

    Attributes:
        source: the call without its arguments, such as `trainer.fit`.
        trains: whether it certainly trains; else the object is not known, or the call depends on a condition.
    """

    source: str
    line: int
    trains: bool


def find_import_calls(
    module: SourceModule, function: ast.FunctionDef | None = None, certain: bool = True, depth: int = 0
) -> Iterator[ImportCall]:
    """Yield the calls that train, or may train, when the module is imported, or when one of its functions is called."""
    scope = module.scope
    if function:
        arguments: Scope = {one.arg: [] for one in ast.walk(function.args) if isinstance(one, ast.arg)}
        scope = {**scope, **arguments, **find_bindings(function.body)}

    def read(body: Block, certain: bool) -> Iterator[ImportCall]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for child in ast.iter_child_nodes(node):
                for call in _calls(child.context_expr if isinstance(child, ast.withitem) else child):
                    yield from _judge(module, scope, call, certain, depth)
            for block, _, when in blocks(node):
                if when in ("always", "maybe"):
                    yield from read(block, certain and when == "always")

    yield from read(function.body if function else module.tree.body if module.tree else [], certain)


def _judge(
    module: SourceModule, scope: Scope, call: ast.Call, certain: bool, depth: int
) -> Iterator[ImportCall]:
    """Yield the call if it may train, or those in the function of the module that it calls."""
    function = call.func
    made = ImportCall(ast.unparse(function).splitlines()[0], call.lineno, certain)
    if _kind(module, scope, call) == "cli":
        if not any(word.arg == "run" for word in call.keywords):
            yield made
    elif (names.imported_name(module, function) or "").endswith(".init_process_group"):
        yield made._replace(trains=False)
    elif isinstance(function, ast.Attribute):
        kind = _kind(module, scope, function.value)
        imported = isinstance(function.value, ast.Name) and any(
            one.alias for one in scope.get(function.value.id, ())
        )
        if function.attr in METHODS.get(kind or "", ()):
            yield made
        elif function.attr == "fit" and kind is None and not imported:
            yield made._replace(trains=False)
    elif isinstance(function, ast.Name) and depth < 3:
        called = next((one.node for one in module.scope.get(function.id, ())), None)
        if isinstance(called, ast.FunctionDef):
            yield from find_import_calls(module, called, certain and not called.decorator_list, depth + 1)


def _kind(module: SourceModule, scope: Scope, value: ast.expr | None) -> str | None:
    """Return the kind of object of a variable or a call."""
    if isinstance(value, ast.Name):
        given = [one.value for one in scope.get(value.id, ()) if isinstance(one.value, ast.Call)]
        return _kind(module, scope, given[0]) if given else None
    if not isinstance(value, ast.Call):
        return None
    dotted = [names.imported_name(module, value.func) or ""]
    several = module.scope.get(value.func.id, ()) if isinstance(value.func, ast.Name) else ()
    if several and isinstance(node := several[0].node, ast.ClassDef):
        mro = names.mro(SourcePlace(module, node, node.name))
        dotted = [base if isinstance(base, str) else base.name for base in mro]
    return next((kind for kind, made in KINDS.items() if any(map(made.fullmatch, dotted))), None)


def _calls(expression: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in an expression, without those in a lambda."""
    if isinstance(expression, ast.Call):
        yield expression
    if not isinstance(expression, ast.Lambda | ast.stmt | ast.ExceptHandler | ast.match_case):
        for child in ast.iter_child_nodes(expression):
            yield from _calls(child)
