"""Count the operations and bytes that a training step sends to other ranks: this project compared with a loop by hand.

    python engine/benchmarks/collectives.py [--framework FRAMEWORK]

Nothing is timed, so the numbers are the same on any machine. Two ranks on the CPU train a small convolutional network with
batch normalization. A row of metrics is due every `trainer.log_every_n_steps`. The last line is one JSON object.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "engine")]

from benchmarks.wire import SIDES, STEPS, Sent, count, strategies  # noqa: E402


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", "--side", choices=SIDES)
    parsed = parser.parse_args()
    found: dict[str, dict[str, dict[str, Sent]]] = {}
    print("| | a step: by hand | a step: `src/train.py` | a row of metrics |\n|---|---|---|---|")
    for framework in [parsed.framework] if parsed.framework else SIDES:
        for strategy in strategies(framework):
            both = {kind: count(framework, kind, strategy) for kind in ("raw", "ours")}
            found[f"{framework} {strategy}"] = both
            steps = [format_sent(both[kind]["steps"], STEPS) for kind in ("raw", "ours")]
            print(
                f"| {framework}, `{strategy}` | {steps[0]} | {steps[1]} | {format_sent(both['ours']['row'], 1)} |",
                flush=True,
            )
    print(json.dumps(found))


def format_sent(sent: Sent, number: int) -> str:
    """Format the operations and their bytes, divided by the number of steps or rows."""
    names = [name for name in sent if f"{name} bytes" in sent]  # the others are waits, which send nothing
    return ", ".join(
        f"{sent[name] / number:g} {name}, {sent[f'{name} bytes'] / number:,g} bytes" for name in names
    )


if __name__ == "__main__":
    main()
