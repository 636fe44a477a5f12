"""The skeleton of real sources has the same signatures as the whole, on the same lines."""

import ast
import glob
import sysconfig
from pathlib import Path

import pytest

from train_anywhere.config.signatures.modules import make_skeleton

SITE = sysconfig.get_path("purelib")
REAL = [
    *("torch/optim/*.py", "torch/nn/modules/module.py", "lightning/pytorch/callbacks/*.py", "lightning/pytorch/core/*.py"),
    *("keras/src/optimizers/*.py", "keras/src/layers/layer.py", "keras/src/models/*.py", "torchmetrics/classification/a*.py"),
]  # fmt: skip


def signatures(text: str) -> list[str]:
    """Return everything but the bodies of functions that are not constructors."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in (
            "__init__",
            "__new__",
        ):
            node.body = []
            node.end_lineno = node.end_col_offset = None
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
            node.end_lineno = node.end_col_offset = None  # ends with its last function
    return ast.dump(tree, include_attributes=True, indent=0).splitlines()


@pytest.mark.parametrize("pattern", REAL)
def test_real_sources(pattern: str) -> None:
    files = glob.glob(f"{SITE}/{pattern}")
    assert files
    for file in files:
        text = Path(file).read_text()
        made = make_skeleton(text)
        assert made.count("\n") == text.count("\n")
        assert signatures(made) == signatures(text), file
    assert len(made) < len(text)


def test_strings_and_comments_do_not_confuse_it() -> None:
    text = (
        'X = """\ndef no(): \n    pass\n"""\ndef f(a="(", b=\'"\'):  # (\n    """\ntext\n"""\n# comment\n    return 1\n\n'
        "class A:\n    def g(self): return 1\n\n    async def h(self,\n        a=(1,\n  2)):\n        return 2\n\n"
        "    def __init__(self):\n        def inner():\n            return self\n        self.x = 1\nY = 1\n"
    )
    made = make_skeleton(text)
    assert "return 1\n\n    async" in made
    assert "return 2" not in made
    assert "            return self\n        self.x = 1\nY = 1" in made
    assert signatures(made) == signatures(text)
