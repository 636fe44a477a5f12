"""Files as modules: what is found, what can't be read, what is the project's own."""

import sys
from pathlib import Path

import pytest

from train_anywhere.config.signatures import TargetError, read
from train_anywhere.config.signatures.import_calls import find_import_calls
from train_anywhere.config.signatures.modules import Modules


@pytest.mark.parametrize(
    "content, words",
    [
        (b"x = 1\ndef f(\n", "mine.py is not valid Python (line 2): "),
        (b"a = 1\n\n# \xff\n", "mine.py is not UTF-8 text (byte 10)."),
        (b"# \xff\n", "mine.py is not text in UTF-8 or another encoding that it declares: "),
        (b"# coding: nonsense\n", "mine.py is not text in UTF-8 or another encoding that it declares: "),
        (b"def f(): ...\0", "mine.py is not valid Python"),
        (b"x = " + b"(" * 1000, "mine.py is not valid Python"),
    ],
)
def test_a_file_of_the_project_that_is_not_python(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "mine.py").write_bytes(content)
    with pytest.raises(TargetError) as refused:
        read("mine.f", tmp_path)
    assert words in str(refused.value)


def test_a_declared_encoding(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes("# coding: latin-1\ndef f(a='é'): ...".encode("latin-1"))
    assert read("mine.f", tmp_path).parameters["a"].default == "é"


def test_broken_files_of_the_environment_and_compiled_ones_are_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may be inside of the project, and its packages may have no __init__.py."""
    for site in (tmp_path / "elsewhere", tmp_path / "project" / ".venv" / "site-packages"):
        (site / f"space_{site.name[:4]}").mkdir(parents=True)
        for name in (f"foreign_{site.name[:4]}.py", f"space_{site.name[:4]}/part.py"):
            (site / name).write_text("def f(\n")
        monkeypatch.syspath_prepend(site)
    (tmp_path / "project" / "old.pyc").write_bytes(b"")
    (tmp_path / "project" / "pack").mkdir()
    (tmp_path / "project" / "pack" / "fast.abi3.so").write_bytes(b"")
    names = [
        "old.f",
        "pack.fast.f",
        "foreign_else.f",
        "space_else.part.f",
        "foreign_site.f",
        "space_site.part.f",
    ]
    assert {name: read(name, tmp_path / "project").kind for name in names} == dict.fromkeys(
        names, "unreadable"
    )


def test_a_folder_without_init_has_its_modules_only(tmp_path: Path) -> None:
    (tmp_path / "space" / "inner").mkdir(parents=True)
    (tmp_path / "space" / "inner" / "mine.py").write_text("def f(a): ...")
    assert list(read("space.inner.mine.f", tmp_path).parameters) == ["a"]
    with pytest.raises(TargetError, match="space has no other"):
        read("space.other", tmp_path)


def test_the_project_comes_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("def mine(a): ...")
    (tmp_path / "keras").mkdir()  # a folder of that name is not a package
    assert list(read("yaml.mine", tmp_path).parameters) == ["a"]
    assert read("keras.optimizers.Lion", tmp_path).kind == "class"


def test_an_editable_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip puts a finder on sys.meta_path for those that a folder on sys.path can't stand for."""
    import importlib.util

    (tmp_path / "elsewhere.py").write_text("def f(a): ...")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            if name == "editable_package":
                return importlib.util.spec_from_file_location(name, tmp_path / "elsewhere.py")
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert list(read("editable_package.f", tmp_path / "project").parameters) == ["a"]
    assert "editable_package" not in sys.modules


LIGHTNING = "import lightning.pytorch as pl\nclass Net(pl.LightningModule): ...\n"
KERAS_FILE = "import keras\nfrom keras import layers\n"

TRAINS = {
    "trainer": LIGHTNING + "trainer = pl.Trainer(max_epochs=3)\ntrainer.fit(Net())\n",
    "at once": LIGHTNING + "pl.Trainer().test(Net())\n",
    "other name": "import pytorch_lightning as pl\nt = pl.Trainer()\nt.fit(1)\n",
    "imported class": "from lightning.pytorch.trainer import Trainer as T\nt: T = T()\nt.fit(1)\n",
    "top package": "import lightning as L\nwith open('x') as f:\n    t = L.Trainer()\n    t.fit(1)\n",
    "whole name": "import lightning.pytorch\nlightning.pytorch.Trainer().fit(1)\n",
    "loop": LIGHTNING + "for seed in range(3):\n    trainer = pl.Trainer()\n    trainer.fit(Net())\n",
    "own trainer": "from lightning import Trainer\nclass Mine(Trainer): ...\nMine().fit(1)\n",
    "main without a guard": LIGHTNING
    + "def main():\n    trainer = pl.Trainer()\n    trainer.fit(Net())\nmain()\n",
    "result": LIGHTNING + "trainer = pl.Trainer()\nscore = trainer.validate(Net())[0]\n",
    "cli": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(1)\n",
    "sequential": KERAS_FILE + "model = keras.Sequential([])\nmodel.fit(1)\n",
    "functional": "from tensorflow import keras\nmodel = keras.Model(1, 2)\nhistory = model.fit(1)\n",
    "subclass": KERAS_FILE + "class Net(keras.Model): ...\nnet = Net()\nnet.fit(1)\n",
    "tf.keras": "import tensorflow as tf\nmodel = tf.keras.models.Sequential()\nmodel.fit(1)\n",
    "try": LIGHTNING + "try:\n    pl.Trainer().fit(1)\nexcept ValueError:\n    pass\n",
    "the other branch": LIGHTNING + "if __name__ == '__main__':\n    pass\nelse:\n    pl.Trainer().fit(1)\n",
}
MAY_TRAIN = {
    "unknown object": "from theirs import model\nnet = model()\nnet = change[net]\nnet.fit(1)\n",
    "condition": LIGHTNING + "if FLAG:\n    pl.Trainer().fit(1)\n",
    "decorated": LIGHTNING + "@hydra.main()\ndef main():\n    pl.Trainer().fit(1)\nmain()\n",
    "imported": "from theirs import make\nmodel = make()\nmodel.fit(1)\n",
    "group": "import torch.distributed as dist\ndist.init_process_group('gloo')\n",
    "built": KERAS_FILE + "def build():\n    return keras.Sequential()\nmodel = build()\nmodel.fit(1)\n",
}
DOES_NOT = {
    "guard": LIGHTNING + "if __name__ == '__main__':\n    pl.Trainer().fit(1)\n",
    "guard, other way round": LIGHTNING + 'if "__main__" == __name__:\n    pl.Trainer().fit(1)\n',
    "function": LIGHTNING + "def main():\n    pl.Trainer().fit(1)\nif __name__ == '__main__':\n    main()\n",
    "method": LIGHTNING + "class A:\n    def run(self):\n        pl.Trainer().fit(1)\n",
    "scikit-learn": "from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\nscaler.fit([1])\n",
    "function of a module": "from scipy import optimize\noptimize.fit(1)\n",
    "model only": KERAS_FILE + "model = keras.Sequential([])\nmodel.compile()\nmodel.summary()\n",
    "cli that does not run": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(run=False)\n",
    "types": LIGHTNING + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pl.Trainer().fit(1)\n",
    "lambda": LIGHTNING + "start = lambda: pl.Trainer().fit(1)\n",
    "comprehension of text": "names = [n.fit for n in []]\n",
}


@pytest.mark.parametrize("expected, sources", [([True], TRAINS), ([False], MAY_TRAIN), ([], DOES_NOT)])
def test_files_that_train_at_import(tmp_path: Path, expected: list[bool], sources: dict[str, str]) -> None:
    modules, found = Modules(tmp_path), {}
    for number, (name, source) in enumerate(sources.items()):
        (tmp_path / f"mine_{number}.py").write_text(source)
        module = modules.find(f"mine_{number}")
        assert module
        found[name] = [call.trains for call in find_import_calls(module)]
    assert found == dict.fromkeys(sources, expected)
