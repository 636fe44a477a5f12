"""Compare random programs of users under a framework alone and under this project.

    python engine/tests/differential/run.py lightning --programs 2000 --seed 1
    python engine/tests/differential/run.py lightning --only 33          one program, printed
"""

import argparse
import importlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from engine.tests.differential.draws import count_names, shrink  # noqa: E402


def main() -> None:
    """Run the programs and print what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("lightning", "keras"))
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stops", action="store_true")
    parser.add_argument("--only", type=int, help="the seed of one program")
    parser.add_argument("--spec", type=json.loads, help="a program")
    parser.add_argument("--shrink", type=int, default=0, help="runs to shrink the example of each kind")
    parser.add_argument("--kind", default="", help="shrink only the examples of kinds that contain this")
    options = parser.parse_args()
    tested: Any = importlib.import_module(f"engine.tests.differential.{options.framework}.check")
    tested.warm_up()
    if options.only is not None or options.spec:
        spec = options.spec or tested.draw_program(options.only, options.ranks)
        print(json.dumps(spec), tested.render(spec), sep="\n\n")
        found = tested.check(spec, options.ranks, options.stops)
        print(found if isinstance(found, str) else "\n".join(f"{kind}\n    {text}" for kind, text in found.items()))
        return
    counts, kinds, refused = Counter[str](), dict[str, list[tuple[int, str]]](), Counter[str]()
    start, equal = time.monotonic(), 0
    for seed in range(options.seed, options.seed + options.programs):
        spec = tested.draw_program(seed, options.ranks)
        found = tested.check(spec, options.ranks, options.stops)
        if isinstance(found, str):
            refused[found] += 1
            continue
        count_names(spec, counts)
        equal += not found
        for kind, example in found.items():
            kinds.setdefault(kind, []).append((seed, example))
    seconds = time.monotonic() - start
    print(f"{options.programs} programs from seed {options.seed}, {options.ranks} ranks, {seconds:.0f} s: {equal} equal, "
          f"{sum(refused.values())} refused by the framework alone: {dict(refused)}")  # fmt: skip
    for kind, examples in sorted(kinds.items(), key=lambda item: -len(item[1])):
        seed, example = examples[0]
        print(f"{len(examples)} x {kind}\n    --only {seed}: {example[-400:]!r}", flush=True)
        if options.shrink and options.kind in kind:
            spec = shrink(tested.draw_program(seed, options.ranks), lambda s, k=kind: shows(tested, s, options, k), options.shrink)
            print(f"    --spec '{json.dumps(spec)}'", flush=True)
    print("drawn:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


def shows(tested: Any, spec: Any, options: Any, kind: str) -> bool:
    """Return whether a program has a kind of difference."""
    try:
        return kind in tested.check(spec, options.ranks, options.stops)
    except Exception:
        return False


if __name__ == "__main__":
    main()
