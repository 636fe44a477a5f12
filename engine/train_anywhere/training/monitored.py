"""The metric that `checkpoint.monitor` or `trainer.early_stopping.monitor` names, once a run has measured some."""

from collections.abc import Mapping

from train_anywhere.config.strict import nearest
from train_anywhere.errors import ConfigError


def monitored(metrics: Mapping[str, float], monitor: str | None, key: str) -> float:
    """The value of the metric.

    Args:
        metrics: all that were measured.
        key: of the configuration, for the message.

    Raises:
        ConfigError: it is not among them.
    """
    if monitor in metrics:
        return metrics[str(monitor)]
    known = [name for name in metrics if name != "lr"]
    near = f". Did you mean '{found}'?" if (found := nearest(str(monitor), known)) else ""
    raise ConfigError(f"{key}={monitor} was not measured{near or '; ' + ', '.join(known) + ' were.'}")
