# ruff: noqa: E402
"""One rank of a strategy that is broken: gradients are not averaged. Tests show that they would notice.

python tests/not_averaged.py RUN     with torchrun's variables
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from src.rank import frozen, run_rank
from src.rundir import open_run

config = frozen(open_run(sys.argv[1]))
match config.framework, config.strategy.name:
    case "lightning", "ddp":
        from src.lightning_side.strategies import OneDevicePerRank

        OneDevicePerRank.configure_ddp = lambda self: None
    case "lightning", "fsdp":
        from src.lightning_side import sharded

        sharded.shard = lambda network, device: None
    case "lightning", "horovod":
        from src.lightning_side.horovod_exchange import GradientExchange

        GradientExchange._send = lambda self, parameter: None
    case "keras", "horovod":
        from src.keras_side.horovod_strategy import HorovodStrategy

        HorovodStrategy.average = lambda self, gradients: gradients
    case "keras", "mirrored" | "multiworker_mirrored":
        from src.keras_side.distributed import Distributed

        Distributed.average = lambda self, gradients: gradients
    case other:
        sys.exit(f"nothing to break in {other}")
sys.exit(run_rank(sys.argv[1]))
