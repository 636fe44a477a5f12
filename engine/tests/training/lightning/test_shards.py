"""Sharded checkpoints of many ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

RANK = Path(__file__).with_name("shards_rank.py")
RANKS = 8


@pytest.mark.slow
def test_ranks_connect_only_with_those_they_speak_to(tmp_path: Path) -> None:
    """All with all would be seven connections for each of eight, and a socket to listen."""
    (tmp_path / "checkpoints").mkdir()
    commands = [[sys.executable, str(RANK), str(tmp_path), str(n), str(RANKS)] for n in range(RANKS)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    said = [int(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks]
    assert len(list((tmp_path / "checkpoints" / "shards").glob("*.distcp"))) == RANKS
    assert sum(said) < RANKS * RANKS * 3 / 4
