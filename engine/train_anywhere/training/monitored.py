"""The metric that `checkpoint.monitor` or `trainer.early_stopping.monitor` names, once a run has measured some."""

from collections.abc import Mapping

from train_anywhere.config.strict import nearest
from train_anywhere.errors import ConfigError
from train_anywhere.runs.summary import not_finite


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


def judged(metrics: Mapping[str, float], monitor: str) -> float | None:
    """The value by which a checkpoint may be the best; None if a loss is nan or inf, which is never the best."""
    return None if not_finite(metrics) else metrics.get(monitor)
