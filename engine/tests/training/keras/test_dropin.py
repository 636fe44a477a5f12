"""User models with the drop-in: they train, stop and resume bit for bit, or are refused."""

import csv
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError, DataError
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.recorder import RunRecorder

HERE = "engine.tests.training.keras.strangers"
BASE = (
    "framework=keras", "task=custom", "data=custom", "data.batch_size=16", f"data._target_={HERE}.open_rows",
    "trainer.accelerator=cpu", "trainer.max_epochs=3", "trainer.log_every_n_steps=2", "monitor.progress=plain",
)  # fmt: skip
NO_EVALUATION = ("trainer.limit_val_batches=0", "trainer.limit_test_batches=0")
AVERAGED = (
    "optimizer=custom", "optimizer._target_=keras.optimizers.Adam", "+optimizer.use_ema=true",
    "+optimizer.ema_overwrite_frequency=4",
)  # fmt: skip

Make = Callable[..., tuple[Config, RunDir]]


def task(name: str) -> str:
    return f"task._target_={HERE}.{name}"


def run_keras(config: Config, run: RunDir, stop: Stop | None = None) -> Outcome:
    from train_anywhere.training.keras.run import train

    return train(config, RankProcess(run, Topology(), stop or Stop(), RunRecorder(run)))


def trained(make_run: Make, *overrides: str) -> tuple[Outcome, RunDir]:
    config, run = make_run(*BASE, *overrides)
    return run_keras(config, run), run


def rows(run: RunDir) -> list[dict[str, str]]:
    with open(run.metrics_csv, newline="") as file:
        return list(csv.DictReader(file))


def bits(outcome: Outcome) -> dict[str, bytes]:
    """All that a checkpoint holds, by file and name."""
    found = {}
    for path in Path(str(outcome.checkpoint)).glob("*.npz"):
        with np.load(path) as file:
            found |= {f"{path.stem}/{key}": file[key].tobytes() for key in file.files}
    return found


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch):
    """`stop_at(5)`: this process gets a real SIGUSR1 in its step number 5."""
    before = signal.getsignal(signal.SIGUSR1)

    def prepare(step: int) -> Stop:
        from train_anywhere.training.keras.loop.callbacks import TrainingCallback

        original = TrainingCallback._end_step

        def wrapped(self: object, steps: int, *arguments: object) -> None:
            if self.position.step < step <= self.position.step + steps:
                os.kill(os.getpid(), signal.SIGUSR1)
            original(self, steps, *arguments)

        monkeypatch.setattr(TrainingCallback, "_end_step", wrapped)
        return Stop().install()

    yield prepare
    signal.signal(signal.SIGUSR1, before)


SHOWN = {
    "own step": (task("OwnStep"), "task.dropout=0.3"),
    "tf.data": (task("OwnStep"), f"data._target_={HERE}.open_tf"),
}
ALSO = {
    "own optimizer": (task("compiled"), "task.optimizer=adam", "trainer.precision=16-mixed"),
    "gan": (task("Gan"), *NO_EVALUATION),
    "bare variables": (task("BareVariable"),),
    "shared shuffle": (task("OwnStep"), f"data._target_={HERE}.open_parts", "data.shared=true"),
    "deep": (task("deep"), f"data._target_={HERE}.open_noise", "data.batch_size=8", *NO_EVALUATION),
}


@pytest.mark.parametrize(
    "overrides",
    [
        *(pytest.param(words, id=name) for name, words in SHOWN.items()),
        *(pytest.param(words, id=name, marks=pytest.mark.slow) for name, words in ALSO.items()),
    ],
)
@pytest.mark.quick("tf.data")
def test_a_stopped_run_resumes_bit_for_bit(make_run: Make, stop_at, monkeypatch, overrides) -> None:
    resume_equals_uninterrupted(make_run, stop_at, monkeypatch, 9, *overrides)


UNDISTURBED: dict[tuple[str, ...], tuple[Outcome, dict[str, bytes], list[dict[str, str]]]] = {}
"""Results of runs that nothing has stopped: each trains once for all the stops that it is compared with."""


def resume_equals_uninterrupted(make_run: Make, stop_at, monkeypatch, step: int, *overrides: str) -> None:
    """Compare all that the last checkpoints hold, and all metrics."""
    if overrides not in UNDISTURBED:
        outcome, whole = trained(make_run, *overrides)
        UNDISTURBED[overrides] = outcome, bits(outcome), rows(whole)
    expected, state, table = UNDISTURBED[overrides]
    config, parts = make_run(*BASE, *overrides)
    with monkeypatch.context():
        stopped = run_keras(config, parts, stop_at(step))
    assert stopped.state == "preempted" and stopped.step in (step, step + 1)  # a call may make two steps
    monkeypatch.undo()
    ended = run_keras(config, open_run(parts.path))
    assert (ended.state, ended.step) == ("completed", expected.step)
    found = bits(ended)
    assert [k for k, v in state.items() if found[k] != v] == []
    assert ended.metrics == expected.metrics
    assert rows(parts) == table  # counts of metrics within an epoch continue too


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((task("OwnStep"), "task.dropout=0.3"), id="own step"),
        pytest.param((task("compiled"), *AVERAGED), id="averaged", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("step", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_validations_within_an_epoch_are_resumed_bit_for_bit(make_run, stop_at, monkeypatch, overrides, step):
    words = ("trainer.val_check_interval=3", "trainer.log_every_n_steps=1")
    resume_equals_uninterrupted(make_run, stop_at, monkeypatch, step, *overrides, *words)


UNFREEZES = f"+callbacks.unfreezes._target_={HERE}.Unfreezes"


AGAIN = "+callbacks.unfreezes.again=true"


@pytest.mark.parametrize(
    "overrides",
    [
        (task("compiled"), UNFREEZES),
        (task("compiled"), UNFREEZES, AGAIN),
        pytest.param((task("OwnStep"), UNFREEZES, AGAIN), marks=pytest.mark.slow),
        pytest.param((task("compiled"), "task.optimizer=adam", UNFREEZES, AGAIN), marks=pytest.mark.slow),
        (task("compiled"), f"{UNFREEZES}Within", "+callbacks.unfreezes.batch=3", AGAIN),
    ],
    ids=["without effect", "run's optimizer", "own step", "own optimizer", "within an epoch"],
)
@pytest.mark.parametrize("step", [6, 14])
@pytest.mark.slow
def test_what_is_trainable_is_resumed(make_run: Make, stop_at, monkeypatch, step: int, overrides) -> None:
    """The first layer is trained after a resume in epoch 2 without a callback, if the step was traced again."""
    resume_equals_uninterrupted(make_run, stop_at, monkeypatch, step, *overrides)


def test_what_is_trainable_is_resumed_in_steps_that_are_not_traced(make_run: Make, stop_at, monkeypatch):
    words = (task("compiled"), "task.eager=true", UNFREEZES)
    resume_equals_uninterrupted(make_run, stop_at, monkeypatch, 14, *words)


def test_what_was_traced_is_resumed_after_a_process_without_a_step(make_run: Make, monkeypatch) -> None:
    """A resumed process validates and saves, and dies before its first step."""
    from train_anywhere.training.keras.loop.callbacks import TrainingCallback

    words, flag = (task("compiled"), UNFREEZES), Stop()
    outcome, _ = trained(make_run, *words)
    config, parts = make_run(*BASE, *words)

    def stop_in_validation(self: TrainingCallback, at_step: bool = False) -> None:
        flag.requested = "SIGUSR1" if self.position.epoch == 1 and not at_step else None
        check(self, at_step)

    check = TrainingCallback.check_requests
    with monkeypatch.context() as patched:
        patched.setattr(TrainingCallback, "check_requests", stop_in_validation)
        assert run_keras(config, parts, flag).state == "preempted"
    with monkeypatch.context() as patched:
        patched.setattr(TrainingCallback, "_end_step", None)
        with pytest.raises(TypeError, match="not callable"):
            run_keras(config, open_run(parts.path))
    ended = run_keras(config, open_run(parts.path))
    assert bits(ended) == bits(outcome)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("kind", "moves"), [("", [False, True]), ("Within", [True, True])])
@pytest.mark.quick("Within-moves1-True")
def test_a_layer_that_a_callback_unfreezes_is_trained_as_in_fit(make_run, kind, moves, again) -> None:
    """Keras traces the step at the first batch, and again if `make_train_function` forces it."""
    from engine.tests.training.keras.strangers import Unfreezes

    words = [f"+callbacks.unfreezes.again={again}", *(["+callbacks.unfreezes.batch=3"] if kind else [])]
    trained(make_run, task("compiled"), f"{UNFREEZES}{kind}", *words, "trainer.max_epochs=2")
    begun, *_, between, last = Unfreezes.seen
    assert [(begun != between).any(), (between != last).any()] == (moves if again else [False, False])


BEST = "{_target_: keras.callbacks.EarlyStopping, monitor: val_loss, min_delta: 100, patience: 3, restore_best_weights: true}"


def test_plain_attributes_of_callbacks_are_saved_and_restored() -> None:
    import keras

    from engine.tests.training.keras.strangers import KeepsState
    from train_anywhere.training.keras.dropin.user_callbacks import CallbackStates
    from train_anywhere.training.keras.strategies.base import Strategy

    one, other = KeepsState(log_dir="here/1"), KeepsState(log_dir="here/2")
    model, lines = keras.Sequential([keras.layers.Dense(1)]), list[str]()
    states = CallbackStates({"callbacks.a": one}, model, lines.append)
    resumed = CallbackStates({"callbacks.a": other}, model, lines.append)
    for callback in (one, other):
        callback.on_train_begin()
    one.mean, one.last, one.base, one.phase = np.eye(2), (1, [2.5]), np.float32("nan"), "two"
    one.rates, one.seen, one.extra = {(0, 1): {2: np.arange(3)}}, {1, "a"}, True
    one.odd, one.log_dir = [object()], "/somewhere/else"
    resumed.restore(states.save(), Strategy())
    # a set with strings has another order in each process
    same = {"odd": None, "log_dir": "here/2", "seen": other.seen}
    assert other.seen == {1, "a"} and repr(vars(other)) == repr(vars(one) | same)
    assert lines == [
        "callbacks.a.odd[0] (object) changes in training and is not in a checkpoint; give it state_dict and load_state_dict."
    ]


@pytest.mark.parametrize("saved", [{}, {"data": "{"}, {"data": "bm8gZmlsZQ=="}, {"data": 3}])
def test_a_state_that_is_none_is_refused(saved: dict[str, str]) -> None:
    import keras

    from engine.tests.training.keras.strangers import KeepsState
    from train_anywhere.training.keras.dropin.user_callbacks import CallbackStates
    from train_anywhere.training.keras.strategies.base import Strategy

    with pytest.raises(CheckpointError, match="attributes can't be read"):
        CallbackStates({"callbacks.a": KeepsState()}, keras.Sequential(), print).restore(saved, Strategy())


def test_state_that_can_not_be_kept_is_said_at_the_first_checkpoint(make_run: Make, capsys) -> None:
    odd = (f"+callbacks.a._target_={HERE}.KeepsState", "+callbacks.a.odd=true", "trainer.max_epochs=1")
    _, run = trained(make_run, task("OwnStep"), "schedule=constant", *odd)
    line = "callbacks.a.odd (object) changes in training and is not in a checkpoint"
    assert "".join(capsys.readouterr()).count(line) == 1
    (note,) = run.read_info()["notes"]
    assert note.startswith(line)


@pytest.mark.slow
def test_a_log_of_epochs_is_kept_by_a_resume(make_run: Make, tmp_path: Path) -> None:
    log = f"+callbacks.csv={{_target_: keras.callbacks.CSVLogger, filename: {tmp_path / 'keras.csv'}}}"
    _, run = trained(make_run, task("OwnStep"), log, "trainer.max_epochs=1")
    config, _ = make_run(*BASE, task("OwnStep"), log)
    run_keras(config, open_run(run.path))
    with open(tmp_path / "keras.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]


SWAP = "+callbacks.s._target_=keras.callbacks.SwapEMAWeights"
ONE_MODEL = {
    "average": (task("OwnStep"), *AVERAGED[:3]),
    "average of 16 bits": (task("compiled"), *AVERAGED[:3], SWAP, "trainer.precision=16-mixed"),
    "average written over": (task("OwnStep"), *AVERAGED, SWAP),
    "own kind of Keras' swap": (task("OwnStep"), *AVERAGED[:3], f"+callbacks.s._target_={HERE}.Swaps"),
    "own swap": (task("OwnStep"), f"+callbacks.s._target_={HERE}.SwapsItself"),
    "own change at the end": (task("OwnStep"), f"+callbacks.s={{_target_: {HERE}.SwapsItself, at_end: true}}"),
    "best restored": (task("OwnStep"), f"+callbacks.s={BEST}", "trainer.max_epochs=6"),
}  # fmt: skip


@pytest.mark.parametrize("overrides", [pytest.param(words, id=name) for name, words in ONE_MODEL.items()])
@pytest.mark.slow
def test_the_weights_that_were_validated_are_the_model(make_run: Make, overrides) -> None:
    """Validation, test, evaluate.py and readers agree. A resume trains with the earlier weights."""
    from train_anywhere.training.keras.inference import open_trained_model

    outcome, _ = trained(make_run, *overrides)
    config, _ = make_run(*BASE, *overrides)
    opened = open_trained_model(config, Path(str(outcome.checkpoint)))
    for split in ("val", "test"):
        expected = {k: v for k, v in outcome.metrics.items() if k.startswith(split)}
        assert opened.measure(split)[0] == pytest.approx(expected, rel=1e-5)
    found = bits(outcome)
    assert [k for k in found if k.startswith("raw/") and found[k] != found[f"weights/{k[4:]}"]]


@pytest.mark.parametrize("step", [9, 12])
@pytest.mark.parametrize("name", ["average", "average written over", "own swap", "own change at the end"])
@pytest.mark.slow
def test_what_is_not_validated_is_trained_on(make_run, stop_at, monkeypatch, name, step) -> None:
    resume_equals_uninterrupted(make_run, stop_at, monkeypatch, step, *ONE_MODEL[name])


@pytest.mark.slow
def test_weights_that_come_at_the_end_are_not_those_of_the_checkpoint(make_run: Make, capsys) -> None:
    from train_anywhere.training.keras.inference import open_trained_model

    options = (task("compiled"), f"+callbacks.a._target_={HERE}.Quantizes", "checkpoint.monitor=val/loss")
    outcome, _ = trained(make_run, *options, "trainer.max_epochs=1")
    assert "callbacks added or removed weights of the model in on_train_end" in capsys.readouterr().out
    opened = open_trained_model(make_run(*BASE, *options)[0], Path(str(outcome.checkpoint)))
    before, after = opened.measure("test")[0]["test/loss"], outcome.metrics["test/loss"]
    assert before != after and before == pytest.approx(after, rel=0.01)


@pytest.mark.slow
def test_a_run_is_continued_from_before_its_end(make_run: Make) -> None:
    """Weights that a callback made at the end are the model, but not the start of more epochs."""
    options = ONE_MODEL["own change at the end"]
    expected, _ = trained(make_run, *options, "schedule=constant", "trainer.max_epochs=2")
    _, run = trained(make_run, *options, "schedule=constant", "trainer.max_epochs=1")
    config, _ = make_run(*BASE, *options, "schedule=constant", "trainer.max_epochs=2")
    assert bits(run_keras(config, open_run(run.path))) == bits(expected)


@pytest.mark.slow
def test_a_callback_may_come_with_a_resume(make_run: Make) -> None:
    """A rate that callbacks set is a variable of the optimizer, which the checkpoint lacks."""
    _, run = trained(make_run, task("OwnStep"), "schedule=constant", "trainer.max_epochs=1")
    config, _ = make_run(*BASE, task("OwnStep"), "schedule=constant", f"+callbacks.a._target_={HERE}.Reads")
    assert run_keras(config, open_run(run.path)).step == 18


def test_class_weights_are_those_of_fit(make_run: Make) -> None:
    zero = "trainer.extra.class_weight={" + ", ".join(f"{n}: 0.0" for n in range(10)) + "}"
    config, run = make_run("framework=keras", "model=mlp", "trainer.max_epochs=1", zero)
    metrics = run_keras(config, run).metrics
    assert metrics["train/loss"] == 0 < metrics["val/loss"]


def test_rows_are_in_their_own_order_without_shuffle(make_run: Make) -> None:
    one, other = (
        trained(make_run, task("OwnStep"), *NO_EVALUATION, f"trainer.{words}")[0]
        for words in ("extra.shuffle=false", "overfit_batches=1.0")
    )
    assert bits(one) == bits(other) != bits(trained(make_run, task("OwnStep"), *NO_EVALUATION)[0])


def test_a_split_by_the_key_is_the_same_as_one_by_the_data(make_run: Make) -> None:
    one, other = (
        trained(make_run, task("OwnStep"), f"data._target_={HERE}.{data}", *words, *AVERAGED)[0]
        for data, *words in (("divided_rows",), ("only_rows", "trainer.extra.validation_split=0.25"))
    )
    assert bits(one) == bits(other) and one.metrics == other.metrics and "val/loss" in one.metrics


def test_a_callback_ends_the_run_as_in_fit_and_is_named(make_run: Make, capsys) -> None:
    """The epoch ends with a validation, at the step at which it stops."""
    outcome, run = trained(make_run, task("OwnStep"), f"+callbacks.stops._target_={HERE}.Stops")
    line = "Stops ended training after step 9 of 18"
    assert (outcome.step, outcome.ended_by) == (9, line) and line in capsys.readouterr().out
    assert [(row["step"], bool(row["train/loss"])) for row in rows(run) if row["val/loss"]] == [
        ("6", True), ("9", True),
    ]  # fmt: skip


def test_a_monitor_may_have_its_name_in_keras(make_run: Make) -> None:
    words = (
        "checkpoint.monitor=val_mae", "trainer.early_stopping.monitor=loss", "trainer.early_stopping.patience=5",
    )  # fmt: skip
    config, run = make_run(*BASE, task("OwnStep"), *words, "trainer.max_epochs=1")
    assert (config.checkpoint.monitor, config.trainer.early_stopping.monitor) == ("val/mae", "train/loss")
    run_keras(config, run)
    assert (run.checkpoints / "best").exists()


def test_a_wrong_monitor_is_refused_before_the_first_step(make_run: Make) -> None:
    config, run = make_run(*BASE, task("OwnStep"), "checkpoint.monitor=val_mea", "checkpoint.mode=min")
    with pytest.raises(
        ConfigError, match=r"checkpoint\.monitor=val/mea was not measured\. Did you mean 'val/mae'"
    ):
        run_keras(config, run)
    assert not run.metrics_csv.exists()


def test_the_best_is_kept_and_tested(make_run: Make) -> None:
    """A learning rate that destroys the model after its first epoch."""
    options = (
        "optimizer=sgd", "optimizer.lr=0.01", "schedule=custom", "schedule._target_=keras.optimizers.schedules.PiecewiseConstantDecay",
        "+schedule.boundaries=[6]", "+schedule.values=[0.01,5.0]", "checkpoint.keep_last=1",
    )  # fmt: skip
    outcome, run = trained(
        make_run, task("OwnStep"), *options, "checkpoint.monitor=val/mae", "checkpoint.mode=min"
    )
    values = [float(row["val/mae"]) for row in rows(run) if row["val/mae"]]
    assert min(values) == values[0] < values[-1]
    assert (run.checkpoints / "best").read_text().strip() == "00000006"
    assert outcome.metrics["test/mae"] < values[-1] / 2


def test_an_endless_stream_needs_a_length(make_run: Make) -> None:
    stream = (f"data._target_={HERE}.open_tf", "data.endless=true")
    with pytest.raises(
        ConfigError, match=r"does not say how many batches it has; use trainer.limit_train_batches=N"
    ):
        trained(make_run, task("OwnStep"), *stream)
    outcome, _ = trained(make_run, task("OwnStep"), *stream, "trainer.limit_train_batches=4")
    assert outcome.step == 12


@pytest.mark.parametrize("target, head", [("open_tf", "16"), ("open_endpoint", "as the data yields them")])
def test_the_rows_of_a_stream_are_those_that_were_trained(make_run, monkeypatch, capsys, target, head):
    """data.batch_size has no effect on a stream: head and speed have its own batches."""
    from train_anywhere.training.reporting.progress import Throughput

    add, seen = Throughput.add_batches, list[float]()

    def watched(self: Throughput, synchronized: bool, *counts: int) -> None:
        if synchronized:
            seen.append(self.rows)
        add(self, synchronized, *counts)

    monkeypatch.setattr(Throughput, "add_batches", watched)
    name = "endpoint" if target == "open_endpoint" else "OwnStep"
    words = (task(name), f"data._target_={HERE}.{target}", "data.batch_size=64", "trainer.max_epochs=1")
    trained(make_run, *words)
    assert f"Batch:         {head}\n" in capsys.readouterr().out
    assert seen[:3] == [16, 16, 16] and seen[-1] == (16 if target == "open_tf" else 4)


@pytest.mark.parametrize("target", ["one_stream", "only_rows", "named_arrays"])
@pytest.mark.quick("one_stream")
def test_data_as_it_is_given_to_fit(make_run: Make, target: str) -> None:
    """A data set without validation, arrays of 64 bits and labels."""
    outcome, _ = trained(make_run, task("compiled"), f"data._target_={HERE}.{target}", "trainer.max_epochs=2")
    assert (outcome.state, outcome.step) == ("completed", 2 * (100 // 16))
    assert ("val/loss" in outcome.metrics) == target.endswith("arrays")


@pytest.mark.parametrize("kind", ["generator", "iterable"])
@pytest.mark.quick("generator")
def test_any_data_is_evaluated_to_its_end(make_run: Make, kind: str) -> None:
    words = (f"data._target_={HERE}.validated", f"data.kind={kind}", "trainer.max_epochs=2")
    outcome, _ = trained(make_run, task("compiled"), *words)
    assert outcome.metrics["test/loss"] == pytest.approx(outcome.metrics["val/loss"])


def test_early_stopping_without_validation_looks_at_the_training(make_run: Make) -> None:
    words = (
        "trainer.early_stopping.monitor=train/loss", "trainer.early_stopping.min_delta=1e9", "trainer.max_epochs=9",
    )  # fmt: skip
    outcome, _ = trained(
        make_run,
        task("compiled"),
        f"data._target_={HERE}.only_rows",
        "trainer.early_stopping.patience=2",
        *words,
    )
    assert outcome.epoch == 3


PATIENT = ("trainer.early_stopping.patience=2", "trainer.early_stopping.monitor=val/loss")
REFUSED = [
    ((task("OwnStep"), f"data._target_={HERE}.only_rows", *PATIENT), "patience=2 counts validations"),
    ((task("OwnStep"), SWAP), "callbacks.s swaps moving averages, and no optimizer has them; add optimizer.use_ema=true"),
    ((task("OwnCompile"),), r"has its own compile\(\), which needs more arguments than optimizer"),
    ((task("OwnStep"), f"data._target_={HERE}.read_once"), "which can be read once only, and every validation reads it from the beginning"),
    ((task("OwnStep"), f"data._target_={HERE}.two_validations"), "a row of the data is a Rows, a data set itself; return one each"),
    (
        (task("OwnStep"), "optimizer=custom", f"optimizer._target_={HERE}.Picky"),
        r"^optimizer._target_=\S+Picky can't be made: learning_rate is not for me\.$",
    ),
    *(((task(name),), f"{name} creates layers or variables in its train_step") for name in ("LateVariable", "LateLayer", "NewVariables")),
    ((task("no_task"), "+task.hidden=-1"), "^task._target_=.*no_task can't be made: .*units"),
    ((task("without_loss"),), "has neither a loss nor a train_step: call compile"),
    ((task("UncompiledLoss"),), "has a train_step that calls compute_loss, but no compiled loss: compute the loss in that step, or"),
    ((task("Gan"),), "has a train_step, but neither a test_step nor a compiled loss, so nothing can be evaluated"),
    ((task("no_task"),), "returns a Dense, which is not a keras.Model"),
    ((task("OwnStep"), "trainer.accumulate_grad_batches=2"), "makes an optimizer step for each batch; use"),
    (
        (task("compiled"), "task.optimizer=adam", "trainer.gradient_clip_val=1"),
        "would have no effect: .* brings its own optimizer; give that one global_clipnorm",
    ),
    (
        (task("compiled"), "+callbacks.x._target_=keras.callbacks.ModelCheckpoint", "+callbacks.x.filepath=x.keras"),
        "callbacks.x is a ModelCheckpoint, and this project writes the checkpoints",
    ),
]  # fmt: skip


@pytest.mark.parametrize("overrides, says", REFUSED, ids=[says[:40] for _, says in REFUSED])
@pytest.mark.quick("a row of the data is a Rows, a data set ", "^optimizer._target_=\\\\S+Picky can't be ma")
def test_what_can_not_be_right_is_one_sentence(make_run: Make, overrides, says: str) -> None:
    with pytest.raises((ConfigError, DataError), match=says):
        trained(make_run, *overrides)


def test_an_epoch_ends_for_callbacks_if_its_time_is_over_in_a_validation(make_run, monkeypatch, tmp_path):
    from train_anywhere.training.keras.loop.callbacks import TrainingCallback

    reduce = TrainingCallback.reduce

    def late(self: TrainingCallback, split: str) -> dict[str, float]:
        if split == "val":
            self.timer.limit = 0
        return reduce(self, split)

    monkeypatch.setattr(TrainingCallback, "reduce", late)
    log = f"+callbacks.csv={{_target_: keras.callbacks.CSVLogger, filename: {tmp_path / 'keras.csv'}}}"
    outcome, _ = trained(
        make_run, task("OwnStep"), "trainer.val_check_interval=2", "trainer.max_time=1:00:00", log
    )
    assert (outcome.state, outcome.step) == ("completed", 2)
    assert len((tmp_path / "keras.csv").read_text().splitlines()) == 2


def test_an_error_of_a_step_is_no_missing_test_step(make_run: Make) -> None:
    with pytest.raises(NotImplementedError, match="the penalty of this model"):
        trained(make_run, task("Unfinished"))


def test_the_history_of_a_model_is_that_of_fit(make_run: Make) -> None:
    """It has each epoch and what other callbacks add to the logs, also in a resumed run. The best may be that of such a value."""
    import keras

    from engine.tests.training.keras.strangers import ReadsHistory

    ReadsHistory.begun.clear()
    ReadsHistory.ended.clear()
    callbacks = (f"+callbacks.a._target_={HERE}.ReadsHistory", f"+callbacks.b._target_={HERE}.AddsMetrics")
    words = (task("OwnStep"), *callbacks, "checkpoint.monitor=val/other", "checkpoint.mode=max")
    _, run = trained(make_run, *words, "trainer.max_epochs=1")
    config, _ = make_run(*BASE, *words)
    outcome = run_keras(config, open_run(run.path))
    assert ReadsHistory.begun == [keras.callbacks.History] * 2
    (first, _), (epochs, history) = ReadsHistory.ended
    assert (first, epochs) == ([0], [0, 1, 2])
    ends = [row for row in rows(run) if row["val/loss"]]
    for name, column in (("loss", "train/loss"), ("val_loss", "val/loss"), ("val_other", "val/other")):
        assert history[name] == pytest.approx([float(row[column]) for row in ends], rel=1e-5)
    assert [row["val/other"] for row in ends] == ["0.5", "0.4", "0.3"]
    assert [row["train/norm"] for row in ends] == ["2", "", ""]
    assert not {"train/text", "train/learning_rate"} & ends[0].keys()
    assert outcome.metrics["val/other"] == pytest.approx(0.3)
    assert (run.checkpoints / "best").read_text().strip() == f"{int(ends[0]['step']):08}"


@pytest.mark.slow
def test_an_optimizer_of_keras_counts_steps_and_not_accumulated_batches(make_run: Make) -> None:
    config, run = make_run(
        "framework=keras", "model=mlp", "data=synthetic", "optimizer=custom", "optimizer._target_=keras.optimizers.Adam",
        "trainer.accumulate_grad_batches=2", "trainer.limit_train_batches=8", "trainer.max_epochs=1", "data.batch_size=8",
        "trainer.accelerator=cpu", *NO_EVALUATION,
    )  # fmt: skip
    outcome = run_keras(config, run)
    (count,) = (value for name, value in bits(outcome).items() if name.endswith("/iteration"))
    assert (outcome.step, np.frombuffer(count, np.int64)[0]) == (4, 4)


def test_loggers_get_every_metric(make_run: Make, tmp_path: Path) -> None:
    from engine.tests.training.keras.strangers import Heard

    Heard.rows.clear()
    _, run = trained(make_run, task("OwnStep"), f"+loggers.x._target_={HERE}.Heard", "trainer.max_epochs=1")
    assert Heard.rows[-1] == "completed"
    assert [step for step, _ in Heard.rows[:-1]] == [int(row["step"]) for row in rows(run)]
    assert {"val/mae", "lr"} <= Heard.rows[-3][1].keys()


NOTES = [
    ((task("Idle"), *NO_EVALUATION), r"nothing was trained: \d+ steps changed no weight"),
    ((task("compiled"), "task.optimizer=adam"), "each epoch leaves out 4 of 100 rows"),
    ((task("compiled"), "task.optimizer=adam"), "the model brings its own optimizer: optimizer and schedule have no effect."),
    ((task("OwnStep"), *AVERAGED[:2], "+optimizer.learning_rate=0.02"), "optimizer.scale_lr and schedule=cosine, which have no"),
    ((task("compiled"), "trainer.compile=true"), "this model has its own steps, and trains without XLA"),
    ((task("compiled"), f"data._target_={HERE}.only_rows", "checkpoint.monitor=val/loss"), "no validation data"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "says"), NOTES, ids=[says[:20] for _, says in NOTES])
@pytest.mark.quick("nothing was trained:", "no validation data")
def test_what_is_given_up_is_one_note(make_run: Make, capsys, overrides, says: str) -> None:
    outcome, _ = trained(make_run, *overrides, "trainer.max_epochs=1")
    assert outcome.state == "completed" and outcome.checkpoint
    assert len(re.findall(says, "".join(capsys.readouterr()))) == 1
