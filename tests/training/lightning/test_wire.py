"""Nothing extra on the wire: a step of the Trainer sends, and waits for, what a loop by hand does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from src.distributed.horovod_install import horovod_problem
from src.launch.processes import free_port


def count(kind: str, strategy: str) -> list[dict[str, int]]:
    """What 20 steps send and wait for, on each of two ranks."""
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    world["MASTER_PORT"] = str(free_port())
    command = [sys.executable, str(Path(__file__).with_name("wire_rank.py")), kind, strategy]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    output = [p.communicate(timeout=120)[0] for p in processes]
    found = [json.loads(text.splitlines()[-1]) for text in output]
    return [{name: n for name, n in counts.items() if n} for counts in found]


@pytest.mark.slow
def test_a_step_sends_what_plain_ddp_sends() -> None:
    plain = count("raw", "ddp")
    assert plain[0]["gloo:all_reduce"] == 20  # the gradients: one bucket
    assert count("ours", "ddp") == plain


@pytest.mark.slow
def test_a_step_sends_what_plain_fsdp_sends() -> None:
    plain = count("raw", "fsdp")
    assert any("gather" in name for name in plain[0]), plain
    assert count("ours", "fsdp") == plain


@pytest.mark.slow
@pytest.mark.horovod
def test_a_step_sends_what_plain_horovod_sends(require: Callable[[object, str], None]) -> None:
    require(not horovod_problem("torch"), "run `make horovod`")
    plain = count("raw", "horovod")
    assert plain[0]["horovod_torch_allreduce_async"] == 20 * 10  # one for each parameter; Horovod joins them
    assert count("ours", "horovod") == plain


@pytest.mark.slow
def test_the_count_sees_the_signal_flag_of_lightning() -> None:
    """Should Lightning drop its flag one day, our replacement of it can go."""
    flagged = count("lightning", "ddp")
    assert flagged[0]["gloo:broadcast"] == count("raw", "ddp")[0]["gloo:broadcast"] + 20
    assert flagged[0]["aten::_local_scalar_dense"] == 20
