"""Read the signature of a dotted name from its source, without importing it.

A submission checks the arguments of a target on a login node, where importing its framework takes seconds and may be impossible.

modules        find and parse files, and the statements that give names their values
names          follow a name to its class or function
parameters     read the parameters of a call, and convert their annotations to types; `classes` reads constructors
definition     the result

A target whose source can't be read is reported as unreadable and never guessed, so no valid target is refused.
"""

import ast
import builtins
import difflib
import functools
import keyword
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from train_anywhere.config.signatures.classes import constructor_signature, literal_attributes
from train_anywhere.config.signatures.definition import (
    NO_DEFAULT,
    Definition,
    Parameter,
    TargetError,
    find_framework,
)
from train_anywhere.config.signatures.modules import Modules, SourceModule
from train_anywhere.config.signatures.names import Names, SourcePlace, Thing
from train_anywhere.config.signatures.parameters import PROPERTY_DECORATORS, decorator_names, read_signature
from train_anywhere.config.strict import did_you_mean, nearest
from train_anywhere.errors import listed
from train_anywhere.files import ENGINE, ROOT

__all__ = ["NO_DEFAULT", "Definition", "Parameter", "TargetError", "read", "read_import_calls"]

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


class ImportCall(NamedTuple):
    """A call that runs when the file is imported.

    Attributes:
        source: the call without its arguments, such as `trainer.fit`.
        trains: whether it certainly trains; else the object is not known, or the call depends on a condition.
    """

    source: str
    line: int
    trains: bool


def find_import_calls(tree: ast.Module) -> list[ImportCall]:
    """Return the calls that train, or may train, when the module is imported."""
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
                    tops = [name.name.split(".")[0] for name in node.names]
                    self.aliases |= {
                        n.asname or t: n.name if n.asname else t
                        for n, t in zip(node.names, tops, strict=True)
                    }
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
        """Yield the calls of statements. `objects` are the kinds of known variables, and changed."""
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
        elif (self._dotted(function) or "").endswith("init_process_group"):
            yield ImportCall(source, call.lineno, False)
        elif isinstance(function, ast.Attribute):
            kind = self._kind(function.value, objects)
            if function.attr in METHODS.get(kind or "", ()):
                yield ImportCall(source, call.lineno, certain)
            elif function.attr == "fit" and kind is None:
                name = function.value.id if isinstance(function.value, ast.Name) else None
                if name in objects or name not in self.aliases:
                    yield ImportCall(source, call.lineno, False)
        elif isinstance(function, ast.Name) and depth < 3 and (called := self.functions.get(function.id)):
            arguments = {one.arg: None for one in ast.walk(called.args) if isinstance(one, ast.arg)}
            known = certain and not called.decorator_list
            yield from self.read(called.body, {**objects, **arguments}, known, depth + 1)

    def _kind(self, value: ast.expr, objects: Mapping[str, str | None]) -> str | None:
        """Return the kind of object of an expression. "other" for one of `NO_MODELS`."""
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
        """Return the whole name of something imported. None for other expressions."""
        first, *rest = ast.unparse(function).split(".")
        return ".".join([self.aliases[first], *rest]) if first in self.aliases else None


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


LONGEST = 500
"""Characters of the longest name; a longer string is some other value."""

TYPING_ERROR = 0.75
"""Similarity from which an unknown package counts as a typing error; timm and timeit have 0.6, torchvision and torchgen 0.7."""


def read(dotted: str, roots: Sequence[Path] = (ROOT,)) -> Definition:
    """Return the definition of a dotted name according to its source.

    `dotted` is a name such as `mine.Network`, or `mine.Network.build` for a method of a class. Each is read once per process.

    Raises TargetError: the class or function does not exist, or a file of the project is not valid Python.
    """
    return _read(dotted, tuple(roots))


@functools.cache
def _read(dotted: str, roots: tuple[Path, ...]) -> Definition:
    parts = _split_name(dotted)
    names = _names(roots)
    try:
        module = names.modules.find(parts[0])
        if module is None:
            raise TargetError(_no_package_message(names.modules, parts[0]))
        if len(parts) == 1:
            raise TargetError(_module_message(names, module))
        thing = _look_up(names, module, parts[0], parts[1:])
        if isinstance(thing, SourceModule):
            raise TargetError(_module_message(names, thing))
        return _make_definition(names, thing, dotted)
    except RecursionError:  # source that is nested hundreds of levels deep
        return Definition(dotted, "unreadable", framework=find_framework([dotted]))


@functools.cache
def read_import_calls(dotted: str) -> list[tuple[str, ImportCall]]:
    """Return the calls that may train when a name is imported, each with its file.

    Raises TargetError: as `read`.
    """
    modules, parts = _names((ROOT,)).modules, _split_name(dotted)
    places = [parts[:length] for length in range(1, len(parts))] + [read(dotted).name.split(".")[:-1]]
    found = {".".join(place): modules.find(".".join(place)) for place in places if place}
    return [
        (str(module.file.relative_to(ROOT) if module.file.is_relative_to(ROOT) else module.file), call)
        for module in dict.fromkeys(found.values())
        if module and module.file and _is_users(module) and module.tree
        for call in find_import_calls(module.tree)
    ]


def _is_users(module: SourceModule) -> bool:
    """Return whether a file is neither of an installed package nor of Python itself."""
    installed = {"site-packages", "dist-packages"} & {*module.file.parts} if module.file else True
    return module.in_project or not (installed or str(module.file).startswith((sys.base_prefix, str(ENGINE))))


@functools.cache
def _names(roots: tuple[Path, ...]) -> Names:
    return Names(Modules(roots))


def _split_name(dotted: str) -> list[str]:
    """Split a dotted name. Raises TargetError: the string can't be a dotted name."""
    if not dotted.strip() or len(dotted) > LONGEST:
        raise TargetError("is not a name; write it with dots, such as mine.Network.")
    path = dotted.partition(":")[0].removesuffix(".py").strip("./")
    if "/" in dotted or dotted.endswith(".py"):
        named = ".".join([part for part in path.split("/") if part])
        raise TargetError(f"{dotted!r} is a path; write the name with dots, such as {named}.Name.")
    parts = dotted.split(".")
    if "" in parts:
        raise TargetError(f"{dotted!r} has nothing before, after or between two of its dots.")
    for part in parts:
        if not part.isidentifier() or keyword.iskeyword(part):
            raise TargetError(f"{dotted!r} can't be a name in Python because of {part!r}.")
    return parts


def _look_up(names: Names, thing: Thing, so_far: str, parts: list[str]) -> Thing:
    """Look up the parts one after the other, starting in `thing`."""
    name, *rest = parts
    below = names.modules.find(f"{thing.name}.{name}") if rest and isinstance(thing, SourceModule) else None
    if below is not None:  # a submodule comes first, so its package need not be parsed
        try:
            return _look_up(names, below, f"{so_far}.{name}", rest)
        except TargetError:
            # a package may have a class with the name of its module
            other = names.find_attribute(thing, name)
            if not isinstance(other, SourcePlace):
                raise
            return _look_up(names, other, f"{so_far}.{name}", rest)
    found = names.find_attribute(thing, name)
    if found is None:
        known = _public_names(names, thing)
        lower = {other.lower(): other for other in reversed(known)}
        near = nearest(name, lower)
        suggestion = f". Did you mean '{lower[near]}'?" if near else did_you_mean(name, known)
        raise TargetError(f"{so_far} has no {name}{suggestion}")
    return _look_up(names, found, f"{so_far}.{name}", rest) if rest else found


def _make_definition(names: Names, thing: Thing, dotted: str) -> Definition:
    if (
        not isinstance(thing, SourcePlace)
        or set(decorator_names(thing.node.decorator_list)) & PROPERTY_DECORATORS
    ):
        file = thing.module.file if isinstance(thing, SourcePlace) else None
        return Definition(dotted, "unreadable", file, framework=find_framework([dotted]))
    node, module = thing.node, thing.module
    kind: Literal["class", "function"]
    if isinstance(node, ast.ClassDef):
        signature, kind = constructor_signature(names, thing), "class"
        bases = [b if isinstance(b, str) else b.name for b in names.mro(thing)[1:]]
        attributes = literal_attributes(names, thing)
    else:
        static = "staticmethod" in decorator_names(node.decorator_list)
        bound = "classmethod" in decorator_names(node.decorator_list) and not static
        signature, kind = read_signature(names, module, node, bound), "function"
        bases, attributes = [], {}
    framework = find_framework([thing.name, dotted, *bases])
    return Definition(
        thing.name,
        kind,
        module.file,
        node.lineno,
        signature.parameters,
        signature.takes_any,
        tuple(bases),
        attributes,
        framework,
    )


def _no_package_message(modules: Modules, name: str) -> str:
    near = next(iter(difflib.get_close_matches(name, [*modules.top_names()], n=1, cutoff=TYPING_ERROR)), None)
    install = (
        f"a file of your own must be below the project or on PYTHONPATH; another package: pip install {name}"
    )
    return f"package {name!r} is not found in this project or its environment" + (
        f". Did you mean {near!r}?" if near else f"; {install}."
    )


def _module_message(names: Names, module: SourceModule) -> str:
    known = _public_names(names, module)
    named = f": {listed(known)}" if known else ""
    return f"{module.name} is a module; name a class or function in it{named}."


def _public_names(names: Names, thing: Thing) -> list[str]:
    """Return the public names of a module or class for a message."""
    if isinstance(thing, SourcePlace) and isinstance(thing.node, ast.ClassDef):
        bases = [
            b.node
            for b in names.mro(thing)
            if isinstance(b, SourcePlace) and isinstance(b.node, ast.ClassDef)
        ]
        found = {name: None for node in bases for name in names.scope(node)}
    elif isinstance(thing, SourceModule) and thing.name == "builtins":
        found = dict.fromkeys(dir(builtins))
    elif isinstance(thing, SourceModule):
        gathers = (
            ast.ClassDef,
            ast.FunctionDef,
            ast.AsyncFunctionDef,
            *([ast.ImportFrom] if thing.folders else []),
        )
        found = {n: None for n, several in thing.scope.items() if isinstance(several[0].node, gathers)}
        for origin in thing.stars:
            if source := names.modules.find(origin):
                found |= {name: None for name in source.scope if source.exports(name)}
        found |= dict.fromkeys(thing.submodules())
    else:
        found = {}
    return [name for name in found if not name.startswith("_") and name != "*"]
