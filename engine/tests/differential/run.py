"""Compare random user programs under a framework and this project. Exit code 1: one differs.

python engine/tests/differential/run.py lightning --programs 2000 --seed 1
python engine/tests/differential/run.py lightning --only 33                    one program, printed
python engine/tests/differential/run.py lightning --fault iter --programs 300  stop at the first program that shows it
python engine/tests/differential/run.py lightning --programs 100 --sums FILE   a batch of a long run, added to a file
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
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}

from engine.tests.differential.draws import shrink  # noqa: E402
from engine.tests.differential.table import find_row, read_rows  # noqa: E402
from engine.tests.differential.tally import add_batch, find_problems  # noqa: E402


def main() -> int:
    """Run the programs, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("framework", choices=("lightning", "keras"))
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--stops", action="store_true", help="also stop each run of ours at a random call, and resume it"
    )
    parser.add_argument("--only", type=int, help="the seed of one program")
    parser.add_argument("--also", type=int, nargs="*", default=[], help="seeds of further programs")
    parser.add_argument("--spec", type=json.loads, help="a program")
    parser.add_argument("--shrink", type=int, default=0, help="runs to shrink the example of each kind")
    parser.add_argument("--kind", default="", help="shrink only the examples of kinds that contain this")
    parser.add_argument("--fault", default="", help="plant a fault in this project")
    parser.add_argument("--sums", type=Path, help="add draws and needed rows of the table to this file")
    options = parser.parse_args()
    tested: Any = importlib.import_module(f"engine.tests.differential.{options.framework}.check")
    tested.warm_up()

    def check(spec: Any) -> Any:
        return tested.check(spec, options.ranks, options.stops, options.fault, options.programs >= 50)

    if options.only is not None or options.spec:
        spec = options.spec or tested.draw_program(options.only, options.ranks)
        found = check(spec)
        print(json.dumps(spec), tested.render(spec), sep="\n\n")
        print(
            found
            if isinstance(found, str)
            else "\n".join(f"{kind}\n    {text}" for kind, text in found.items())
        )
        return 0 if isinstance(found, str) else has_faults(found, tested, options.ranks)
    counts, kinds, refused = Counter[str](), dict[str, list[tuple[int, str]]](), Counter[str]()
    rows = Counter[str]()
    start, equal = time.monotonic(), 0
    seeds = [*range(options.seed, options.seed + options.programs), *options.also]
    for number, seed in enumerate(seeds, 1):
        spec = tested.draw_program(seed, options.ranks)
        found = check(spec)
        if isinstance(found, str):
            refused[found] += 1
            continue
        tested.count_draws(spec, counts)
        rows.update({find_row(kind, options.ranks, tested.INTENDED) or "FAULT" for kind in found})
        equal += not has_faults(found, tested, options.ranks)
        for kind, example in found.items():
            kinds.setdefault(kind, []).append((seed, example))
        if options.fault and any(kind.startswith(tested.EXPECTED[options.fault]) for kind in found):
            print(f"the fault is found in program {number} (seed {seed}): {found}")
            return 0
    print(f"{len(seeds)} programs from seed {options.seed}, {options.ranks} ranks, {time.monotonic() - start:.0f} s: "
          f"{equal} equal, {sum(refused.values())} refused by the framework alone")  # fmt: skip
    for reason, count in refused.most_common():
        print(f"    {count} x {reason}")
    for kind, examples in sorted(kinds.items(), key=lambda item: -len(item[1])):
        seed, example = examples[0]
        row = find_row(kind, options.ranks, tested.INTENDED)
        print(
            f"{len(examples)} x {kind} ({row or 'FAULT'})\n    --only {seed}: {example[-400:]!r}", flush=True
        )
        if options.shrink and options.kind in kind and not row:
            spec = tested.draw_program(seed, options.ranks)
            print(
                f"    --spec '{json.dumps(shrink(spec, lambda s, k=kind: k in check(s), options.shrink))}'",
                flush=True,
            )
    form = "ranks" if options.ranks > 1 else "stops" if options.stops else "alone"
    drawn = {name: counts[name] for name in tested.DRAWN}
    sums = add_batch(options.sums, form, len(seeds), drawn, rows.elements())
    print("rows of the table, with the number of programs that needed them:", dict(rows))
    problems = find_problems(sums, tested.LONG, tested.DRAWN, read_rows(options.framework))
    if options.fault:
        problems.append(f"the fault {options.fault} is not found")
    print("\n".join(problems))
    return int(bool(problems) or any(not find_row(kind, options.ranks, tested.INTENDED) for kind in kinds))


def has_faults(found: Any, tested: Any, ranks: int) -> bool:
    """Return whether a program has a difference outside the table."""
    return any(not find_row(kind, ranks, tested.INTENDED) for kind in found)


if __name__ == "__main__":
    sys.exit(main())
