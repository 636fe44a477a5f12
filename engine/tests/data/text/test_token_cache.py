import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from train_anywhere.data.text.sources import Sources
from train_anywhere.data.text.token_cache import provide_token_files
from train_anywhere.data.text.token_files import Settings
from train_anywhere.data.text.tokenizer import MODEL
from train_anywhere.data.text.vocabulary import MANIFEST
from train_anywhere.errors import DataError
from train_anywhere.files import ROOT
from train_anywhere.files.owned_folder import OwnedFolder
from train_anywhere.files.removal import make_empty

BPE = Settings("bpe", 320, 0.2, 0.1)


@pytest.fixture
def sources(corpus: Path) -> Sources:
    """The texts of `corpus`, last written long ago."""
    for file in corpus.rglob("*.*"):
        os.utime(file, (1e9, 1e9))
    return Sources(corpus, ("*.txt", "*.md"), "text")


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        f.name: (f.stat().st_ino, f.read_bytes())
        for f in folder.iterdir()
        if f.name != f".checked-{socket.gethostname()}"
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in snapshot(folder).items()}


def test_files_are_made_once_with_lines_about_it(
    tmp_path: Path, sources: Sources, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = provide_token_files(tmp_path / "cache", sources, BPE)
    said = capsys.readouterr().err
    assert (
        "20 documents, " in said
        and "training a tokenizer of 320 tokens" in said
        and "to train, 4 doc" in said
    )
    before = snapshot(folder)
    assert {"train.tokens", "val.ends", "test.tokens", MODEL, MANIFEST} <= before.keys()
    assert provide_token_files(tmp_path / "cache", sources, BPE) == folder
    assert snapshot(folder) == before and capsys.readouterr().err == ""


def test_the_same_texts_give_the_same_files_anywhere(tmp_path: Path, sources: Sources) -> None:
    one, other = (provide_token_files(tmp_path / name, sources, BPE) for name in ("one", "other"))
    assert contents(one) == contents(other) and one.name == other.name


def changed(name: str, content: str) -> Callable[[Path], object]:
    return lambda corpus: (corpus / name).write_text(content)


@pytest.mark.parametrize(
    "change",
    [
        changed("00.txt", "0: another"),
        changed("new.txt", "new"),
        lambda corpus: (corpus / "00.txt").rename(corpus / "zz.txt"),
        lambda corpus: (corpus / "00.txt").unlink(),
        lambda corpus: (corpus / "00.txt").write_bytes((corpus / "00.txt").read_bytes()[::-1]),
    ],
)
def test_other_texts_are_other_files(
    tmp_path: Path, sources: Sources, change: Callable[[Path], object]
) -> None:
    before = provide_token_files(tmp_path / "cache", sources, BPE)
    assert sources.path
    change(sources.path)
    assert provide_token_files(tmp_path / "cache", sources, BPE) != before


def test_other_settings_are_other_files(tmp_path: Path, sources: Sources) -> None:
    settings = [
        BPE,
        Settings("bytes", 257, 0.2, 0.1),
        Settings("bpe", 321, 0.2, 0.1),
        Settings("bpe", 320, 0.2, 0.0),
    ]
    folders = {provide_token_files(tmp_path, sources, s) for s in settings}
    assert len(folders) == len(settings)


def test_another_key_is_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "a {n}", "body": "b {n}"}}\n' for n in range(20)))
    keys = ("text", "body")
    folders = {provide_token_files(tmp_path, Sources(tmp_path / "a.jsonl", (), key), BPE) for key in keys}
    assert len(folders) == 2


def test_a_text_that_was_just_written_may_be_written_again(tmp_path: Path, sources: Sources) -> None:
    """Within the same tick of the clock: its time says nothing yet."""
    assert sources.path
    provide_token_files(tmp_path / "old", sources, BPE)
    assert list((tmp_path / "old").glob("contents-*.json"))
    (sources.path / "00.txt").write_text("just now")
    provide_token_files(tmp_path / "new", sources, BPE)
    assert not list((tmp_path / "new").glob("contents-*.json"))


def test_texts_with_the_same_times_are_not_read_again(tmp_path: Path, sources: Sources) -> None:
    assert sources.path
    folder = provide_token_files(tmp_path / "cache", sources, BPE)
    file = sources.path / "00.txt"
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, (1e9, 1e9))
    assert provide_token_files(tmp_path / "cache", sources, BPE) == folder
    os.utime(file, (1e9, 1e9 + 1))
    assert provide_token_files(tmp_path / "cache", sources, BPE) != folder


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "one bit of the tokens": ("train.tokens", flipped),
    "one bit of the tokenizer": (MODEL, flipped),
    "half of the tokens": ("val.tokens", lambda p: os.truncate(p, p.stat().st_size // 2)),
    "no ends": ("train.ends", Path.unlink),
    "no manifest": (MANIFEST, Path.unlink),
    "an empty manifest": (MANIFEST, lambda p: p.write_text("")),
    "a manifest of something else": (MANIFEST, lambda p: p.write_text("[1]")),
    "a manifest of nothing": (MANIFEST, lambda p: p.write_text('{"files": {"train.tokens": 3}}')),
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.quick("one bit of the tokenizer", "a manifest of nothing")
def test_damaged_files_are_made_again_and_a_line_says_so(
    tmp_path: Path, sources: Sources, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = provide_token_files(tmp_path, sources, BPE)
    provide_token_files(tmp_path, sources, BPE)
    before = contents(folder)
    name, damage = DAMAGE[what]
    damage(folder / name)
    assert provide_token_files(tmp_path, sources, BPE) == folder
    assert contents(folder) == before
    assert f"{folder} is damaged ({name}" in capsys.readouterr().err.replace(
        "(manifest.json or a file", f"({name}"
    )


def test_checksums_are_compared_once_in_a_while(tmp_path: Path, sources: Sources) -> None:
    folder = provide_token_files(tmp_path, sources, BPE)
    provide_token_files(tmp_path, sources, BPE)
    file, stamp = folder / "train.tokens", folder / f".checked-{socket.gethostname()}"
    times, before = file.stat(), file.read_bytes()
    flipped(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    provide_token_files(tmp_path, sources, BPE)
    assert file.read_bytes() != before, "sizes and times are those that were checked a moment ago"
    os.utime(stamp, (1e9, 1e9))
    provide_token_files(tmp_path, sources, BPE)
    assert file.read_bytes() == before


def test_what_a_killed_process_left_goes_and_that_of_a_living_one_stays(
    tmp_path: Path, sources: Sources
) -> None:
    folder = provide_token_files(tmp_path / "first", sources, BPE)
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [
        f".{folder.name}.{socket.gethostname()}.{ended.pid}",
        f".bytes-another.{socket.gethostname()}.{ended.pid}",
        f".{folder.name}.{socket.gethostname()}.{os.getppid()}",
        f".{folder.name}.another-node.{ended.pid}",
    ]
    for name in names:
        make_empty(OwnedFolder(tmp_path / "second", (name,), f"tokens {name[1:].partition('.')[0]}"))
    (tmp_path / "second" / f".mine.{socket.gethostname()}.{ended.pid}").mkdir()
    (tmp_path / "second" / f".mine.{socket.gethostname()}.{ended.pid}" / "file").touch()
    provide_token_files(tmp_path / "second", sources, BPE)
    assert [(tmp_path / "second" / name).exists() for name in names] == [False, False, True, True]
    assert list((tmp_path / "second").glob(".mine*/file"))


CODE = """
import sys
from pathlib import Path
from train_anywhere.data.text.token_files import Settings
from train_anywhere.data.text.token_cache import provide_token_files
from train_anywhere.data.text.sources import Sources
print(provide_token_files(Path(sys.argv[2]), Sources(Path(sys.argv[1]), ("*.txt", "*.md"), "text"), Settings("bpe", 320, 0.2, 0.1)))
"""


def another_process(texts: Path | None, cache: Path) -> "subprocess.Popen[str]":
    """It makes the token files, or finds them, and prints their folder."""
    command = [sys.executable, "-c", CODE, str(texts), str(cache)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_who_comes_second_takes_what_is_there(tmp_path: Path, corpus: Path) -> None:
    """On a disk without locks two nodes make the same files; here the other one is done while this one reads."""

    class Slow(Sources):
        def read_documents(self) -> Iterator[tuple[str, str]]:
            yield from super().read_documents()
            folder, _ = another_process(corpus, tmp_path / "cache").communicate(timeout=60)
            made.append((folder.strip(), snapshot(Path(folder.strip()))))

    made: list[tuple[str, dict[str, tuple[int, bytes]]]] = []
    (tmp_path / "cache" / ".lock").mkdir(parents=True)  # no process gets the lock
    folder = provide_token_files(tmp_path / "cache", Slow(corpus, ("*.txt", "*.md"), "text"), BPE)
    assert made[0] == (str(folder), snapshot(folder))
    assert not list((tmp_path / "cache").glob(".bpe*"))


def test_texts_that_change_meanwhile_are_an_error(tmp_path: Path, corpus: Path) -> None:
    class Growing(Sources):
        def read_documents(self) -> Iterator[tuple[str, str]]:
            yield from super().read_documents()
            (corpus / "later.txt").write_text(str(len(list(corpus.rglob("*")))))

    with pytest.raises(DataError, match="changed while it was read; start again"):
        provide_token_files(tmp_path / "cache", Growing(corpus, ("*.txt", "*.md"), "text"), BPE)
    assert [f.name for f in (tmp_path / "cache").iterdir() if f.is_dir()] == []


def test_a_failed_attempt_leaves_nothing(tmp_path: Path, corpus: Path) -> None:
    (corpus / "zz.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"zz\.txt is not UTF-8"):
        provide_token_files(tmp_path / "cache", Sources(corpus, ("*.txt", "*.md"), "text"), BPE)
    assert [f.name for f in (tmp_path / "cache").iterdir() if f.is_dir()] == []


def test_a_cache_that_is_a_file(tmp_path: Path, sources: Sources) -> None:
    (tmp_path / "cache").write_text("mine")
    with pytest.raises(
        DataError, match=r"data\.cache: .*cache can't be written \(.*; use data\.cache=FOLDER"
    ):
        provide_token_files(tmp_path / "cache", sources, BPE)
    assert (tmp_path / "cache").read_text() == "mine"


def test_one_of_several_processes_makes_them(tmp_path: Path, sources: Sources) -> None:
    processes = [another_process(sources.path, tmp_path / "cache") for _ in range(3)]
    answers = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1
    assert sum("training a tokenizer" in err for _, err in answers) == 1
    files = json.loads((Path(answers[0][0].strip()) / MANIFEST).read_text())["files"]
    assert files.keys() >= {"train.tokens", "val.tokens", "test.tokens", MODEL}
