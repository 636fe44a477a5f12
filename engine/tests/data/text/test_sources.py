from collections import Counter
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from train_anywhere.data.text.sources import Sources
from train_anywhere.errors import DataError


def sources(path: Path | None, *files: str, key: str = "text") -> Sources:
    return Sources(path, files or ("*.txt", "*.jsonl"), key)


def texts(path: Path | None, *files: str, key: str = "text") -> list[str]:
    return [text for _, text in sources(path, *files, key=key).read_documents()]


def test_files_come_in_one_order_and_empty_hidden_and_other_ones_are_left_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/y.txt", ".hidden.txt", ".git/c.txt", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").touch()
    assert texts(tmp_path) == ["a/y.txt", "a/z.txt", "b.txt"]
    assert texts(tmp_path, "*.png") == ["picture.png"]
    assert texts(tmp_path / "b.txt") == ["b.txt"]


def test_ends_of_lines_and_marks_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\rthree\n\ufeff\0".encode())
    assert texts(tmp_path) == ["one\r\ntwo\rthree\n\ufeff\0"]


def test_a_byte_order_mark_at_the_start_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one", encoding="utf-8-sig")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n{"text": "three"}', encoding="utf-8-sig")
    assert texts(tmp_path) == ["one", "two", "three"]


def test_names_in_upper_case_are_read_and_others_are_counted(tmp_path: Path) -> None:
    for name in ("A.TXT", "b.Txt", "d.pdf", "e.jsonl.gz", "f.jsonl.gz", ".hidden", "__MACOSX", "README"):
        (tmp_path / name).write_text("text")
    (tmp_path / "C.JSONL").write_text('{"text": "line"}')
    (tmp_path / "gone").symlink_to("nowhere")
    assert texts(tmp_path) == ["text", "line", "text"]
    left: Counter[str] = Counter()
    assert len([*sources(tmp_path).list_files(left)]) == 3
    assert left == {"*.pdf": 1, "*.gz": 2, "hidden": 2, "*": 1, "dead links": 1}


def test_each_line_of_json_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"body": "one\\ntwo", "id": 3}\n\n{"body": ""}\n  {"body": "\\u2028 \u2028"}'
    )
    assert texts(tmp_path, key="body") == ["one\ntwo", "\u2028 \u2028"]


def test_without_a_folder_the_help_of_python() -> None:
    assert texts(None) == [topics[name] for name in sorted(topics)]


def latin(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"caf\xe9")


def line(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "a.jsonl").write_text(text)

    return write


BAD = {
    "latin 1": (latin, r"a\.txt is not UTF-8: byte 3 is 0xe9; convert it"),
    "latin 1 in JSON": (
        lambda f: (f / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xe9"}'),
        r"a\.jsonl, line 2 is not UTF-8: byte 10",
    ),
    "no JSON": (line('{"text": "a"}\n{text}'), r"a\.jsonl, line 2 is not JSON"),
    "another key": (line('{"body": "a", "id": 1}'), "it has body, id; use"),
    "an empty object": (line("{}"), r"has no 'text', it has nothing"),
}
"""Texts that a look at the first lines does not find out; engine/tests/bad_inputs/rows/texts.py has the others."""


@pytest.mark.parametrize("what", BAD)
def test_strange_files_are_one_sentence(tmp_path: Path, what: str) -> None:
    make, says = BAD[what]
    make(tmp_path)
    with pytest.raises(DataError, match=says) as caught:
        texts(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_folder_that_is_linked_twice_is_read_twice(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    (tmp_path / "b").symlink_to("a")
    assert texts(tmp_path) == ["x", "x"]
