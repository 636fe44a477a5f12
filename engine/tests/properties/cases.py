"""Shared settings of properties: the number of examples, a good configuration, odd values."""

from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from train_anywhere.config.command.compose import compose

EXAMPLES = 150


def bounded(examples: int = EXAMPLES) -> settings:
    """Limit a property to a number of repeatable examples, without a time limit for each."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@cache
def composed(*overrides: str) -> dict[str, Any]:
    """Return a good tree, which tests must not change."""
    return compose(overrides)


DIGITS = st.characters(categories=["Nd", "No", "Nl"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**64, 0])
    | st.floats()
    | TEXT
    | st.dates()
    | st.binary(max_size=3)
)
"""What YAML can read, and numbers that are too large for a float."""
