"""The request that the rules check."""

import subprocess
import sys

import pytest

from train_anywhere.files import ROOT


@pytest.mark.needs_root
def test_a_user_without_a_name_is_a_number() -> None:
    """The user's name is unknown in a container or with a broken directory service."""
    program = "import os, pwd, getpass; from train_anywhere.slurm.rules.job_rules import user_name; os.setuid(54321); print(user_name())"
    command = [
        "env",
        "-u",
        "USER",
        "-u",
        "LOGNAME",
        "-u",
        "LNAME",
        "-u",
        "USERNAME",
        sys.executable,
        "-c",
        program,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "54321\n", done.stderr
