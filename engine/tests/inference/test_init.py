"""`init=RUN`: equal weights at step 0, a part of them on request, early refusals."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from tools.testing.weights import final_weights, largest_difference
from train_anywhere.config.load import to_tree
from train_anywhere.errors import CheckpointError
from train_anywhere.launch.local_run import local_problems
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.preflight import CHECKS

from .conftest import SHORT, Trained

BOTH = pytest.mark.parametrize("framework", ["lightning", "keras"])
Runs = dict[str, RunDir]
STILL = ("optimizer=sgd", "optimizer.lr=1e-30", "trainer.max_steps=1", "seed=9")
"""One step that changes no weight."""


@BOTH
@pytest.mark.slow
def test_it_begins_with_the_weights_of_the_other_run(framework: str, runs: Runs, trained: Trained) -> None:
    old = runs[framework]
    new = trained(f"framework={framework}", *SHORT, *STILL, f"init={old.path}")
    other = trained(f"framework={framework}", *SHORT, *STILL)
    assert largest_difference(final_weights(new.path), final_weights(old.path)) == 0
    assert largest_difference(final_weights(other.path), final_weights(old.path)) > 0
    earlier = trained(f"framework={framework}", *SHORT, *STILL, f"init={old.path}", "init.checkpoint=13")
    assert largest_difference(final_weights(earlier.path), final_weights(old.path)) > 0


@BOTH
@pytest.mark.quick("lightning")
def test_a_part_of_the_weights(framework, runs, trained, capsys) -> None:
    words = (f"framework={framework}", *SHORT, *STILL, f"init={runs[framework].path}", "model.hidden=[8,6]")
    with pytest.raises(CheckpointError, match=r"other weights than this model: here .*\[.*init.strict=false"):
        trained(*words)
    new = trained(*words, "init.strict=false", "monitor.progress=plain")
    said = capsys.readouterr().out
    assert "not taken" in said
    old, got = final_weights(runs[framework].path), final_weights(new.path)
    same = [n for n in got if n in old and got[n].shape == old[n].shape and np.array_equal(got[n], old[n])]
    assert 0 < len(same) < len(got)


def test_a_resumed_run_does_not_begin_again(runs: Runs, trained: Trained, monkeypatch) -> None:
    """Its own checkpoint counts: the other run may be gone."""
    from train_anywhere.distributed.topology import Topology
    from train_anywhere.job.rank_process import RankProcess, Stop
    from train_anywhere.training.lightning import run as side

    new = trained(*SHORT, f"init={runs['lightning'].path}", "trainer.max_epochs=1")
    monkeypatch.setattr(side, "load_initial_weights", lambda *arguments: pytest.fail("it began again"))
    from train_anywhere.runs.reopen.frozen import load_frozen

    assert side.train(load_frozen(new), RankProcess(new, Topology(), Stop())).state == "completed"


def test_a_link_is_followed_when_the_command_is_typed(runs: Runs, make_config, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(runs["lightning"].path)
    config = make_config(f"init={tmp_path / 'latest'}")
    assert to_tree(config)["init"]["run"] == str(runs["lightning"].path.resolve())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("init={lightning}", "model=resnet18"),
            "trained with model._target_=src.models.lightning.mlp.mlp, and its weights are not all those of src.models.lightning.resnet",
        ),
        (
            ("init={lightning}", "model=mlp", "model.hidden=[9]", "model.name=mine"),
            "trained with model=mlp, and its weights are not all those of model=mine; use the same model, or init.strict=false",
        ),
        (
            (
                "init={keras}",
                "framework=keras",
                "task._target_=engine.tests.training.keras.strangers.OwnStep",
                "data=digits",
            ),
            "trained with task._target_=src.tasks.keras.classification.classification, and its weights are not all those of engine.tests",
        ),
    ],
)
def test_refused_at_submission(words, says, runs, make_config, tmp_path) -> None:
    paths = {name: run.path for name, run in runs.items()}
    config = make_config(*(word.format(tmp=tmp_path, **paths) for word in words))
    assert [p for p in local_problems(config, CHECKS) if says in p]


@pytest.mark.parametrize(
    "words",
    [
        ("model=mlp", "model.hidden=[8]"),
        ("model=mlp", "model.hidden=[8]", "model.name=mine"),
        ("model=mlp", "model.hidden=[9]", "model.name=mine", "init.strict=false"),
    ],
)
def test_what_may_fit_is_not_refused(words: tuple[str, ...], runs: Runs, make_config) -> None:
    config = make_config(f"init={runs['lightning'].path}", *SHORT, *words)
    assert not [p for p in local_problems(config, CHECKS) if "init" in p]


def test_another_module_may_have_the_same_weights(runs: Runs, make_config, tmp_path: Path) -> None:
    """The model is a subclass that freezes layers: ranks compare names and shapes."""
    own = RunDir(tmp_path / "digits" / runs["lightning"].id)
    shutil.copytree(runs["lightning"].path, own.path)
    here = "engine.tests.training.lightning.strangers"
    tree = yaml.safe_load(own.config.read_text())
    tree["task"] = {"name": "custom", "_target_": {"lightning": f"{here}.Plain"}}
    own.config.write_text(yaml.safe_dump(tree, sort_keys=False))
    words = (f"task._target_={here}.Measured", f"data._target_={here}.rows")
    assert not [p for p in local_problems(make_config(f"init={own.path}", *words), CHECKS) if "init" in p]
    assert [
        p
        for p in local_problems(make_config(f"init={runs['lightning'].path}", *words), CHECKS)
        if "init" in p
    ]
