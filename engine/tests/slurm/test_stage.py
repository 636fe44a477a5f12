"""A data set on the shared disk is copied once to each node, before the ranks."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.tests.slurm.login import SMALL, Login, log

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def pictures(folder: Path) -> Path:
    """Two classes of 8 pictures each, to train and to validate."""
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for number in range(16):
            path = folder / split / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(256, size=(16, 16, 3), dtype=np.uint8)).save(path)
    return folder


@pytest.mark.slow
def test_each_node_copies_it_once(login: Login) -> None:
    """Two ranks on each of two nodes read one copy. A second job finds it, with the same loss."""
    data = pictures(login.folder / "pictures")
    words = [
        "cluster=slurm", "trainer.nodes=2", "trainer.devices=2", "trainer.accelerator=cpu", "data=imagefolder",
    ]  # fmt: skip
    words += [
        f"data.dir={data}",
        "data.image_size=8",
        "data.batch_size=8",
        "data.workers=0",
        "model=mlp",
        *SMALL,
        "cluster.local_disk=/tmp/disk-of-test-stage",
    ]
    copied = r"^(node\d): copying .*pictures to its own disk: done"
    first = login.result(*words, "data.stage=true")
    nodes = re.findall(copied, log(first), re.M)
    assert len(nodes) == 2 and len({*nodes}) == 2, log(first)
    again = login.result(*words, "data.stage=true")
    assert not {*re.findall(copied, log(again), re.M)} & {*nodes}, log(again)
    plain = login.result(*words)
    losses = [re.findall(r"test/loss (\S+)", log(run)) for run in (first, again, plain)]
    assert losses[0] and losses[0] == losses[1] == losses[2]
