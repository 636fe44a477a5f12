"""Check the arguments of targets against their source, without importing them.

An argument that is unknown, missing or of the wrong type is reported with the key to type. Targets without readable source (an extension
module, a name made at run time) are checked when the ranks start, before data is opened.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Literal

from train_anywhere.config.choices import Data, Model, Task
from train_anywhere.config.keys import (
    ARGS,
    CONVERT,
    FRAMEWORKS,
    HYDRA,
    LIST_GROUPS,
    MODULE,
    PARTIAL,
    PASSED,
    RECURSIVE,
    TARGET,
    OpenSection,
    key_fields,
)
from train_anywhere.config.other_names import OWN_ARGUMENTS
from train_anywhere.config.schema import Config, Trainer
from train_anywhere.config.signatures import Definition, Parameter, TargetError, read, read_import_calls
from train_anywhere.config.strict import UNUSABLE, convert, did_you_mean, nearest
from train_anywhere.errors import Problem

TASK_CLASS = "train_anywhere.tasks.Task"
"""The base class of the tasks of version 0.1, see `train_anywhere.tasks`."""

NETWORK = "network"
"""Argument of a task that gets the network of the section `model`."""

STAGED = "staged"
"""Argument of data sets that can be read from a node's disk: a function from a path to the path of its copy."""

SUPPLIED = {
    "task": (NETWORK, "make_optimizer", "optimizer"),
    "data": ("seed", "batch_size", STAGED),
    "optimizer": ("params", "lr", "learning_rate", "global_clipnorm", "clipvalue"),
    "schedule": ("optimizer", "total_steps", "steps_per_epoch", "epochs", "initial_learning_rate", "decay_steps"),
    "loggers": ("save_dir", "dir", "folder", "run_id", "internet", "parameters"),
}  # fmt: skip
"""By group: arguments that this project passes to a target that takes them, unless the section sets them."""

HYDRA_TYPES: Mapping[str, Any] = {
    ARGS: list[Any],
    PARTIAL: bool,
    RECURSIVE: bool,
    CONVERT: Literal["none", "partial", "object", "all"],
}


def open_sections(config: Config) -> Iterator[tuple[str, OpenSection]]:
    """Yield the open sections in use, each with its key, in the order of the schema."""
    for key in (field.name for field in fields(config)):
        section = getattr(config, key)
        if isinstance(section, OpenSection):
            yield key, section
    for group in LIST_GROUPS:
        yield from ((f"{group}.{name}", section) for name, section in getattr(config, group).items())


def check_targets(config: Config, problems: list[str]) -> Config:
    """Return the configuration with arguments converted to the types of their targets."""
    changed: dict[str, Any] = {}
    for key, section in open_sections(config):
        if isinstance(section, Model) and task_has_network(config.task, config.framework):
            continue
        new = _check_section(key, section, config.framework, problems)
        group, _, name = key.partition(".")
        changed[group] = {**changed.get(group, getattr(config, group)), name: new} if name else new
    if config.train and not config.program:
        try:
            read(config.train)
        except TargetError as error:
            problems.append(f"train={config.train}: {error}")
    return replace(config, **changed)


def task_has_network(task: Task, framework: str) -> bool:
    """Return whether the task is a whole module, which does not use `model`."""
    return NETWORK in task.arguments or is_whole_module(task.target.get(framework))


def global_batch(config: Config) -> int:
    """Return `data.batch_size`; 0 if it is not divided by the ranks: a LightningDataModule, or the loaders of a module."""
    target = config.data.target.get(config.framework)
    with suppress(TargetError, OSError):
        bases = read(target).bases if target and config.data.name != MODULE else ("LightningDataModule",)
        return 0 if any(base.endswith("LightningDataModule") for base in bases) else config.data.batch_size
    return config.data.batch_size


def is_whole_module(target: Any) -> bool:
    """Return whether the target of a task has a network of its own. False if unreadable."""
    try:
        return isinstance(target, str) and not _takes_network(read(target))
    except TargetError:  # reported where the task itself is checked
        return False


def _takes_network(definition: Definition) -> bool:
    argument = definition.parameters.get(NETWORK)
    return TASK_CLASS in definition.bases or (argument is not None and argument.required)


def target_notes(config: Config) -> list[str]:
    """Return the notes on targets that can't be read, and on those whose import may train."""
    found = []
    targets = [(key, section.target.get(config.framework)) for key, section in open_sections(config)]
    for name, dotted in ((f"{key}.{TARGET}={dotted}", dotted) for key, dotted in targets if dotted):
        with suppress(TargetError):
            if not config.program and read(dotted).kind == "unreadable":
                found.append(
                    f"{name} can't be read from source: its arguments are checked when the ranks start."
                )
            found += [
                f"{name}: {file} calls {call.source} (line {call.line}) when it is imported, on every rank; "
                f"if that trains, put it below {MAIN}"
                for file, call in read_import_calls(dotted)
                if not call.trains
            ]
    return found


MAIN = 'if __name__ == "__main__":.'


def check_extra(trainer: Trainer, framework: str) -> Iterator[str]:
    """Yield a sentence for each argument that can't be in `trainer.extra`."""
    if framework == "keras":
        yield from _check_fit_arguments(trainer)
        return
    own = {key.name: f"trainer.{key.name}" for key in fields(trainer)} | OWN_ARGUMENTS
    del own["profiler"]  # Lightning's argument of that name measures its hooks, not operations
    others = [name for name in trainer.extra if name not in own]
    yield from (f"trainer.extra.{n}: this project sets it; use {own[n]}." for n in trainer.extra if n in own)
    with suppress(TargetError, OSError):
        known = read("lightning.pytorch.Trainer").parameters if others else {}
        names = [name for name in known if name not in own]
        for name in others:
            if known and name not in known:
                yield f"trainer.extra.{name} is not an argument of Lightning's Trainer{did_you_mean(name, names)}"


def _check_fit_arguments(trainer: Trainer) -> Iterator[str]:
    """Yield a sentence for each argument that `fit` of Keras does not get from `trainer.extra`."""
    own = {"class_weight": {}, "shuffle": True, "validation_split": 0.0, "steps_per_execution": 1}
    known = {**own, **trainer.extra}
    weights, shuffle, split, steps = (known.pop(name) for name in own)
    for name in known:
        text = f"trainer.extra.{name} is not an argument that Keras' `fit` gets from here, see docs/how-to/keras-fit.md"
        yield Problem(text, "argument", f"trainer.extra.{name}")
    if not isinstance(shuffle, bool):
        yield f"trainer.extra.shuffle={shuffle} is neither true nor false."
    if type(steps) is not int or steps < 1:
        yield f"trainer.extra.steps_per_execution={steps} is not a number of steps, such as 20."
    if isinstance(split, bool) or not isinstance(split, int | float) or not 0 <= split < 1:
        yield f"trainer.extra.validation_split={split} is not a part of the rows, such as 0.2."
    pairs = weights.items() if isinstance(weights, Mapping) else [("", weights)]
    if not all(str(number).isdecimal() and isinstance(weight, int | float) for number, weight in pairs):
        yield f"trainer.extra.class_weight={weights} is not a number for each class; type 'trainer.extra.class_weight={{0: 1.0, 1: 5.0}}'."
    elif weights and trainer.accumulate_grad_batches > 1:
        yield (
            f"trainer.extra.class_weight and trainer.accumulate_grad_batches={trainer.accumulate_grad_batches} do not work together; use a "
            "larger data.batch_size."
        )


def _check_section(key: str, section: OpenSection, framework: str, problems: list[str]) -> OpenSection:
    dotted = section.target.get(framework)
    if dotted is None:
        if section.target:
            problems.append(_missing_target(key, section, framework))
        return section
    try:
        definition = read(dotted)
        problems += [
            f"{key}.{TARGET}={dotted}: {file} calls {call.source} (line {call.line}) when it is imported, so it would train on every "
            f"rank before this run; put what trains below {MAIN[:-1]} or start the file as it is: python src/run.py -- {file}."
            for file, call in read_import_calls(dotted)
            if call.trains
        ]
    except TargetError as error:
        problems.append(f"{key}.{TARGET}={dotted}: {error}")
        return section
    if (other := definition.framework) not in (None, framework) and not isinstance(section, Data):
        problems.append(
            f"{key}.{TARGET}={dotted} is for {other}, and this is framework={framework}; use framework={other}."
        )
        return section
    supplied = {
        *SUPPLIED.get(key.partition(".")[0], ()),
        *(section.from_data if isinstance(section, Model) else ()),
    }
    if isinstance(section, Task) and not _takes_network(definition):
        supplied = set()
    if isinstance(section, Model) and definition.kind != "unreadable" and not definition.takes_any:
        problems += [
            f"{key}.from_data.{name}: {dotted} has no argument '{name}'{did_you_mean(name, definition.parameters)}"
            for name in section.from_data
            if name not in definition.parameters
        ]
    own, wrong = [f.name for f in key_fields(section)], list[str]()
    given = dict(section.arguments)
    passed = given.pop(PASSED, {})
    splits_itself = isinstance(section, Data) and section.own_split and "split" not in definition.parameters
    kept = {"split": given.pop("split")} if splits_itself else {}
    arguments = kept | _convert_arguments(key, dotted, definition, given | passed, {*supplied}, wrong, own)
    if passed:
        arguments[PASSED] = {name: arguments.pop(name) for name in passed}
    problems += wrong
    staged = definition.kind == "unreadable" or STAGED in definition.parameters
    if isinstance(section, Data) and section.stage and not staged:
        problems.append(
            f"data.stage=true copies files to the disk of each node, but data={section.name} has none to copy ({dotted} has no argument "
            f"'{STAGED}', see docs/how-to/your-code.md); use data.stage=false."
        )
    # the section's check must not be called with invalid arguments
    section = replace(section, arguments=arguments, check=None if wrong else section.check)
    return _add_metrics(section, definition) if isinstance(section, Task) else section


def _missing_target(key: str, section: OpenSection, framework: str) -> str:
    others = [f for f in FRAMEWORKS if f in section.target]
    name = getattr(section, "name", key.rpartition(".")[2])
    what = key if key.partition(".")[0] in LIST_GROUPS else f"{key}={name}"
    return (
        f"{what} has no target for framework={framework}, only for {' and '.join(others)}; use framework={others[0]}, "
        f"or another {key.partition('.')[0].removesuffix('s')}."
    )


def _convert_arguments(
    key: str,
    dotted: str,
    definition: Definition,
    given: Mapping[str, Any],
    supplied: set[str],
    problems: list[str],
    own: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments, converted to the annotated types.

    `given` has Hydra's keys too, `supplied` the names of arguments that this project passes, `own` its keys, for suggestions.
    """
    parameters = definition.parameters
    special, args = {k: v for k, v in given.items() if k in HYDRA}, given.get(ARGS) or []
    for name, value in special.items():
        convert(HYDRA_TYPES[name], value, problems, f"{key}.{name}")
    if definition.kind == "unreadable":
        return dict(given)
    supplied = {*supplied, *([*parameters][: len(args)] if isinstance(args, list) else parameters)}
    given = {k: v for k, v in given.items() if k not in HYDRA}
    accepted = [name for name, p in parameters.items() if not p.positional_only]
    known = [*dict.fromkeys([*(name for name in accepted if name not in supplied), *own])]
    for name in given:
        if name not in accepted and not definition.takes_any:
            text = f"'{key}.{name}' is not an argument of {dotted}{did_you_mean(name, known, key)}"
            problems.append(Problem(text, "argument", f"{key}.{name}"))
    missing = [n for n, p in parameters.items() if p.required and n not in given and n not in supplied]
    missing = [] if special.get(PARTIAL) else missing
    misspelt = {nearest(name, missing) for name in given if name not in parameters}
    problems += [f"'{key}.{n}' is missing: {dotted} needs it." for n in missing if n not in misspelt]
    recursive = special.get(RECURSIVE, True)
    if isinstance(args, list) and args:
        by_place = zip([*parameters.values(), *[None] * len(args)], args, strict=False)
        special[ARGS] = [
            _convert_argument(f"{key}.{ARGS}[{i}]", p, v, problems, recursive)
            for i, (p, v) in enumerate(by_place)
        ]
    return special | {
        n: _convert_argument(f"{key}.{n}", parameters.get(n), v, problems, recursive)
        for n, v in given.items()
    }


def _convert_argument(
    key: str, parameter: Parameter | None, value: Any, problems: list[str], recursive: bool = True
) -> Any:
    """Return the value converted to the annotated type, or with the arguments of the targets in it converted."""
    hint = parameter.hint if parameter else None
    if not _names_target(value):
        if hint is None or (value == "" and hint in (str, str | None)):
            return value
        converted = convert(hint, value, problems, key)
        return value if converted is UNUSABLE else converted
    if not recursive:
        return value
    if isinstance(value, list):
        return [_convert_argument(f"{key}[{i}]", None, v, problems) for i, v in enumerate(value)]
    if TARGET not in value:
        return {k: _convert_argument(f"{key}.{k}", None, v, problems) for k, v in value.items()}
    dotted = value[TARGET]
    try:
        if not isinstance(dotted, str):
            raise TargetError("is not a dotted name.")
        inner = {k: v for k, v in value.items() if k != TARGET}
        return {TARGET: dotted, **_convert_arguments(key, dotted, read(dotted), inner, set(), problems)}
    except TargetError as error:
        problems.append(f"{key}.{TARGET}={dotted}: {error}")
        return value


def _names_target(value: Any) -> bool:
    """Return whether the value, or a value in it, names a target."""
    if isinstance(value, Mapping):
        return TARGET in value or any(map(_names_target, value.values()))
    return isinstance(value, list) and any(map(_names_target, value))


def _add_metrics(task: Task, definition: Definition) -> Task:
    """Return a task of version 0.1 with the metrics of its class, other tasks unchanged."""
    metrics, headline = definition.attributes.get("metrics"), definition.attributes.get("headline")
    if task.monitors or TASK_CLASS not in definition.bases or not isinstance(metrics, dict):
        return task
    return replace(
        task, monitors={name: metrics[name] for name in sorted(metrics, key=lambda one: one != headline)}
    )
