"""Find the calls that train a model when a file is imported, from its source."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

KINDS = {
    "trainer": re.compile(r"(lightning|lightning\.pytorch(\..+)?|pytorch_lightning(\..+)?)\.Trainer"),
    "cli": re.compile(r"(lightning\.pytorch|pytorch_lightning)(\..+)?\.LightningCLI"),
    "keras": re.compile(
        r"(tf_|tensorflow\.(python\.)?)?keras\.(.+\.)?(Sequential|Model|Functional|load_model)"
    ),
}
"""What a call creates, by the dotted name of the function or class that is called."""

METHODS = {"trainer": {"fit", "test", "validate", "predict"}, "keras": {"fit"}}
"""Methods that run a loop, by the kind of their object; `LightningCLI(...)` runs one itself."""

NO_MODELS = ("sklearn", "scipy")
"""Packages whose `fit` is quick, and not about the model of a run."""

GROUP = "init_process_group"
"""The function of torch.distributed that connects the ranks."""


class ImportCall(NamedTuple):
    """A call that runs when the file is imported.

    Attributes:
        source: the call without its arguments, such as `trainer.fit`.
        line: its line in the file.
        trains: whether it certainly trains; else the object is not known, or the call depends on a condition.
    """

    source: str
    line: int
    trains: bool


def find_import_calls(tree: ast.Module) -> list[ImportCall]:
    """Return the calls that train, or may train, when the module is imported, in the order of its statements."""
    return [*_Reader(tree).read(tree.body, {}, True, 0)]


class _Reader:
    """Reader of one file: its imports, classes and functions."""

    def __init__(self, tree: ast.Module) -> None:
        self.aliases: dict[str, str] = {}
        self.kinds: dict[str, str | None] = {}  # of the objects that classes of this file create
        self.functions: dict[str, ast.FunctionDef] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    for name in node.names:
                        self.aliases[name.asname or name.name.split(".")[0]] = (
                            name.name if name.asname else name.name.split(".")[0]
                        )
                case ast.ImportFrom(module=str(module), level=0):
                    self.aliases |= {name.asname or name.name: f"{module}.{name.name}" for name in node.names}
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                self.kinds[statement.name] = next(filter(None, map(self._created_by, statement.bases)), None)
            elif isinstance(statement, ast.FunctionDef):
                self.functions[statement.name] = statement

    def read(
        self, body: Sequence[ast.stmt], objects: dict[str, str | None], certain: bool, depth: int
    ) -> Iterator[ImportCall]:
        """Yield the calls of statements; `objects` are the kinds of known variables, and changed."""
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for expression in _own_expressions(node):
                for call in _calls(expression):
                    yield from self._read_call(call, objects, certain, depth)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                kind = self._kind(node.value, objects)
                objects |= {target.id: kind for target in targets if isinstance(target, ast.Name)}
            for block, is_sure in _blocks(node):
                yield from self.read(block, objects, certain and is_sure, depth)

    def _read_call(
        self, call: ast.Call, objects: dict[str, str | None], certain: bool, depth: int
    ) -> Iterator[ImportCall]:
        source, function = ast.unparse(call.func).splitlines()[0], call.func
        if self._created_by(function) == "cli":
            if not any(word.arg == "run" for word in call.keywords):
                yield ImportCall(source, call.lineno, certain)
        elif (self._dotted(function) or "").endswith(GROUP):
            yield ImportCall(source, call.lineno, False)
        elif isinstance(function, ast.Attribute):
            kind = self._kind(function.value, objects)
            if function.attr in METHODS.get(kind or "", ()):
                yield ImportCall(source, call.lineno, certain)
            elif function.attr == "fit" and kind is None and not self._is_imported(function.value, objects):
                yield ImportCall(source, call.lineno, False)
        elif isinstance(function, ast.Name) and depth < 3 and (called := self.functions.get(function.id)):
            arguments = {one.arg: None for one in ast.walk(called.args) if isinstance(one, ast.arg)}
            known = certain and not called.decorator_list
            yield from self.read(called.body, {**objects, **arguments}, known, depth + 1)

    def _kind(self, value: ast.expr, objects: Mapping[str, str | None]) -> str | None:
        """Return the kind of object of an expression; "other" for one of `NO_MODELS`."""
        if isinstance(value, ast.Name):
            return objects.get(value.id)
        if not isinstance(value, ast.Call):
            return None
        if kind := self._created_by(value.func):
            return kind
        return "other" if (self._dotted(value.func) or "").split(".")[0] in NO_MODELS else None

    def _created_by(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name) and function.id in self.kinds:
            return self.kinds[function.id]
        dotted = self._dotted(function) or ""
        return next((kind for kind, names in KINDS.items() if names.fullmatch(dotted)), None)

    def _dotted(self, function: ast.expr) -> str | None:
        """Return the whole name of something imported; None for other expressions."""
        first, *rest = ast.unparse(function).split(".")
        return ".".join([self.aliases[first], *rest]) if first in self.aliases else None

    def _is_imported(self, value: ast.expr, objects: Mapping[str, str | None]) -> bool:
        return isinstance(value, ast.Name) and value.id not in objects and value.id in self.aliases


def _own_expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, without those of the blocks inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def _calls(expression: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in an expression, without those in a lambda."""
    if isinstance(expression, ast.Call):
        yield expression
    if not isinstance(expression, ast.Lambda):
        for child in ast.iter_child_nodes(expression):
            yield from _calls(child)


def _blocks(node: ast.stmt) -> Iterator[tuple[Sequence[ast.stmt], bool]]:
    """Yield the blocks of a statement that an import runs, and whether it surely does."""
    match node:
        case ast.If():
            test = ast.unparse(node.test).replace('"', "'")
            if "__name__" in test and "'__main__'" in test:
                yield node.body if "!=" in test or test.startswith("not ") else node.orelse, True
            elif not test.endswith("TYPE_CHECKING"):
                yield node.body, test == "True"
                yield node.orelse, False
        case ast.With() | ast.For():
            yield node.body, True
        case ast.While():
            yield node.body, ast.unparse(node.test) == "True"
        case ast.Try():
            yield node.body, True
            yield from ((handler.body, False) for handler in node.handlers)
            yield node.orelse, False
            yield node.finalbody, True
