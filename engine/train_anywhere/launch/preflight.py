"""What is known of a run before it starts: whether its data is there and its checkpoints can be read, and whether batches and model fit.

Only what is cheap to learn, by names and headers: a damaged row is found when it is read.
"""

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.checkpoints.init_run import init_problems
from train_anywhere.checkpoints.usable import refuse_unreadable
from train_anywhere.config.checks.targets import brings_network
from train_anywhere.config.instantiate import locate
from train_anywhere.config.open_groups import CHECK, LISTED
from train_anywhere.config.schema import Config
from train_anywhere.data.known import Known
from train_anywhere.data.order.fits import too_large
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.renamed import renamed
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.native_network import unsaid
from train_anywhere.training.plan import make_plan

LARGEST = 2**31
"""Numbers in one rank's batch: 8 GiB."""


def refuse_unreadable_run(run: RunDir, config: Config) -> None:
    """Where a run is to be resumed and not started from scratch: its checkpoints, looked at quickly.

    Raises:
        CheckpointError: none of them can be read.
    """
    if not config.from_scratch:
        refuse_unreadable(run)


def data_problems(config: Config, devices: int, look: bool = True) -> list[str]:
    """One sentence for each reason why no training could begin.

    Args:
        devices: over all nodes.
        look: whether the data's folder is one of this machine.
    """
    try:
        known = known_of(config, look)
    except DataError as error:
        return [str(error)]
    except ConfigError as error:
        return error.problems
    except OSError as error:  # a path that can't be one
        return [f"data.dir={error.filename} can't be used ({error.strerror}); use data.dir=FOLDER."]
    length = known.length
    sentences = [too_large(length, config.data.batch_size, devices)] if length else []
    sentences += [*known.problems, _too_much_memory(config, known, devices), *_no_such_model(config, known)]
    found = [s for s in sentences if s] + _missing_packages(config) + init_problems(config)
    if length and not found and config.data.batch_size % devices == 0:
        found += _no_step(config, length, devices)
    return found


def known_of(config: Config, look: bool) -> Known:
    """What the `_check_` of the data set knows before it is opened; nothing where it has none.

    Raises:
        ConfigError: there is no such function.
        DataError: files are missing, or not what they should be.
    """
    data = config.data
    if data.check is None:
        return Known()
    known = _ask(data.check, "data", {**data.arguments, "look": look, "stage": data.stage})
    if not isinstance(known, Known | None):
        raise ConfigError(
            f"data.{CHECK}={data.check} returns a {type(known).__name__}; it must return what is known, a train_anywhere.data.known.Known."
        )
    return known or Known()


def _missing_packages(config: Config) -> list[str]:
    """What the `_check_` of loggers and callbacks says of this environment, where a job uses it too."""
    c = config.cluster
    if c.venv or c.conda or config.container.name != "none":
        return []
    problems: list[str] = []
    for group in LISTED:
        for name, section in getattr(config, group).items():
            try:
                if section.check:
                    _ask(section.check, f"{group}.{name}", section.arguments)
            except ConfigError as error:
                problems += error.problems
    return problems


def _ask(dotted: str, section: str, known: Mapping[str, Any]) -> Any:
    """Call a check with what it takes of all that is known; one that needs more can't say anything yet.

    Raises:
        ConfigError: it is no function of a file `checks.py` of this project. Nothing else may run while a command is looked at: the
            name and the arguments may come from a file that someone has sent.
    """
    dotted = renamed(dotted)
    *parts, _ = dotted.split(".")
    own = parts[-1:] == ["checks"] and all(part.isidentifier() for part in parts)
    if not own or not any(
        place.joinpath(*parts).with_suffix(".py").is_file() for place in _checked_places(parts)
    ):
        raise ConfigError(
            f"{section}.{CHECK}={dotted} would be called before anything starts, so it must be a function in a file checks.py of this "
            "project, such as mine.checks.table; name that, or leave it out."
        )
    check = locate(dotted, f"{section}.{CHECK}")
    parameters = inspect.signature(check).parameters
    if any(p.default is p.empty and name not in known for name, p in parameters.items()):
        return None
    return check(**{name: known[name] for name in parameters if name in known})


def _checked_places(parts: list[str]) -> tuple[Path, ...]:
    """Folders whose checks may be called: the project, and of the environment this package alone."""
    return (ROOT, ENGINE) if parts[0] == "train_anywhere" else (ROOT,)


def _too_much_memory(config: Config, known: Known, devices: int) -> str:
    numbers = math.prod(known.facts.get("shape", (1,)))
    most = LARGEST * devices // numbers
    if config.data.batch_size <= most:
        return ""
    return (
        f"data.batch_size={config.data.batch_size} of {numbers:,} numbers each do not fit the memory of {devices} ranks; "
        f"use data.batch_size={max(1, most)} or less."
    )


def _no_such_model(config: Config, known: Known) -> list[str]:
    """What the data set will not say and the model needs; else what the `_check_` of the model says. Nothing where the task uses none."""
    model = config.model
    if brings_network(config):
        return []
    if known.later is not None and (problems := unsaid(config, [*known.facts, *known.later])):
        return problems
    if model.check is None:
        return []
    facts = {argument: known.facts[fact] for argument, fact in model.from_data.items() if fact in known.facts}
    said = _ask(model.check, "model", {**facts, **model.arguments})
    return [said] if isinstance(said, str) else []


def _no_step(config: Config, length: int, devices: int) -> list[str]:
    try:
        # the other splits are counted when they are opened
        make_plan(config, -(-length // config.data.batch_size), 1, 1, devices)
    except ConfigError as error:
        return error.problems
    return []
