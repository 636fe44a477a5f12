"""Compare random Keras programs with plain Keras.

run.py --programs 400 --seed 1 [--stops] [--ranks 2]
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]

from engine.tests.differential.table import read_rows  # noqa: E402
from engine.tests.differential.tally import add_batch, find_problems  # noqa: E402

LONG = 400
"""Number of programs of a long run on one rank."""


def short(line: str, width: int = 400) -> str:
    """Return the start of a line."""
    return line if len(line) <= width else line[: width - 3] + "..."


def main() -> int:
    """Run the programs. The exit code is 1 if a difference is not in the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--stops", action="store_true", help="also stop each program at a step, and resume it"
    )
    parser.add_argument(
        "--ranks", type=int, default=1, choices=(1, 2), help="2: compare two devices with one"
    )
    parser.add_argument("--also", type=int, nargs="*", default=[], help="seeds of further programs")
    parser.add_argument("--sums", type=Path, help="add draws and needed rows of the table to this file")
    parser.add_argument("--seconds", type=float, default=1e9, help="draw no further program after this time")
    options = parser.parse_args()
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    from engine.tests.differential.keras import sides
    from engine.tests.differential.keras.specs import count_draws, draw

    table, needed, counts, start = {*read_rows("keras")}, Counter[str](), Counter[str](), time.monotonic()
    kinds: dict[str, tuple[dict, str]] = {}
    seen: Counter[str] = Counter()
    for seed in [*range(options.seed, options.seed + options.programs), *options.also]:
        if time.monotonic() - start > options.seconds:
            print(f"no time for programs from seed {seed} on")
            break
        spec = draw(seed)
        count_draws(spec, counts)
        finders: list[Callable[[dict], list[str]]] = (
            [sides.compare_ranks] if options.ranks > 1 else [sides.compare]
        )
        finders += [partial(sides.compare_stop, ranks=options.ranks)] if options.stops else []
        if options.ranks > 1:
            spec = sides.for_ranks(spec)
        for find in finders:
            lines = find(spec)
            seen["programs"] += 1
            seen["with differences"] += any(not line.startswith("invalid") for line in lines)
            for line in lines:
                kind = line.partition(":")[0]
                seen[f"difference in {kind}"] += 1
                if kind == "invalid":
                    print(f"seed {seed}: {short(line)}", flush=True)
                else:
                    kinds.setdefault(kind, (spec, line))
        for key in sides.translations(spec) & table:
            if (
                options.ranks == 1 and options.programs >= 50 and not needed[key]
            ):  # without it, the program must differ
                needed[key] += bool(sides.compare(spec, (sides.translations(spec) & table) - {key}))
        if missing := sides.translations(spec) - table:
            seen[f"difference in table: {missing} is not in it"] += 1
            kinds.setdefault("table", (spec, f"table: {missing}"))
    for kind, (spec, line) in kinds.items():
        print(
            f"\n{kind}: {seen[f'difference in {kind}']} times\n  {json.dumps(spec)}\n  {short(line)}",
            flush=True,
        )
    print("\ndraws:", ", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    form = "ranks" if options.ranks > 1 else "stops" if options.stops else "alone"
    sums = add_batch(options.sums, form, seen["programs"], counts, needed.elements())
    problems = find_problems(sums, LONG, sums.get("alone", {"draws": {}})["draws"], table)
    print(f"rows of the table: {dict(needed)}", *problems, sep="\n")
    print(f"seed {options.seed}, {options.ranks} ranks, {time.monotonic() - start:.0f} s:", dict(seen))
    return int(bool(kinds or problems))


if __name__ == "__main__":
    sys.exit(main())
