"""Tracebacks of errors in user code: what is left out, and what stays."""

import json
import re
import runpy
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from train_anywhere.files import ENGINE, ROOT
from train_anywhere.files.terminal.output import format_short, is_user_code, user_frame

MINE = """
import json

def read(text):
    return json.loads(text, object_hook=hook)

def hook(value):
    return value["missing"]

def chained(text):
    try:
        json.loads("{")
    except ValueError as error:
        raise LookupError("no rows") from error

def group(text):
    errors = []
    for one in (read, chained):
        try:
            one("{}")
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("several", errors)
"""


@pytest.fixture
def failed(tmp_path: Path) -> Callable[[str, str], BaseException]:
    """Return a maker of errors from a function in mine.py in a thread of the standard library."""
    (tmp_path / "mine.py").write_text(MINE)
    mine = runpy.run_path(str(tmp_path / "mine.py"))

    def fail(name: str, text: str) -> BaseException:
        with ThreadPoolExecutor(1) as threads:
            error = threads.submit(mine[name], text).exception()
        assert error
        return error

    return fail


def frames(text: str) -> list[str]:
    """Return the functions of a traceback's frames."""
    return re.findall(r'File ".*", line \d+, in (\w+)$', text, re.MULTILINE)


def test_from_the_first_to_the_last_line_of_the_user(failed) -> None:
    error = failed("read", "{}")
    text, left_out = format_short(error)
    whole = frames("".join(traceback.format_exception(error)))
    assert frames(text) == whole[whole.index("read") :]
    assert {"read", "hook", "raw_decode"} <= {*whole} and whole[0] == "run"
    assert left_out == whole.index("read") == len(whole) - len(frames(text)) > 0
    assert text.endswith("KeyError: 'missing'\n")


def test_of_a_library_only_the_line_that_raised(failed) -> None:
    text, left_out = format_short(failed("read", "{"))
    assert frames(text) == ["read", "raw_decode"] and left_out > 2


def test_causes_are_shortened_too(failed) -> None:
    text, _ = format_short(failed("chained", ""))
    assert frames(text) == ["chained", "raw_decode", "chained"]
    assert "The above exception was the direct cause of the following exception" in text


def test_each_error_of_a_group(failed) -> None:
    text, _ = format_short(failed("group", ""))
    assert frames(text)[0] == "group" and {"read", "hook", "chained"} < {*frames(text)}
    assert "KeyError: 'missing'" in text and "LookupError: no rows" in text and " in run" not in text


def test_without_user_code_the_whole_traceback(failed) -> None:
    with ThreadPoolExecutor(1) as threads:
        error = threads.submit(json.loads, "{").exception()
    assert error and user_frame(error) is None
    assert format_short(error) == ("".join(traceback.format_exception(error)), 0)


def test_user_code_is_what_the_project_brings() -> None:
    for mine in (f"{ROOT}/src/tasks/mine.py", f"{ROOT}/src/mine.py", "/home/me/mine.py"):
        assert is_user_code(mine)
    for other in (f"{ROOT}/src/train.py", f"{ENGINE}/train_anywhere/errors.py", json.__file__, "<string>"):
        assert not is_user_code(other)
    assert not is_user_code("/home/me/.venv/lib/python3.11/site-packages/torch/nn.py")
