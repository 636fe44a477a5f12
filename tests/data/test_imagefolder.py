import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from src.data.checks import imagefolder
from src.data.imagefolder import open_imagefolder
from src.data.transforms import prepare_image
from train_anywhere.errors import DataError


def open_small(folder: Path, channels: int = 3, seed: int = 0):
    return open_imagefolder(str(folder), 32, channels, seed)


def test_classes_are_folders_in_alphabetical_order(picture_dir: Path) -> None:
    splits = open_small(picture_dir)
    assert (len(splits.train), len(splits.val), splits.train.classes) == (12, 6, 3)
    for i in range(12):
        assert splits.train.path(i).parent.name == ["cat", "dog", "eel"][splits.train.labels[i]]
        assert splits.train.path(i).is_file()


def test_test_is_val_unless_it_has_a_folder(picture_dir: Path) -> None:
    splits = open_small(picture_dir)
    assert splits.test is splits.val
    shutil.copytree(picture_dir / "train" / "eel", picture_dir / "test" / "eel")
    assert open_small(picture_dir).test.labels.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("channels", [1, 3])
def test_evaluation_reads_each_file(picture_dir: Path, channels: int) -> None:
    val = open_small(picture_dir, channels).val
    images, labels = val.read(np.array([5, 0]), epoch=0, train=False)
    assert images.shape == (2, 32, 32, channels) and images.dtype == np.float32 and labels.tolist() == [2, 0]
    with Image.open(val.path(5)) as picture:
        np.testing.assert_array_equal(images[0], prepare_image(picture, 32, channels, None))


def test_augmentation_depends_on_seed_epoch_and_index_only(picture_dir: Path) -> None:
    train = open_small(picture_dir).train
    together = train.read(np.arange(12), epoch=1, train=True)[0]
    for i in range(12):
        np.testing.assert_array_equal(train.read(np.array([i]), epoch=1, train=True)[0][0], together[i])
    assert not np.array_equal(together, train.read(np.arange(12), epoch=2, train=True)[0])
    assert not np.array_equal(together, open_small(picture_dir, seed=1).train.read(np.arange(12), 1, True)[0])


def test_a_damaged_picture_is_found_when_read(picture_dir: Path) -> None:
    train = open_small(picture_dir).train
    for index, keep in ((0, 0), (4, 300), (8, 2)):
        train.path(index).write_bytes(train.path(index).read_bytes()[:keep])
        with pytest.raises(
            DataError, match=f"{train.path(index).name} is not a picture that can be read"
        ) as caught:
            train.read(np.array([index]), epoch=0, train=True)
        assert "\n" not in str(caught.value)
    train.read(np.array([1, 2, 3]), epoch=0, train=True)


@pytest.mark.parametrize(
    "content", [b"not a picture", b"\x89PNG\r\n\x1a\n" + bytes(50), b"\xff\xd8\xff" + bytes(50)]
)
def test_pictures_of_nonsense(picture_dir: Path, content: bytes) -> None:
    train = open_small(picture_dir).train
    train.path(2).write_bytes(content)
    with pytest.raises(DataError, match=train.path(2).name):
        train.read(np.array([2]), epoch=0, train=True)


def test_a_picture_that_vanished(picture_dir: Path) -> None:
    train = open_small(picture_dir).train
    train.path(3).unlink()
    with pytest.raises(DataError, match=train.path(3).name):
        train.read(np.array([3]), epoch=0, train=True)


@pytest.mark.parametrize("split", ["train", "val"])
def test_empty_class(picture_dir: Path, split: str) -> None:
    shutil.rmtree(picture_dir / split / "dog")
    (picture_dir / split / "dog").mkdir()
    (picture_dir / split / "dog" / "readme.txt").touch()
    with pytest.raises(DataError, match=f"{split}/dog is a class without pictures"):
        open_small(picture_dir)


def test_class_that_is_not_trained_on(picture_dir: Path) -> None:
    shutil.rmtree(picture_dir / "train" / "dog")
    with pytest.raises(DataError, match=r"val/dog is a class that .*train does not have"):
        open_small(picture_dir)


def test_a_class_missing_in_val_keeps_the_labels(picture_dir: Path) -> None:
    shutil.rmtree(picture_dir / "val" / "dog")
    val = open_small(picture_dir).val
    assert val.labels.tolist() == [0, 0, 2, 2] and val.classes == 3


@pytest.mark.parametrize("split", ["train", "val"])
def test_missing_split(picture_dir: Path, split: str) -> None:
    shutil.rmtree(picture_dir / split)
    with pytest.raises(
        DataError, match=f"{picture_dir / split} can't be listed .*data.dir must have train/<class>/"
    ):
        open_small(picture_dir)


def test_pictures_without_class_folders(picture_dir: Path) -> None:
    shutil.rmtree(picture_dir / "train")
    shutil.copytree(picture_dir / "val" / "dog", picture_dir / "train")
    with pytest.raises(DataError, match=r"train has no class folders: put pictures into train/<class>/"):
        open_small(picture_dir)


def test_hidden_files_and_names_of_any_kind(picture_dir: Path) -> None:
    (picture_dir / "train" / ".cache").mkdir()
    (picture_dir / "train" / "LICENSE").touch()
    source = picture_dir / "train" / "dog" / "dog_0.JPEG"
    source.rename(source.with_name("ein Hünd, 'quoted'.JPG"))
    train = open_small(picture_dir).train
    assert train.classes == 3
    assert train.path(7).name == "ein Hünd, 'quoted'.JPG"
    train.read(np.array([7]), epoch=0, train=True)


def test_a_good_picture_is_not_blamed_for_another_error(picture_dir: Path) -> None:
    train = open_imagefolder(str(picture_dir), 0, 3, 0).train  # a size that no configuration has
    with pytest.raises(ValueError, match="height and width must be > 0"):
        train.read(np.array([0]), epoch=0, train=False)


def test_pictures_in_sub_folders_and_of_other_kinds_are_read(picture_dir: Path) -> None:
    cat, before = picture_dir / "train" / "cat", open_small(picture_dir).train
    names = [f"more.{ending}" for ending in ("tif", "TIFF", "gif", "ppm", "pgm", "jfif", "bmp", "webp")]
    for n, name in enumerate(names):
        path = cat / ("day2", "day3/night", "odd.jpg")[n % 3] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        form = {"TIFF": "tiff", "tif": "tiff", "pgm": "ppm", "jfif": "jpeg"}.get(name[5:], name[5:])
        Image.fromarray(np.full((40, 40), n, np.uint8)).save(path, form)
    splits = open_small(picture_dir)
    assert len(splits.train) == len(before) + len(names) and not splits.notes
    cats = np.flatnonzero(splits.train.labels == 0)
    assert {splits.train.path(i).name for i in cats} >= {*names}
    assert splits.train.read(cats, 0, False)[0].shape == (12, 32, 32, 3)


def test_what_is_no_picture_is_left_out_and_counted_in_one_line(picture_dir: Path) -> None:
    train = picture_dir / "train"
    for name in ("cat/._0.png", "cat/.DS_Store", "dog/a.txt", "dog/b.txt", "dog/c.npy", "stray.jpg"):
        (train / name).write_bytes(b"nothing")
    (train / "__MACOSX").mkdir()
    (train / "eel" / "gone.png").symlink_to("nowhere.png")
    (train / "eel" / "self.png").symlink_to("self.png")
    os.mkfifo(train / "eel" / "pipe.jpg")
    splits = open_small(picture_dir)
    assert len(splits.train) == 12 and splits.train.classes == 3
    assert splits.notes == (
        f"{train}: 12 pictures in 3 classes; left out: hidden (2), *.txt (2), dead links (2), *.npy (1), pipes or devices (1), "
        "outside of the class folders (1)",
    )
    splits.train.read(np.arange(12), 0, True)


def test_a_class_folder_that_contains_itself_is_one_message(picture_dir: Path) -> None:
    (picture_dir / "train" / "cat" / "again").symlink_to(picture_dir / "train" / "cat")
    with pytest.raises(DataError, match=r"again is a link to a folder that contains it, a loop"):
        open_small(picture_dir)


def test_a_picture_whose_pixels_have_no_range_is_named(picture_dir: Path) -> None:
    Image.fromarray(np.ones((40, 40), np.float32)).save(picture_dir / "train" / "cat" / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif has pixels of Pillow's mode 'F'.*convert it to 8 bits"):
        open_small(picture_dir).train.read(np.array([0]), 0, False)


def test_folders_of_splits_are_not_classes(picture_dir: Path) -> None:
    with pytest.raises(DataError, match="has the folders train, val, which would be classes"):
        imagefolder(str(picture_dir), 32, 3, look=True, stage=False, val_fraction=0.2)
    assert imagefolder(str(picture_dir / "train"), 32, 3, look=True, stage=False, val_fraction=0.2)
