"""data=text: documents, splits, tokenizers, the cache and rows."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.data.checks import text as check
from src.data.text import open_text
from tools.testing.processes import start_python
from train_anywhere.data import Splits
from train_anywhere.data.readers.tokenizer import Bytes, Pieces, train_bpe
from train_anywhere.errors import DataError
from train_anywhere.files import ROOT

WORDS = "the cat and the dog sat on the mat, and then the other cat came to the mat too"
SETTINGS: dict[str, Any] = {
    "files": ["*.txt", "*.jsonl"],
    "text_key": "text",
    "tokenizer": "bytes",
    "vocabulary": 320,
    "val_fraction": 0.2,
    "test_fraction": 0.1,
    "length": 16,
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for n in range(20):
        (folder / f"{n:02d}.txt").write_text(f"{n}: {WORDS[n:]}\n" * (1 + n % 4))
    return folder


@pytest.fixture
def opened(corpus: Path, tmp_path: Path) -> Callable[..., Splits]:
    def call(**changes: Any) -> Splits:
        places = {"dir": str(corpus), "cache": str(tmp_path / "cache"), "documents": "packed"}
        return open_text(**(SETTINGS | places | changes))

    return call


def documents_of(splits: Splits, name: str) -> list[str]:
    tokens = getattr(splits, name).tokens
    pieces = np.split(tokens[1:], np.flatnonzero(tokens[1:] == splits.facts["text"].end) + 1)
    return [splits.facts["text"].decode(piece) for piece in pieces if len(piece)]


def tokenizer_file(folder: Path) -> str:
    train_bpe([WORDS], 300, folder / "tokenizer.json")
    return str(folder / "tokenizer.json")


@pytest.mark.parametrize("kind", ["bytes", "bpe", "file"])
def test_each_document_is_in_one_split_and_comes_back(
    opened: Callable[..., Splits], corpus: Path, tmp_path: Path, kind: str
) -> None:
    splits = opened(tokenizer=tokenizer_file(tmp_path) if kind == "file" else kind)
    found = [documents_of(splits, name) for name in ("train", "val", "test")]
    assert [len(texts) for texts in found] == [14, 4, 2]
    assert sorted(t for texts in found for t in texts) == sorted(f.read_text() for f in corpus.iterdir())


@pytest.mark.parametrize("text", ["", " ", "\n", "\r\n", "<|endoftext|>", "\0", "\u65e5 \U0001f389 e\u0301"])
def test_strings_come_back_exactly(tmp_path: Path, text: str) -> None:
    bpe = Pieces(Path(tokenizer_file(tmp_path)))
    for tokenizer in (Bytes(), bpe):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text and tokenizer.end not in tokens


def test_rows_hold_each_target_once(opened: Callable[..., Splits]) -> None:
    train = opened().train
    rows = train.read(np.arange(len(train)), 0, True)
    targets = rows["tokens"][:, 1:][rows["documents"][:, 1:] >= 0]
    np.testing.assert_array_equal(targets, train.tokens[1:])
    assert len(targets) == train.targets
    assert b"the cat" not in pickle.dumps(train)


def test_documents_apart_do_not_see_each_other(opened: Callable[..., Splits]) -> None:
    train = opened(documents="apart").train
    rows = train.read(np.arange(len(train)), 0, True)
    ends = rows["tokens"][:, :-1] == train.end
    same = rows["documents"][:, 1:] == rows["documents"][:, :-1]
    assert not (ends & same & (rows["documents"][:, 1:] >= 0)).any() and rows["documents"].max() > 0


def test_changed_documents_are_tokenized_again(opened: Callable[..., Splits], corpus: Path) -> None:
    before = opened().train.file
    assert opened().train.file == before
    file = corpus / "00.txt"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert opened().train.file != before
    assert opened(tokenizer="bpe").train.file != opened(tokenizer="bpe", vocabulary=330).train.file


def test_one_file_holds_all_documents(opened: Callable[..., Splits], tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": f"{n} {WORDS}"}) + "\n" for n in range(10)))
    splits = opened(dir=str(lines), test_fraction=0)
    assert splits.test is None and [len(documents_of(splits, name)) for name in ("train", "val")] == [8, 2]


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda file: file.write_text("{}"), r"tokenizer: .*own\.json is not a tokenizer\.json file \("),
        (lambda file: file.write_bytes(b"\xff\0"), r"own\.json is not a tokenizer\.json file \("),
        (lambda file: None, r"own\.json is not a tokenizer\.json file \(No such file"),
        (lambda file: file.mkdir(), r"own\.json is not a tokenizer\.json file \("),
    ],
)
def test_a_tokenizer_that_fails_is_named(
    opened: Callable[..., Splits], tmp_path: Path, write: Callable[[Path], Any], says: str
) -> None:
    write(tmp_path / "own.json")
    with pytest.raises(DataError, match=says):
        opened(tokenizer=str(tmp_path / "own.json"))
    assert not [*(tmp_path / "cache").glob("*tokens-*")]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"caf\xe9", r"a\.txt can't be read \(.*byte 0xe9 in position 3.*iconv"),
        (
            "a.jsonl",
            b'{"text": "a"}\nno',
            r"a\.jsonl, line 2 is not a JSON object with a string 'text': 'no'",
        ),
    ],
)
def test_a_document_that_cant_be_read_is_named(
    opened: Callable[..., Splits], corpus: Path, name: str, content: bytes, says: str
) -> None:
    (corpus / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        opened()


def test_processes_at_once_write_the_tokens_once(corpus: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"dir": str(corpus), "cache": str(tmp_path / "cache"), "documents": "packed"}
    code = f"from src.data.text import open_text; print(open_text(**{settings!r}).train.file)"
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/engine"}
    running = [start_python("-c", code, env=environ) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in running]
    assert len({out for out, _ in answers}) == 1 and sum("writing tokens" in err for _, err in answers) == 1


def test_damaged_token_files_are_named(opened: Callable[..., Splits]) -> None:
    file = opened().train.file
    os.truncate(file, 100)
    with pytest.raises(DataError, match=r"is damaged \(a file has the wrong size\); delete it"):
        opened()


def problems(corpus: Path, tmp_path: Path, **changes: Any) -> tuple[str, ...]:
    settings = SETTINGS | {"dir": str(corpus), "cache": str(tmp_path / "cache"), "look": True}
    return check(**(settings | changes)).problems


def test_a_submission_refuses_what_is_missing_or_too_short(corpus: Path, tmp_path: Path) -> None:
    assert problems(corpus, tmp_path) == ()
    assert "does not exist" in problems(tmp_path / "none", tmp_path)[0]
    assert "has too few documents: 1 different" in problems(corpus / "00.txt", tmp_path)[0]
    assert "not bytes, bpe or a tokenizer.json" in problems(corpus, tmp_path, tokenizer="/none")[0]
    assert not (tmp_path / "cache").exists()
