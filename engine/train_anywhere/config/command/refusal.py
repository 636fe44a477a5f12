"""Turn the error of a refused request into one message; a bug keeps its traceback."""

from collections.abc import Sequence

from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.command.sentences import error_sentence, is_configuration_error
from train_anywhere.errors import ConfigError

LONGEST = 300
"""Characters of the longest word in a message: a huge value would hide the sentence."""


def explain_refusal(error: Exception, overrides: Sequence[str], sweep: bool = True) -> str | None:
    """Return the message for a refused request; None for a bug.

    Args:
        error: the error that was raised.
        overrides: what was typed; all problems of a refused configuration are searched.
        sweep: whether `-m` was typed.
    """
    if isinstance(error, ConfigError) or is_configuration_error(error):
        return shorten(str(diagnose(overrides, error, sweep)))
    message = error_sentence(error)
    return None if message is None else shorten(message)


def shorten(message: str) -> str:
    """Return the message without the middle of very long words, printable on any terminal."""
    words = message.split(" ")
    short = [w if len(w) <= LONGEST else f"{w[:80]} ... {w[-40:]}" for w in words]
    return " ".join(short).encode("utf-8", "backslashreplace").decode()
