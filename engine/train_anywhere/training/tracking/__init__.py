"""Experiment trackers and all other loggers, whose failures can't stop training.

    python src/train.py loggers=wandb
    python src/train.py loggers=[wandb,mlflow] loggers.mlflow.tracking_uri=http://mlflow.site:5000

`Wandb` and `MLflow` are independent of the framework; their packages are imported only when they are chosen. A run stays one tracked run
when it is stopped and resumed: the name of the run folder identifies it. Steps that are trained again are logged twice.
`open_loggers` creates all loggers of the configuration on rank 0.
"""

from train_anywhere.training.tracking.open_loggers import (
    GuardedLogger,
    make_logger,
    open_loggers,
    tracker_run_id,
)

__all__ = ["GuardedLogger", "make_logger", "open_loggers", "tracker_run_id"]
