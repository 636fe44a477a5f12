"""Text from files on a terminal: no character in it moves the cursor, sets the window's title, clears the screen or turns text round."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from train_anywhere.files.terminal.output import escape_characters

_CONTROL = (  # C0, DEL, C1; marks of direction, of width zero and of lines, tags. Tab and newline are layout.
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
CONTROL = re.compile(_CONTROL)

OF_A_LOG = re.compile(
    r"(\x1b\[[\d;:]*m|[\r\x08])"  # kept: colors, and what progress bars do within their line
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)"  # removed: https://www.ecma-international.org/publications-and-standards/standards/ecma-48
    f"|{_CONTROL}"
)


def printable(text: str) -> str:
    r"""Return the text with its control characters escaped: `\x1b`."""
    return CONTROL.sub(lambda found: _escaped(found[0]), text)


def one_line(text: str) -> str:
    """Return the text as `printable` does, with line breaks escaped too: a name can't look like a line of ours."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_log(text: str) -> str:
    """Return what a training has printed with its colors, and without other sequences for a terminal."""
    return OF_A_LOG.sub(lambda found: found[1] or ("" if found[0][1:] else _escaped(found[0])), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Printable:
    """A text stream that prints through `printable` or `printable_log`.

    Attributes:
        stream: what it writes to.
    """

    def __init__(self, stream: TextIO, log: bool) -> None:
        self.stream, self._clean = stream, printable_log if log else printable

    def write(self, text: str) -> int:
        """Write the text; returns its length."""
        self.stream.write(self._clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printable_output(log: bool = False) -> Iterator[None]:
    """Within, all that this process prints is printable.

    Args:
        log: it may be what a training has printed.
    """
    escape_characters()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and Printable(stream, log) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if isinstance(getattr(sys, name), Printable):  # else it was closed for good
                setattr(sys, name, stream)
