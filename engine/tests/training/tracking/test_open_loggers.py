"""Which loggers a rank gets, what they are given, and what their failures print."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.config.keys import OpenSection
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.tracking import GuardedLogger, checks, open_loggers

NEUTRAL = ("task=regression", "model=mlp", "cluster.site.internet=false")
HERE = "loggers.mine._target_=engine.tests.training.tracking.test_open_loggers"
Make = Callable[..., Config]


class Mine:
    """A user's logger."""

    def __init__(self, save_dir: str, run_id: str, parameters: Mapping[str, Any], level: int = 1) -> None:
        self.given = (save_dir, run_id, parameters["optimizer.lr"], level)
        self.rows: list[tuple[Mapping[str, float], int]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep a row."""
        self.rows.append((metrics, step))


class Broken:
    """Can't be made."""

    def __init__(self) -> None:
        raise PermissionError("not yours")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run folder."""
    folder = tmp_path / "20261120-101502-a1b2"
    folder.mkdir()
    return RunDir(folder)


def test_a_logger_is_given_what_it_takes(make_config: Make, run: RunDir) -> None:
    config = make_config(*NEUTRAL, f"{HERE}.Mine", "loggers.mine.level=3", "optimizer.lr=0.25")
    (mine,) = open_loggers(config, run, True)
    assert mine.logger.given == (str(run.path), run.id, 0.25, 3)
    mine.log_metrics({"a": 1.0, "b": 2.0}, 20)
    assert mine.logger.rows == [({"a": 1.0, "b": 2.0}, 20)]


def test_only_the_first_rank_has_loggers(make_config: Make, run: RunDir) -> None:
    config = make_config(*NEUTRAL, f"{HERE}.Mine")
    assert open_loggers(config, run, False) == []
    assert open_loggers(make_config(*NEUTRAL, f"{HERE}.Mine", "trainer.fast_dev_run=true"), run, True) == []
    assert open_loggers(make_config(*NEUTRAL), run, True) == []
    assert len(open_loggers(config, run, True)) == 1


def test_one_that_can_not_be_made(make_config: Make, run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    more = [f"{HERE.replace('mine.', 'other.', 1)}.Mine"]
    (other,) = open_loggers(make_config(*NEUTRAL, f"{HERE}.Broken", *more), run, True)
    assert other.name == "other"
    assert capsys.readouterr().err == "loggers.mine failed (not yours); training continues without it.\n"


def test_a_wrong_argument_is_refused(make_config: Make, run: RunDir) -> None:
    with pytest.raises(ConfigError, match="levle"):
        open_loggers(make_config(*NEUTRAL, f"{HERE}.Mine", "loggers.mine.levle=3"), run, True)


class Refusing:
    """A logger that keeps its calls and refuses the steps in `refused`."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.refused, self.calls = refused, 0
        self.rows: list[tuple[dict[str, float], int]] = []
        self.ended: list[str] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep a row, or raise."""
        self.calls += 1
        if step in self.refused:
            raise OSError("no route to\nhost")
        self.rows.append((dict(metrics), step))

    def finalize(self, status: str) -> None:
        """Keep how it ended."""
        self.ended.append(status)


FAILED = "loggers.mine failed (no route to host); training continues"


def test_a_guard_says_one_line_and_calls_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Refusing(refused=(2,))
    guard = GuardedLogger("mine", logger)
    for step in (1, 2, 3):
        guard.log_metrics({"a": 1.0}, step)
    guard.finalize("completed")
    assert (logger.calls, logger.ended) == (2, ["completed"])
    assert capsys.readouterr().err == f"{FAILED} without it.\n"


def test_a_guard_passes_everything_on(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Refusing()
    guard = GuardedLogger("mine", logger)
    guard.log_metrics({"a": 1.0, "b": 2.0}, 3)
    guard.finalize("completed")
    assert logger.rows == [({"a": 1.0, "b": 2.0}, 3)]
    assert (logger.ended, capsys.readouterr().err) == (["completed"], "")
    assert guard.logger is logger


def test_a_guard_needs_no_finalize() -> None:
    GuardedLogger("mine", object()).finalize("completed")


def test_what_is_installed_passes() -> None:
    checks.wandb()
    checks.mlflow()


def test_the_sentence_says_what_to_install() -> None:
    with pytest.raises(
        ConfigError, match=r"^loggers=nosuch needs the package nosuch.* pip install no-such\.$"
    ):
        checks.require("nosuch", "no-such")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_choices_name_their_checks(make_config: object, name: str) -> None:
    assert callable(make_config)
    neutral = ("task=regression", "model=mlp")
    section = make_config(f"loggers={name}", *neutral).loggers[name]
    assert isinstance(section, OpenSection)
    assert section.check == f"{checks.__name__}.{name}"
    assert callable(getattr(checks, name))
