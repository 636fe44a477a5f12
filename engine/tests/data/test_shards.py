"""Shards are rows by index: the same batches on any number of ranks, one message for each damage, one scan."""

import io
import json
import os
import re
import signal
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.data.shard_files import SIZES, image, npy, write_shard, write_shards, write_tar
from engine.tests.properties.cases import bounded
from src.data.shards import Decoder
from tools.testing.processes import run_python, start_python
from train_anywhere.commands.index import main as index_command
from train_anywhere.data.dataset import Splits
from train_anywhere.data.order.assignment import BatchOrder, BlockOrder
from train_anywhere.data.shards import index, sources
from train_anywhere.data.shards.checks import list_shards, parse_size, shards
from train_anywhere.data.shards.index import open_index
from train_anywhere.data.shards.open import index_ahead, open_shards
from train_anywhere.data.torch.loader import Batches, torch_loader
from train_anywhere.errors import DataError

SAMPLES = sum(SIZES)


@pytest.fixture(params=["tar", "jsonl", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return request.param


def open_folder(folder: Path, **arguments: Any) -> Splits:
    return open_shards(str(folder), str(folder.parent / "other"), 3, **arguments)


def ids(images: np.ndarray) -> list[int]:
    return [round(float(pixel) * 1000) for pixel in images[:, 0, 0, 0]]


def test_rows_are_the_samples(tmp_path: Path, kind: str) -> None:
    splits = open_folder(write_shards(tmp_path / "data", kind))
    assert (len(splits.train), len(splits.val), len(splits.test)) == (SAMPLES, 30, 30)
    rows = np.array([264, 0, 71, 70, 0, 181])
    images, labels = splits.train.read(rows, 0, True)
    assert ids(images) == rows.tolist() and labels.tolist() == [r % 7 for r in rows]
    np.testing.assert_allclose(images, [image(r) for r in rows], rtol=1e-6)
    assert splits.facts["shape"] == (4, 4, 1) and splits.facts["classes"] == 7
    assert ids(splits.val.read(np.arange(30), 0, False)[0]) == list(range(900, 930))


@pytest.mark.parametrize("wrong", [10**9, 2**63 - 1, 5_000])
def test_one_wrong_label_decides_no_size_and_is_named(tmp_path: Path, kind: str, wrong: int) -> None:
    folder = write_shards(tmp_path / "data", kind)
    named = folder / f"train-000006.{kind}"
    if kind == "tar":
        write_tar(named, [("x.npy", npy(image(1))), ("x.cls", b"%d" % wrong)])
    elif kind == "jsonl":
        named.write_text(json.dumps({"image": image(1).tolist(), "label": wrong}))
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"image": [image(1).tolist()], "label": [wrong]}), named)
    facts = open_folder(folder).facts
    assert "classes" not in facts and "outputs" not in facts
    assert f"{named}" in facts["unknown"] and f"{wrong:,}" in facts["unknown"]
    assert "data.classes=" in facts["unknown"]
    assert open_folder(folder, classes=7).facts["classes"] == 7


@pytest.mark.parametrize("order", ["blocks", "full", "shards"])
def test_each_id_once_per_epoch_on_any_number_of_ranks(tmp_path: Path, kind: str, order: str) -> None:
    data = open_folder(write_shards(tmp_path / "data", kind), order=order, window=2).train
    read: dict[int, list[list[int]]] = {}
    for ranks in (1, 2, 3, 8):
        batches: list[list[int]] = [[] for _ in range(SAMPLES // 48)]
        for rank in range(ranks):
            batch_order = BatchOrder(48, 3, rank, ranks, True, blocks=data.blocks)
            loader: Any = torch_loader(Batches(data, replace(batch_order, drop_last=True)))
            loader.sampler.set_epoch(1)
            for found, (images, _) in zip(batches, loader, strict=True):
                assert len(images) == 48 // ranks
                found += ids(images.numpy())
        read_ids = {i for batch in batches for i in batch}
        assert len(read_ids) == SAMPLES // 48 * 48 and read_ids <= set(range(SAMPLES))
        read[ranks] = batches
    if order != "shards":
        assert read[1] == read[2] == read[3] == read[8]


@bounded(100)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 9), st.booleans(), st.integers(0, 5)
)
def test_orders_of_blocks(sizes: list[int], window: int, by_rank: bool, epoch: int) -> None:
    length = sum(sizes)
    if length < 24:
        return
    blocks = BlockOrder(np.concatenate([[0], np.cumsum(sizes)]), window, by_rank)
    for ranks in (1, 2, 3, 8):
        orders = [BatchOrder(24, 1, rank, ranks, True, blocks, drop_last=True) for rank in range(ranks)]
        parts = [one.rows(length, epoch, b) for b in range(length // 24) for one in orders]
        left_out = orders[0].samples(length, epoch, length - length % 24, length)
        assert sorted(np.concatenate([*parts, left_out]).tolist()) == list(range(length))


def test_a_window_has_rows_of_few_shards_and_epochs_differ() -> None:
    blocks = BlockOrder(np.arange(0, 4001, 100), 4)
    epochs = [blocks.rows(1, epoch, 0, 4000, 0, 4000) for epoch in (0, 1)]
    assert [len(np.unique(rows // 100)) for rows in epochs[0].reshape(10, 400)] == [4] * 10
    assert (epochs[0] != epochs[1]).mean() > 0.9
    assert (
        len({*(epochs[0][:400] % 100)[:20]} & {*(epochs[0][400:800] % 100)[:20]}) < 20
    )  # another order per window


def test_whole_shards_per_rank() -> None:
    blocks = BlockOrder(np.arange(0, 2001, 100), 3, by_rank=True)
    seen = [
        {
            int(r) // 100
            for b in range(20)
            for r in BatchOrder(100, 1, rank, 2, True, blocks=blocks).rows(2000, 0, b)
        }
        for rank in (0, 1)
    ]
    assert len(seen[0]) == len(seen[1]) == 10 and not seen[0] & seen[1]


def test_splits_by_names_and_by_keys(tmp_path: Path) -> None:
    for name in (
        "train-0.tar",
        "validation-0.tar",
        "deep/test_1.tar",
        "valley.tar",
        "Testing/0.tar",
        "dev.tar",
        "imagenet1k-validation-00.tar",
        "contest.TAR",
        "coco2017val.tar",
        "train_val.tar",
    ):
        write_shard(tmp_path / "named" / name, range(3))
    assert list_shards(tmp_path / "named").splits == {
        "train": ["contest.TAR", "train-0.tar", "train_val.tar", "valley.tar"],
        "val": ["coco2017val.tar", "dev.tar", "imagenet1k-validation-00.tar", "validation-0.tar"],
        "test": ["Testing/0.tar", "deep/test_1.tar"],
    }
    assert len(open_folder(tmp_path / "named").train) == 12
    write_shard(tmp_path / "flat" / "0.tar", range(500))
    splits = open_folder(tmp_path / "flat", val_fraction=0.2, test_fraction=0.1)
    parts = [
        ids(one.read(np.arange(len(one)), 0, False)[0]) for one in (splits.train, splits.val, splits.test)
    ]
    assert sorted(i for part in parts for i in part) == list(range(500))
    assert 70 < len(parts[1]) < 130 and 30 < len(parts[2]) < 70
    write_shard(tmp_path / "flat" / "1.tar", range(500, 600))  # more shards move no sample to another split
    again = open_folder(tmp_path / "flat", val_fraction=0.2, test_fraction=0.1)
    assert set(parts[1]) <= set(ids(again.val.read(np.arange(len(again.val)), 0, False)[0]))


def test_columns_and_functions(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "data" / "0.tar",
        [("a/1.x.npy", npy(np.ones(2))), ("a/1.json", b"[1, 2]"), ("a/1.txt", b"hi")],
    )
    rows = open_folder(tmp_path / "data", columns={"x": "x.npy", "y": "json"}).train.read(
        np.array([0]), 0, True
    )
    assert rows["x"].dtype == np.float32 and rows["x"].shape == (1, 2) and rows["y"].tolist() == [[1, 2]]

    def decode(sample: dict[str, Any], random: np.random.Generator | None) -> tuple[Any, ...]:
        return len(sample["txt"]), random.random() if random else 0.0

    train = open_folder(tmp_path / "data", columns={"txt": "txt"}, decode=decode).train
    with_member(tmp_path / "less", ("a.txt", b"a"), ("b.cls", b"1"))
    with pytest.raises(DataError, match="sample b: it has no txt"):
        open_folder(tmp_path / "less", columns={"txt": "txt"}, decode=decode)
    values = [train.read(np.array([0]), epoch, True) for epoch in (0, 0, 1)]
    assert values[0][0] == [2] and values[0][1] == values[1][1] != values[2][1]
    assert train.read(np.array([0]), 0, False)[1] == [0]


def test_pictures_and_text_get_the_transforms_of_the_project(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    files = {}
    for kind in ("jpeg", "png", "webp"):
        files[kind] = io.BytesIO()
        pillow.fromarray(np.full((40, 50, 3), 99, np.uint8)).save(files[kind], kind)
    members = [(f"{k}.{k}", f.getvalue()) for k, f in files.items()] + [(f"{k}.cls", b"1") for k in files]
    write_tar(tmp_path / "data" / "0.tar", members)
    images, labels = open_folder(tmp_path / "data", decode=Decoder(image_size=16)).train.read(
        np.arange(3), 0, True
    )
    assert images.shape == (3, 16, 16, 3) and images.dtype == np.float32 and labels.tolist() == [1, 1, 1]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "0.jsonl").write_text('{"text": "abc"}\n{"text": "abcdefghijk"}\n')
    splits = open_folder(tmp_path / "text", decode=Decoder(tokenizer="bytes", length=6))
    rows = splits.train.read(np.arange(2), 0, True)
    assert rows["tokens"].tolist() == [[256, 97, 98, 99, 256, 256, 256], [256, *b"abcdef"]]
    assert rows["documents"].tolist() == [[0, 0, 0, 0, 0, -1, -1], [0] * 7] and rows["bytes"].tolist() == [
        3,
        6,
    ]
    assert splits.facts["vocabulary"] == 257
    half = Decoder(tokenizer="bytes", length=3)({"text": "a\ud800b"}, None)
    assert half["tokens"].tolist() == [256, *b"a?b"]


def damage(path: Path, change: Callable[[bytearray], Any]) -> None:
    content = bytearray(path.read_bytes())
    path.write_bytes(change(content))


def with_member(folder: Path, *members: tuple[str, bytes]) -> None:
    write_tar(folder / "train" / "0009.tar", members)


def write_large(path: Path) -> None:
    """Write a tar file with a member of more than 4 GiB, which takes no space on a disk."""
    member = tarfile.TarInfo("a.bin")
    member.size = 2**32 + 5
    with path.open("wb") as file:
        file.write(member.tobuf(tarfile.PAX_FORMAT))
        file.truncate(2**32 + 2**20)


def write_header(path: Path, kind: bytes, size: int, count: int = 1) -> None:
    """Write headers of a tar file that claim a size, in a file that has it without taking space."""
    member = tarfile.TarInfo("a.npy")
    member.type, member.size = kind, size
    with path.open("wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT) * count)
        file.truncate(max(size, 0) + 2**20)


def with_long_name(file: Path, style: int) -> None:
    with tarfile.open(file, "w", format=style) as tar:
        member = tarfile.TarInfo(f"{LONG}.npy")
        member.size = 8
        tar.addfile(member, io.BytesIO(b"\x93NUMPYxx"))


def write_json(folder: Path, before: str, after: str = "", cut: int | None = None) -> None:
    """Write rows of JSON between other text."""
    for other in folder.rglob("*.tar"):
        other.unlink()
    file = write_shard(folder / "train" / "0000.jsonl", range(70))
    file.write_text(before + file.read_text()[:cut] + after)


LONG = "d" * 90 + "/" + "ü" * 150
NO_LABEL = "0000.jsonl, sample 70 (byte 27,272): it has no label"
PICTURE, LABEL = ("b.npy", npy(image(1))), ("b.cls", b"1")
FIRST = Path("train", "0000.tar")
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut in a member": (lambda f: damage(f / FIRST, lambda b: b[:30000]), "0000.tar ends early or is damaged, at byte 29,696"),
    "cut in a header": (lambda f: damage(f / FIRST, lambda b: b[:3300]), "0000.tar ends early or is damaged, at byte 3,072"),
    "a damaged header": (lambda f: damage(f / FIRST, lambda b: b[:8200] + b"x" * 9 + b[8209:]), "0000.tar ends early or is damaged"),
    "joined files": (lambda f: damage(f / FIRST, lambda b: b * 2), "train/0000.tar has more data after its end"),
    "0 bytes": (lambda f: (f / FIRST).write_bytes(b""), "train/0000.tar is not a complete tar file (empty file)"),
    "a key twice": (lambda f: with_member(f, PICTURE, LABEL, PICTURE), "train/0009.tar: the sample b has npy twice"),
    "a missing column": (lambda f: with_member(f, ("a.npy", npy(image(1))), ("a.cls", b"1"), PICTURE), "0009.tar, sample b: it has no cls"),
    "a damaged label": (lambda f: with_member(f, PICTURE, ("b.cls", b"one")), "0009.tar, sample b: cls can't be read (b'one' is not a"),
    "a damaged picture": (lambda f: with_member(f, ("b.npy", b"\xff\xd8\xff"), LABEL), "0009.tar, sample b: npy can't be read"),
    "a label with _": (lambda f: with_member(f, PICTURE, ("b.cls", b"1_0")), "sample b: cls can't be read (b'1_0' is not a whole number"),
    "a long name": (lambda f: with_long_name(f / FIRST, tarfile.GNU_FORMAT), f"sample {LONG}: npy can't be read"),
    "a long name of pax": (lambda f: with_long_name(f / FIRST, tarfile.PAX_FORMAT), f"sample {LONG}: npy can't be read"),
    "JSON that is cut": (lambda f: write_json(f, "", cut=-40), "0000.jsonl, line 70 (byte 26,885) is not JSON"),
    "JSON that is no object": (lambda f: write_json(f, "[1]\n"), "0000.jsonl, line 1 (byte 0) is a list, not a JSON object"),
    "JSON without a column": (lambda f: write_json(f, "", '{"image": [1]}\n'), NO_LABEL),
    "JSON with null": (lambda f: write_json(f, "", '{"image": [1], "label": null}\n'), NO_LABEL),
    "two kinds": (lambda f: write_shard(f / "0.jsonl", [1]), "shards; use data.dir=FOLDER"),
    "a dead link": (lambda f: (f / "1.tar").symlink_to("/nowhere"), "data/1.tar is not a file (dead links); restore it"),
    "a pipe": (lambda f: os.mkfifo(f / "1.tar"), "data/1.tar is not a file (pipes or devices); restore it"),
    "numbers in names": (lambda f: with_member(f, *[(f"a{n}.{n}.cls", b"1") for n in range(257)]), "more than 256 fields, such as"),
    "a field of 4 GiB": (lambda f: write_large(f / "train" / "1.tar"), "1.tar: a.bin has 4,294,967,301 bytes, and a field has at most"),
    "a name of 6 GiB": (lambda f: write_header(f / "1.tar", b"L", 6 << 30), "1.tar is not a complete tar file (a header claims 6,442,450,"),
    "values of 6 GiB": (lambda f: write_header(f / "1.tar", b"x", 6 << 30), "1.tar is not a complete tar file (a header claims 6,442,450,"),
    "a size of -1": (lambda f: write_header(f / "1.tar", b"0", -1), "1.tar is not a complete tar file (a.npy has -1 bytes)"),
    "a name of -1024": (lambda f: write_header(f / "1.tar", b"L", -1024), "1.tar is not a complete tar file (a header claims -1,024"),
    "10,000 headers": (lambda f: write_header(f / "1.tar", b"x", 0, 10_000), "1.tar is not a complete tar file ("),
    "compressed": (lambda f: write_shard(f / "0.tar", [1]).rename(f / "0.tar.gz"), "-name '*.tar.gz' -exec gunzip {} +"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_each_damage_has_one_message_with_file_and_sample(tmp_path: Path, case: str) -> None:
    change, message = DAMAGES[case]
    change(write_shards(tmp_path / "data"))
    with pytest.raises(DataError) as raised:
        train = open_folder(tmp_path / "data").train
        train.read(np.arange(len(train)), 0, True)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not [*(tmp_path / "other").glob("index-*")] or "sample" in message


INDEX_DAMAGES: dict[str, Callable[[Path], object]] = {
    "an array that is cut": lambda place: damage(place / "hash.npy", lambda b: b[:-9]),
    "units of text": lambda place: (place / "index.json").write_text('{"units": "abc", "counts": [{}]}'),
    "a list": lambda place: (place / "index.json").write_text("[]"),
    "deep": lambda place: (place / "index.json").write_text("[" * 100_000),
    "an array of pairs": lambda place: np.save(place / "hash.npy", np.zeros((SAMPLES + 30, 2))),
    "a missing array": lambda place: (place / "size:cls.npy").unlink(),
    "offsets after the file": lambda place: np.save(place / "offset:cls.npy", np.full(SAMPLES + 30, 2**40)),
}


@pytest.mark.parametrize("case", INDEX_DAMAGES)
def test_a_damaged_index_is_one_message(tmp_path: Path, case: str) -> None:
    folder = write_shards(tmp_path / "data")
    open_folder(folder)
    [place] = (tmp_path / "other").glob("index-*")
    INDEX_DAMAGES[case](place)
    index._map.cache_clear()
    with pytest.raises(DataError, match="damaged") as raised:
        train = open_folder(folder).train
        train.read(np.arange(len(train)), 0, True)
    assert "\n" not in str(raised.value)
    assert case != "an array that is cut" or re.search(
        r"index-\w+ is damaged .*delete this", str(raised.value)
    )


def test_what_may_be_wrong_is_a_note(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "data")
    write_tar(folder / "train" / "0009.tar", [])
    damage(folder / FIRST, lambda b: b[:10240])  # ends between two members
    with tarfile.open(folder / "val" / "1.tar", "w") as tar:
        link = tarfile.TarInfo("z.npy")
        link.type, link.linkname = tarfile.SYMTYPE, "0.npy"
        tar.addfile(link)
    splits = open_folder(folder)
    assert len(splits.train) == SAMPLES - 65 and len(splits.val) == 30
    assert [note.partition("data/")[2] for note in splits.notes] == [
        "train/0000.tar has no end mark at byte 10,240: it may be incomplete.",
        "train/0009.tar has no samples.",
        "val/1.tar: links such as z.npy are left out; pack it with tar -h --hard-dereference.",
    ]
    for number in range(1000, 2000):
        write_tar(folder / "train" / f"{number}.tar", [])
    assert open_folder(folder).notes[3:] == (
        f"1,000 other shards have such notes: python -m train_anywhere index {folder}",
    )


def test_a_shard_that_changes_during_the_run(tmp_path, kind, monkeypatch) -> None:
    monkeypatch.setattr(sources, "LOOK_S", 0.0)
    train = open_folder(write_shards(tmp_path / "data", kind)).train
    train.read(np.arange(5), 0, True)
    write_shard(tmp_path / "data" / "train" / f"0000.{kind}", range(3))
    with pytest.raises(DataError, match=rf"0000\.{kind} changed since it was indexed"):
        train.read(np.arange(5), 0, True)


def test_one_scan_for_all_processes(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "data")
    words = ("-m", "train_anywhere", "index", folder, "--results", tmp_path)
    started = [start_python(*words) for _ in range(4)]
    printed = [process.communicate(timeout=60) for process in started]
    assert sum("indexing 7 shards: done" in err for _, err in printed) == 1
    assert all(f"Samples:       {SAMPLES + 30}" in out for out, _ in printed)
    [place] = (tmp_path / ".cache").glob("index-*")
    assert all(file.suffix in (".npy", ".json", "") for file in place.iterdir())
    before = place.stat().st_mtime_ns
    assert open_index(folder, tmp_path / ".cache").place == place and place.stat().st_mtime_ns == before
    os.utime(folder / FIRST, (1, 1))
    assert open_index(folder, tmp_path).place != place and not [*folder.glob(".*")]
    with pytest.raises(DataError, match=r"can't be written \(.*\); use data\.index=FOLDER\.$"):
        open_index(folder, folder / FIRST)


def test_row_groups_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    data = open_folder(write_shards(tmp_path / "data", "parquet"), window=4).train
    decoded: list[Any] = []
    read = parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        parquet.ParquetFile,
        "read_row_group",
        lambda self, number, *a, **k: decoded.append((id(self), number)) or read(self, number, *a, **k),
    )
    order = BatchOrder(24, 3, train=True, blocks=data.blocks)
    for start in range(0, SAMPLES, 24):
        data.read(order.samples(SAMPLES, 0, start, min(start + 24, SAMPLES)), 0, True)
    assert len(decoded) == len({*decoded}) == 16
    small = open_folder(tmp_path / "data", cache="20kB")
    assert "data.window=" in small.notes[0] and small.train.blocks.window < 16


def test_many_small_row_groups_are_kept(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "data").mkdir()
    table = pyarrow.table({"x": np.arange(4000)})
    parquet.write_table(table, tmp_path / "data" / "0.parquet", row_group_size=1)
    data = open_folder(tmp_path / "data").train
    began = time.process_time()
    assert data.read(np.arange(4000), 0, True)["x"].tolist() == [*range(4000)]
    assert time.process_time() - began < 4000 * 0.002  # 0.008 if each looks at all that are kept
    small = open_folder(tmp_path / "data", cache="80").train
    small.read(np.arange(4000), 0, True)
    for source, least in ((data.source, 32000), (small.source, 60)):
        assert least <= source._bytes == sum(kept.nbytes for kept in source._tables.values())
    assert small.source._bytes <= 80


@pytest.mark.parametrize("workers", [0, 2])
def test_opens_are_at_most_shards_times_workers_times_ranks(tmp_path, workers, kind, monkeypatch) -> None:
    data, log = open_folder(write_shards(tmp_path / "data", kind), window=3).train, tmp_path / "opens"
    original = sources.OpenFile.__init__

    def opening(self: Any, path: str, state: tuple[int, int]) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {path}\n")
        original(self, path, state)

    monkeypatch.setattr(sources.OpenFile, "__init__", opening)
    for rank in range(2):
        sources._open.cache_clear()
        order = BatchOrder(24, 3, rank, 2, train=True, blocks=data.blocks)
        loader = torch_loader(Batches(data, replace(order, drop_last=True)), workers=workers)
        assert [len([*loader]) for _ in range(2)] == [SAMPLES // 24] * 2
    opens = log.read_text().splitlines()
    assert len(opens) <= len(SIZES) * max(1, workers) * 2
    assert workers == 0 or len(opens) == len({*opens})


VALUES: dict[str, tuple[str, list[Any] | str]] = {
    "crlf and blank lines": ('\r\n{"x": 1}\r\n \r\n{"x": 2}', [1, 2]),
    "bytes of a long text": ('{"x": "' + "a" * 9_000_000 + '"}\n{"x": "b"}\n', ["a" * 9_000_000, "b"]),
    "integers and floats": ('{"x": 1}\n{"x": 1.5}\n', [1, 1.5]),
    "names with dots": ('{"a.ü": 1}\n{"a.ü": 2}\n', [1, 2]),
    "numbers and texts": ('{"x": 1}\n{"x": "b"}\n', "sample 1 (byte 9): the samples of a batch have values of different types"),
    "a large number": ('{"x": 1}\n{"x": ' + "9" * 30 + "}\n", "0.jsonl, sample 1 (byte 9): the samples of a batch have values of"),
    "a null in a list": ('{"x": [1]}\n{"x": [null]}\n', "sample 1 (byte 11): a sample has null (None) among its values"),
    "other lengths": ('{"x": [1]}\n{"x": [1, 2]}\n', "sample 1 (byte 11): the samples of a batch have arrays of different"),
    "no names": ("{}\n{}\n", "has no samples with fields"),
    "nothing": ("", "has no samples with fields"),
    "bytes of another code": ('{"x": "\udcfc"}\n', "0.jsonl, line 1 (byte 0) is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_lines_are_right_or_have_one_message(tmp_path: Path, case: str) -> None:
    text, expected = VALUES[case]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    try:
        [found] = open_folder(tmp_path / "data").train.read(np.arange(2), 0, True).values()
    except DataError as error:
        assert isinstance(expected, str) and expected in str(error) and "\n" not in str(error)
    else:
        assert found.tolist() == expected


def test_bytes_keep_their_zeros_and_npy_arrays_their_order(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    write_tar(
        tmp_path / "data" / "0.tar",
        [("a.bin", b"a\0"), ("a.npy", npy(array)), ("b.bin", b"\0"), ("b.npy", npy(array + 1))],
    )
    rows = open_folder(tmp_path / "data").train.read(np.arange(2), 0, True)
    sounds = [b"RIFF\0\0\0\0WAVEfmt", b"BM", b"II*", b"GIF80"]  # the first bytes of pictures, or nearly
    write_tar(tmp_path / "sounds" / "0.tar", [(f"{n}.wav", sound) for n, sound in enumerate(sounds)])
    assert open_folder(tmp_path / "sounds").train.read(np.arange(4), 0, True)["wav"].tolist() == sounds
    assert rows["bin"].tolist() == [b"a\0", b"\0"]
    np.testing.assert_array_equal(rows["npy"], [array, array + 1])


def test_values_of_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = [np.arange(3, dtype=np.float32) + n for n in range(50)]
    table = {
        "floats": pyarrow.array(lists, pyarrow.list_(pyarrow.float32())),
        "nested": [[[n, 1], [2, 3]] for n in range(50)],
        "text": [f"ü{n}" for n in range(50)],
        "raw": [b"\0" * n for n in range(50)],
    }
    (tmp_path / "data").mkdir()
    parquet.write_table(
        pyarrow.table(table), tmp_path / "data" / "0.parquet", row_group_size=20, compression="snappy"
    )
    parquet.ParquetWriter(tmp_path / "data" / "1.parquet", pyarrow.table(table).schema).close()
    splits = open_folder(tmp_path / "data")
    assert "1.parquet has no samples" in splits.notes[0]
    chosen = np.array([49, 0, 21, 20])
    rows = splits.train.read(chosen, 0, True)
    np.testing.assert_array_equal(rows["floats"], [lists[n] for n in chosen])
    assert rows["floats"].dtype == np.float32 and rows["floats"].flags.writeable
    assert rows["nested"][:, 0, 0].tolist() == chosen.tolist()
    assert rows["text"].tolist() == [f"ü{n}" for n in chosen] and rows["raw"].tolist() == [
        b"\0" * n for n in chosen
    ]
    damage(tmp_path / "data" / "0.parquet", lambda b: b[:20] + b"\xff" * 300 + b[320:])
    with pytest.raises(DataError, match=r"0\.parquet, row group 0 can't be read"):
        open_folder(tmp_path / "data").train.read(np.arange(20), 0, True)


def test_another_data_set_is_refused_unless_asked_for(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "data")
    given = {"dir": str(folder), "index": str(tmp_path)}
    before = index_ahead(given, None, lambda: None)
    assert (
        before["samples"] == SAMPLES + 30
        and before["files"]["val/0.tar"] == (folder / "val" / "0.tar").stat().st_size
    )
    assert index_ahead(given, before, lambda: None) == before
    write_shard(folder / "train" / "0007.tar", range(800, 810))
    with pytest.raises(
        DataError, match=r"trained on \(295 samples, now 305; train/0007.tar\).*data.other_data=true"
    ):
        index_ahead(given, before, lambda: None)
    assert index_ahead({**given, "other_data": True}, before, lambda: None)["samples"] == 305
    os.utime(folder / FIRST, (1, 1))
    with pytest.raises(DataError, match=r"data changed since this run indexed them"):
        open_folder(folder)


def test_checks_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "data")
    assert shards(str(folder), "1GiB", True, True).problems == ()
    [problem] = shards(str(folder), "1GiB", True, True, val_fraction=0.1).problems
    assert "has shards of val, such as val/0.tar; leave out data.val_fraction=0.1" in problem
    assert "data.columns=jpg does not name" in shards("", "1GiB", False, True, columns="jpg").problems[0]  # type: ignore[arg-type]
    assert "leave nothing to train on" in shards("", "1GiB", False, True, 0.5, 0.5).problems[0]
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "0.parquet").touch()
    monkeypatch.setattr("train_anywhere.data.shards.checks.find_spec", lambda name: None)
    assert "python -m pip install pyarrow" in shards(str(tmp_path / "parquet"), "1", True, True).problems[0]
    assert shards(str(tmp_path / "parquet"), "1", True, False).problems == ()
    write_shard(tmp_path / "held" / "val-0.tar", [1])
    with pytest.raises(DataError, match=r"has shards of val only, such as val-0.tar; use data.dir="):
        list_shards(tmp_path / "held")
    with pytest.raises(
        DataError, match=r"\{0..9\}.tar can't be listed \(No such .*; use the path of a folder"
    ):
        list_shards(tmp_path / "{0..9}.tar")
    assert [parse_size(s) for s in ("1GiB", "500MB", "4096", "2k")] == [2**30, 500_000_000, 4096, 2000]
    with pytest.raises(DataError, match=r"data\.cache=much is not a size"):
        parse_size("much")


def test_the_command_has_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert index_command([str(tmp_path), "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    write_shard(tmp_path / "0.tar", range(3))
    with tarfile.open(tmp_path / "0.tar", "a") as tar:
        link = tarfile.TarInfo("\udcff\x1b[1m.npy")
        link.type, link.linkname = tarfile.SYMTYPE, "0.npy"
        tar.addfile(link)
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = run_python("-m", "train_anywhere", "index", str(tmp_path), "--results", str(tmp_path), env=env)
    assert done.returncode == 0 and r"links such as \udcff\x1b[1m.npy are left out" in done.stdout, (
        done.stderr
    )


KILLS = [(1, 2, 9), (2, 3, 14), (3, 1, 0)]
"""Attempt, ranks, and step of the attempt at which the last rank is killed: in the first epoch, then in the second."""


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.parametrize("workers", [0, 2])
def test_no_id_is_lost_or_read_twice_after_kills(tmp_path, kind, framework, workers, train) -> None:
    folder, steps = write_shards(tmp_path / "data", kind), SAMPLES // 24
    words = [
        "data=shards", f"data.dir={folder}", "data.batch_size=24", f"data.workers={workers}", "data.window=2", f"framework={framework}",
        "task._target_={lightning: engine.tests.data.id_tasks.torch_task, keras: engine.tests.data.id_tasks.keras_task}",
        "model=mlp", "model.hidden=[8]", "model.dropout=0", "trainer.max_epochs=2", "checkpoint.every_n_steps=3",
        f"paths.results={tmp_path / 'results'}", "trainer.accelerator=cpu", "monitor.progress=none",
    ]  # fmt: skip
    for attempt, ranks, kill in KILLS:
        env = {"IDS": f"{tmp_path}/ids{attempt}", "KILL": str(kill), "KILL_RANK": str(ranks - 1)}
        strategy = (
            "single" if ranks == 1 else {"lightning": "ddp", "keras": "multiworker_mirrored"}[framework]
        )
        done = train(*words, f"trainer.devices={ranks}", f"strategy={strategy}", env=env)
        assert done.returncode == (128 + signal.SIGKILL if kill else 0), done.stdout + done.stderr
        words = [f"resume={(tmp_path / 'results' / 'latest').resolve()}"]
    info = json.loads((tmp_path / "results" / "latest" / "run.json").read_text())
    trained: dict[int, dict[int, list[int]]] = {}
    for attempt, facts in enumerate(info["attempts"], 1):
        for file in tmp_path.glob(f"ids{attempt}-*"):
            for step, line in enumerate(file.read_text().splitlines(), facts["from_step"]):
                trained.setdefault(step, {}).setdefault(attempt, []).extend(map(int, line.split()))
    for epoch in (0, 1):
        found = [trained[step][max(trained[step])] for step in range(epoch * steps, (epoch + 1) * steps)]
        read = [i for batch in found for i in batch]
        assert len(read) == len({*read}) == 24 * steps and {*read} <= set(range(SAMPLES))
    assert info["data"]["samples"] == SAMPLES + 30
