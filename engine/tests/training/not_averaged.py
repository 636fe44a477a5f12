# ruff: noqa: E402
"""One rank of a broken strategy without averaged gradients, which tests must notice.

python engine/tests/training/not_averaged.py RUN     with the variables of one rank
"""

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parents[3] / "engine")]

from train_anywhere.launch.rank import run_rank
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.frozen import load_frozen

config = load_frozen(open_run(sys.argv[1]))
match config.framework, config.strategy.name:
    case "lightning", "ddp":
        from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank

        OneDevicePerRank.configure_ddp = lambda self: None
    case "lightning", "fsdp":
        from train_anywhere.training.lightning.strategies import fsdp

        fsdp.FullyShardedStrategy._split = lambda self: None
    case "lightning", "horovod":
        from train_anywhere.training.lightning.strategies.horovod import HorovodStrategy

        HorovodStrategy._send = lambda self, parameter: None
    case "keras", "horovod":
        from train_anywhere.training.keras.strategies.horovod import HorovodStrategy

        HorovodStrategy.average = lambda self, gradients, *name: gradients
    case "keras", "mirrored" | "multiworker_mirrored":
        from train_anywhere.training.keras.strategies.choose import TfDistribute

        TfDistribute.average = lambda self, gradients, *name: gradients
    case other:
        sys.exit(f"nothing to break in {other}")
sys.exit(run_rank(sys.argv[1]))
