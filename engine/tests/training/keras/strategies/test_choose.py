"""Which devices a rank takes."""

import pytest

from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError


def test_a_gpu_that_is_asked_for_and_not_there_is_refused(make_config, monkeypatch) -> None:
    import tensorflow as tf

    from train_anywhere.training.keras.strategies.choose import make_strategy

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(ConfigError) as refused:
        make_strategy("single", make_config("framework=keras", "trainer.accelerator=gpu"), Topology(), 1)
    assert refused.value.problems == [
        "trainer.accelerator=gpu, but TensorFlow sees no GPU here; use trainer.accelerator=auto or cpu."
    ]
