"""Members of a sweep have the configurations that plain Hydra composes, and run one after the other."""

import json

from tools.testing.processes import run_python
from train_anywhere.files import ROOT

PROGRAM = """
import json, sys
from types import SimpleNamespace
import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from train_anywhere.config.command.compose import CONFIGS, install_choice_loader
from train_anywhere.config.load import to_plain_tree
from train_anywhere.commands.train import Starter
from train_anywhere.plugins.launchers import SlurmLauncher

def compare(members):
    calls = []
    def load(config, words):
        calls.append(words)
        return loader.load_sweep_config(config, words)
    launcher = SlurmLauncher()
    context = SimpleNamespace(config_loader=SimpleNamespace(load_sweep_config=load))
    launcher.setup(hydra_context=context, task_function=Starter(None, []), config=master)
    composed = launcher.compose_members(members)
    return composed == [to_plain_tree(loader.load_sweep_config(master, member)) for member in members], len(calls)

install_choice_loader()
with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration("train", [], RunMode.MULTIRUN)
    print(json.dumps([compare(members) for members in json.loads(sys.argv[1])]))
"""


CASES: list[tuple[list[list[str]], int]] = [
    ([["seed=1"], ["seed=2"], ["seed=3"]], 1),
    ([["seed=1", "name=a"], ["seed=1", "name='b c'"], ["seed=2", "name=null"]], 1),
    ([["cluster.modules=[a,b]"], ["cluster.modules=[c]"], ["cluster.modules=[]"]], 1),
    ([["model=cnn", "seed=1"], ["model=mlp", "seed=1"], ["model=mlp", "seed=2"]], 2),
    ([["trainer={max_epochs: 3}"], ["trainer={max_steps: 4}"]], 1),
    ([[f"trainer.early_stopping.patience={n}", "trainer={max_epochs: 3}"] for n in (1, 2)], 1),
    ([["seed=1", "seed=5"], ["seed=2", "seed=5"]], 1),
    ([["+features.a.x=1"], ["+features.a.x=2"]], 1),
    ([["seed=1"], ["trainer.max_epochs=2"], ["seed=1", "trainer.max_epochs=2"]], 1),
    ([["cluster=slurm", "cluster.time=10"], ["cluster=slurm", "cluster.time=20"], ["cluster=neuron", "cluster.time=20"]], 2),
    ([["++task.a=1", "callbacks=[]"], ["++task.a=2", "callbacks=[]"]], 1),
    ([["+mine=1", "~seed"], ["+mine=2", "~seed"]], 2),
    ([["paths.results=${oc.env:HOME}/a"], ["paths.results=${oc.env:HOME}/b"]], 1),
    ([["data=imagefolder", "data.dir=/a"], ["data=imagefolder", "data.dir=/b"]], 1),
    ([["model=cnn", "model.dropout=0.1"], ["model=cnn", "model.dropout=0.2"]], 1),
]  # fmt: skip
"""Members of a sweep, and the number of compositions that they take."""


def test_members_are_those_of_hydra() -> None:
    environ = {"PYTHONPATH": str(ROOT / "engine"), "HOME": "/home/x"}
    done = run_python("-c", PROGRAM, json.dumps([members for members, _ in CASES]), env=environ)
    assert done.returncode == 0, done.stderr
    found = zip(CASES, json.loads(done.stdout), strict=True)
    assert [(members, answer) for (members, count), answer in found if answer != [True, count]] == []


def test_a_plugin_file_of_an_earlier_version_works() -> None:
    from train_anywhere.plugins import launchers, optuna, product

    assert (
        optuna.OptunaSweeper is launchers.OptunaSweeper and product.ProductSweeper is launchers.ProductSweeper
    )
