"""Modules as files: found by the import system's own finder, parsed, and never imported."""

import ast
import importlib.util
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from train_anywhere.config.signatures.bindings import Scope, bindings, stars
from train_anywhere.config.signatures.definition import TargetError
from train_anywhere.config.signatures.skeleton import skeleton
from train_anywhere.files import ROOT

_DYNAMIC = re.compile(r"\b(?:globals|locals|vars)\(\)|sys\.modules\[|\bexec\(")
"""What a module writes that makes names of its own while it is imported."""

LONG = 8_000
"""Characters of a foreign file from which its skeleton is parsed instead."""


class Module:
    """One module or package.

    Args:
        name: dotted.
        file: its source, where there is any.
        folders: where its submodules are; empty for a plain module.
        own: whether it is of the project, so that a fault in it is the user's to correct.
        readable: whether source tells its names: not so for what is compiled. A folder without a file has none but submodules.
    """

    def __init__(
        self, name: str, file: Path | None, folders: Sequence[str], own: bool, readable: bool = True
    ) -> None:
        self.name, self.file, self.folders, self.own, self._readable = name, file, folders, own, readable

    @cached_property
    def text(self) -> str | None:
        """Its source; None where there is none to read.

        Raises:
            TargetError: a file of the project can't be read, or is no text.
        """
        if self.file is None:
            return "" if self._readable else None
        try:
            return importlib.util.decode_source(self.file.read_bytes())
        except OSError as error:
            self._fault(f"can't be read: {error.strerror}")
        except UnicodeDecodeError as error:
            self._fault(f"is not UTF-8 text (byte {error.start + 1})")
        except (SyntaxError, LookupError) as error:
            self._fault(f"is not text in UTF-8 or another encoding that it declares: {error}")
        return None

    @cached_property
    def tree(self) -> ast.Module | None:
        """Its source, parsed; None where there is none to read.

        Raises:
            TargetError: a file of the project is not valid Python.
        """
        if self.text is None:
            return None
        if not self.own and len(self.text) > LONG:
            try:
                return _parse(skeleton(self.text))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass  # an unusual layout: the whole is parsed
        try:
            return _parse(self.text)
        except SyntaxError as error:
            where = f" (line {error.lineno})" if error.lineno else ""
            self._fault(f"is not valid Python{where}: {error.msg}")
        except (ValueError, RecursionError, MemoryError) as error:
            self._fault(f"is not valid Python: {error or 'it is nested too deeply'}")
        return None

    def _fault(self, words: str) -> None:
        if self.own:
            raise TargetError(f"{self.file} {words}.")

    @cached_property
    def scope(self) -> Scope:
        """Its names, without those of `from x import *`."""
        return bindings(self.tree.body) if self.tree else {}

    @cached_property
    def stars(self) -> list[str]:
        """Dotted names of the modules of `from x import *`, the last one first."""
        found = [self.origin_of(node) for node in stars(self.tree.body)] if self.tree else []
        return [name for name in found if name]

    @cached_property
    def exported(self) -> frozenset[str] | None:
        """Its `__all__`; None where it has none, or one that is more than a list of literals."""
        declared = self.scope.get("__all__", [])
        if len(declared) != 1 or re.search(r"__all__\s*(?:\+=|\.)", self.text or ""):
            return None
        try:
            return frozenset(map(str, ast.literal_eval(declared[0].value or "")))
        except (ValueError, TypeError, RecursionError):
            return None

    def exports(self, name: str) -> bool:
        """Whether `from x import *` takes the name from here, if it is here."""
        if self.exported is not None:
            return name in self.exported
        return not name.startswith("_") or "__all__" in self.scope

    def may_bind(self, name: str) -> bool:
        """Whether a name that no statement binds can be there nevertheless once the module is imported."""
        if self.text is None or self.tree is None or "__getattr__" in self.scope or name.startswith("__"):
            return True
        word = re.escape(name)
        by_name = rf"\bglobal\b[^\n]*\b{word}\b|\b{word}\s*:="
        return bool(_DYNAMIC.search(self.text) or re.search(by_name, self.text))

    def origin_of(self, node: ast.ImportFrom) -> str | None:
        """Dotted name of the module that the statement imports from."""
        if not node.level:
            return node.module
        package = self.name.split(".")
        up = node.level - 1 if self.folders else node.level
        base = package[: len(package) - up]
        return ".".join([*base, *([node.module] if node.module else [])]) if base else None

    def submodules(self) -> list[str]:
        """Names of the modules in this package."""
        return [found.name for found in pkgutil.iter_modules(self.folders)] if self.folders else []


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes and the like in foreign strings
        return ast.parse(text)


class Modules:
    """The modules that a training process could import.

    Args:
        roots: folders of the project, which come before the environment.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [str(root) for root in roots]
        self._known: dict[str, Module | None] = {}

    def find(self, name: str) -> Module | None:
        """The module of a dotted name; None if there is none."""
        if name not in self._known:
            above, _, last = name.rpartition(".")
            self._known[name] = self._below(above, last) if above else self._top(name)
        return self._known[name]

    def top_names(self) -> list[str]:
        """Modules that can be imported by one word."""
        found = pkgutil.iter_modules([*self._roots, *_environment()])
        return [module.name for module in found if not module.name.startswith("_")]

    def _top(self, name: str) -> Module | None:
        spec = _found(name, self._roots)
        if spec and spec.origin:
            return _module(name, spec, True)
        spec = _found(name, [*self._roots, *_environment()]) or next(_other_finders(name), None)
        return _module(name, spec, False) if spec else None

    def _below(self, above: str, last: str) -> Module | None:
        package = self.find(above)
        if package is None or not package.folders:
            return None
        spec = _found(last, package.folders)
        own = package.own or not package.file  # a folder without __init__.py may be of the project
        return _module(f"{above}.{last}", spec, own and self._inside(spec)) if spec else None

    def _inside(self, spec: ModuleSpec) -> bool:
        """Whether a file is below the project, and not of an environment inside it."""
        file = spec.origin or ""
        if any(file.startswith(f"{folder}/") for folder in _environment() if folder not in self._roots):
            return False
        return any(file.startswith(f"{root}/") for root in self._roots)


def _found(last: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Asked for the last part alone: of a whole name, the finder wants to see the parent imported."""
    try:
        return PathFinder.find_spec(last, list(folders))
    except (ImportError, ValueError, OSError):
        return None


def _other_finders(name: str) -> Iterator[ModuleSpec]:
    """Editable installs and built-in modules; for a name without dots no finder imports anything."""
    for finder in sys.meta_path:
        if finder is PathFinder or not hasattr(finder, "find_spec"):
            continue
        try:
            spec = finder.find_spec(name, None)
        except Exception:  # a finder that someone else wrote: one that fails has found nothing
            continue
        if spec is not None:
            yield spec


def _environment() -> list[str]:
    """Entries of sys.path, without the scripts' folder, whose modules belong to a package."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    skipped = {"", str(ROOT / "src"), str(Path(main).resolve().parent) if main else ""}
    return [entry for entry in sys.path if entry not in skipped]


def _module(name: str, spec: ModuleSpec, own: bool) -> Module:
    folders = list(spec.submodule_search_locations or ())
    origin = spec.origin if spec.has_location else None
    source = Path(origin) if origin and origin.endswith(".py") else None
    return Module(
        name, source, folders, own, readable=source is not None or (not spec.origin and bool(folders))
    )
