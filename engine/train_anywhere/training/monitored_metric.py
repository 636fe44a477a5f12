"""Look up the metric that `checkpoint.monitor` or `trainer.early_stopping.monitor` names among the measured ones."""

from collections.abc import Mapping

from train_anywhere.config.strict import nearest
from train_anywhere.errors import ConfigError
from train_anywhere.runs.summary import find_nonfinite_loss


def monitored_value(metrics: Mapping[str, float], monitor: str | None, key: str) -> float:
    """Return the value of the metric `monitor`.

    Args:
        metrics: all measured metrics.
        monitor: name of the metric.
        key: configuration key that names it, for the message.

    Raises:
        ConfigError: the metric was not measured.
    """
    if monitor in metrics:
        return metrics[str(monitor)]
    known = [name for name in metrics if name != "lr"]
    near = f". Did you mean '{found}'?" if (found := nearest(str(monitor), known)) else ""
    raise ConfigError(f"{key}={monitor} was not measured{near or '; ' + ', '.join(known) + ' were.'}")


def checkpoint_score(metrics: Mapping[str, float], monitor: str) -> float | None:
    """Return the value that decides whether a checkpoint is the best; None if a loss is NaN or infinite: it is never the best."""
    return None if find_nonfinite_loss(metrics) else metrics.get(monitor)
