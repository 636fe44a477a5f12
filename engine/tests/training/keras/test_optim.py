"""The learning rate is that of `training.plan`. Optimizers compute their documented formulas."""

import numpy as np
import pytest

from train_anywhere.config.schema import Config
from train_anywhere.training.plan import Plan, lr_factor

STEPS_PER_EPOCH, TOTAL_STEPS = 13, 91
PLAN = Plan(
    batch_per_rank=8,
    train_batches=STEPS_PER_EPOCH,
    accumulate=1,
    steps_per_epoch=STEPS_PER_EPOCH,
    max_epochs=7,
    total_steps=TOTAL_STEPS,
    val_every=STEPS_PER_EPOCH,
    val_batches=1,
    test_batches=1,
)


@pytest.mark.parametrize(
    "overrides",
    [
        ["schedule=constant"],
        ["schedule=constant", "schedule.warmup_epochs=2"],
        ["schedule=cosine"],
        ["schedule=cosine", "schedule.warmup_epochs=0", "schedule.final=0.1"],
        ["schedule=cosine", "schedule.warmup_epochs=7"],
        ["schedule=step", "schedule.milestones=[2,3.5]", "schedule.warmup_epochs=1.5"],
        ["schedule=step", "schedule.milestones=[]"],
    ],
    ids=" ".join,
)
@pytest.mark.quick(
    "schedule=cosine schedule.warmup_epochs=0 schedule.final=0.1",
    "schedule=constant schedule.warmup_epochs=2",
)
def test_learning_rate_agrees_with_the_neutral_formula(make_config, overrides: list[str]) -> None:
    from train_anywhere.training.keras.optim import LearningRate

    schedule = make_config(*overrides).schedule
    rate = LearningRate(1.0, schedule, STEPS_PER_EPOCH, TOTAL_STEPS)
    for step in range(TOTAL_STEPS + 5):
        assert float(rate(step)) == pytest.approx(
            lr_factor(schedule, step, STEPS_PER_EPOCH, TOTAL_STEPS), abs=1e-6
        )


def stepped(config: Config, gradients: list[np.ndarray], replicas: int = 1) -> np.ndarray:
    """A variable that starts as ones, after one step for each gradient."""
    import keras
    import tensorflow as tf

    from train_anywhere.training.keras.optim import make_optimizer

    variable = keras.Variable(np.ones_like(gradients[0]))
    optimizer = make_optimizer(config, PLAN, replicas)
    optimizer.build([variable])
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)])
    return variable.numpy()


GRADIENTS = [np.array(g, np.float32) for g in ([0.5, -2.0, 0.1], [0.3, 1.0, -0.1], [-0.2, 0.4, 0.0])]


@pytest.mark.parametrize("momentum, nesterov", [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_decays_through_the_gradient(make_config, momentum: float, nesterov: bool) -> None:
    config = make_config(
        "optimizer=sgd",
        "optimizer.weight_decay=0.1",
        f"optimizer.momentum={momentum}",
        f"optimizer.nesterov={nesterov}",
        "schedule=cosine",  # the learning rate changes: momentum must not remember the old one
    )
    weight, gathered = np.ones(3), np.zeros(3)
    for step, gradient in enumerate(GRADIENTS):
        gradient = gradient + 0.1 * weight
        gathered = momentum * gathered + gradient
        lr = 0.1 * lr_factor(config.schedule, step, STEPS_PER_EPOCH, TOTAL_STEPS)
        weight = weight - lr * (gradient + momentum * gathered if nesterov else gathered)
    np.testing.assert_allclose(stepped(config, GRADIENTS), weight, rtol=1e-6)


def test_adamw_decays_apart_from_the_gradient(make_config) -> None:
    config = make_config(
        "optimizer=adamw", "optimizer.lr=0.01", "optimizer.weight_decay=0.1", "schedule=constant"
    )
    weight, first, second = np.ones(3), np.zeros(3), np.zeros(3)
    for step, gradient in enumerate(GRADIENTS, start=1):
        weight = weight * (1 - 0.01 * 0.1)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        change = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        weight = weight - 0.01 * change
    np.testing.assert_allclose(stepped(config, GRADIENTS), weight, rtol=1e-5)


PLAIN = (
    "optimizer=sgd", "optimizer.lr=1", "optimizer.momentum=0", "optimizer.weight_decay=0", "schedule=constant",
)  # fmt: skip


@pytest.mark.parametrize(("algorithm", "clipped"), [("norm", [0.3, 0.4]), ("value", [0.5, 0.5])])
def test_gradients_are_clipped_by_their_global_norm_or_value(make_config, algorithm, clipped) -> None:
    config = make_config(
        *PLAIN, "trainer.gradient_clip_val=0.5", f"trainer.gradient_clip_algorithm={algorithm}"
    )
    gradient = np.array([3.0, 4.0], np.float32)
    np.testing.assert_allclose(stepped(config, [gradient]), 1 - np.array(clipped), rtol=1e-6)


def test_learning_rate_is_scaled_by_the_ranks(make_config) -> None:
    config = make_config(*PLAIN, "optimizer.scale_lr=linear")
    np.testing.assert_allclose(stepped(config, GRADIENTS[:1], replicas=4), 1 - 4 * GRADIENTS[0], rtol=1e-6)


def test_float16_scales_the_loss(make_config) -> None:
    import keras

    from train_anywhere.training.keras.optim import make_optimizer

    optimizer = make_optimizer(make_config("trainer.precision=16-mixed"), PLAN, 1)
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def decayed(config: Config, built: bool = True) -> dict[str, bool]:
    """Which of a layer's variables one step without gradients makes smaller."""
    import keras
    import tensorflow as tf

    from train_anywhere.training.keras.dropin.gradients import build_optimizer
    from train_anywhere.training.keras.optim import make_optimizer

    keras.utils.clear_session()
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2, name="head"), keras.layers.LayerNormalization()]
    )
    for variable in model.trainable_variables:
        variable.assign(tf.ones_like(variable))
    optimizer = make_optimizer(config, PLAN, 1)
    build_optimizer(optimizer, model.trainable_variables, config.optimizer.no_decay)
    optimizer.apply([tf.zeros_like(v) for v in model.trainable_variables])
    return {
        v.path.removeprefix("sequential/"): bool((v.numpy() < 1).any()) for v in model.trainable_variables
    }


@pytest.mark.parametrize(
    "optimizer",
    [
        ["optimizer=sgd", "optimizer.weight_decay=0.1"],
        ["optimizer=adamw", "optimizer.weight_decay=0.1"],
        ["optimizer=custom", "optimizer._target_=keras.optimizers.Lion", "optimizer.lr=0.01", "+optimizer.weight_decay=0.1"],
        ["optimizer=sgd", "optimizer.weight_decay=0.1", "trainer.precision=16-mixed"],
    ],
)  # fmt: skip
@pytest.mark.quick("optimizer3")
def test_named_parameters_are_not_decayed(make_config, optimizer: list[str]) -> None:
    config = make_config(*optimizer, "schedule=constant", "optimizer.no_decay=[bias,NORM]")
    assert decayed(config) == {
        "head/kernel": True,
        "head/bias": False,
        "layer_normalization/gamma": False,
        "layer_normalization/beta": False,
    }


def test_any_optimizer_gets_our_schedule_and_clipping(make_config) -> None:
    from train_anywhere.training.keras.optim import make_optimizer

    config = make_config(
        "optimizer=custom", "optimizer._target_=keras.optimizers.Lion", "optimizer.lr=0.5", "+optimizer.beta_1=0.8",
        "trainer.gradient_clip_val=0.25", "schedule=cosine",
    )  # fmt: skip
    optimizer = make_optimizer(config, PLAN, 1)
    assert (
        type(optimizer).__name__ == "Lion" and optimizer.beta_1 == 0.8 and optimizer.global_clipnorm == 0.25
    )
    assert float(optimizer.learning_rate) == pytest.approx(0.5 * lr_factor(config.schedule, 0, 13, 91))


def logged(config, step: int) -> float:
    """The learning rate that is logged after the step of that number, which counts from 0."""
    from train_anywhere.training.keras.optim import make_optimizer, make_rate_reader

    optimizer = make_optimizer(config, PLAN, 1)
    optimizer.iterations.assign(step + 1)
    return make_rate_reader(optimizer)()


def test_any_schedule_gets_the_learning_rate_and_the_length(make_config) -> None:
    target = (*COSINE, "optimizer.lr=0.5")
    by_step = make_config(*target)
    assert logged(by_step, 0) == 0.5
    assert logged(by_step, TOTAL_STEPS) == pytest.approx(0, abs=1e-6)
    by_epoch = make_config(*target, "schedule.interval=epoch")
    assert logged(by_epoch, STEPS_PER_EPOCH - 1) == 0.5 > logged(by_epoch, STEPS_PER_EPOCH)
    assert logged(by_epoch, TOTAL_STEPS) == pytest.approx(0, abs=1e-6)


LION = ("optimizer=custom", "optimizer._target_=keras.optimizers.Lion")
STEPS = "{_target_: keras.optimizers.schedules.PiecewiseConstantDecay, boundaries: [5], values: [1.0, 0.25]}"
COSINE = ("schedule=custom", "schedule._target_=keras.optimizers.schedules.CosineDecay")


@pytest.mark.parametrize(
    ("overrides", "rates"),
    [
        ((*LION, "+optimizer.learning_rate=0.02"), (0.02, 0.02)),
        ((*LION, "+optimizer.learning_rate=0.02", "trainer.precision=16-mixed"), (0.02, 0.02)),
        ((*LION, f"+optimizer.learning_rate={STEPS}"), (1.0, 0.25)),
        ((*COSINE, "+schedule.initial_learning_rate=0.5", "+schedule.decay_steps=10"), (0.5, 0.0)),
    ],
)
def test_an_argument_of_the_user_is_used_and_logged(make_config, overrides, rates) -> None:
    from train_anywhere.training.keras.optim import make_optimizer

    config = make_config(*overrides)
    optimizer = make_optimizer(config, PLAN, 1)
    for step, rate in zip((0, 10), rates, strict=True):
        getattr(optimizer, "inner_optimizer", optimizer).iterations.assign(step)
        assert float(optimizer.learning_rate) == pytest.approx(rate, abs=1e-7)
        assert logged(config, step) == pytest.approx(rate, abs=1e-7)


@pytest.mark.parametrize("name", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_gradients_are_clipped_by_one_key(make_config, name: str) -> None:
    from train_anywhere.errors import ConfigError
    from train_anywhere.training.keras.optim import make_optimizer

    with pytest.raises(
        ConfigError, match=rf"optimizer.{name}=1.0 and trainer.gradient_clip_val=5.0 both clip"
    ):
        make_optimizer(make_config(*LION, f"+optimizer.{name}=1.0", "trainer.gradient_clip_val=5.0"), PLAN, 1)
    assert getattr(make_optimizer(make_config(*LION, f"+optimizer.{name}=1.0"), PLAN, 1), name) == 1.0


def test_callbacks_can_set_a_constant_learning_rate(make_config) -> None:
    from train_anywhere.errors import ConfigError
    from train_anywhere.training.keras.optim import make_optimizer

    halved = "+callbacks.x._target_=engine.tests.training.keras.strangers.Halved"
    with pytest.raises(
        ConfigError, match=r"callbacks\.x sets the learning rate, and so does schedule=cosine"
    ):
        make_optimizer(make_config(halved), PLAN, 1)
    constant = ("schedule=constant", "schedule.warmup_epochs=0")
    for callback in (halved, "+callbacks.x._target_=keras.callbacks.LambdaCallback"):
        optimizer = make_optimizer(make_config(callback, *constant), PLAN, 1)
        optimizer.learning_rate = 0.125
        assert float(optimizer.learning_rate) == 0.125


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["schedule=custom", "schedule._target_=keras.optimizers.SGD"], "returns a SGD, which is not a LearningRateSchedule"),
        (["optimizer=custom", "optimizer._target_=keras.optimizers.schedules.ExponentialDecay", *(
            "+optimizer.initial_learning_rate=1.0", "+optimizer.decay_steps=1", "+optimizer.decay_rate=0.5",
        )], "takes no learning_rate, so optimizer.lr would have no effect"),
    ],
)  # fmt: skip
def test_a_target_of_another_kind_is_refused(make_config, overrides: list[str], says: str) -> None:
    from train_anywhere.errors import ConfigError
    from train_anywhere.training.keras.optim import make_optimizer

    with pytest.raises(ConfigError, match=says):
        make_optimizer(make_config(*overrides), PLAN, 1)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_groups_by_pattern(make_config, name: str) -> None:
    """Each variable moves as with its own optimizer with the settings of its group."""
    import keras
    import tensorflow as tf

    from train_anywhere.training.keras.optim import make_optimizer

    common = (f"optimizer={name}", "optimizer.lr=0.1", "optimizer.weight_decay=0.5", "schedule=cosine")
    groups = 'optimizer.groups=[{match: "slow.*", lr: 0.025}, {match: ".*bias", weight_decay: 0}]'
    paths = ["slow", "slow_bias", "fast", "fast_bias"]
    variables = [keras.Variable(np.ones(3, np.float32), name=path) for path in paths]
    optimizer = make_optimizer(make_config(*common, groups), PLAN, 1)
    optimizer.build(variables)
    for gradient in GRADIENTS:
        optimizer.apply([tf.constant(gradient)] * 4)
    for path, variable in zip(paths, variables, strict=True):
        lr, decay = 0.025 if "slow" in path else 0.1, 0 if "bias" in path else 0.5
        alone = make_config(*common, f"optimizer.lr={lr}", f"optimizer.weight_decay={decay}")
        np.testing.assert_allclose(variable.numpy(), stepped(alone, GRADIENTS), rtol=1e-6, err_msg=path)


def test_groups_need_an_optimizer_of_this_project(make_config) -> None:
    from train_anywhere.errors import ConfigError
    from train_anywhere.training.keras.optim import make_optimizer

    groups = 'optimizer.groups=[{match: ".*", lr: 1}]'
    config = make_config(
        "optimizer=custom", "optimizer._target_=keras.optimizers.Nadam", groups, "framework=keras"
    )
    with pytest.raises(ConfigError, match="one learning rate for all variables"):
        make_optimizer(config, PLAN, 1)
