"""Refused request or bug: the first is one message, the second keeps its traceback."""

from collections.abc import Sequence

from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.command.sentences import about_configuration, sentence
from train_anywhere.errors import ConfigError

LONGEST = 300
"""Characters of a word that are shown: a value of a hundred thousand characters would hide the sentence."""


def refusal(error: Exception, overrides: Sequence[str], sweep: bool = True) -> str | None:
    """The message for a request that can't be fulfilled; None for a bug.

    Args:
        overrides: what was typed: a refused configuration is searched for all its other problems too.
        sweep: with `-m`.
    """
    if isinstance(error, ConfigError) or about_configuration(error):
        return shortened(str(diagnose(overrides, error, sweep)))
    message = sentence(error)
    return None if message is None else shortened(message)


def shortened(message: str) -> str:
    """The message without the middle of overlong words, and printable on any terminal."""
    words = message.split(" ")
    short = [w if len(w) <= LONGEST else f"{w[:80]} ... {w[-40:]}" for w in words]
    return " ".join(short).encode("utf-8", "backslashreplace").decode()
