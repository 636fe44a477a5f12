"""The page: what it shows, section by section, and the file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from train_anywhere import features
from train_anywhere.config.command.compose import compose
from train_anywhere.config.flat import flatten
from train_anywhere.files.atomic import write_atomic
from train_anywhere.monitor.efficiency import step_time
from train_anywhere.monitor.goodput import WORDS, Goodput, goodput
from train_anywhere.monitor.report import figures
from train_anywhere.monitor.report.timeline import timeline
from train_anywhere.monitor.run_facts import Facts, Series, mean, read_facts
from train_anywhere.monitor.verdicts import verdicts
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import FREE
from train_anywhere.runs.summary import display_path

NAME = "report.html"
"""File of the run folder."""

MOST_METRICS = 12
"""Values in the head of the page."""


@dataclass(frozen=True)
class Slice:
    """A part of the allocation's time, in percent and seconds."""

    name: str
    word: str
    percent: float
    seconds: float


@dataclass(frozen=True)
class GpuRow:
    """One GPU in the table: means over the run, `memory` the most that was in use (GiB)."""

    host: str
    index: int
    use: float | None
    power: float | None
    memory: float | None


def write_report(run: RunDir) -> list[str]:
    """Write RUN/report.html; returns the lines that tell of it: where it is, and the verdicts.

    Raises:
        CheckpointError: run.json is damaged.
        OSError: the folder takes no file.
    """
    path, facts = run.path / NAME, read_facts(run)
    write_atomic(path, page(run, facts))
    return [f"{'Report:':<15}{display_path(path)}", *(f"{'Note:':<15}{said}" for said in verdicts(facts))]


def page(run: RunDir, facts: Facts) -> str:
    """The page as HTML."""
    whole = goodput(facts.attempts)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            run=run,
            info=facts.info,
            when=when(facts.info),
            colours=figures.COLOURS,
            tiles=tiles(facts, whole),
            verdicts=verdicts(facts),
            rows=features.rows(run, facts.info),
            goodput=whole,
            slices=slices(whole) if whole else [],
            step=step_slices(facts),
            timeline=timeline(facts.attempts, run.checkpoints),
            attempts=facts.attempts,
            figures=[*figures.of_metrics(facts.metrics), *figures.of_nodes(facts.nodes)],
            gpus=gpu_rows(facts),
            changed=changed(run, facts.config),
        )
    )


def environment() -> Environment:
    """The templates of this folder."""
    here = FileSystemLoader(Path(__file__).parent)
    made = Environment(loader=here, undefined=StrictUndefined, autoescape=True, trim_blocks=True)
    made.filters |= {"duration": duration, "number": number}
    return made


def tiles(facts: Facts, whole: Goodput | None) -> dict[str, str]:
    """The figures that one looks for first, with their names."""
    info = facts.info
    shown = {"state": str(info.get("state", "unknown")), "step": f"{info.get('step', '?')}"}
    measured = {k: v for k, v in (info.get("metrics") or {}).items() if not k.startswith("train/")}
    shown |= {name: number(value) for name, value in [*measured.items()][:MOST_METRICS]}
    if whole:
        devices = "GPU hours" if any(node.gpus for node in facts.nodes) else "device hours"
        shown |= {"goodput": f"{whole.share:.0%}", devices: f"{whole.device_hours:.3g}"}
    if (efficiency := step_time(facts.attempts).efficiency) is not None:
        shown["efficiency of the ranks"] = f"{efficiency:.0%}"
    if energy := energy_kwh(facts):
        shown["energy of the GPUs"] = f"{energy:.3g} kWh"
    return shown


def energy_kwh(facts: Facts) -> float:
    """Of all GPUs: mean power times the time over which it was sampled; 0 where none was."""
    powers = [g.power for node in facts.nodes for g in node.gpus]
    return sum((mean(p) or 0.0) * extent(p) for p in powers) / 3.6e6


def extent(points: Series) -> float:
    """From the first x to the last."""
    return points[-1][0] - points[0][0] if points else 0.0


def slices(whole: Goodput) -> list[Slice]:
    """The parts of the time that are not nothing."""
    return [
        Slice(name, WORDS[name], 100 * seconds / whole.whole, seconds)
        for name, seconds in whole.seconds.items()
        if whole.whole and seconds / whole.whole >= 0.0005
    ]


def step_slices(facts: Facts) -> list[Slice]:
    """The parts of the training's time, as far as they are known."""
    spent = step_time(facts.attempts)
    computing = (
        "computing"
        if spent.others is not None or facts.info.get("world_size") == 1
        else "computing and communication"
    )
    parts = [
        ("progress", computing, spent.compute),
        ("data", "waiting for data", spent.data),
        ("slow", "communication: waiting for the network and for other ranks", spent.others or 0.0),
        ("checkpoint", "checkpoints", spent.checkpoint),
    ]
    return [Slice(name, word, 100 * s / spent.whole, s) for name, word, s in parts if s > 0]


def gpu_rows(facts: Facts) -> list[GpuRow]:
    """All GPUs of the job."""
    return [
        GpuRow(node.host, gpu.index, mean(gpu.use), mean(gpu.power), gpu.memory)
        for node in facts.nodes
        for gpu in node.gpus
    ]


def changed(run: RunDir, config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Keys whose value is not the default of `configs/`: default and value, as they are written."""
    defaults = {key: text(value) for key, value in flatten(compose([])).items()}
    mine = {key: text(value) for key, value in flatten(config).items()}
    return {
        key: (defaults.get(key, "-"), value)
        for key, value in mine.items()
        if value != defaults.get(key, "null") and key not in FREE
    }


def text(value: object) -> str:
    """A value of the configuration as it is typed."""
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def number(value: object) -> str:
    """A metric to read; null in run.json stands for nan and inf."""
    return f"{value:.4g}" if isinstance(value, int | float) else "nan"


def when(info: Mapping[str, Any]) -> str:
    """From when to when the run ran, in UTC as run.json has it."""
    known = [str(info[key])[:16].replace("T", " ") for key in ("started", "ended") if info.get(key)]
    return f"{' to '.join(known)} UTC" if known else ""


def duration(seconds: float) -> str:
    """`3.2 s`, `4 min 10 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
