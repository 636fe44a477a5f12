"""Find calls that train while a file is imported, which each rank would do."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from train_anywhere.config.signatures import names
from train_anywhere.config.signatures.modules import SourceModule, blocks
from train_anywhere.config.signatures.names import SourceClass

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

Objects = dict[str, str | None]
"""The kinds of known variables."""


class ImportCall(NamedTuple):
    """A call that runs when the file is imported.

    Attributes:
        source: the call without its arguments, such as `trainer.fit`.
        trains: whether it certainly trains; else the object is not known, or the call depends on a condition.
    """

    source: str
    line: int
    trains: bool


def find_import_calls(module: SourceModule) -> list[ImportCall]:
    """Return the calls that train, or may train, when the module is imported."""
    return [*_Reader(module).read(module.tree.body if module.tree else [], {}, True, 0)]


class _Reader:
    def __init__(self, module: SourceModule) -> None:
        self.module = module

    def read(
        self, body: Sequence[ast.stmt], objects: Objects, certain: bool, depth: int
    ) -> Iterator[ImportCall]:
        """Yield the calls of statements, and add their variables to `objects`."""
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for child in ast.iter_child_nodes(node):
                for call in _calls(child.context_expr if isinstance(child, ast.withitem) else child):
                    yield from self._read_call(call, objects, certain, depth)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                kind = self._kind(node.value, objects)
                objects |= {target.id: kind for target in targets if isinstance(target, ast.Name)}
            for block, _, when in blocks(node):
                if when in ("always", "maybe"):
                    yield from self.read(block, objects, certain and when == "always", depth)

    def _read_call(self, call: ast.Call, objects: Objects, certain: bool, depth: int) -> Iterator[ImportCall]:
        source, function = ast.unparse(call.func).splitlines()[0], call.func
        made = ImportCall(source, call.lineno, certain)
        if self._created_by(function) == "cli":
            if not any(word.arg == "run" for word in call.keywords):
                yield made
        elif (names.imported_name(self.module, function) or "").endswith(".init_process_group"):
            yield made._replace(trains=False)
        elif isinstance(function, ast.Attribute):
            kind, name = self._kind(function.value, objects), getattr(function.value, "id", None)
            imported = name not in objects and any(one.alias for one in self.module.scope.get(name or "", ()))
            if function.attr in METHODS.get(kind or "", ()):
                yield made
            elif function.attr == "fit" and kind is None and not imported:
                yield made._replace(trains=False)
        elif isinstance(function, ast.Name) and depth < 3:
            called = next((one.node for one in self.module.scope.get(function.id, ())), None)
            if isinstance(called, ast.FunctionDef):
                arguments = {one.arg: None for one in ast.walk(called.args) if isinstance(one, ast.arg)}
                known = certain and not called.decorator_list
                yield from self.read(called.body, {**objects, **arguments}, known, depth + 1)

    def _kind(self, value: ast.expr, objects: Objects) -> str | None:
        """Return the kind of object of an expression."""
        if isinstance(value, ast.Name):
            return objects.get(value.id)
        return self._created_by(value.func) if isinstance(value, ast.Call) else None

    def _created_by(self, function: ast.expr) -> str | None:
        dotted = [names.imported_name(self.module, function) or ""]
        several = self.module.scope.get(function.id, ()) if isinstance(function, ast.Name) else ()
        if several and isinstance(node := several[0].node, ast.ClassDef):
            mro = names.mro(SourceClass(self.module, node, node.name))
            dotted = [base if isinstance(base, str) else base.name for base in mro]
        return next((kind for kind, made in KINDS.items() if any(map(made.fullmatch, dotted))), None)


def _calls(expression: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in an expression, without those in a lambda."""
    if isinstance(expression, ast.Call):
        yield expression
    if not isinstance(expression, ast.Lambda | ast.stmt | ast.ExceptHandler | ast.match_case):
        for child in ast.iter_child_nodes(expression):
            yield from _calls(child)
