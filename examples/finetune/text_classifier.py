r"""A BERT of transformers that tells praise from blame, with adapters (LoRA) in its attention.

    python src/train.py name=text task._target_=examples.finetune.text_classifier.Classifier \
        data._target_=examples.finetune.text_classifier.Reviews checkpoint.monitor=val_acc checkpoint.mode=max \
        'model.lora={rank: 4, alpha: 8, targets: [query, value], train: [classifier]}' optimizer.lr=0.01 trainer.max_epochs=6

`python src/evaluate.py RUN --export hf --to folder` merges the adapters; transformers reads the folder, with its tokenizer.
`AutoModelForSequenceClassification.from_pretrained(NAME)` takes the place of `tiny_bert` for a model of the hub.
"""

import random
from typing import Any

import lightning.pytorch as pl
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

SUBJECTS = ["film", "book", "meal", "hotel", "song", "game", "phone", "chair"]
GOOD = ["fine", "great", "lovely", "brilliant", "superb"]
BAD = ["poor", "awful", "boring", "broken", "dreadful"]
WORDS = ["[PAD]", "[CLS]", "the", "was", "not", "and", *SUBJECTS, *GOOD, *BAD]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each word."""
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[PAD]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", cls_token="[CLS]")


def tiny_bert() -> BertForSequenceClassification:
    """Return a BERT of 30,000 weights, the same in each run, in place of one of the hub."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        return BertForSequenceClassification(
            BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, num_labels=2, **sizes)
        )


class Reviews(pl.LightningDataModule):
    """Sentences such as "the film was not great": 0 is blame, 1 is praise."""

    def __init__(self, batch_size: int = 32, rows: int = 1200) -> None:
        super().__init__()
        self.batch_size, self.rows, self.tokenizer = batch_size, rows, word_tokenizer()

    def setup(self, stage: str) -> None:
        """Make the sentences, the same in each run."""
        draw = random.Random(1)
        texts, labels = [], []
        for _ in range(self.rows):
            good, negated = draw.random() < 0.5, draw.random() < 0.3
            word = draw.choice(GOOD if good else BAD)
            texts.append(f"[CLS] the {draw.choice(SUBJECTS)} was {'not ' * negated}{word}")
            labels.append(int(good != negated))
        tokens = self.tokenizer(texts, padding=True, return_tensors="pt")
        self.data = TensorDataset(tokens["input_ids"], tokens["attention_mask"], torch.tensor(labels))

    def _loader(self, start: int, end: int, shuffle: bool = False) -> DataLoader[Any]:
        rows = TensorDataset(*self.data[start:end])
        return DataLoader(rows, self.batch_size, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the first rows, shuffled."""
        return self._loader(0, self.rows - 400, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return 200 rows."""
        return self._loader(self.rows - 400, self.rows - 200)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the last 200 rows."""
        return self._loader(self.rows - 200, self.rows)


class Classifier(pl.LightningModule):
    """The model with its tokenizer, which an export writes too."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.tokenizer = tiny_bert(), word_tokenizer()

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the logits [b, 2] of sentences [b, words]."""
        return self.model(input_ids=tokens, attention_mask=mask).logits

    def _step(self, batch: list[Tensor], name: str) -> Tensor:
        tokens, mask, labels = batch
        logits = self(tokens, mask)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        self.log_dict({f"{name}_loss": loss, f"{name}_acc": (logits.argmax(1) == labels).float().mean()})
        return loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        return self._step(batch, "train")

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log loss and accuracy."""
        self._step(batch, "val")

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log loss and accuracy."""
        self._step(batch, "test")
