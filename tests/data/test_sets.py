from pathlib import Path

import numpy as np
import pytest

from src.config.choices import Data, DigitsData, ImageFolderData, MnistData, SyntheticData
from src.data.sets import open_splits


@pytest.fixture(params=["digits", "mnist", "imagefolder", "synthetic"])
def config(request: pytest.FixtureRequest) -> Data:
    match request.param:
        case "mnist":
            folder: Path = request.getfixturevalue("mnist_dir")
            return MnistData("mnist", 8, 0, str(folder), download=False)
        case "imagefolder":
            return ImageFolderData("imagefolder", 8, 0, str(request.getfixturevalue("picture_dir")), 24, 1)
        case "synthetic":
            return SyntheticData(
                "synthetic", 8, 0, height=9, width=7, channels=2, classes=5, length=40, val_length=8
            )
    return DigitsData("digits", 8, 0)


def test_every_set_keeps_the_promises_of_an_image_set(config: Data) -> None:
    splits = open_splits(config, seed=3)
    for part, train in ((splits.train, True), (splits.val, False), (splits.test, False)):
        assert part.shape == splits.train.shape and part.classes == splits.train.classes
        images, labels = part.read(np.arange(min(len(part), 6)), epoch=0, train=train)
        assert images.dtype == np.float32 and labels.dtype == np.int64
        assert images.shape == (len(labels), *part.shape) and np.isfinite(images).all()
        assert labels.min() >= 0 and labels.max() < part.classes
