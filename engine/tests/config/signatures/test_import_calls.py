"""Files that train when they are imported: found from their source, and nothing else is."""

import ast

import pytest

from train_anywhere.config.signatures import find_import_calls

LIGHTNING = "import lightning.pytorch as pl\nclass Net(pl.LightningModule): ...\n"
KERAS = "import keras\nfrom keras import layers\n"

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
    "sequential": KERAS + "model = keras.Sequential([])\nmodel.fit(1)\n",
    "functional": "from tensorflow import keras\nmodel = keras.Model(1, 2)\nhistory = model.fit(1)\n",
    "subclass": KERAS + "class Net(keras.Model): ...\nnet = Net()\nnet.fit(1)\n",
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
    "built": KERAS + "def build():\n    return keras.Sequential()\nmodel = build()\nmodel.fit(1)\n",
}
DOES_NOT = {
    "guard": LIGHTNING + "if __name__ == '__main__':\n    pl.Trainer().fit(1)\n",
    "guard, other way round": LIGHTNING + 'if "__main__" == __name__:\n    pl.Trainer().fit(1)\n',
    "function": LIGHTNING + "def main():\n    pl.Trainer().fit(1)\nif __name__ == '__main__':\n    main()\n",
    "method": LIGHTNING + "class A:\n    def run(self):\n        pl.Trainer().fit(1)\n",
    "scikit-learn": "from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\nscaler.fit([1])\n",
    "function of a module": "from scipy import optimize\noptimize.fit(1)\n",
    "model only": KERAS + "model = keras.Sequential([])\nmodel.compile()\nmodel.summary()\n",
    "cli that does not run": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(run=False)\n",
    "types": LIGHTNING + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pl.Trainer().fit(1)\n",
    "lambda": LIGHTNING + "start = lambda: pl.Trainer().fit(1)\n",
    "comprehension of text": "names = [n.fit for n in []]\n",
}


@pytest.mark.parametrize("source", TRAINS.values(), ids=TRAINS)
def test_a_file_that_trains_at_import(source: str) -> None:
    assert [call.trains for call in find_import_calls(ast.parse(source))] == [True]


@pytest.mark.parametrize("source", MAY_TRAIN.values(), ids=MAY_TRAIN)
def test_a_file_that_may_train_at_import(source: str) -> None:
    assert [call.trains for call in find_import_calls(ast.parse(source))] == [False]


@pytest.mark.parametrize("source", DOES_NOT.values(), ids=DOES_NOT)
def test_a_file_that_does_not_train_at_import(source: str) -> None:
    assert find_import_calls(ast.parse(source)) == []
