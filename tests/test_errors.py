"""What a refusal looks like."""

import pytest

from src.errors import UNNAMED, ConfigError


def test_one_problem_is_one_line_and_several_are_a_list() -> None:
    assert str(ConfigError("a is wrong.")) == "a is wrong."
    assert str(ConfigError("a", "b")) == "2 problems:\n  - a\n  - b"


@pytest.mark.parametrize("nothing", [[], [""], [" "]])
def test_every_refusal_has_a_message(nothing: list[str]) -> None:
    assert ConfigError(*nothing).problems == [UNNAMED]
