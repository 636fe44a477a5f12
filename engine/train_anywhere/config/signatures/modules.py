"""Find modules with the import system's finder, and parse their files."""

import ast
import importlib.util
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Literal, NamedTuple

from train_anywhere.files import ROOT


class TargetError(Exception):
    """A name that is certainly not a class or function. The key is not in the message."""


Scope = dict[str, "list[Binding]"]
"""The bindings of each name; the one most likely in effect comes first."""

Block = Sequence[ast.stmt]
"""The statements of a module, a class body or one branch."""

When = Literal["always", "maybe", "types", "main"]
"""Whether an import runs a block; the last two are for type checkers, and for the file as a program."""


class Binding(NamedTuple):
    """One statement that binds a name.

    Args:
        alias: the alias of an import; None for other statements.
        value: the assigned expression; None for other statements, or if the name gets only a part of it (`a, b = pair`).
        rank: sort key, lower is more likely in effect: only for type checkers, branch number, literal, minus the position.
    """

    node: ast.stmt
    alias: ast.alias | None
    value: ast.expr | None
    rank: tuple[bool, int, bool, int]


def find_bindings(body: Block) -> Scope:
    """Return the bindings of all names, including those inside blocks."""
    scope: Scope = {}

    def add(body: Block, branch: int, for_types: bool) -> None:
        for node in body:
            for name, source in _bound_names(node):
                several = scope.setdefault(name, [])
                alias = source if isinstance(source, ast.alias) else None
                value = source if isinstance(source, ast.expr) else None
                rank = (for_types, branch, isinstance(value, ast.Constant), -len(several))
                several.append(Binding(node, alias, value, rank))
            for block, later, when in blocks(node):
                add(block, branch + later, for_types or when == "types")

    add(body, 0, False)
    for several in scope.values():
        several.sort(key=lambda binding: binding.rank)
    return scope


def _bound_names(node: ast.stmt) -> Iterator[tuple[str, ast.alias | ast.expr | None]]:
    """Yield the names that a statement binds, each with its alias or assigned expression."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name, None
        case ast.Import() | ast.ImportFrom():
            yield from ((a.asname or a.name.split(".")[0], a) for a in node.names)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.Assign():
            for target in node.targets:
                whole = isinstance(target, ast.Name)
                yield from ((name, node.value if whole else None) for name in _target_names(target))
        case ast.For() | ast.AsyncFor():
            yield from ((name, None) for name in _target_names(node.target))
        case ast.With() | ast.AsyncWith():
            targets = [item.optional_vars for item in node.items if item.optional_vars]
            yield from ((name, None) for target in targets for name in _target_names(target))


def _target_names(target: ast.expr) -> Iterable[str]:
    return (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def blocks(node: ast.stmt) -> Iterator[tuple[Block, int, When]]:
    """Yield the blocks of a statement, each with its branch number and when it runs."""
    match node:
        case ast.If():
            test = ast.unparse(node.test).replace('"', "'")
            guard: When = "main" if "__name__" in test and "'__main__'" in test else "always"
            first: When = "types" if test.endswith("TYPE_CHECKING") else guard
            both: tuple[When, When] = (first, "always") if first != "always" else ("maybe", "maybe")
            if first != "always" and (test.startswith("not ") or "!=" in test):
                both = ("always", first)
            yield node.body, 0, "always" if test == "True" else both[0]
            yield node.orelse, 1, both[1]
        case ast.Try() | ast.TryStar():
            yield node.body, 0, "always"
            yield from ((handler.body, 1, "maybe") for handler in node.handlers)
            yield node.orelse, 0, "maybe"
            yield node.finalbody, 0, "always"
        case ast.For() | ast.AsyncFor() | ast.While():
            conditional = isinstance(node, ast.While) and ast.unparse(node.test) != "True"
            yield node.body, 0, "maybe" if conditional else "always"
            yield node.orelse, 0, "maybe"
        case ast.With() | ast.AsyncWith():
            yield node.body, 0, "always"
        case ast.Match():
            yield from ((case.body, number, "maybe") for number, case in enumerate(node.cases))


_DYNAMIC = re.compile(r"\b(?:globals|locals|vars)\(\)|sys\.modules\[|\bexec\(")
"""Code that can create names while a module is imported."""

OTHER_NAMES = {"pytorch_lightning": "lightning.pytorch", "lightning_fabric": "lightning.fabric"}
"""Packages that are published under a second name, with classes of their own, and their names in `lightning`."""


class SourceModule:
    """One module or package.

    Args:
        modules: the modules of the same project and environment.
        in_project: whether it belongs to the project, so that the user can fix its faults.

    Attributes:
        file: its source, if it can be read.
        folders: folders of its submodules; empty for a plain module.
    """

    def __init__(self, modules: "Modules", name: str, spec: ModuleSpec, in_project: bool) -> None:
        self.modules, self.name, self.in_project = modules, name, in_project
        self.folders = list(spec.submodule_search_locations or ())
        python = spec.has_location and spec.origin and spec.origin.endswith(".py")
        self.file = Path(spec.origin) if python and spec.origin else None
        # not a compiled module, but a folder without __init__.py
        self._readable = bool(self.file) or (not spec.origin and bool(self.folders))

    @cached_property
    def text(self) -> str | None:
        """The source. None if there is none to read.

        Raises TargetError: a file of the project can't be read, or is not text.
        """
        if self.file is None:
            return "" if self._readable else None
        try:
            return importlib.util.decode_source(self.file.read_bytes())
        except OSError as error:
            self._report(f"can't be read: {error.strerror}")
        except UnicodeDecodeError as error:
            self._report(f"is not UTF-8 text (byte {error.start + 1})")
        except (SyntaxError, LookupError) as error:
            self._report(f"is not text in UTF-8 or another encoding that it declares: {error}")
        return None

    @cached_property
    def tree(self) -> ast.Module | None:
        """The parsed source. None if there is none to read.

        Raises TargetError: a file of the project is not valid Python.
        """
        if self.text is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as those about escapes in strings
                return ast.parse(self.text)
        except SyntaxError as error:
            where = f" (line {error.lineno})" if error.lineno else ""
            self._report(f"is not valid Python{where}: {error.msg}")
        except (ValueError, RecursionError, MemoryError) as error:
            self._report(f"is not valid Python: {error or 'it is nested too deeply'}")
        return None

    def _report(self, words: str) -> None:
        if self.in_project:
            raise TargetError(f"{self.file} {words}.")

    @cached_property
    def scope(self) -> Scope:
        """The names of the module, without those of `from x import *`, which is `*`."""
        return find_bindings(self.tree.body) if self.tree else {}

    @cached_property
    def stars(self) -> list[str]:
        """Dotted names of the modules in `from x import *`, the last one first."""
        nodes = [one.node for one in self.scope.get("*", ())]
        return [o for node in nodes if isinstance(node, ast.ImportFrom) and (o := self.origin_of(node))]

    @cached_property
    def declared_exports(self) -> frozenset[str] | None:
        """The names in `__all__`. None if it does not exist or is not a list of literals."""
        declared = self.scope.get("__all__", [])
        if len(declared) != 1 or re.search(r"__all__\s*(?:\+=|\.)", self.text or ""):
            return None
        try:
            return frozenset(map(str, ast.literal_eval(declared[0].value or "")))
        except (ValueError, TypeError, RecursionError):
            return None

    def exports(self, name: str) -> bool:
        """Return whether `from module import *` imports the name, if the module has it."""
        if self.declared_exports is not None:
            return name in self.declared_exports
        return not name.startswith("_") or "__all__" in self.scope

    def may_bind(self, name: str) -> bool:
        """Return whether an imported module may have a name that no statement binds."""
        if self.text is None or self.tree is None or "__getattr__" in self.scope or name.startswith("__"):
            return True
        word = re.escape(name)
        by_name = rf"\bglobal\b[^\n]*\b{word}\b|\b{word}\s*:="
        return bool(_DYNAMIC.search(self.text) or re.search(by_name, self.text))

    def origin_of(self, node: ast.ImportFrom) -> str | None:
        """Dotted name of the module that the statement imports from."""
        if not node.level:
            return node.module
        package = self.name if self.folders else self.name.rpartition(".")[0]
        with suppress(ImportError):  # beyond the top-level package
            return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        return None

    def source_of(self, node: ast.ImportFrom) -> "SourceModule | None":
        """Return the module that the statement imports from. None if there is none."""
        origin = self.origin_of(node)
        return self.modules.find(origin) if origin else None

    def submodules(self) -> list[str]:
        """Return the names of the modules in this package."""
        return [found.name for found in pkgutil.iter_modules(self.folders)] if self.folders else []


class Modules:
    """The modules that a training process of the project `root` could import."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._known: dict[str, SourceModule | None] = {}

    def find(self, name: str) -> SourceModule | None:
        """Return the module with a dotted name, or None."""
        if name not in self._known:
            above, _, last = name.rpartition(".")
            package = self.find(above) if above else None
            spec = _find_spec(last, package.folders if package else []) if above else self._top(name)
            if spec is None:
                self._known[name] = self.find(OTHER_NAMES[name]) if name in OTHER_NAMES else None
            else:
                self._known[name] = SourceModule(self, name, spec, self._in_project(spec))
        return self._known[name]

    def top_names(self) -> list[str]:
        """Return the names of all top-level modules."""
        found = pkgutil.iter_modules([self._root, *_environment()])
        return [module.name for module in found if not module.name.startswith("_")]

    def _top(self, name: str) -> ModuleSpec | None:
        spec = _find_spec(name, [self._root, *_environment()])
        for finder in () if spec else sys.meta_path:  # of editable installs and built-in modules
            with suppress(Exception):  # a finder of another package may fail: it has found nothing
                spec = spec or (None if finder is PathFinder else finder.find_spec(name, None))
        return spec

    def _in_project(self, spec: ModuleSpec) -> bool:
        """Return whether a module is below the root, but not in an environment inside it."""
        others = tuple(f"{folder}/" for folder in _environment() if folder != self._root)
        return str(spec.origin).startswith(f"{self._root}/") and not str(spec.origin).startswith(others)


def _find_spec(last: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Find a module by its last name: for a whole name the finder would import the parent."""
    try:
        return PathFinder.find_spec(last, list(folders))
    except (ImportError, ValueError, OSError):
        return None


def _environment() -> list[str]:
    """Return sys.path without the folder of the scripts, whose modules belong to a package."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    skipped = {"", str(ROOT / "src"), str(Path(main).resolve().parent) if main else ""}
    return [entry for entry in sys.path if entry not in skipped]
