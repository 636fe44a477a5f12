"""User data: every kind of loader is read to its end, with Lightning's hooks and Trainer."""

import itertools

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError, DataError
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.loaders import Opener

from .conftest import Fit, MakeRun
from .data_strangers import EVALUATED, ROWS, VAL, pairs

HERE = "engine.tests.training.lightning.data_strangers"
SHORT = ("data.batch_size=16", "trainer.max_epochs=2", "monitor.progress=plain", "trainer.accelerator=cpu")


@pytest.fixture
def reading(make_run: MakeRun) -> MakeRun:
    """`reading("evaluated", "data.kind=web")`: a run with the data that the function gives."""
    return lambda data, *words: make_run(
        f"task._target_={HERE}.Lit", f"data._target_={HERE}.{data}", *SHORT, *words
    )


@pytest.mark.parametrize("kind", EVALUATED)
@pytest.mark.quick("generators", "rows")
def test_every_row_of_any_loader_is_evaluated(kind: str, reading: MakeRun, fit: Fit) -> None:
    metrics = fit(*reading("evaluated", f"data.kind={kind}")).metrics
    for part in ("val", "test"):
        measured = {name: value for name, value in metrics.items() if name.startswith(f"{part}_rows")}
        assert measured and set(measured.values()) == {float(VAL)}


@pytest.mark.parametrize("data", ["split_at_random", "arrays", "tensors"])
def test_a_split_may_be_what_other_tools_return(data: str, reading: MakeRun, fit: Fit) -> None:
    outcome = fit(*reading(data))
    assert (outcome.step, outcome.metrics["val_rows"]) == (2 * ROWS // 16, float(VAL))


def test_no_validation_is_one_note(reading: MakeRun, fit: Fit, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = fit(*reading("only_train", "checkpoint.monitor=val_loss"))
    assert outcome.step == 2 * ROWS // 16 and outcome.checkpoint
    assert capfd.readouterr().out.count("there is no validation data: the newest checkpoint counts") == 1


def test_early_stopping_without_validation_is_refused(reading: MakeRun, fit: Fit) -> None:
    words = ("trainer.early_stopping.patience=2", "trainer.early_stopping.monitor=val_loss")
    with pytest.raises(ConfigError, match="patience=2 counts validations, and there is no validation data"):
        fit(*reading("only_train", *words))


@pytest.mark.parametrize("data", ["once", "once_to_train"])
def test_a_generator_can_t_be_read_twice(data: str, reading: MakeRun, fit: Fit) -> None:
    with pytest.raises(ConfigError, match="is a generator, which can be read only once"):
        fit(*reading(data, "trainer.limit_train_batches=4"))


def test_a_module_s_own_loaders_are_used_where_no_data_is_named(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(f"task._target_={HERE}.Boring", *SHORT[1:])
    assert config.data.name == "module"
    outcome = fit(config, run)
    assert outcome.step == 2 * ROWS // 16
    rows = {f"val_rows/dataloader_idx_{n}": float(VAL) for n in (0, 1)} | {"test_rows": float(VAL)}
    assert rows.items() <= outcome.metrics.items()


def test_lightning_s_own_boring_model_trains(make_run: MakeRun, fit: Fit) -> None:
    words = ["task._target_=lightning.pytorch.demos.boring_classes.BoringModel", *SHORT[1:]]
    assert fit(*make_run(*words)).step == 2 * 64


def test_named_data_wins_over_a_module_s_own(make_run, fit, capfd) -> None:
    words = [f"task._target_={HERE}.Boring", f"data._target_={HERE}.only_train", *SHORT]
    assert fit(*make_run(*words)).step == 2 * ROWS // 16
    assert "the train_dataloader of Boring is not used: data=custom replaces it" in capfd.readouterr().out


def test_a_module_without_loaders_needs_data(make_run: MakeRun, fit: Fit) -> None:
    with pytest.raises(ConfigError, match="Lit has no train_dataloader; name the data"):
        fit(*make_run(f"task._target_={HERE}.Lit", "data=module", *SHORT))


def test_a_data_module_has_its_trainer(reading: MakeRun, fit: Fit, capfd: pytest.CaptureFixture[str]) -> None:
    """Its validation rows are printed once Lightning has asked it for them."""
    outcome = fit(*reading("NeedsTrainer"))
    assert (outcome.step, outcome.metrics["val_rows"]) == (2 * ROWS // 16, float(VAL))
    assert capfd.readouterr().out.count(f"Validation:    {VAL} rows") == 1


@pytest.mark.parametrize("module", ["Dividing", "Passing"])
def test_a_data_module_s_own_batch_size_stays(module: str, make_run: MakeRun, fit: Fit) -> None:
    words = [f"task._target_={HERE}.Lit", f"data._target_={HERE}.{module}", *SHORT[1:]]
    assert fit(*make_run(*words)).step == 2 * ROWS // 64


def test_a_stream_of_a_data_module_gives_batches(reading: MakeRun, fit: Fit) -> None:
    assert fit(*reading("Streaming")).metrics["val_rows"] == VAL


def test_a_stream_of_rows_prints_its_batch(reading, fit, capfd) -> None:
    fit(*reading("rows_of_a_stream", "trainer.limit_train_batches=2"))
    assert "batches of 16 rows of a Stream" in capfd.readouterr().out


def test_a_loading_process_that_was_killed_is_one_sentence(reading: MakeRun, fit: Fit) -> None:
    with pytest.raises(DataError, match=r"a data loading process died.*data\.workers=1"):
        fit(*reading("dying", "data.workers=1"))


def saving(make_run: MakeRun, module: str, *words: str) -> tuple[Config, RunDir]:
    """A run whose module adds an object to its checkpoints."""
    names = (f"task._target_={HERE}.{module}", f"data._target_={HERE}.only_train")
    return make_run(*names, *SHORT, *words)


def test_objects_of_a_module_that_does_not_load_them_are_left_out(make_run, fit, capfd) -> None:
    config, run = saving(make_run, "Saves")
    assert fit(config, run, train=6).state == "preempted"
    out, err = capfd.readouterr()
    assert (out + err).count("left out of the checkpoints: scaler.inner (a ") == 1
    assert fit(config, run).step == 8


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("SavesAndLoads", []),
        ("Saves", ["checkpoint.other_objects=refuse"]),
        ("Lit", [f"callbacks.saving._target_={HERE}.SavingCallback"]),
    ],
)
def test_objects_that_may_be_loaded_are_refused_before_the_first_step(module, words, make_run, fit) -> None:
    config, run = saving(make_run, module, *words)
    with pytest.raises(CheckpointError, match=r"can't hold scaler.*checkpoint\.other_objects=leave_out"):
        fit(config, run)
    steps_done = fit.recorder.steps_done  # type: ignore[attr-defined]
    assert not steps_done or not steps_done()


def test_objects_that_were_left_out_are_loaded_as_the_new_module_has_them(make_run, fit, capfd) -> None:
    config, run = saving(make_run, "SavesAndLoads", "checkpoint.other_objects=leave_out")
    fit(config, run, train=6)
    assert fit(config, run).step == 8
    assert "loaded 6 Keeper" in capfd.readouterr().out


def test_several_loaders_need_a_step_that_takes_their_number(make_run: MakeRun, fit: Fit) -> None:
    with pytest.raises(
        ConfigError, match=r"Lightning refuses: You provided multiple .*Try adding `dataloader_idx=0`"
    ):
        fit(*make_run(f"task._target_={HERE}.NoIndex", *SHORT[1:]))


@pytest.mark.parametrize("kind", ["none", "arrays", "loader", "sampler"])
def test_a_bundled_task_validates_on_any_of_them(kind: str, make_run: MakeRun, fit: Fit) -> None:
    words = [
        "task=regression", "model=mlp", "model.hidden=[8]", f"data._target_={HERE}.tables", f"data.kind={kind}",
    ]  # fmt: skip
    outcome = fit(*make_run(*words, *SHORT))
    assert outcome.step == 2 * ROWS // 16 and outcome.checkpoint
    assert ("val/mae" in outcome.metrics) == (kind != "none")


def test_overfitting_reads_the_same_rows_in_each_epoch(make_run: MakeRun) -> None:
    words = (f"task._target_={HERE}.Lit", f"data._target_={HERE}.evaluated", *SHORT)
    config, _ = make_run(*words, "data.kind=rows", "trainer.overfit_batches=2")
    loader = Opener(config, Topology(), lambda _: None).open_loader(pairs(40), "train")
    epochs = []
    for epoch in (0, 1):
        loader.sampler.set_epoch(epoch)
        epochs.append([x.tolist() for x, _ in itertools.islice(loader, 2)])
    assert epochs[0] == epochs[1]
