"""When a job may begin: the forms of sbatch, and a date for qsub."""

from collections.abc import Callable

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.slurm.script import units
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.script.render import render

MakeConfig = Callable[..., Config]


TIMES = [
    *("20:00", "9:30:15", "midnight", "tomorrow", "now", "now+3600", "now+2days", "2026-12-01"),
    "2026-12-01T08:00:30",
]
NEVER = [
    *("later", "25:00", "1200", "now+", "now+1month", "2026-13-01", "2026-02-31", "01.12.2026", "now+²"),
    "9" * 5000,
]


def test_every_form_of_slurm_and_no_other() -> None:
    assert [units.check_begin_time(text) for text in TIMES] == TIMES
    for text in NEVER:
        with pytest.raises(ValueError, match="is not a start time; use a clock time"):
            units.check_begin_time(text)


def test_qsub_gets_a_date() -> None:
    assert units.to_qsub("2026-12-01T08:00") == "202612010800.00"
    assert units.to_qsub("2026-12-01") == "202612010000.00"
    with pytest.raises(ValueError, match="PBS takes a date"):
        units.to_qsub("20:00")


def test_slurm_and_pbs_are_told_in_their_words(make_config: MakeConfig) -> None:
    words = ("cluster.exclusive=true", "cluster.begin=2026-12-01T08:00", "cluster.nice=100")
    for kind, lines in {
        "slurm": ["#SBATCH --exclusive\n", "#SBATCH --begin=2026-12-01T08:00\n", "#SBATCH --nice=100\n"],
        "pbs": ["#PBS -l place=exclhost\n", "#PBS -a 202612010800.00\n", "#PBS -p -100\n"],
    }.items():
        script = render(make_job(make_config(f"cluster={kind}", *words), "/run", "/run/code"))
        assert [line for line in lines if line not in script] == []
        plain = render(make_job(make_config(f"cluster={kind}"), "/run", "/run/code"))
        assert [line for line in lines if line in plain] == []
    shared = render(make_job(make_config("cluster=slurm", "cluster.exclusive=user"), "/run", "/run/code"))
    assert "#SBATCH --exclusive=user\n" in shared


def test_what_pbs_can_not_be_told(make_config: MakeConfig) -> None:
    asked = make_config("cluster=pbs", "cluster.exclusive=user", "cluster.begin=noon", "cluster.nice=1025")
    with pytest.raises(ConfigError) as caught:
        make_job(asked, "/run", "/run/code")
    assert [p.partition(":")[0].partition("=")[0] for p in caught.value.problems] == [
        "cluster.begin",
        "cluster.exclusive",
        "cluster.nice",
    ]
