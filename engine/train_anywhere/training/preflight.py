"""Cheap checks before a run starts: data, facts and packages.

The checks look at names and headers of files; a damaged row is only found when it is read.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from train_anywhere.checkpoints.choice import init_problems, list_weight_files
from train_anywhere.checkpoints.store import refuse_unreadable
from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.choices import Data
from train_anywhere.config.instantiate import locate
from train_anywhere.config.keys import CHECK, CUSTOM, LIST_GROUPS
from train_anywhere.config.schema import Config
from train_anywhere.data.known import Known, too_large
from train_anywhere.distributed.layout import Layout, visible_gpus
from train_anywhere.distributed.packages import package_problem
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.launch.command import Checks
from train_anywhere.training.plan import make_plan, missing_facts
from train_anywhere.training.reporting.header import Header, cpu_name


def data_problems(config: Config, devices: int, look: bool = True) -> list[str]:
    """Return why training can't start. `look` is false if the data may be elsewhere."""
    try:
        known = check_data(config.data, look, _runs_here(config))
    except DataError as error:
        known = Known(problems=(str(error),))
    except ConfigError as error:
        known = Known(problems=tuple(error.problems))
    except OSError as error:  # not a valid path
        why = f"data.dir={error.filename} can't be used ({error.strerror}); use data.dir=FOLDER."
        known = Known(problems=(why,))
    length, batch_size = known.length, config.data.batch_size
    messages = [too_large(length, batch_size, devices) if length else None, *known.problems]
    if known.later is not None and not task_has_network(config.task, config.framework):
        messages += missing_facts(config.model, config.data.name, dict.fromkeys((*known.facts, *known.later)))
    found = [m for m in messages if m] + _missing_packages(config) + init_problems(config)
    if length and not found and batch_size % devices == 0:
        try:
            # 1, 1: the other splits are counted when they are opened
            make_plan(config, length // batch_size, 1, 1, devices)
        except ConfigError as error:
            return error.problems
    return found


def header_lines(config: Config, layout: Layout) -> list[str]:
    """Return the header of a run, as far as it is known before the run."""
    own, optimizer = task_has_network(config.task, config.framework), config.optimizer
    model = _describe(config.task if own else config.model, config.framework)
    gpu, devices = visible_gpus() and config.trainer.accelerator != "cpu", layout.device_count
    device = {"mps": "Apple GPU"}.get(config.trainer.accelerator) or ("GPU" if gpu else cpu_name())
    length = check_data(config.data, look=True).length
    # a module with a network may leave out an incomplete batch, or have loaders of its own
    plan = make_plan(config, length // config.data.batch_size, 1, 1, devices) if length and not own else None
    header = Header(model, None, None, {"training rows": length}, device, devices, layout.strategy)
    scaled = f" (scale_lr={optimizer.scale_lr})" if optimizer.scale_lr != "none" else ""
    unless = ", unless the task has its own" if own else ""
    named = f"{_describe(optimizer, config.framework)}, lr {optimizer.lr:g}{scaled}"
    schedule = f"schedule {config.schedule.name}{unless}"
    return [*header.lines(config, plan), f"{'Optimizer:':<15}{named}, {schedule}"]


CHECKS = Checks(data_problems, refuse_unreadable, header_lines)
"""The checks of a training."""


def _describe(section: object, framework: str) -> str:
    """Return the name of a choice, or the class or function that the user named in its place."""
    target = getattr(section, "target", {}).get(framework)
    name = str(getattr(section, "name", ""))
    return target if name == CUSTOM and target else name


def check_data(data: Data, look: bool, installed_here: bool = False) -> Known:
    """Return the facts that `_check_` of the data set finds without opening the data.

    `installed_here` is whether the run uses the Python packages of this process.

    Raises:
        ConfigError: the function does not exist.
        DataError: files are missing or have the wrong content.
    """
    if data.check is None:
        return Known()
    supplied = {"look": look, "stage": data.stage, "installed_here": installed_here}
    known = _call_check(data.check, "data", {**data.arguments, **supplied})
    if not isinstance(known, Known | None):
        raise ConfigError(
            f"data.{CHECK}={data.check} returns a {type(known).__name__}; it must return what is known, a train_anywhere.data.known.Known."
        )
    return known or Known()


def _missing_packages(config: Config) -> list[str]:
    """Return missing packages and what `_check_` of loggers and callbacks finds."""
    if not _runs_here(config):
        return []
    problems = []
    if config.framework == "lightning" and config.model.lora:
        problems.append(package_problem("peft", "model.lora"))
    if config.init.run and any(file.suffix == ".safetensors" for file in list_weight_files(config.init.run)):
        problems.append(package_problem("safetensors", f"init.run={config.init.run}"))
    for group in LIST_GROUPS:
        for name, section in getattr(config, group).items():
            try:
                if section.check:
                    _call_check(section.check, f"{group}.{name}", section.arguments)
            except ConfigError as error:
                problems += error.problems
    return [problem for problem in problems if problem]


def _runs_here(config: Config) -> bool:
    """Return whether the run uses this Python environment."""
    return not (config.cluster.venv or config.cluster.conda) and config.container.name == "none"


def _call_check(dotted: str, section: str, known: Mapping[str, Any]) -> Any:
    """Call a check with the arguments that it takes. Return None if it needs others.

    Only functions in files `checks.py` of this project are called: the name and the arguments may come from an untrusted file. Raises
    ConfigError: it is another function.
    """
    *parts, _ = dotted.split(".")
    valid = parts[-1:] == ["checks"] and all(part.isidentifier() for part in parts)
    # of the installed packages only this one
    folders = (ROOT, ENGINE) if parts[:1] == ["train_anywhere"] else (ROOT,)
    if not valid or not any(folder.joinpath(*parts).with_suffix(".py").is_file() for folder in folders):
        raise ConfigError(
            f"{section}.{CHECK}={dotted} would be called before anything starts, so it must be a function in a file checks.py of this "
            "project, such as mine.checks.table; name that, or leave it out."
        )
    check = locate(dotted, f"{section}.{CHECK}")
    parameters = inspect.signature(check).parameters
    if any(p.default is p.empty and name not in known for name, p in parameters.items()):
        return None
    return check(**{name: known[name] for name in parameters if name in known})
