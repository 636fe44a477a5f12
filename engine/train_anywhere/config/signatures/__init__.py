"""What a dotted name such as `package.module.Class` is and takes, read from source: nothing of it is imported.

A submission checks the arguments of a target on a login node, where importing its framework would take seconds, and may be
impossible. `modules` finds and parses files (`skeleton`: without the bodies of functions), `bindings` says which statement gives
a name its value, `names` follows names to a class or function, `parameters`, `classes`, `fields` and `forwarding` say what a call
of it takes, `hints` turns annotations into types, `definition` is the result.
What can't be read is said to be unreadable, never guessed: a valid target is not refused.
"""

import ast
import builtins
import functools
import keyword
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from train_anywhere.config.signatures.classes import attributes, constructor
from train_anywhere.config.signatures.definition import (
    NO_DEFAULT,
    Definition,
    Parameter,
    TargetError,
    framework_of,
)
from train_anywhere.config.signatures.modules import Module, Modules
from train_anywhere.config.signatures.names import Names, Place, Thing
from train_anywhere.config.signatures.parameters import COMPUTING, decorators, written
from train_anywhere.config.strict import did_you_mean, nearest
from train_anywhere.files import ROOT
from train_anywhere.renamed import renamed

__all__ = ["NO_DEFAULT", "Definition", "Parameter", "TargetError", "read"]

LONGEST = 500
"""Characters of a name: beyond it, somebody gave a text."""


def read(dotted: str, roots: Sequence[Path] = (ROOT,)) -> Definition:
    """What a dotted name is, as far as its source says; a process reads each name once.

    Args:
        dotted: such as `mine.Network`, or `mine.Network.build` for a method of a class.
        roots: folders of the project; packages of the environment come after them.

    Raises:
        TargetError: there certainly is no such class or function, or a file of the project is not valid Python.
    """
    return _read(renamed(dotted), tuple(roots))


@functools.cache
def _read(dotted: str, roots: tuple[Path, ...]) -> Definition:
    parts = _parts(dotted)
    names = _names(roots)
    try:
        module = names.modules.find(parts[0])
        if module is None:
            raise TargetError(_no_package(names.modules, parts[0]))
        if len(parts) == 1:
            raise TargetError(_is_module(names, module))
        thing = _walk(names, module, parts[0], parts[1:])
        if isinstance(thing, Module):
            raise TargetError(_is_module(names, thing))
        return _definition(names, thing, dotted)
    except RecursionError:  # source that is nested hundreds of levels deep
        return Definition(dotted, "unreadable", framework=framework_of([dotted]))


@functools.cache
def _names(roots: tuple[Path, ...]) -> Names:
    return Names(Modules(roots))


def _parts(dotted: str) -> list[str]:
    """The names between the dots.

    Raises:
        TargetError: it has no form that a name can have.
    """
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


def _walk(names: Names, thing: Thing, so_far: str, parts: list[str]) -> Thing:
    """What the parts mean, looked up one after the other from `thing`."""
    name, *rest = parts
    below = names.modules.find(f"{thing.name}.{name}") if rest and isinstance(thing, Module) else None
    if below is not None:  # a submodule first: the package around it need not be parsed
        try:
            return _walk(names, below, f"{so_far}.{name}", rest)
        except TargetError:
            # a package may have a class of the same name as its module
            other = names.attribute(thing, name)
            if not isinstance(other, Place):
                raise
            return _walk(names, other, f"{so_far}.{name}", rest)
    found = names.attribute(thing, name)
    if found is None:
        raise TargetError(f"{so_far} has no {name}{_near(name, _known(names, thing))}")
    return _walk(names, found, f"{so_far}.{name}", rest) if rest else found


def _definition(names: Names, thing: Thing, dotted: str) -> Definition:
    if not isinstance(thing, Place) or set(decorators(thing.node.decorator_list)) & COMPUTING:
        file = thing.module.file if isinstance(thing, Place) else None
        return Definition(dotted, "unreadable", file, framework=framework_of([dotted]))
    node, module = thing.node, thing.module
    kind: Literal["class", "function"]
    if isinstance(node, ast.ClassDef):
        takes, bases = (
            constructor(names, thing),
            [b if isinstance(b, str) else b.name for b in names.line(thing)[1:]],
        )
        has, kind = attributes(names, thing), "class"
    else:
        static = "staticmethod" in decorators(node.decorator_list)
        bound = "classmethod" in decorators(node.decorator_list) and not static
        takes, bases, has, kind = written(names, module, node, bound), [], {}, "function"
    framework = framework_of([thing.name, dotted, *bases])
    return Definition(
        thing.name,
        kind,
        module.file,
        node.lineno,
        takes.parameters,
        takes.takes_any,
        tuple(bases),
        has,
        framework,
    )


def _no_package(modules: Modules, name: str) -> str:
    near = nearest(name, modules.top_names())
    return f"package {name!r} is not found in this project or its environment" + (
        f". Did you mean {near!r}?" if near else "."
    )


def _is_module(names: Names, module: Module) -> str:
    known = _known(names, module)
    named = f": {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}" if known else ""
    return f"{module.name} is a module; name a class or function in it{named}."


def _known(names: Names, thing: Thing) -> list[str]:
    """Public names of a module or class, for a sentence: what it defines, or what a package gathers."""
    if isinstance(thing, Place) and isinstance(thing.node, ast.ClassDef):
        bases = [
            b.node for b in names.line(thing) if isinstance(b, Place) and isinstance(b.node, ast.ClassDef)
        ]
        found = {name: None for node in bases for name in names.scope(node)}
    elif isinstance(thing, Module) and thing.name == "builtins":
        found = dict.fromkeys(dir(builtins))
    elif isinstance(thing, Module):
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


def _near(name: str, known: list[str]) -> str:
    lower = {other.lower(): other for other in reversed(known)}
    near = nearest(name, lower)
    return f". Did you mean '{lower[near]}'?" if near else did_you_mean(name, known)
