"""Read the signature of a dotted name from its source, without importing it.

A submission checks the arguments of a target on a login node, where importing its framework takes seconds and may be impossible.

modules        find and parse files, and the statements that give names their values
names          follow a name to its class or function
parameters     read the parameters of a call, and convert their annotations to types; `classes` reads constructors

A target whose source can't be read is reported as unreadable and never guessed, so no valid target is refused.
"""

import ast
import builtins
import functools
import keyword
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from train_anywhere.config.signatures import names
from train_anywhere.config.signatures.classes import constructor_signature, literal_attributes
from train_anywhere.config.signatures.import_calls import ImportCall, find_import_calls
from train_anywhere.config.signatures.modules import Modules, SourceModule, TargetError
from train_anywhere.config.signatures.names import FunctionNode, SourcePlace, Thing
from train_anywhere.config.signatures.parameters import (
    NO_DEFAULT,
    PROPERTY_DECORATORS,
    Parameter,
    decorator_names,
    read_signature,
)
from train_anywhere.config.strict import did_you_mean, nearest
from train_anywhere.errors import listed
from train_anywhere.files import ENGINE, ROOT

__all__ = ["NO_DEFAULT", "Definition", "Parameter", "TargetError", "read", "read_import_calls"]

LONGEST = 500
"""Characters of the longest name; a longer string is some other value."""

TYPING_ERROR = 0.75
"""Similarity from which an unknown package counts as a typing error; timm and timeit have 0.6, torchvision and torchgen 0.7."""

Framework = Literal["lightning", "keras"]

_TORCH = ("torch", "torchvision", "torchmetrics", "timm", "lightning", "lightning_fabric", "pytorch_lightning")  # fmt: skip
FRAMEWORKS: dict[str, Framework] = {**dict.fromkeys(_TORCH, "lightning"), "keras": "keras", "tensorflow": "keras"}  # fmt: skip
"""Top-level packages, and the framework whose loop can use their classes."""


@dataclass(frozen=True)
class Definition:
    """A class or function according to its source.

    Args:
        name: dotted name of its definition, not of a re-export.
        kind: "unreadable" if it exists, or may exist, but only an import would show its signature.
        parameters: parameters of a call, in order, without `self` and `cls`.
        takes_any: whether it accepts, or may accept, other names than `parameters`.
        bases: dotted names of all base classes, nearest first, without `object`.
        attributes: class attributes with a literal value, including inherited ones.
    """

    name: str
    kind: Literal["class", "function", "unreadable"]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    takes_any: bool = True
    bases: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def framework(self) -> Framework | None:
        """The framework of its package or of the nearest base's package that has one."""
        tops = (name.split(".")[0] for name in (self.name, *self.bases))
        return next((FRAMEWORKS[top] for top in tops if top in FRAMEWORKS), None)


@functools.cache
def read(dotted: str, root: Path = ROOT) -> Definition:
    """Return the definition of a dotted name according to its source.

    `dotted` is a name such as `mine.Network`, or `mine.Network.build` for a method of a class. Each is read once per process.

    Raises TargetError: the class or function does not exist, or a file of the project is not valid Python.
    """
    parts, modules = _split_name(dotted), _modules(root)
    try:
        module = modules.find(parts[0])
        if module is None:
            near = nearest(parts[0], modules.top_names(), TYPING_ERROR)
            own = f"; a file of your own must be below the project or on PYTHONPATH; another package: pip install {parts[0]}."
            instead = f". Did you mean {near!r}?" if near else own
            raise TargetError(
                f"package {parts[0]!r} is not found in this project or its environment{instead}"
            )
        thing = _look_up(module, parts[0], parts[1:]) if parts[1:] else module
        if isinstance(thing, SourceModule):
            known = _public_names(thing)
            named = f": {listed(known)}" if known else ""
            raise TargetError(f"{thing.name} is a module; name a class or function in it{named}.")
        return _make_definition(thing, dotted)
    except RecursionError:  # source that is nested hundreds of levels deep
        return Definition(dotted, "unreadable")


@functools.cache
def read_import_calls(dotted: str) -> list[tuple[str, ImportCall]]:
    """Return the calls that may train when a name is imported, each with its file.

    Raises TargetError: as `read`.
    """
    modules, parts = _modules(ROOT), _split_name(dotted)
    places = [parts[:length] for length in range(1, len(parts))] + [read(dotted).name.split(".")[:-1]]
    found = {".".join(place): modules.find(".".join(place)) for place in places if place}
    calls: list[tuple[str, ImportCall]] = []
    for module in dict.fromkeys(found.values()):
        file = module.file if module else None
        if not module or not file:
            continue
        installed = {"site-packages", "dist-packages"} & {*file.parts}
        if module.in_project or not (installed or str(file).startswith((sys.base_prefix, str(ENGINE)))):
            shown = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
            calls += [(shown, call) for call in find_import_calls(module)]
    return calls


_modules = functools.cache(Modules)


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


def _look_up(thing: Thing, so_far: str, parts: list[str]) -> Thing:
    """Look up the parts one after the other, starting in `thing`."""
    name, *rest = parts
    below = thing.modules.find(f"{thing.name}.{name}") if rest and isinstance(thing, SourceModule) else None
    if below is not None:  # a submodule comes first, so its package need not be parsed
        try:
            return _look_up(below, f"{so_far}.{name}", rest)
        except TargetError:
            # a package may have a class with the name of its module
            other = names.find_attribute(thing, name)
            if not isinstance(other, SourcePlace):
                raise
            return _look_up(other, f"{so_far}.{name}", rest)
    found = names.find_attribute(thing, name)
    if found is None:
        known = _public_names(thing)
        lower = {other.lower(): other for other in reversed(known)}
        near = nearest(name, lower)
        suggestion = f". Did you mean '{lower[near]}'?" if near else did_you_mean(name, known)
        raise TargetError(f"{so_far} has no {name}{suggestion}")
    return _look_up(found, f"{so_far}.{name}", rest) if rest else found


def _make_definition(thing: Thing, dotted: str) -> Definition:
    if (
        not isinstance(thing, SourcePlace)
        or set(decorator_names(thing.node.decorator_list)) & PROPERTY_DECORATORS
    ):
        return Definition(dotted, "unreadable")
    if names.is_class(thing):
        bases = [b if isinstance(b, str) else b.name for b in names.mro(thing)[1:]]
        own, signature = literal_attributes(thing), constructor_signature(thing)
        return Definition(thing.name, "class", *signature, tuple(bases), own)
    decorators = decorator_names(thing.node.decorator_list)
    bound = "classmethod" in decorators and "staticmethod" not in decorators
    return Definition(thing.name, "function", *read_signature(thing.module, thing.node, bound))


def _public_names(thing: Thing) -> list[str]:
    """Return the public names of a module or class for a message."""
    if names.is_class(thing):
        bases = [base.node for base in names.mro(thing) if isinstance(base, SourcePlace)]
        found = {name: None for node in bases for name in names.scope(node)}
    elif isinstance(thing, SourceModule) and thing.name == "builtins":
        found = dict.fromkeys(dir(builtins))
    elif isinstance(thing, SourceModule):
        gathers = (ast.ClassDef, FunctionNode, ast.ImportFrom if thing.folders else ast.ClassDef)
        found = {n: None for n, several in thing.scope.items() if isinstance(several[0].node, gathers)}
        for origin in thing.stars:
            if source := thing.modules.find(origin):
                found |= {name: None for name in source.scope if source.exports(name)}
        found |= dict.fromkeys(thing.submodules())
    else:
        found = {}
    return [name for name in found if not name.startswith("_") and name != "*"]
