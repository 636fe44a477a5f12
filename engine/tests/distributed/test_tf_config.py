"""The variable in which TensorFlow gets a topology, and operations that start its devices before the strategy."""

import json
import os
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.distributed.network.addresses import tf_config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import TopologyError

UNEVEN = Topology(3, 1, 1, 4, 2, 3, "gpu01", 10000, "srun", hosts=(("gpu01", 1), ("gpu02", 2), ("gpu03", 1)))
"""Local rank 1 of the second of three nodes."""


def test_tf_config_lists_every_worker_once():
    config = json.loads(tf_config(UNEVEN))
    assert config["cluster"] == {"worker": ["gpu01:10000", "gpu02:10000", "gpu02:10001", "gpu03:10000"]}
    assert config["task"] == {"type": "worker", "index": 3}
    assert json.loads(tf_config(UNEVEN, first_port=500))["cluster"]["worker"][2] == "gpu02:501"


def test_tf_config_of_one_node_has_a_port_for_each_rank():
    t = Topology(rank=1, local_rank=1, world_size=2, local_world_size=2, coordinator_port=7000)
    assert json.loads(tf_config(t))["cluster"]["worker"] == ["127.0.0.1:7000", "127.0.0.1:7001"]


def test_tf_config_refuses_a_node_that_is_elsewhere_in_the_list():
    here = os.uname().nodename.partition(".")[0]
    t = Topology(1, 0, 1, 2, 1, 2, "torchrun", launched_by="torchrun", hosts=((here, 1), ("other", 1)))
    with pytest.raises(TopologyError, match=f"made {here} node 1, which is other"):
        tf_config(t)


@pytest.mark.slow
@pytest.mark.new_process
def test_a_training_imports_its_task_after_the_strategy(tmp_path: Path) -> None:
    """TensorFlow refuses operations before the strategy; one in the user's module comes after it."""
    (tmp_path / "early.py").write_text(
        "import tensorflow as tf\n"
        "SCALE = tf.constant(1.0)\n"
        "from examples.keras_model import make_model, open_data\n"
    )
    words = ["framework=keras", "strategy=multiworker_mirrored", "trainer.devices=2"]
    own = ["task._target_=early.make_model", "data._target_=early.open_data", "data.batch_size=32"]
    short = ["trainer.fast_dev_run=true", "trainer.accelerator=cpu", f"paths.results={tmp_path / 'results'}"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run_python("src/train.py", *words, *own, *short, env=environ)
    assert done.returncode == 0 and "val/loss" in done.stdout, done.stderr
