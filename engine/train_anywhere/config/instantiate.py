"""Call what a section of an open group names, in a process that may import it: a rank."""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from train_anywhere.config.open_groups import ARGS, HYDRA, PARTIAL, RECURSIVE, TARGET, Open
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.renamed import renamed

KEPT = {"seed"}
"""Supplied arguments that a default of the target's own goes before: a fixed split stays the same in a sweep over seeds."""


def instantiate(section: Open, where: str, framework: str, **supplied: Any) -> Any:
    """The object that the section's target makes of its arguments.

    Args:
        where: name of the section, for the messages.
        framework: "lightning" or "keras": whose target.
        supplied: what this project gives where the target takes it by that name, and the section does not say otherwise.

    Raises:
        ConfigError: there is no such target, or it does not take these arguments.
    """
    dotted = section.target[framework]
    target = locate(dotted, f"{where}.{TARGET}")
    return call(target, dotted, where, _nested(section.arguments, where), supplied)


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn what a target raises at arguments that it can't use into a ConfigError: TypeError, ValueError, or an exception of a package.

    Args:
        what: of the configuration, for the message.
    """
    try:
        yield
    except Exception as error:
        of_a_package = type(error).__module__ != "builtins" and not isinstance(error, ProjectError)
        if not (of_a_package or isinstance(error, TypeError | ValueError)):
            raise
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{what} can't be made: {said.rstrip('.')}.") from error


def locate(dotted: str, key: str) -> Any:
    """The class or function of that name; imports what it needs.

    Args:
        key: of the configuration, for the messages.

    Raises:
        ConfigError: there is none, or its module can't be imported.
    """
    dotted = renamed(dotted)
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                continue  # the name may be one of a class
            raise ConfigError(
                f"{key}={dotted} needs the package {error.name}, which is not installed."
            ) from error
        for part in parts[length:]:
            if not hasattr(found, part):
                raise ConfigError(f"{key}={dotted}: {module} has no {part}{did_you_mean(part, dir(found))}")
            found = getattr(found, part)
        if not callable(found):
            raise ConfigError(f"{key}={dotted} is a {type(found).__name__}, neither a class nor a function.")
        return found
    raise ConfigError(f"{key}={dotted}: there is no module {parts[0]} in this project or its environment.")


def call(
    target: Any, dotted: str, where: str, arguments: Mapping[str, Any], supplied: Mapping[str, Any]
) -> Any:
    """Call the target with the arguments, Hydra's `_args_` and `_partial_` among them, and with those of `supplied` that it takes by name.

    Raises:
        ConfigError: an argument is missing, or one that it does not take.
    """
    args, is_partial = arguments.get(ARGS) or [], arguments.get(PARTIAL)
    arguments = {k: v for k, v in arguments.items() if k not in HYDRA}
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a builtin that does not say
        made = partial(target, *args, **{**supplied, **arguments})
        return made if is_partial else made()
    kinds = [p.kind for p in parameters.values()]
    by_place = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    filled = by_place[: len(args)]
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    taken = named - {*filled}
    defaults = {n: parameters[n].default for n in (KEPT & taken)}
    own = [n for n, default in defaults.items() if default not in (None, inspect.Parameter.empty)]
    given = {**{n: v for n, v in supplied.items() if n in taken and n not in own}, **arguments}
    anything = inspect.Parameter.VAR_KEYWORD in kinds
    problems = [f"{where}.{name} is given twice: {ARGS} has it too." for name in filled if name in given]
    if len(args) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        problems.append(
            f"{where}.{ARGS}: {dotted} takes {len(by_place)} arguments by position, not {len(args)}."
        )
    problems += [
        f"{where}.{name}: {dotted} has no argument '{name}'{did_you_mean(name, taken)}"
        for name in given
        if name not in named and not anything
    ]
    problems += [
        f"{where}.{name} is missing: {dotted} needs it."
        for name in taken
        if name not in given and not is_partial and parameters[name].default is inspect.Parameter.empty
    ]
    if problems:
        raise ConfigError(*problems)
    made = partial(target, *args, **given)
    return made if is_partial else made()


def _nested(value: Any, where: str) -> Any:
    """Arguments that name a target themselves are made first."""
    if isinstance(value, list):
        return [_nested(v, where) for v in value]
    if not isinstance(value, Mapping):
        return value
    recursive = value.get(RECURSIVE, True)
    inner = {k: _nested(v, f"{where}.{k}") if recursive else v for k, v in value.items()}
    dotted = inner.pop(TARGET, None)
    if dotted is None:
        return inner
    return call(locate(dotted, f"{where}.{TARGET}"), dotted, where, inner, {})
