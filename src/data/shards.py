"""Rows of `data=shards`: pictures as in imagefolder, text as tokens, other values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from src.data.transforms import UnknownPixelsError, prepare_image
from train_anywhere.config import AbsoluteFolder, Side
from train_anywhere.data.readers.tokenizer import Bytes, Pieces
from train_anywhere.errors import DataError


class Decoder:
    """A function of a sample, the target of `data.decode`.

    Args:
        image_size: side of the square crop, in pixels.
        channels: 3 for RGB, 1 for grey.
        tokenizer: makes the column `text` a row of tokens for a language model: bytes, or a tokenizer.json file; None: not used.
        length: tokens that each row predicts: longer texts are cut, shorter ones padded.

    Attributes:
        facts: properties of the rows for the model.
    """

    def __init__(
        self,
        image_size: Side = 224,
        channels: Literal[1, 3] = 3,
        tokenizer: Literal["bytes"] | AbsoluteFolder | None = None,
        length: int = 256,
    ) -> None:
        self.image_size, self.channels, self.length = image_size, channels, length
        self.facts: dict[str, Any] = {}
        if tokenizer:
            self.text = Bytes() if tokenizer == "bytes" else Pieces(Path(tokenizer))
            self.facts = {"vocabulary": self.text.size, "length": length, "text": self.text}
            self.facts |= {"unit": "tokens", "units_per_row": length}

    def __call__(self, sample: Mapping[str, Any], random: np.random.Generator | None) -> Any:
        """Return a row: (image, label), tokens as in data=text, or the values by column."""
        if self.facts:
            return self._tokens(sample)
        row = {name: self._prepare(value, random) for name, value in sample.items()}
        return (row["image"], row["label"]) if row.keys() == {"image", "label"} else row

    def _prepare(self, value: Any, random: np.random.Generator | None) -> Any:
        if not hasattr(value, "getbands"):  # not a Pillow image
            return value
        try:
            return prepare_image(value, self.image_size, self.channels, random)
        except UnknownPixelsError as error:
            raise DataError(
                f"its pixels can't be made RGB or grey ({error}): convert it to 8 bits."
            ) from error

    def _tokens(self, sample: Mapping[str, Any]) -> dict[str, np.ndarray]:
        content = sample.get("text", next(iter(sample.values())))
        if not isinstance(content, str):
            raise DataError("it has no text; name its field with data.columns={text: FIELD}.")
        content = content.encode(errors="replace").decode()  # JSON may have half a surrogate pair
        whole = self.text.encode(content)
        tokens = np.full(self.length + 1, self.text.end, np.int32)
        kept = min(len(whole), self.length)
        tokens[1 : kept + 1] = whole[:kept]
        documents = np.where(np.arange(self.length + 1) <= min(kept + 1, self.length), 0, -1).astype(np.int32)
        size = len(content.encode()) * kept / max(1, len(whole))
        return {"tokens": tokens, "documents": documents, "bytes": np.float32(size)}
