"""`model.lora`: checkpoints hold adapters and heads, and fit only their own base."""

import importlib
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.testing.weights import final_weights, largest_difference
from train_anywhere.config.keys import unflatten
from train_anywhere.config.load import load
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.inference import load_model
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.training.adapters import refuse_other_base, select_layers

from .conftest import SHORT, Trained

Runs = dict[str, RunDir]
LIGHTNING = pytest.param(
    "lightning",
    marks=pytest.mark.skipif(
        not find_spec("peft"), reason="needs peft: pip install --no-deps -r requirements/locks/finetune.txt"
    ),
)
BOTH = pytest.mark.parametrize("framework", [LIGHTNING, "keras"])
LORA = {
    "lightning": 'model.lora={rank: 2, alpha: 4, targets: ["1"], train: ["4"], dropout: 0.25}',
    "keras": "model.lora={rank: 2, alpha: 4, targets: [dense], train: [dense_1]}",
}
HEAD = {"lightning": ("4.weight", "4.bias"), "keras": ("dense_1/kernel", "dense_1/bias")}


def words(framework: str, base: RunDir) -> tuple[str, ...]:
    return (f"framework={framework}", *SHORT, LORA[framework], f"init={base.path}")


def continue_run(run: RunDir, **changes: Any) -> None:
    """Train in a run folder from its newest checkpoint to the end."""
    config = replace(load(read_frozen(run)), **changes)
    side = importlib.import_module(f"train_anywhere.training.{config.framework}.run")
    side.train(config, RankProcess(run, Topology(), Stop()))


@pytest.fixture
def adapted(framework: str, runs: Runs, trained: Trained) -> RunDir:
    return trained(*words(framework, runs[framework]))


@BOTH
def test_checkpoints_hold_adapters_and_heads(framework: str, adapted: RunDir, runs: Runs) -> None:
    stored, base = final_weights(adapted.path), final_weights(runs[framework].path)
    names = {name.removeprefix("network.") for name in stored}
    assert {*HEAD[framework]} < names
    assert sum("lora" in name for name in names) == len(names) - 2
    network: Any = load_model(adapted.path).network
    inner = "1.base_layer." if framework == "lightning" else "dense/"
    if framework == "lightning":
        own = {n: p.detach().numpy() for n, p in network.named_parameters() if n.startswith(inner)}
        before = {f"network.{n.replace('base_layer.', '')}": array for n, array in own.items()}
    else:
        before = {v.path: v.numpy() for v in network.variables if v.path in ("dense/kernel", "dense/bias")}
    assert len(before) == 2
    assert all(np.array_equal(array, base[name]) for name, array in before.items())


def optimizer_arrays(folder: Path) -> list[np.ndarray]:
    """The arrays of the optimizer in a checkpoint."""
    if (folder / "optimizer.npz").exists():
        with np.load(folder / "optimizer.npz") as arrays:
            return [arrays[name] for name in sorted(arrays.files)]
    import torch

    states = torch.load(folder / "model.ckpt", weights_only=True)["optimizer_states"]
    found = torch.utils._pytree.tree_leaves(states)
    return [one.numpy() for one in found if isinstance(one, torch.Tensor)]


@BOTH
def test_a_resumed_run_ends_with_the_same_bits(framework: str, adapted: RunDir, tmp_path: Path) -> None:
    again = RunDir(Path(shutil.copytree(adapted.path, tmp_path / "again")))
    newest = (again.checkpoints / "newest").read_text().strip()
    shutil.rmtree(again.checkpoints / newest)
    continue_run(again)
    assert largest_difference(final_weights(again.path), final_weights(adapted.path)) == 0
    states = [optimizer_arrays(run.checkpoints / newest) for run in (again, adapted)]
    assert len(states[0]) == len(states[1]) > 0
    assert all(np.array_equal(one, other) for one, other in zip(*states, strict=True))


@BOTH
def test_another_base_is_refused_by_its_hash(framework: str, adapted: RunDir) -> None:
    newest = (adapted.checkpoints / "newest").read_text().strip()
    config = load(read_frozen(adapted))
    with pytest.raises(CheckpointError, match=r"holds adapters of .* with sha256 .* fit only the weights"):
        continue_run(adapted, init=replace(config.init, run=None))
    assert (adapted.checkpoints / newest).exists()


@BOTH
def test_evaluation_and_export_use_base_and_adapters(framework, adapted, runs, evaluated, tmp_path) -> None:
    code, _, error = evaluated(adapted.path)
    assert code == 0, error
    images = np.random.default_rng(1).normal(size=(3, 8, 8, 1)).astype(np.float32)
    network: Any = load_model(adapted.path).network
    format, file = {"lightning": ("torch", "w.pt"), "keras": ("keras", "w.keras")}[framework]
    code, _, error = evaluated(adapted.path, "--export", format, "--to", tmp_path / file)
    assert code == 0, error
    if framework == "keras":
        import keras

        merged = keras.saving.load_model(tmp_path / file, compile=False)
        answers = [np.asarray(one(images, training=False)) for one in (network, merged)]
    else:
        import torch

        plain: Any = load_model(runs[framework].path).network
        plain.load_state_dict(torch.load(tmp_path / file, weights_only=True))
        answers = [one(torch.from_numpy(images)).detach().numpy() for one in (network, plain)]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-5)


@BOTH
def test_a_run_starts_from_adapters_only_with_adapters(framework, adapted, runs, trained) -> None:
    with pytest.raises(CheckpointError, match=r"holds only adapters of .*--export safetensors"):
        trained(f"framework={framework}", *SHORT, f"init={adapted.path}")
    other = (f"framework={framework}", *SHORT, LORA[framework], f"init={adapted.path}")
    with pytest.raises(CheckpointError, match="holds adapters of"):
        trained(*other)


@BOTH
def test_layers_that_are_missing_are_named(framework: str, runs: Runs, trained: Trained) -> None:
    with pytest.raises(ConfigError, match=r"model.lora.targets: the model has no layer nowhere"):
        trained(f"framework={framework}", *SHORT, "model.lora={targets: [nowhere]}")


def test_layers_are_selected_by_the_ends_of_their_names() -> None:
    names = ["", "a.q_proj", "b.q_proj", "b.my_q_proj", "c/dense"]
    assert select_layers(names, ["q_proj", "dense"], "targets") == {"a.q_proj", "b.q_proj", "c/dense"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=fsdp", "trainer.devices=2"], "strategy=fsdp splits the base"),
        (["framework=keras", "model.lora.dropout=0.5"], "framework=keras has no dropout"),
        (["framework=keras", "model.lora.targets=null"], "framework=keras needs the names of layers"),
    ],
)
def test_contradictions(make_config, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config("model.lora={rank: 2, alpha: 4.0, targets: [dense], dropout: 0.0, train: []}", *overrides)


@pytest.mark.skipif(
    not find_spec("peft"), reason="needs peft: pip install --no-deps -r requirements/locks/finetune.txt"
)
def test_peft_loads_what_was_exported(runs, trained, evaluated, tmp_path) -> None:
    import torch
    from peft import PeftModel

    run = trained(*words("lightning", runs["lightning"]))
    code, _, error = evaluated(run.path, "--export", "peft", "--to", tmp_path / "adapter")
    assert code == 0, error
    base: Any = load_model(runs["lightning"].path).network
    images = torch.randn(3, 8, 8, 1)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(loaded(images), load_model(run.path).network(images))


def test_a_refused_init_with_another_base_names_the_export() -> None:
    with pytest.raises(CheckpointError, match=r"python src/evaluate.py r/1 --export safetensors"):
        refuse_other_base("init.run=r/1", ["a", "one"], ["b", "other"])
    with pytest.raises(CheckpointError, match=r"and init\.$"):
        refuse_other_base("the checkpoint", ["a", "one"], ["b", "other"])


@pytest.mark.skipif(
    not find_spec("peft"), reason="needs peft: pip install --no-deps -r requirements/locks/finetune.txt"
)
def test_targets_are_needed_for_other_models_than_those_of_transformers(trained: Trained) -> None:
    with pytest.raises(ConfigError, match=r"model.lora.targets=null is for models of transformers only"):
        trained(*SHORT, "model.lora={rank: 2}")


def test_a_run_with_adapters_has_a_configuration_outside_of_a_project() -> None:
    flat = {"model.lora": None, "model.name": "mlp", "model.lora.rank": 2}
    assert unflatten(flat) == {"model": {"name": "mlp", "lora": {"rank": 2}}}
