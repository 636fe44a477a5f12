"""Trackers of experiments, and all other loggers of `loggers=`: what each is given, and why none of them can hurt training.

    python src/train.py loggers=wandb
    python src/train.py loggers=[wandb,mlflow] loggers.mlflow.tracking_uri=http://mlflow.site:5000

`Wandb` and `MLflow` know no framework. A run is one tracked run however often it is stopped and resumed: it is found again by the
name of the run folder, and a metric that it already holds is not sent again. Their packages are imported when they are chosen.
`open_loggers` makes them, and whatever else the configuration names, for rank 0.
"""

from train_anywhere.training.tracking.once import Pair
from train_anywhere.training.tracking.open_loggers import Tracked, make_logger, open_loggers

__all__ = ["Pair", "Tracked", "make_logger", "open_loggers"]
