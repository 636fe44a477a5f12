r"""A BERT of transformers that separates praise from blame, with adapters (LoRA) in its attention.

    python src/train.py name=text task._target_=examples.finetune.text_classifier.Classifier \
        data._target_=examples.finetune.text_classifier.open_reviews checkpoint.monitor=val_acc checkpoint.mode=max \
        'model.lora={rank: 4, alpha: 8, targets: [query, value], train: [classifier]}' optimizer.lr=0.01 trainer.max_epochs=6

A folder for transformers: `network = load_model(RUN).network; network.lora_adapters.merge(); network.model.save_pretrained("folder")`.
`AutoModelForSequenceClassification.from_pretrained(NAME)` takes the place of `tiny_bert` for a model of the hub.
"""

import random

import lightning.pytorch as pl
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.utils.data import TensorDataset
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
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForSequenceClassification(
            BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, num_labels=2, **sizes, **dropout)
        )


def open_reviews(rows: int = 1200) -> dict[str, TensorDataset]:
    """Return sentences such as "the film was not great", the same in each run, with 0 for blame and 1 for praise."""
    draw = random.Random(1)
    texts, labels = [], []
    for _ in range(rows):
        good, negated = draw.random() < 0.5, draw.random() < 0.3
        word = draw.choice(GOOD if good else BAD)
        texts.append(f"[CLS] the {draw.choice(SUBJECTS)} was {'not ' * negated}{word}")
        labels.append(int(good != negated))
    tokens = word_tokenizer()(texts, padding=True, return_tensors="pt")
    columns = (tokens["input_ids"], tokens["attention_mask"], torch.tensor(labels))
    cuts = {"train": slice(rows - 400), "val": slice(rows - 400, rows - 200), "test": slice(rows - 200, rows)}
    return {name: TensorDataset(*(column[cut] for column in columns)) for name, cut in cuts.items()}


class Classifier(pl.LightningModule):
    """The model with its tokenizer."""

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
