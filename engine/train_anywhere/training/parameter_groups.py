"""`optimizer.groups`: learning rates and weight decay by the names of parameters, for both frameworks."""

import re
from collections.abc import Iterable, Sequence

from train_anywhere.config.choices import ParameterGroup
from train_anywhere.errors import ConfigError
from train_anywhere.files.terminal.printable import printable

MAX_NAMES = 8
"""Maximum number of names in a message."""


def matching_groups(groups: Sequence[ParameterGroup], name: str) -> list[ParameterGroup]:
    """Return the groups whose pattern matches the whole name of a parameter."""
    return [group for group in groups if re.fullmatch(group.match, name)]


def group_settings(groups: Iterable[ParameterGroup]) -> tuple[float | None, float | None]:
    """Return learning rate and weight decay, each of the last group that sets it; None if none does."""
    lr = weight_decay = None
    for group in groups:
        lr = lr if group.lr is None else group.lr
        weight_decay = weight_decay if group.weight_decay is None else group.weight_decay
    return lr, weight_decay


def refuse_unmatched(groups: Sequence[ParameterGroup], names: Sequence[str]) -> None:
    """Raise ConfigError for each pattern that matches none of the names."""
    shown = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
    problems = [
        f"optimizer.groups[{n}].match={group.match} matches no parameter; a pattern has to match the whole name. The names are "
        f"{printable(shown)}."
        for n, group in enumerate(groups)
        if not any(re.fullmatch(group.match, name) for name in names)
    ]
    if problems:
        raise ConfigError(*problems)
