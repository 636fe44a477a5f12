"""Exceptions of user code are errors, also a StopIteration of a row. One of a step ends the epoch, as with Lightning alone."""

import traceback

import pytest

from train_anywhere.errors import SignalsAsErrors

from .conftest import Fit, MakeRun
from .ending_strangers import RAISED

HERE = "engine.tests.training.lightning.ending_strangers"
SHORT = (
    "data.batch_size=8", "trainer.max_epochs=1", "monitor.progress=none", "trainer.accelerator=cpu", "checkpoint.monitor=val_loss",
)  # fmt: skip
CASES = [
    *((name, f"task._target_={HERE}.Ends") for name in RAISED if name != "StopIteration"),
    *((name, f"data._target_={HERE}.rows") for name in ("StopIteration", "SystemExit")),
    ("StopIteration", f"data._target_={HERE}.rows", "data.part=val"),
    ("StopIteration", f"data._target_={HERE}.collated"),
    ("StopIteration", f"data._target_={HERE}.loaders", "data.processes=0"),
    ("StopIteration", f"data._target_={HERE}.loaders", "data.processes=1"),
    ("SystemExit", f"data._target_={HERE}.rows", "data.workers=1"),
]


def words_of(name: str, *words: str) -> list[str]:
    """The overrides of a case: the exception goes to the section of its first one."""
    first = (f"task._target_={HERE}.Ends", f"data._target_={HERE}.rows")
    given = {word.partition("=")[0]: word for word in (*first, *words)}
    return [*given.values(), f"{words[0].partition('.')[0]}.raises={name}", *SHORT]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
@pytest.mark.quick(
    "StopIteration data._target_=engine.tests.training.lightning.ending_strangers.rows data.part=val",
    "SystemExit data._target_=engine.tests.training.lightning.ending_strangers.rows",
)
def test_it_is_an_error_with_the_line_of_the_user(case: tuple[str, ...], make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*words_of(*case))
    with pytest.raises(Exception) as caught, SignalsAsErrors():  # as the rank does
        fit(config, run)
    text = "".join(traceback.format_exception(caught.value))
    assert case[0] in text and "in misbehave" in text


def test_an_iterator_ends_as_iterators_do(make_run: MakeRun, fit: Fit) -> None:
    words = [f"task._target_={HERE}.Ends", f"data._target_={HERE}.streams", "trainer.limit_val_batches=9"]
    config, run = make_run(*words, *SHORT)
    assert fit(config, run).state == "completed"


def test_a_step_with_the_iterator_ends_the_epoch(make_run: MakeRun, fit: Fit) -> None:
    words = [f"task._target_={HERE}.Reads", f"data._target_={HERE}.rows", "trainer.num_sanity_val_steps=0"]
    config, run = make_run(*words, *SHORT)
    outcome = fit(config, run)
    assert (outcome.state, outcome.step) == ("completed", 2)
