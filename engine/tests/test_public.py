"""The engine's public names are on one page, documented, and all that the template imports."""

import ast
import importlib
import inspect
import re

from train_anywhere.files import ROOT

PAGE = (ROOT / "docs/reference/api/index.md").read_text()
PUBLIC = {
    module: set(re.findall(r"`(\w+)`", names))
    for module, names in re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE, re.M)
}


def test_the_page_lists_what_the_modules_export() -> None:
    assert {name: set(importlib.import_module(name).__all__) for name in PUBLIC} == PUBLIC


def test_every_name_is_documented() -> None:
    bare = []
    for module, names in PUBLIC.items():
        for name in names:
            try:
                found = getattr(importlib.import_module(module), name)
            except AttributeError:  # a module of a package
                found = importlib.import_module(f"{module}.{name}")
            alias = not (inspect.ismodule(found) or inspect.isclass(found) or inspect.isfunction(found))
            if not alias and not (inspect.getdoc(found) or "").strip():
                bare.append(f"{module}.{name}")
    assert bare == []


def test_the_template_imports_nothing_else() -> None:
    private = []
    for path in [p for top in ("src", "slurm", "hydra_plugins") for p in sorted((ROOT / top).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("train_anywhere"):
                private += [
                    f"{path.relative_to(ROOT)}: {node.module}.{a.name}"
                    for a in node.names
                    if not public(str(node.module), a.name)
                ]
    assert private == []


def public(module: str, name: str) -> bool:
    """Return whether `from module import name` uses public names only."""
    package, _, last = module.rpartition(".")
    return f"{module}.{name}" in PUBLIC or name in PUBLIC.get(module, ()) or last in PUBLIC.get(package, ())
