"""What a training step sends to the other ranks, in operations and bytes: ours beside a loop written by hand, on two ranks here.

    python engine/benchmarks/collectives.py [--side FRAMEWORK]

Counted, not timed: the numbers are the same on any machine. A small convolutional network with batch normalisation, two ranks on the CPU. A
row of metrics is due every `trainer.log_every_n_steps`. The last line is one JSON object.
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
    parser.add_argument("--side", choices=SIDES)
    asked = parser.parse_args()
    found: dict[str, dict[str, dict[str, Sent]]] = {}
    print("| | a step: by hand | a step: `src/train.py` | a row of metrics |\n|---|---|---|---|")
    for side in [asked.side] if asked.side else SIDES:
        for strategy in strategies(side):
            both = {kind: count(side, kind, strategy) for kind in ("raw", "ours")}
            found[f"{side} {strategy}"] = both
            steps = [shown(both[kind]["steps"], STEPS) for kind in ("raw", "ours")]
            print(
                f"| {side}, `{strategy}` | {steps[0]} | {steps[1]} | {shown(both['ours']['row'], 1)} |",
                flush=True,
            )
    print(json.dumps(found))


def shown(sent: Sent, times: int) -> str:
    """Operations with their bytes, of one of so many times."""
    names = [name for name in sent if f"{name} bytes" in sent]  # others are waits, which send nothing
    return ", ".join(
        f"{sent[name] / times:g} {name}, {sent[f'{name} bytes'] / times:,g} bytes" for name in names
    )


if __name__ == "__main__":
    main()
