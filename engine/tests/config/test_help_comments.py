"""`--help` shows the comments of configs/ next to keys, and the shell completes its list."""

import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.config.command.help_comments import KEYS, add_comments
from train_anywhere.config.keys import meanings
from train_anywhere.config.schema import Config
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
