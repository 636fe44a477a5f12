"""Collect the content of the report, and write RUN/report.html; a page that compares runs."""

import html
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from train_anywhere.config import signatures
from train_anywhere.config.command.compose import compose
from train_anywhere.config.keys import as_typed, flatten
from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.monitor.live import operation_rows, read_profiles
from train_anywhere.monitor.report import figures
from train_anywhere.monitor.run_facts import Describe, Facts, read_facts
from train_anywhere.monitor.verdicts import TITLES, Goodput, goodput
from train_anywhere.runs.attempts import read_logged_step, read_recorded_step, recorded_reason, step_time
from train_anywhere.runs.facts import find_checkpoint, resume_summary
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.reopen.frozen import COMMAND_KEYS, read_frozen, typed_overrides
from train_anywhere.runs.summary import display_path, duration

NAME = "report.html"
"""Name of the file in the run folder."""

HYPERPARAMETERS = ("seed", "task", "data", "model", "optimizer", "schedule", "trainer", "init")
"""Keys and sections that may change the result of a run."""


def write_report(run: RunDir, describe: Describe, ended: str | None = None) -> list[str]:
    """Write RUN/report.html, and return lines to print: its path and the verdicts.

    `ended` is the state of a run that has not recorded its end, such as lost. Raises CheckpointError: run.json is damaged. Raises OSError:
    the file can't be written.
    """
    path, facts = run.path / NAME, read_facts(run)
    if ended:
        # the newest attempt may have been killed before it recorded its end
        attempts, step = facts.attempts, max(read_logged_step(run), read_recorded_step(run))
        attempts[-1:] = [{"ended_by": "killed", "step": step, **newest} for newest in attempts[-1:]]
        facts = replace(facts, info={**facts.info, "state": ended, ATTEMPTS: attempts})
    verdicts, rows = describe(facts)
    write_atomic(path, page(run, facts, verdicts, rows))
    return [f"{'Report:':<15}{display_path(path)}", *(f"{'Note:':<15}{line}" for line in verdicts)]


def page(run: RunDir, facts: Facts, verdicts: Sequence[str], rows: Mapping[str, str]) -> str:
    """Return the page as HTML, with the verdicts on the run and its further rows."""
    saved, alive = find_checkpoint(run), facts.info.get("state") == "running"
    keeps_all = alive or facts.info.get("state") == "completed"
    next_start = {"from_step": saved.step if saved else 0}
    whole = goodput(facts.attempts if keeps_all else [*facts.attempts, next_start])
    # shares of its time would say more about the start than about the training
    if whole and whole.whole < 60:
        whole = None
    template = environment().get_template("page.html.j2")
    reason, ended_by = recorded_reason(facts.info), facts.info.get("ended_by")
    frozen: dict[str, Any] = {}
    with suppress(CheckpointError):
        frozen = flatten(read_frozen(run))
    nodes, metrics = figures.node_figures(facts.nodes), figures.metric_figures(facts.metrics)
    room = figures.MOST_FIGURES - len(nodes)
    return template.render(
        run=run,
        note=frozen.get("note") or "",
        info=facts.info,
        when=period(facts.info),
        tiles=tiles(facts, whole),
        verdicts=[
            *filter(None, [reason and f"Failed: {reason}", ended_by]),
            *facts.info.get("notes", []),
            *verdicts,
        ],
        rows={"Attempts": resume_summary(run, facts.info, alive), **rows},
        goodput=whole,
        slices=[(name, TITLES[name], s) for name, s in whole.seconds.items()] if whole else [],
        attempts=[figures.describe(attempt) for attempt in facts.attempts if attempt.get("started")],
        figures=[*metrics[:room], *nodes, *metrics[room:]],
        gpus=[(node.host, gpu) for node in facts.nodes for gpu in node.gpus],
        profiles=[(one, operation_rows(one)) for one in read_profiles(run)],
        changed=set_keys(run),
        parameters=hyperparameters(frozen),
        provenance=provenance(run, facts),
    )


def environment() -> Environment:
    """Return the Jinja environment of this folder's templates."""
    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=loader, undefined=StrictUndefined, autoescape=True, trim_blocks=True)
    templates.filters |= {"duration": duration, "number": number, "breakable": breakable}
    templates.globals |= {"colours": figures.COLOURS, "most_figures": figures.MOST_FIGURES}
    return templates


def breakable(name: str) -> str:
    """Return the HTML of a key or a metric, which may be broken after a slash, a dot or an underscore."""
    return re.sub(r"([/._])(?=\w)", r"\1<wbr>", html.escape(name))


def tiles(facts: Facts, whole: Goodput | None) -> dict[str, str]:
    """Return the most important values, by name."""
    info = facts.info
    shown = {"state": str(info.get("state", "unknown"))}
    shown |= {"step": f"{info['step']:,}"} if isinstance(info.get("step"), int) else {}
    known, metric, mode = dict(info.get("metrics") or {}), str(info.get("monitor")), info.get("mode")
    points = figures.drawable(facts.metrics.get(metric, []))
    if points and mode in ("min", "max"):
        step, best = (min if mode == "min" else max)(points, key=itemgetter(1))
        shown[f"best {metric}, at step {step:,.0f}"] = number(best)
        if number(known.get(metric)) == number(best):  # the last value is the best one
            del known[metric]
    measured = {k: v for k, v in known.items() if "train" not in k and k != "lr"} or known
    names = sorted(measured, key=figures.LOADER.findall)
    shown |= {name: number(measured[name]) for name in names[:12]}
    if whole:
        shown["time that made progress"] = f"{whole.share:.0%}"
        shown |= {"GPU hours": f"{whole.device_hours:.3g}"} if any(n.gpus for n in facts.nodes) else {}
    if (efficiency := step_time(facts.attempts)[2]) is not None:
        shown["parallel efficiency"] = f"{efficiency:.0%}"
    joules = sum(gpu.power.total * node.every for node in facts.nodes for gpu in node.gpus if gpu.power)
    shown |= {"energy of the GPUs": f"{joules / 3.6e6:.3g} kWh"} if joules else {}
    return shown


def set_keys(run: RunDir) -> dict[str, tuple[str, str]]:
    """Return the default and the value of each key that was set on the command line, as they are typed."""
    defaults = {key: as_typed(value) for key, value in flatten(compose([])).items()}
    pairs = [word.lstrip("+").partition("=") for word in typed_overrides(run) or ()]
    return {
        key: (defaults.get(key) or defaults.get(f"{key}.name", "-"), value)
        for key, sign, value in pairs
        if sign and key not in COMMAND_KEYS
    }


def hyperparameters(frozen: Mapping[str, Any]) -> dict[str, str]:
    """Return what may change the result, with the defaults of your own code's arguments, by key."""
    shown = {key: value for key, value in frozen.items() if key.partition(".")[0] in HYPERPARAMETERS}
    for key, target in [*shown.items()]:
        group, last = key.rpartition(".")[::2]
        if last == "_target_" and isinstance(target, str):
            with suppress(ProjectError):  # the code may be gone
                for name, argument in signatures.read(target).parameters.items():
                    if argument.default is not signatures.NO_DEFAULT:
                        shown.setdefault(f"{group}.{name}", argument.default)
    return {key: mask_urls(as_typed(value)) for key, value in sorted(shown.items()) if "._check_" not in key}


def provenance(run: RunDir, facts: Facts) -> dict[str, str]:
    """Return what is needed to train the run again, and what was trained, by title."""
    info = facts.info
    versions, counts = (
        value.items() if isinstance(value := info.get(key), dict) else () for key in ("versions", "rows")
    )
    parameters, words = info.get("parameters"), typed_overrides(run)
    changed = " with local changes" if info.get("dirty") else ""
    shown = {
        "Command": "" if words is None else shlex.join(["python", "src/train.py", *words]),
        "Commit": f"{str(info['commit'])[:12]}{changed}" if info.get("commit") else "",
        "Model": f"{info.get('model', '')}{f', {parameters:,} parameters' if isinstance(parameters, int) else ''}",
        "Data": ", ".join(f"{count:,} {name}" for name, count in counts if isinstance(count, int)),
        "Device": str(info.get("device", "")),
        "Hosts": ", ".join(map(str, info.get("hosts") or ())),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions),
    }
    return {title: value for title, value in shown.items() if value}


def number(value: object) -> str:
    """Return a metric as a string; null in run.json stands for nan and inf."""
    return f"{value:.4g}" if isinstance(value, int | float) else "nan"


def period(info: Mapping[str, Any]) -> str:
    """Return the start and end of the run in UTC, as in run.json."""
    known = [str(info[key])[:16].replace("T", " ") for key in ("started", "ended") if info.get(key)]
    if len(known) > 1 and known[0][:10] == known[1][:10]:
        known[1] = known[1][11:]
    return f"{' to '.join(known)} UTC" if known else ""


def render_comparison(content: Mapping[str, Any]) -> str:
    """Return the page of several runs as HTML, from title, lead, header, rows, figures, links and best.

    There is a link for each row, or "". `best` is the number of the row that is marked, or None.
    """
    return environment().get_template("comparison.html.j2").render(page=content)
