"""Transforms of ImageNet: random crop and flip to train, central crop to evaluate."""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

# Per channel over ImageNet's training images, as fractions of 255; for grey images the average over channels.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_MEAN, GREY_STD = (0.449,), (0.226,)

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Range of the crop's fraction of the image area, and of its width / height (Szegedy et al. 2015)."""

EVALUATION_MARGIN = 256 / 224
"""For evaluation the short side is scaled to this many times the crop (Krizhevsky et al. 2012)."""


class UnknownPixelsError(ValueError):
    """An image whose pixels can't be converted to 8 bits."""


Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


def random_crop(width: int, height: int, random: np.random.Generator) -> Box:
    """Return a box of random area and ratio, or the central one after ten attempts."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return left, top, left + w, top + h
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    return _central_box(width, height, min(width, height * ratio), min(height, width / ratio))


def central_crop(width: int, height: int) -> Box:
    """Return the central square, 224/256 of the short side, as resize and crop would."""
    side = min(width, height) / EVALUATION_MARGIN
    return _central_box(width, height, side, side)


def _central_box(width: int, height: int, w: float, h: float) -> Box:
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def prepare_image(image: "Image", size: int, channels: int, random: np.random.Generator | None) -> np.ndarray:
    """Crop, resize and normalise an image, randomly if `random` is given, else the centre.

    Returns:
        float32 [size, size, channels].

    Raises:
        UnknownPixelsError: the pixels can't be converted to 8 bits.
    """
    from PIL import Image as pillow

    try:
        image, mode = _to_eight_bits(image), "RGB" if channels == 3 else "L"
        image = image if image.mode == mode else image.convert(mode)  # which would copy all pixels
    except ValueError as error:  # a mode that Pillow does not convert
        raise UnknownPixelsError(str(error)) from error
    box = random_crop(*image.size, random) if random else central_crop(*image.size)
    image = image.resize((size, size), pillow.Resampling.BILINEAR, box=box)
    if random and random.random() < 0.5:
        image = image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
    return normalise(np.asarray(image).reshape(size, size, channels))


def _to_eight_bits(image: "Image") -> "Image":
    """Scale 16-bit pixels to 8 bits, which Pillow would clip (Pillow issue 3011).

    Raises:
        ValueError: floating-point or 32-bit pixels, whose range is unknown.
    """
    from PIL import Image as pillow

    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")  # else Pillow warns for each image
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    # PNG and PPM files of mode I have 16 bits
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise ValueError("their range is unknown")
    return pillow.fromarray((np.asarray(image) // 2**8).astype(np.uint8))


def normalise(pixels: np.ndarray) -> np.ndarray:
    """Convert uint8 [..., W, C] to float32, normalised by ImageNet's means and deviations."""
    mean, std = (MEAN, STD) if pixels.shape[-1] == 3 else (GREY_MEAN, GREY_STD)
    scale = 1 / (255 * np.array(std, dtype=np.float32))
    shift = np.array(mean, dtype=np.float32) / np.array(std, dtype=np.float32)
    # whole lines at once: on three channels at a time numpy takes 20 times as long
    *rows, width, channels = pixels.shape
    lines = pixels.reshape(*rows, width * channels).astype(np.float32)
    lines *= np.tile(scale, width)
    lines -= np.tile(shift, width)
    return lines.reshape(pixels.shape)
