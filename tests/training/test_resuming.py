"""What is refused and said when a run resumes."""

from pathlib import Path

import pytest

from src.checkpoints.info import SavedCheckpoint
from src.errors import CheckpointError
from src.training.resuming import refuse_other_framework


def test_the_checkpoint_of_the_other_framework_is_refused() -> None:
    saved = SavedCheckpoint(path=Path("x"), step=1, epoch=0, batch=1, metrics={}, value=None, framework="one")
    refuse_other_framework(saved, "one")
    with pytest.raises(CheckpointError, match="was written with framework=one; resume with that"):
        refuse_other_framework(saved, "other")
