"""From the `data` part of the configuration to the splits of a data set."""

from collections.abc import Mapping
from typing import Any

from src.config.choices import Data
from src.config.instantiate import instantiate
from src.data.base import Splits, Staged, as_it_is
from src.errors import ConfigError


def open_splits(
    config: Data, framework: str, seed: int = 0, staged: Staged = as_it_is, **supplied: Any
) -> Splits:
    """Open the data set that `config` names.

    A target may take the run's `seed`, `staged` and others of `supplied`.

    A target may return `Splits`, a mapping, a tuple (train, val) or (train, val, test), or any object with attributes of these names.
    One without them, such as a data module, is returned as it is for all three.

    Raises:
        ConfigError: the target can't be called, or returns nothing to train on.
        DataError: files are missing or do not fit together; a damaged row is found when it is read.
    """
    opened = instantiate(config, "data", framework, seed=seed, staged=staged, **supplied)
    if isinstance(opened, Splits):
        return opened
    parts = _parts(opened)
    facts = _get(opened, "facts") or {}
    if parts is None:
        return Splits(opened, opened, opened, facts)
    if parts["train"] is None or parts["val"] is None:
        missing = " and ".join(name for name in ("train", "val") if parts[name] is None)
        raise ConfigError(
            f"data._target_={config.target[framework]} returns no {missing}; return a mapping, an object or a tuple of train, val "
            "and, if there is one, test."
        )
    return Splits(**parts, facts=facts)


def _parts(opened: Any) -> dict[str, Any] | None:
    """train, val and test; None for an object that has none of them."""
    names = ("train", "val", "test")
    if isinstance(opened, tuple) and len(opened) in (2, 3) and not hasattr(opened, "train"):
        return dict(zip(names, (*opened, None)[:3], strict=True))
    found = {name: _get(opened, name) for name in names}
    # a network may have a method `train`: that is not a split
    if (
        not isinstance(opened, Mapping)
        and callable(found["train"])
        and not hasattr(found["train"], "__len__")
    ):
        return None
    return None if not isinstance(opened, Mapping) and all(v is None for v in found.values()) else found


def _get(opened: Any, name: str) -> Any:
    return opened.get(name) if isinstance(opened, Mapping) else getattr(opened, name, None)
