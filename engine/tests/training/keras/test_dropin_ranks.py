"""A user's model on several devices or ranks gives the result of one, or is refused."""

from pathlib import Path

import numpy as np
import pytest

from .test_dropin import BASE, HERE, NO_EVALUATION, task

WHOLE = ("trainer.limit_val_batches=1", "trainer.limit_test_batches=1")
AGREE = [
    pytest.param((task("OwnStep"),), id="own step"),
    pytest.param((task("compiled"), "optimizer=sgd", "trainer.gradient_clip_val=0.3"), id="compiled"),
    pytest.param((task("Gan"), "task.noise=false", *NO_EVALUATION), id="gan"),
    pytest.param((task("two_outputs"), "data.kind=dict"), id="two outputs"),
    pytest.param((task("two_outputs"), "data.kind=dict", *WHOLE), id="two outputs, whole batches"),
]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", AGREE)
def test_two_devices_train_and_measure_as_one(train, overrides, tmp_path: Path) -> None:
    """Separate processes, because TensorFlow's devices are chosen once."""
    results = [
        start(train, tmp_path / n, "strategy=mirrored", f"trainer.devices={n}", *overrides) for n in "12"
    ]
    if overrides[1:] == ("data.kind=dict",):
        # Keras' losses of single outputs are means over batches, of which the last one is incomplete here
        batchwise = {f"{split}/{name}_loss" for split in ("val", "test") for name in ("y", "big")}
        results = [({k: v for k, v in m.items() if k not in batchwise}, w) for m, w in results]
    assert_agree(*results)


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("strategy", ["horovod", "multiworker_mirrored"])
@pytest.mark.parametrize("overrides", [AGREE[0], AGREE[1], AGREE[2], AGREE[-1]])
def test_two_ranks_train_and_measure_as_one(train, require, strategy: str, overrides, tmp_path: Path) -> None:
    from train_anywhere.distributed.packages import horovod_problem

    if strategy == "horovod":
        require(not horovod_problem("tensorflow"), "run `make horovod`")
    one = start(train, tmp_path / "1", "strategy=single", *overrides)
    assert_agree(one, start(train, tmp_path / "2", f"strategy={strategy}", "trainer.devices=2", *overrides))


def start(train, folder: Path, *options: str) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Metrics and weights of a run that ended well."""
    from tools.testing.weights import final_weights, info

    done = train(*BASE, *options, "trainer.max_epochs=2", f"paths.results={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    return info(folder / "latest")["metrics"], final_weights(folder / "latest")


def assert_agree(one, other) -> None:
    from tools.testing.weights import largest_difference

    assert one[0].keys() == other[0].keys()
    assert one[0] == pytest.approx(other[0], rel=1e-4)
    assert largest_difference(one[1], other[1]) < 1e-5


@pytest.mark.slow
def test_ranks_that_part_are_an_error(train, tmp_path: Path) -> None:
    """Weights change without an optimizer although one is used."""
    options = (task("Parting"), "strategy=mirrored", "trainer.devices=2", "trainer.max_epochs=1")
    done = train(*BASE, *options, f"paths.results={tmp_path}")
    assert done.returncode == 1
    assert "the weights of device 1 of 2 are not those of device 0" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, says",
    [
        ((task("summed"),), "the model is compiled with a loss of reduction='sum', and the gradients of 2 ranks"),
        (
            (task("weighed_mean"), "data.kind=weighted"),
            "the model is compiled with a loss of reduction='mean_with_sample_weight', and the gradients of 2 ranks",
        ),
        (
            (
                task("compiled"),
                "optimizer=custom",
                "optimizer._target_=keras.optimizers.Adam",
                "+optimizer.gradient_accumulation_steps=2",
            ),
            "an optimizer has gradient_accumulation_steps=2, which Keras can't use with tf.distribute on 2 devices",
        ),
        ((task("OddMetric"),), "the metric 'largest' is a Largest with its own update_state"),
    ],
    ids=["sum", "weighed mean", "accumulation", "metric"],
)  # fmt: skip
def test_what_can_not_be_right_on_two_devices(train, overrides, says: str, tmp_path: Path) -> None:
    options = ("strategy=mirrored", "trainer.devices=2", f"paths.results={tmp_path}")
    done = train(*BASE, *overrides, *options)
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_masked_loss_on_two_devices_is_noted(train, tmp_path: Path) -> None:
    options = (
        task("masked"), f"data._target_={HERE}.open_tokens", "trainer.max_epochs=1", f"paths.results={tmp_path}",
    )  # fmt: skip
    for devices, noted in ((1, False), (2, True)):
        done = train(*BASE, *options, "strategy=mirrored", f"trainer.devices={devices}")
        assert done.returncode == 0, done.stderr
        assert ("each rank or device divides by its own number of them" in done.stdout) == noted
