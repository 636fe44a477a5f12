"""The private names of Lightning that the engine uses, with one message if one is missing."""

# ruff: noqa: F401
import lightning

from train_anywhere.errors import ConfigError

try:
    from lightning.fabric.utilities.data import _set_sampler_epoch
    from lightning.fabric.utilities.distributed import _init_dist_connection
    from lightning.fabric.utilities.optimizer import _optimizers_to_device
    from lightning.pytorch.loops.fetchers import (
        _DataFetcher,
        _DataLoaderIterDataFetcher,
        _PrefetchDataFetcher,
    )
    from lightning.pytorch.loops.fit_loop import _FitLoop
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
    from lightning.pytorch.trainer.connectors.callback_connector import _CallbackConnector
    from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
    from lightning.pytorch.trainer.connectors.data_connector import _DataConnector, _get_distributed_sampler
    from lightning.pytorch.trainer.connectors.logger_connector import _LoggerConnector
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
    from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
    from lightning.pytorch.utilities.exceptions import _TunerExitException
except ImportError as error:
    raise ConfigError(
        f"this engine does not support lightning {lightning.__version__} ({error}); install the locked version: make setup. "
        "A newer engine may support it: make update."
    ) from error
