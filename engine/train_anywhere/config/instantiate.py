"""Import and call the targets of open sections, in a rank."""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from train_anywhere.config.keys import ARGS, HYDRA, PARTIAL, PASSED, RECURSIVE, TARGET, OpenSection
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError, ProjectError


def instantiate(section: OpenSection, where: str, framework: str, **supplied: Any) -> Any:
    """Call the target of a section with its arguments and return the result.

    The target of the framework gets those arguments of `supplied` that it takes, unless the section sets them.

    Raises ConfigError: the target does not exist, or does not accept these arguments.
    """
    dotted = section.target[framework]
    target = locate(dotted, f"{where}.{TARGET}")
    arguments = {**section.arguments, **section.arguments.get(PASSED, {})}
    arguments.pop(PASSED, None)
    return call(target, dotted, where, _call_nested(arguments, where), supplied)


@contextmanager
def explain_target_errors(what: str) -> Iterator[None]:
    """Turn an error about arguments that a target raises into a ConfigError."""
    try:
        yield
    except Exception as error:
        of_a_package = type(error).__module__ != "builtins" and not isinstance(error, ProjectError)
        if not (of_a_package or isinstance(error, TypeError | ValueError)):
            raise
        message = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{what} can't be made: {message.rstrip('.')}.") from error


def make_kind(section: OpenSection, where: str, framework: str, kind: Any, name: str, **supplied: Any) -> Any:
    """Return `instantiate`'s object, which has to be a `kind`, called `name` in the message. Raises ConfigError."""
    what = f"{where}.{TARGET}={section.target[framework]}"
    with explain_target_errors(what):
        created = instantiate(section, where, framework, **supplied)
    if not isinstance(created, kind):
        raise ConfigError(f"{what} returns a {type(created).__qualname__}, which is not a {name}.")
    return created


def locate(dotted: str, key: str) -> Any:
    """Import and return the class or function with a dotted name.

    Raises ConfigError: the name does not exist, or its module can't be imported.
    """
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                continue  # the name may be a class
            raise ConfigError(
                f"{key}={dotted} needs the package {error.name}, which is not installed."
            ) from error
        for part in parts[length:]:
            if not hasattr(found, part):
                raise ConfigError(f"{key}={dotted}: {module} has no {part}{did_you_mean(part, dir(found))}")
            found = getattr(found, part)
        if not callable(found):
            raise ConfigError(f"{key}={dotted} is a {type(found).__name__}, not a class or function.")
        return found
    raise ConfigError(f"{key}={dotted}: there is no module {parts[0]} in this project or its environment.")


def call(
    target: Any, dotted: str, where: str, arguments: Mapping[str, Any], supplied: Mapping[str, Any]
) -> Any:
    """Call the target with the arguments, and with the supplied ones that it takes by name.

    Raises ConfigError: an argument is missing or unknown.
    """
    args, is_partial = arguments.get(ARGS) or [], arguments.get(PARTIAL)
    arguments = {k: v for k, v in arguments.items() if k not in HYDRA}
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # a builtin without a signature
        given = {**supplied, **arguments}
    else:
        parameters = signature.parameters
        named = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        by_place = [
            n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        # a seed does not replace the target's default: a fixed split stays the same in a sweep over seeds
        fixed = "seed" in named and parameters["seed"].default not in (None, inspect.Parameter.empty)
        left = {*named} - {*by_place[: len(args)]} - ({"seed"} if fixed else set())
        given = {n: v for n, v in supplied.items() if n in left} | arguments
        try:
            (signature.bind_partial if is_partial else signature.bind)(*args, **given)
        except TypeError as error:
            unknown = [name for name in given if name not in named]
            hint = did_you_mean(unknown[0], named) if "unexpected" in str(error) else "."
            raise ConfigError(f"{where}: {dotted}: {error}{hint}") from error
    bound = partial(target, *args, **given)
    return bound if is_partial else bound()


def _call_nested(value: Any, where: str) -> Any:
    """Return arguments with the result of the call in place of each target."""
    if isinstance(value, list):
        return [_call_nested(v, where) for v in value]
    if not isinstance(value, Mapping):
        return value
    recursive = value.get(RECURSIVE, True)
    inner = {k: _call_nested(v, f"{where}.{k}") if recursive else v for k, v in value.items()}
    dotted = inner.pop(TARGET, None)
    if dotted is None:
        return inner
    return call(locate(dotted, f"{where}.{TARGET}"), dotted, where, inner, {})
