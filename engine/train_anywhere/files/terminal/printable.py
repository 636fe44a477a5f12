"""Strings made safe for a terminal: no character moves the cursor or clears the screen."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from train_anywhere.files.terminal.fit import fit_message
from train_anywhere.files.terminal.output import escape_characters

# C0, DEL, C1; direction marks, zero-width characters, line separators, tags. Tab and newline stay: they are layout.
_CONTROL = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f"
    r"\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
CONTROL = re.compile(_CONTROL)

LOG_SEQUENCES = re.compile(
    # group 1 is printed: colors, and what progress bars do within their line
    r"(\x1b\[[\d;:]*m|[\r\x08])"
    # removed: https://www.ecma-international.org/publications-and-standards/standards/ecma-48
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)"
    f"|{_CONTROL}"
)


def printable(text: str) -> str:
    r"""Return the string with its control characters escaped, such as `\x1b`."""
    return CONTROL.sub(lambda found: _escape(found[0]), text)


def one_line(text: str) -> str:
    """Escape like `printable`, and line breaks too: a name can't look like a line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def mask_urls(text: str) -> str:
    """Return the string with only scheme and host of each URL: the rest may be secret."""
    return re.sub(r"(https?://)(?:[^/\s'\"]*@)?([^/?\s'\"]*)[^\s'\"]*", r"\1\2/...", text, flags=re.I)


def printable_log(text: str) -> str:
    """Return the output of a training with its colors, but without other terminal sequences."""
    return LOG_SEQUENCES.sub(lambda found: found[1] or ("" if found[0][1:] else _escape(found[0])), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Printable:
    """A stream that prints strings through `printable` or `printable_log`."""

    def __init__(self, stream: TextIO, log: bool) -> None:
        self.stream, self._clean = stream, printable_log if log else printable

    def write(self, text: str) -> int:
        """Write a string made printable, and a message fitted to the terminal; return the original length."""
        self.stream.write(fit_message(self._clean(text), self.stream))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printable_output(log: bool = False) -> Iterator[None]:
    """Make all output of this process printable within the block."""
    escape_characters()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and Printable(stream, log) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if isinstance(getattr(sys, name), Printable):  # else `output_problem` has closed it
                setattr(sys, name, stream)
