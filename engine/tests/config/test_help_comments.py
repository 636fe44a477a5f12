"""Flags and overrides are separated before Hydra reads them. --help shows the comments of configs/, the shell completes keys."""

import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.config.command.command_line import CommandLine, split_flags, to_hydra_overrides
from train_anywhere.config.command.compose import list_groups
from train_anywhere.config.command.help_comments import KEYS, add_comments
from train_anywhere.config.keys import meanings
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.testing.plugin import Command

COMPLETE = """
eval "$(python src/train.py --shell-completion install=bash)"
COMP_LINE="$1" COMP_POINT=${#1} COMP_WORDS=($1) COMP_CWORD=2 COMPREPLY=()
hydra_bash_completion
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""What bash does at the tab key."""


def test_the_meaning_of_every_key_is_on_the_page(train: Command) -> None:
    page = train("--help").stdout
    shown = meanings(Config)
    data = f"data: {', '.join(list_groups()['data'])}"
    assert [
        part for part in ("Commands to try", data, "max_epochs: 15", "Exit codes") if part not in page
    ] == []
    assert page.count("\npython src/train.py") + page.count("\n  python src/train.py") >= 5
    assert len(shown) > 130 and shown["cluster.launch"] == "what launch=auto means at this site"
    assert [text for text in shown.values() if f"  # {text}\n" not in page] == []
    assert "  # global: over all ranks" in page  # of configs/data/digits.yaml


def test_a_preset_keeps_the_comment_of_what_it_changes(train: Command) -> None:
    page = train("--help", "cluster=neuron", "trainer.max_epochs=7").stdout
    assert (
        "  gpu_request: gres                         # how the site requests GPUs: "
        "gpus-per-node | gres | none (a job has all GPUs of its nodes)\n" in page
    )
    assert "  max_epochs: 7                             # stop after this many epochs; -1: no limit\n" in page


def test_a_page_without_keys_stays_as_it_is() -> None:
    assert add_comments("anything: 1\n") == "anything: 1\n"
    assert add_comments(f"a\n{KEYS}mine: 1\nother: 2\n\nend\n") == f"a\n{KEYS}mine: 1\nother: 2\n\nend\n"


@pytest.mark.parametrize(
    "typed, offered", [("model=resn", "model=resnet18"), ("trainer.max_e", "trainer.max_epochs=")]
)
@pytest.mark.quick("model=resn-model=resnet18")
def test_the_shell_completes_choices_and_keys(typed: str, offered: str) -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    command = ["bash", "-c", COMPLETE, "bash", f"python src/train.py {typed}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert offered in done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    "arguments, overrides, flags",
    [
        (["seed=1", "-m", "name=a"], ["seed=1", "name=a"], ["-m"]),
        (["-m", "seed=1,2"], ["seed=1,2"], ["-m"]),
        (["seed=1", "--cfg", "job", "name=a"], ["seed=1", "name=a"], ["--cfg", "job"]),
        (["--", "seed=1"], ["seed=1"], []),
        ([], [], []),
    ],
)
def test_overrides_may_stand_on_both_sides_of_flags(
    arguments: list[str], overrides: list[str], flags: list[str]
) -> None:
    assert split_flags(arguments) == CommandLine(overrides, flags)


SENTENCES = {
    "--nonsense": "'--nonsense' is not a flag of this program; see --help.",
    "--seed=3": "'--seed=3': a key is given without dashes; use seed=3.",
    "--trainer.nodes": "'--trainer.nodes': a key is given without dashes; use trainer.nodes=VALUE.",
    "--nonsense=3": "'--nonsense=3' is not a flag of this program; see --help.",
    "--nodes": "'--nodes': a key is given without dashes; use trainer.nodes=VALUE.",
    "--gpus-per-node=3": "'--gpus-per-node=3': a key is given without dashes; use trainer.devices=3.",
    "--dry-run": "'--dry-run': a key is given without dashes; use dry_run=true.",
    "--cluster": "'--cluster': a key is given without dashes; use cluster=VALUE.",
    "--cfg": "argument --cfg/-c: expected one argument; see --help.",
    "--multirun=3": "argument --multirun/-m: ignored explicit argument '3'; see --help.",
    "--experimental-rerun=x": "--experimental-rerun is not supported; use resume=RUN.",
    "--config-dir=/nowhere": "--config-dir=/nowhere is not a folder.",
    "--package=x": "--package needs --cfg; use --cfg job --package optimizer.",
    "--run": "--run RUNDIR takes no other arguments: a job starts its ranks with it; leave --run out.",
    "name=\udcf6": "the argument 'name=\\udcf6' is not UTF-8; type it in a terminal whose encoding is UTF-8.",
    "hydra.run.dir=/x": "'hydra.run.dir=/x' sets an output folder of Hydra, which this project does not use; use paths.results=DIR.",
}


def test_each_unusable_argument_is_one_sentence() -> None:
    said = {}
    for argument in SENTENCES:
        with pytest.raises(ConfigError) as refused:
            split_flags(["seed=1", argument])
        [said[argument]] = refused.value.problems
    assert said == SENTENCES


def test_flags_and_their_values_among_overrides() -> None:
    with pytest.raises(ConfigError) as refused:
        split_flags(["--gpus", "3", "--dry-run", "seed=1"])
    assert refused.value.problems == [
        "'--gpus': a key is given without dashes; use trainer.devices=VALUE.",
        "'--dry-run': a key is given without dashes; use dry_run=true.",
    ]


@pytest.mark.parametrize(
    "typed, words",
    [
        (["data.batch_size=3", "seed=1"], ["++data.batch_size=3", "seed=1"]),
        (["task._target_=mine.Lit"], ["task=custom", "++task._target_=mine.Lit"]),
        (["task._target_.keras=mine.Lit"], ["task=custom", "++task._target_.keras=mine.Lit"]),
        (["data=mnist", "data._target_=mine.rows"], ["data=mnist", "++data._target_=mine.rows"]),
        (["+callbacks.a._target_=b.c", "~data.dir"], ["+callbacks.a._target_=b.c", "~data.dir"]),
        (["datadir=3", "optimizer=sgd"], ["datadir=3", "optimizer=sgd"]),
        (["task=custom", "++task._target_=mine.Lit"], ["task=custom", "++task._target_=mine.Lit"]),
    ],
)
def test_arguments_of_targets_need_not_be_in_a_file(typed: list[str], words: list[str]) -> None:
    assert to_hydra_overrides(typed) == words
    assert to_hydra_overrides(words) == words
