import timeit
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from src.data.transforms import AREA, MEAN, RATIO, STD, central_crop, normalise, prepare_image, random_crop


@pytest.mark.parametrize("size", [(500, 375), (100, 400), (64, 64)])
def test_random_crops_lie_inside_and_keep_the_ranges(size: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        left, top, right, bottom = random_crop(*size, random)
        width, height = right - left, bottom - top
        assert left >= 0 and top >= 0 and right <= size[0] and bottom <= size[1]
        assert AREA[0] * 0.9 <= width * height / (size[0] * size[1]) <= AREA[1]
        assert RATIO[0] * 0.9 <= width / height <= RATIO[1] * 1.1


def test_random_crops_vary_over_their_ranges() -> None:
    random = np.random.default_rng(0)
    boxes = np.array([random_crop(400, 400, random) for _ in range(500)])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 400**2
    assert areas.min() < 0.12 and areas.max() > 0.85
    assert boxes[:, 0].min() == 0 and boxes[:, 0].max() > 200


def test_extreme_shapes_get_the_central_crop() -> None:
    left, top, right, bottom = random_crop(1000, 1, np.random.default_rng(0))
    assert (
        (top, bottom) == (0, 1)
        and right - left == pytest.approx(4 / 3)
        and left + right == pytest.approx(1000)
    )


def test_evaluation_equals_resizing_the_short_side_then_cropping() -> None:
    ramp = np.add.outer(np.arange(384) / 384, np.arange(512) / 512) * 127
    image = Image.fromarray(ramp.astype(np.uint8))
    expected = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 58 + 224, 16 + 224))
    ours = image.resize((224, 224), Image.Resampling.BILINEAR, box=central_crop(512, 384))
    assert np.abs(np.asarray(expected, int) - np.asarray(ours, int)).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
def test_any_kind_of_picture_gets_the_requested_shape(channels: int) -> None:
    for mode in ("RGB", "L", "P", "RGBA", "CMYK", "1"):
        prepared = prepare_image(Image.new(mode, (40, 30)), 24, channels, np.random.default_rng(0))
        assert prepared.shape == (24, 24, channels) and prepared.dtype == np.float32, mode


def test_half_of_the_training_pictures_are_flipped() -> None:
    ramp = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (256, 1)))
    prepared = [prepare_image(ramp, 16, 1, np.random.default_rng(i)) for i in range(100)]
    assert 30 < sum(image[0, 0, 0] > image[0, -1, 0] for image in prepared) < 70
    assert prepare_image(ramp, 16, 1, None)[0, 0, 0] < prepare_image(ramp, 16, 1, None)[0, -1, 0]


def test_normalise_is_the_published_formula() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(4, 4, 3), dtype=np.uint8)
    np.testing.assert_allclose(normalise(pixels), (pixels / 255 - MEAN) / STD, rtol=1e-4, atol=1e-5)


def test_preparing_takes_little_longer_than_decoding() -> None:
    """Numpy is 20 times slower per channel, and Pillow copies an image that is RGB."""
    pixels = np.random.default_rng(0).integers(256, size=(224, 224, 3), dtype=np.uint8)

    def seconds(function: Callable[[], object]) -> float:
        return min(timeit.repeat(function, number=10, repeat=5))

    assert seconds(lambda: normalise(pixels)) < 20 * seconds(lambda: pixels.astype(np.float32))
    with patch.object(Image.Image, "convert", side_effect=AssertionError):
        prepare_image(Image.fromarray(pixels), 24, 3, None)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
@pytest.mark.parametrize("most", [4095, 65535])
def test_pictures_with_16_bits_keep_their_range(tmp_path: Path, name: str, most: int) -> None:
    """Pillow opens 16-bit images in several modes, and would clip them at 255."""
    ramp = np.linspace(0, most, 1600).reshape(40, 40).astype(np.uint16)
    if name == "a.pgm":
        (tmp_path / name).write_bytes(b"P5 40 40 65535\n" + ramp.astype(">u2").tobytes())
    else:
        Image.fromarray(ramp).save(tmp_path / name)
    eight = Image.fromarray((ramp // 256).astype(np.uint8))
    with Image.open(tmp_path / name) as image:
        for channels in (1, 3):
            np.testing.assert_array_equal(
                prepare_image(image, 32, channels, None), prepare_image(eight, 32, channels, None)
            )


@pytest.mark.parametrize("type", [np.float32, np.int32])
def test_pixels_of_an_unknown_range_are_refused(tmp_path: Path, type: type) -> None:
    Image.fromarray(np.ones((40, 40), type)).save(tmp_path / "a.tif")
    with Image.open(tmp_path / "a.tif") as image, pytest.raises(ValueError, match="range is unknown"):
        prepare_image(image, 32, 3, None)


def test_a_palette_with_transparency_is_read_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    image = Image.fromarray(np.arange(1600, dtype=np.uint8).reshape(40, 40)).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    with Image.open(tmp_path / "a.png") as opened:
        assert opened.mode == "P"
        np.testing.assert_array_equal(
            prepare_image(opened, 32, 3, None), prepare_image(opened.convert("RGBA"), 32, 3, None)
        )
    assert not recwarn.list
