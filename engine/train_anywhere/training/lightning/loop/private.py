"""The private names of Lightning that the engine uses, with one message if one is missing."""

# ruff: noqa: F401
import lightning

from train_anywhere.errors import ConfigError

try:
    from lightning.pytorch.loops.fit_loop import _FitLoop
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
    from lightning.pytorch.trainer.connectors.logger_connector import _LoggerConnector
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
except ImportError as error:
    raise ConfigError(
        f"this engine does not support lightning {lightning.__version__} ({error}); install the locked version: make setup. "
        "A newer engine may support it: make update."
    ) from error
