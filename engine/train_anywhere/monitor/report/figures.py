"""Draw curves as SVG with pygal.

Colours are CSS variables of the page, which has a light and a dark set.
"""

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pygal
from pygal.style import Style

from train_anywhere.monitor.run_facts import MOST_CURVES, NodeUse
from train_anywhere.runs.facts import Series, number

MOST_POINTS, MOST_FIGURES = 400, 100
"""Most points of a curve, of which a screen can't show more, and most figures on a page, which lists the others."""

DECADES, LOGARITHMIC = 30.0, ("loss", "perplexity")
"""A metric with such a name is drawn on a logarithmic axis if its largest value is this many times its smallest."""

GAP, MIN_SAMPLES = 5.0, 3
"""Usual intervals between samples after which a curve is interrupted, and fewest samples of a node for a curve."""

LOADER = re.compile(r"dataloader_idx_\d+")

MOST_TICKS, MOST_CHARACTERS = 7, 40
"""Most numbers or words below the x axis, and most characters that words have there together."""

LARGEST, COLOURS = 1e150, 6
"""Values from this size on are not drawn: pygal fails for the square of a larger one. Number of colours that the page defines, --curve-0 to
--curve-5; further curves repeat them."""

NOT_METRICS = ("lr",)
"""Columns of metrics.csv that are not metrics; they are shown last."""

STYLE: dict[str, Any] = {"foreground_subtle": "var(--faint)", "font_family": "inherit", "stroke_width": 2.5}
STYLE |= {
    **dict.fromkeys(("background", "plot_background"), "transparent"),
    **dict.fromkeys(("foreground", "foreground_strong"), "var(--text)"),
    **dict.fromkeys(("guide_stroke_color", "major_guide_stroke_color"), "var(--rule)"),
    # of a phone; style.css.j2 has that of wide screens
    **dict.fromkeys(("label_font_size", "major_label_font_size", "title_font_size"), 18),
}
"""Colours and sizes of a chart, which the style sheet of the page has."""


class Figure:
    """One figure of the page, of the first `MOST_CURVES` curves. The title names a logarithmic y axis.

    Args:
        curves: the curves by name, in the order of the colours.
        below: name of the x axis.
        top: the highest y if known.
        whole: number of curves, if not all are in `curves`.
        ticks: what stands below the x axis, by its place, if the points are marked, and not joined, but for curves with a name; else round
            numbers stand there.
    """

    def __init__(
        self,
        title: str,
        curves: Mapping[str, Series],
        below: str,
        top: float | None = None,
        whole: int = 0,
        ticks: Mapping[float, str] | None = None,
    ) -> None:
        whole = max(whole, len(curves))
        title += f" (the first {MOST_CURVES} of {whole:,})" if whole > MOST_CURVES else ""
        self.curves = dict(itertools.islice(curves.items(), MOST_CURVES))
        values = [y for points in self.curves.values() for _, y in points]
        wide = bool(values) and 0 < DECADES * min(values) < max(values)
        self.logarithmic = wide and any(name in title for name in LOGARITHMIC)
        self.title = f"{title} (logarithmic)" if self.logarithmic else title
        self.below, self.top, self.scattered, self.ticks = below, top, ticks is not None, ticks or {}

    @property
    def svg(self) -> str:
        """The figure as SVG, drawn at each call: a page does not draw all of its figures."""
        curves, ticks = self.curves, self.ticks
        exponents, figures = [0], digits(curves)
        if self.logarithmic:  # the powers of ten that cover the values
            powers = [math.log10(y) for points in curves.values() for _, y in points]
            exponents = [*range(math.floor(min(powers)), math.ceil(max(powers)) + 1)]
        bottom = exponents[0]  # drawn as 0, at which pygal draws the axis
        xs, ys = map(widen, zip(*curves[""], strict=True)) if self.scattered else (None, None)
        colours = [f"var(--curve-{n % COLOURS})" for n in range(len(curves))]
        drawn = pygal.XY(
            style=Style(**STYLE, colors=colours),
            js=[],  # otherwise the page would load an external script
            width=500,
            height=280,
            max_scale=7,
            margin=4,
            margin_right=24,  # room for half of the last number on the axis
            show_dots=self.scattered,
            stroke=not self.scattered,
            stroke_style={"width": 2.5},
            allow_interruptions=True,
            show_legend=False,  # the page has its own
            truncate_label=-1,
            x_title=self.below,
            x_labels=[*ticks] if ticks else round_ticks(curves),
            xrange=xs,
            value_formatter=lambda value: (
                f"{10 ** (value + bottom):.4g}" if self.logarithmic else f"{value:.{figures}g}"
            ),
            y_labels=[n - bottom for n in exponents] if self.logarithmic else None,
            x_value_formatter=lambda value: ticks.get(value, f"{value:,.6g}"),
            range=(ys if not self.logarithmic else None) if self.top is None else (0, self.top),
            disable_xml_declaration=True,
        )
        for name, points in curves.items():
            points = [(x, math.log10(y) - bottom) for x, y in points] if self.logarithmic else points
            line = {"stroke": True, "show_dots": False} if self.scattered and name else {}
            points = points if self.scattered else thin_out(points)
            drawn.add(name, with_gaps(points) if self.below == "minutes" else points, **line)
        return str(drawn.render(is_unicode=True))


def metric_figures(metrics: Mapping[str, Series]) -> list[Figure]:
    """Return a figure for each quantity: train/loss and val/loss share one."""
    grouped: dict[str, dict[str, Series]] = {}
    for name, points in sorted(metrics.items(), key=lambda metric: LOADER.findall(metric[0])):
        part, _, quantity = name.rpartition("/")
        if LOADER.fullmatch(quantity):  # Lightning's name for one of several validation sets
            part, quantity = quantity, part
        if part != "test" and len(drawn := drawable(points)) > 1 and not is_flat(name, points):
            grouped.setdefault(quantity, {})[part or name] = drawn
    order = sorted(grouped, key=lambda quantity: (quantity in NOT_METRICS, "loss" not in quantity))
    return [Figure(quantity, grouped[quantity], "optimizer step") for quantity in order]


def is_flat(name: str, points: Series) -> bool:
    """Return whether this is a constant learning rate, which needs no figure."""
    return name in NOT_METRICS and len({value for _, value in points}) == 1


def node_figures(nodes: tuple[NodeUse, ...]) -> list[Figure]:
    """Return figures of the use of GPUs and CPUs over time."""
    began = min((node.cpu[0][0] for node in nodes if node.cpu), default=0.0)
    gpus = {f"{node.host} {gpu.index}": gpu.use for node in nodes for gpu in node.gpus}
    shown = {"GPU use in %": gpus, "use of the job's CPUs in %": {node.host: node.cpu for node in nodes}}
    found = []
    for title, samples in shown.items():
        known = {name: points for name, points in samples.items() if len(points) >= MIN_SAMPLES}
        curves = {name: [((t - began) / 60, y) for t, y in points] for name, points in known.items()}
        found += [Figure(title, curves, "minutes", 100, len(samples))] if curves else []
    return found


def metric_over_key(metric: str, key: str, values: Sequence[tuple[str, float]]) -> Figure | None:
    """Return the metric of each run over its value of a key, as it was typed; None if all values are the same.

    The values have equal distances: numbers in their order, others in that of the alphabet.
    """
    typed_numbers = [number(typed) for typed, _ in values]
    numbers = all(value is not None and abs(value) < LARGEST for value in typed_numbers)
    names = sorted({typed for typed, _ in values}, key=float if numbers else str)
    places = {typed: float(at) for at, typed in enumerate(names)}
    points = {"": drawable([(places[typed], y) for typed, y in values])}
    if len(names) < 2 or not points[""]:
        return None
    xs = sorted({x for x, _ in points[""]})
    if len(xs) < len(points[""]):  # several runs at one value, such as seeds
        points["mean"] = [(x, statistics.fmean(y for at, y in points[""] if at == x)) for x in xs]
    characters = sum(map(len, names)) if numbers else 0
    every = math.ceil(max(len(names) / MOST_TICKS, characters / MOST_CHARACTERS))
    below, ticks = key, {places[typed]: typed for typed in names[::every]}
    if sum(map(len, ticks.values())) > MOST_CHARACTERS:
        listed = ", ".join(f"{at:g} {typed}" for typed, at in places.items())
        below += f": {listed}" if len(listed) <= 2 * MOST_CHARACTERS else f": {len(names)} values"
        ticks = {}
    return Figure(f"{metric} over {key}", points, below, ticks=ticks)


def round_ticks(curves: Mapping[str, Series]) -> list[float]:
    """Return about five round numbers on the x axis: multiples of 1, 2 or 5 times a power of ten."""
    xs = [x for points in curves.values() for x, _ in points]
    first, last = min(xs), max(xs)
    if first == last:
        return [first]
    power = 10.0 ** math.floor(math.log10((last - first) / 5))
    step = next(power * n for n in (1, 2, 5, 10) if (last - first) / (power * n) <= 5)
    return [step * n for n in range(math.ceil(first / step), math.floor(last / step) + 1)]


def digits(curves: Mapping[str, Series]) -> int:
    """Return the significant digits that distinguish neighboring ticks of the y axis, at least 4."""
    values = [y for points in curves.values() for _, y in points]
    spread, largest = max(values) - min(values), max(map(abs, values))
    return min(12, max(4, 2 + math.ceil(math.log10(largest / spread)))) if spread and largest else 4


def with_gaps(points: Series) -> list[tuple[float, float | None]]:
    """Return the points of samples with a break wherever nothing was sampled for several intervals."""
    steps = [b[0] - a[0] for a, b in itertools.pairwise(points)]
    usual = statistics.median(steps) if steps else 0.0
    found: list[tuple[float, float | None]] = []
    for (x, y), step in zip(points, [*steps, 0.0], strict=True):
        found.append((x, y))
        if step > GAP * usual:
            found.append((x + usual, None))
    return found


def widen(values: Iterable[float]) -> tuple[float, float]:
    """Return the range of the values with a margin, so that the outer points are inside of the frame."""
    low, high = min(known := [*values]), max(known)
    return low - 0.04 * (high - low), high + 0.04 * (high - low)


def drawable(points: Series) -> Series:
    """Return the points without nan, inf, and numbers so large that their differences are not finite."""
    return [(x, y) for x, y in points if abs(x) < LARGEST and abs(y) < LARGEST]


def thin_out(points: Series) -> Series:
    """Return at most `MOST_POINTS` points: the last of each stretch, so that the end of the curve is kept."""
    stretch = math.ceil(len(points) / MOST_POINTS)
    return points[::-1][::stretch][::-1] if stretch > 1 else points


def describe(attempt: Mapping[str, Any]) -> str:
    """Return an attempt's steps, nodes, job and end as a string."""
    hosts = attempt.get("hosts") or []
    where = f" on {', '.join(hosts[:4])}{' ...' if len(hosts) > 4 else ''}" if hosts else ""
    if size := attempt.get("world_size"):
        where += f" ({size} rank{'s' if size > 1 else ''})"
    job = f", job {attempt['job']}" if attempt.get("job") else ""
    steps = f"steps {attempt.get('from_step', '?')} to {attempt.get('step', '?')}"
    end = str(attempt.get("ended_by", "running"))
    reason = f" ({attempt['reason']})" if attempt.get("reason") else ""
    return f"{steps}{where}{job}: {'stopped by ' if end.startswith('SIG') else ''}{end}{reason}"
