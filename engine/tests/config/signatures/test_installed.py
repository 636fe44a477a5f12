"""Public classes and functions of installed packages: arguments that an import accepts pass."""

import importlib
import inspect

import pytest

from tools.testing.processes import run_python
from train_anywhere.config.signatures import read

pytestmark = pytest.mark.slow

PACKAGES = {
    "torch": ["torch.optim", "torch.optim.lr_scheduler", "torch.nn", "torchmetrics", "torchmetrics.classification"],
    "lightning": ["lightning.pytorch", "lightning.pytorch.callbacks", "lightning.pytorch.loggers"],
    "keras": ["keras", "keras.optimizers", "keras.callbacks", "keras.layers", "keras.losses", "keras.metrics"],
}  # fmt: skip

FEWEST = {"torch": 200, "lightning": 20, "keras": 200}
"""Signatures that are compared at least."""


def differences(modules: list[str]) -> list[str]:
    """Print a line for each wrongly refused name, then the number of compared signatures."""
    wrong, compared = [], 0
    for module in map(importlib.import_module, modules):
        public = {n: v for n, v in vars(module).items() if not n.startswith("_") and not inspect.ismodule(v)}
        for name, value in public.items():
            found = read(f"{module.__name__}.{name}")
            if found.kind == "unreadable" or not callable(value):
                continue
            try:
                real = inspect.signature(value).parameters.values()
            except ValueError:  # compiled, without a signature
                continue
            named = {
                p.name: p.default is p.empty for p in real if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            }
            required = {p.name for p in found.parameters.values() if p.required}
            rest = any(p.kind == p.VAR_KEYWORD for p in real)
            compared += 1
            if not (found.takes_any or named.keys() <= found.parameters.keys()):
                wrong.append(f"{name} takes {named.keys() - found.parameters.keys()}")
            if not rest and not required <= {n for n, needed in named.items() if needed}:
                wrong.append(f"{name} does not require {required}")
    return [*wrong, str(compared)]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_an_import_says_is_accepted(package: str) -> None:
    """A separate process, because two frameworks never share one."""
    program = (
        "from engine.tests.config.signatures.test_installed import differences\n"
        f"print(*differences({PACKAGES[package]}), sep='\\n')"
    )
    done = run_python("-c", program, timeout=600)
    assert done.returncode == 0, done.stderr
    *wrong, compared = done.stdout.splitlines()
    assert wrong == []
    assert int(compared) > FEWEST[package]
