"""Which loggers a rank gets, and what they are given."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.tracking import open_loggers

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
