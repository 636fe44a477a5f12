"""Train some steps with each line of stdin, uninterrupted and resumed. Print the result.

python engine/tests/choice.py FRAMEWORK FOLDER < lines of overrides
"""

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path[:1] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "engine")]

from tools.testing.weights import final_weights, largest_difference  # noqa: E402
from train_anywhere.config.command.command_line import to_hydra_overrides  # noqa: E402
from train_anywhere.config.command.compose import compose  # noqa: E402
from train_anywhere.config.load import load  # noqa: E402
from train_anywhere.distributed.topology import Topology  # noqa: E402
from train_anywhere.errors import ProjectError  # noqa: E402
from train_anywhere.job.rank_process import RankProcess, Stop  # noqa: E402
from train_anywhere.runs.folder import RunDir, create  # noqa: E402

SHORT = [
    "trainer.max_epochs=2", "trainer.limit_train_batches=3", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1",
    "trainer.log_every_n_steps=1", "data.batch_size=8", "trainer.accelerator=cpu", "strategy=single", "checkpoint.local=null",
    "monitor.progress=none",
]  # fmt: skip


class StopAfter(Stop):
    """A request to stop that arrives when the loop has looked for one a few times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    @property
    def requested(self) -> str | None:
        """None, and then SIGTERM."""
        self.left -= 1
        return None if self.left >= 0 else "SIGTERM"

    @requested.setter
    def requested(self, value: str | None) -> None: ...


def train(side: Any, words: list[str], run: RunDir, stop: Stop) -> Any:
    """One attempt."""
    return side.train(load(compose(words)), RankProcess(run, Topology(), stop))


def judged(framework: str, typed: list[str], folder: Path) -> dict[str, Any]:
    """Return the result of a line."""
    side = importlib.import_module(f"train_anywhere.training.{framework}.run")
    files = f"paths.data={folder.parent / 'data'}"
    words = to_hydra_overrides([f"framework={framework}", *typed, *SHORT, files])
    straight, resumed = create(folder, "straight"), create(folder, "resumed")
    whole = train(side, words, straight, Stop())
    first = train(side, words, resumed, StopAfter(4))
    last = train(side, words, resumed, Stop())
    return {
        "states": [whole.state, first.state, last.state],
        "steps": [whole.step, first.step, last.step],
        "metrics": sorted(whole.metrics),
        "difference": largest_difference(final_weights(straight.path), final_weights(resumed.path)),
        "same_metrics": whole.metrics == last.metrics,
    }


def main() -> None:
    """One line of JSON for each line of overrides."""
    framework, folder = sys.argv[1], Path(sys.argv[2])
    for number, line in enumerate(sys.stdin.read().splitlines()):
        try:
            said = judged(framework, line.split(), folder / str(number))
        except ProjectError as error:
            said = {"refused": str(error)}
        except Exception:
            said = {"failed": traceback.format_exc()}
        print(json.dumps({"line": line, **said}), flush=True)


if __name__ == "__main__":
    main()
