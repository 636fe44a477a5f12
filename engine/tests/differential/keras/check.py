"""Run drawn programs with plain Keras and with this project, and return the differences."""

from collections import Counter
from collections.abc import Callable

from engine.tests.differential.keras import sides
from engine.tests.differential.keras.specs import Spec, count_draws, draw
from engine.tests.differential.table import read_rows

LONG = 400
"""Number of programs of a long run on one rank."""

EXPECTED: dict[str, tuple[str, ...]] = {}
"""No faults are planted."""

TABLE = {*read_rows("keras")}
INTENDED: dict[str, Callable[[str, int], bool]] = {row: lambda kind, _, row=row: kind == row for row in TABLE}  # type: ignore[misc]
"""Plain Keras follows the rows of the table, so each difference is a fault. The row itself is the kind of a program that needs it."""

_needed: set[str] = set()
_counts: Counter[str] = Counter()
for _seed in range(LONG):
    count_draws(draw(_seed), _counts)
DRAWN = [*_counts]
"""Names of what programs draw."""


def warm_up() -> None:
    """Start nothing: TensorFlow starts in the forks."""


def draw_program(seed: int, ranks: int) -> Spec:
    """Return the program of a seed. With two ranks, two devices are compared with one."""
    return sides.for_ranks(draw(seed)) if ranks > 1 else draw(seed)


def render(spec: Spec) -> str:
    """Return the command line of a program."""
    return " ".join(sides.overrides(spec, 1))


def check(spec: Spec, ranks: int, stops: bool, fault: str, long: bool) -> dict[str, str] | str:
    """Return the differences of a program, in a long run also rows that it is the first to need, or a string if plain Keras refuses it."""
    lines = sides.compare_ranks(spec) if ranks > 1 else sides.compare(spec)
    if lines and lines[0].startswith("invalid"):
        return lines[0]
    lines += sides.compare_stop(spec, ranks=ranks) if stops else []
    rows = sides.translations(spec)
    lines += [f"table: {row} is not in it" for row in rows - TABLE]
    for row in (rows & TABLE) - _needed if long and ranks == 1 else ():
        if sides.compare(spec, (rows & TABLE) - {row}):  # without it, the program must differ
            _needed.add(row)
            lines.append(f"{row}: needed")
    return {line.partition(":")[0]: line for line in reversed(lines)}
