"""Names that modules had before the engine was a package; run folders, configurations and code of forks still use them."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OLD = {
    "slurm": "train_anywhere.slurm",
    "src.after": "train_anywhere.after",
    "src.checkpoints": "train_anywhere.checkpoints",
    "src.config": "train_anywhere.config",
    "src.data.ahead": "train_anywhere.data.ahead",
    "src.data.archives": "train_anywhere.data.archives",
    "src.data.arrays": "train_anywhere.data.arrays",
    "src.data.base": "train_anywhere.data.base",
    "src.data.batch": "train_anywhere.data.batch",
    "src.data.download": "train_anywhere.data.download",
    "src.data.draws": "train_anywhere.data.draws",
    "src.data.listing": "train_anywhere.data.listing",
    "src.data.keep": "train_anywhere.data.keep",
    "src.data.order": "train_anywhere.data.order",
    "src.data.sets": "train_anywhere.data.sets",
    "src.data.shuffle": "train_anywhere.data.shuffle",
    "src.data.stage": "train_anywhere.data.stage",
    "src.data.text": "train_anywhere.data.text",
    "src.data.tf_arrays": "train_anywhere.data.tf_arrays",
    "src.data.tf_drop_in": "train_anywhere.data.tf_drop_in",
    "src.data.tf_groups": "train_anywhere.data.tf_groups",
    "src.data.tf_pipeline": "train_anywhere.data.tf_pipeline",
    "src.data.tf_samples": "train_anywhere.data.tf_samples",
    "src.data.tf_streams": "train_anywhere.data.tf_streams",
    "src.data.torch_arrays": "train_anywhere.data.torch_arrays",
    "src.data.torch_draws": "train_anywhere.data.torch_draws",
    "src.data.torch_foreign": "train_anywhere.data.torch_foreign",
    "src.data.torch_loader": "train_anywhere.data.torch_loader",
    "src.data.torch_order": "train_anywhere.data.torch_order",
    "src.data.torch_samples": "train_anywhere.data.torch_samples",
    "src.distributed": "train_anywhere.distributed",
    "src.doctor": "train_anywhere.commands.doctor",
    "src.errors": "train_anywhere.errors",
    "src.evaluate": "train_anywhere.commands.evaluate",
    "src.files": "train_anywhere.files",
    "src.jobs": "train_anywhere.commands.jobs",
    "src.launch": "train_anywhere.launch",
    "src.monitor": "train_anywhere.monitor",
    "src.report": "train_anywhere.commands.report",
    "src.runs": "train_anywhere.runs",
    "src.scaling": "train_anywhere.commands.scaling",
    "src.search": "train_anywhere.search",
    "src.tasks.base": "train_anywhere.tasks",
    "src.train": "train_anywhere.commands.train",
    "src.training": "train_anywhere.training",
}
"""Prefixes of dotted names, and today's."""


def renamed(dotted: str) -> str:
    """Return today's name of a module or of something in it; other names are returned as they are."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        if new := OLD.get(".".join(parts[:length])):
            return ".".join([new, *parts[length:]])
    return dotted


def update_tree(tree: dict[str, Any]) -> None:
    """Write today's names into each `_target_` and `_check_` of a configuration, which may contain itself."""
    todo: list[Any] = [tree]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen or not isinstance(one, dict | list):
            continue
        seen.add(id(one))
        if isinstance(one, list):
            todo += one
            continue
        for key in NAMING & one.keys():
            named = one[key]
            one[key] = {k: _today(v) for k, v in named.items()} if isinstance(named, dict) else _today(named)
        todo += one.values()


def _today(name: Any) -> Any:
    return renamed(name) if isinstance(name, str) else name


def in_override(line: str) -> str:
    """Return an override, `task._target_=src.mine.Task`, with today's name."""
    key, equals, value = line.partition("=")
    return f"{key}={renamed(value)}" if equals and key.endswith(tuple(NAMING)) else line


NAMING = {"_target_", "_check_"}
"""Keys of a configuration whose values are names."""


class OldNames(MetaPathFinder, Loader):
    """Imports a module by its old name, with a warning. It comes last: a fork's own module of that name is found first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name, None for any other."""
        known = fullname.count(".") and renamed(fullname) != fullname
        return ModuleSpec(fullname, self) if known else None

    def exec_module(self, module: ModuleType) -> None:
        """Put today's module in the place of the old one."""
        old = module.__name__
        warnings.warn(
            f"{old} is called {renamed(old)} now; the old name works until version 1.0.",
            FutureWarning,
            stacklevel=2,
        )
        sys.modules[old] = importlib.import_module(renamed(old))
