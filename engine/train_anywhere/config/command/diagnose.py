"""Explain a refused command line: all its problems, each with what to type instead.

Hydra stops at the first problem, and a value of the wrong type hides contradictions between keys. After a refusal, this module
checks each argument by itself, then composes the valid ones and lets the schema check the result.
"""

import re
import traceback
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.config.command.command_line import SEARCH, to_hydra_overrides
from train_anywhere.config.command.compose import (
    CONFIGS,
    choice_file,
    choice_files,
    compose,
    config_loader,
    empty_sweep_problem,
    list_groups,
    parse_override,
)
from train_anywhere.config.command.help_comments import lines_with_keys
from train_anywhere.config.command.yaml_files import (
    KEYS,
    choice_problem,
    file_problems,
    read_text,
    yaml_sentence,
)
from train_anywhere.config.keys import LIST_GROUPS, SINGLE_GROUPS
from train_anywhere.config.load import load
from train_anywhere.config.other_names import REMOVED, page_address, with_keys_meant
from train_anywhere.config.search_terms import find_page
from train_anywhere.config.strict import did_you_mean, unknown_key
from train_anywhere.errors import ConfigError, ProjectError, listed

MAX_DEPTH = 20
"""Maximum nesting of lists and sections in a value; OmegaConf fails at some hundreds, without naming the key."""

Compose = Callable[[tuple[str, ...]], dict[str, Any]]
"""Type of the function `compose` with a cache, because composing is slow."""

LONGEST = 300
"""Characters of the longest word in a message: a huge value would hide the sentence."""

COMPOSING = ("hydra", "omegaconf", "yaml", "antlr4", "argparse")
"""Packages that parse the user's input: a built-in error raised in them is about that input."""


def diagnose(arguments: Sequence[str], first: Exception, sweep: bool = True) -> ConfigError:
    """Return an error with one message for each problem of the overrides.

    The problems of the `first` error stay in the list, and its message is used if nothing clearer is found. With `sweep`, a key may have
    several values (`-m`).
    """
    try:
        problems = _all_problems(arguments, sweep, cache(compose))
    except Exception as error:  # a bug in the diagnosis must not hide the first error
        problems = [] if is_configuration_error(first) else [error_sentence(error) or repr(error)]
    known = first.problems if isinstance(first, ConfigError) else []
    if problems:  # they have a clearer message if a choice file's keys landed in the wrong section
        stray = tuple(f"'{group}' is not a key" for group in list_groups() if group not in KEYS)
        known = [p for p in known if not p.startswith(stray)]
    found = [*known, *(p for p in problems if not any(p in k for k in known))]
    found = [_with_files(problem, arguments) for problem in found]
    return ConfigError(*(list(dict.fromkeys(found)) or [error_sentence(first) or str(first).strip()]))


def compose_diagnosed(words: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of some overrides as they are typed, or raise ConfigError with all their problems."""
    words = to_hydra_overrides(words)
    try:
        return compose(words)
    except Exception as error:
        raise diagnose(words, error, False) from None


def _with_files(problem: str, arguments: Sequence[str]) -> str:
    """Add the files of the group that lack the key of the problem, or have it, to the message."""
    section, missing, _ = problem.removeprefix("'").partition("' is missing")
    group = section.partition(".")[0]
    chosen = [text.partition("=")[2] for text in arguments if text.startswith(f"{group}=")]
    if missing and chosen and (file := choice_file(group, chosen[-1])).is_file():
        return f"{problem.removesuffix('.')} ({file} does not have it)."
    if found := re.match(r"'(\w+)\.([\w.]+)' is not an? (key|argument) of [^;?]*$", problem):
        files = choice_files(found[1]).values()
        having = [f.stem for f in files if found[2] in {key for key, *_ in lines_with_keys(read_text(f))}]
        return f"{problem} It is a key of {found[1]}={'|'.join(having)}." if having else problem
    found = re.match(r"(\w+)\.(\w+)\._target_ is missing", problem)
    if found and found[2] in choice_files(found[1]):
        return f"{found[1]}.{found[2]}: add {found[1]}={found[2]}, whose keys these are."
    return problem


def _all_problems(arguments: Sequence[str], sweep: bool, cached_compose: Compose) -> list[str]:
    problems: list[str] = []
    groups = list_groups()
    choice_words, key_words = list[str](), list[tuple[str, Any]]()
    loader = config_loader()
    for text in arguments:
        override: Any = parse_override(text, loader)
        if problem := _form_problem(text, override, sweep, SEARCH in arguments):
            problems.append(problem)
        elif override.is_sweep_override() and not override.is_discrete_sweep():
            continue  # search/loop.py checks an interval
        elif override.key_or_group in groups and override.package is None:
            found = [*_choice_problems(text, override, groups[override.key_or_group])]
            problems += found
            choice_words += [] if found else [_first(text, override)]
        elif not override.key_or_group.startswith(("hydra.", "hydra/")):
            key_words.append((_first(text, override), override))
    try:
        tree = cached_compose(tuple(choice_words))
    except Exception as error:
        return problems or file_problems(CONFIGS, error) or _problems_of(error)
    complete = all(isinstance(tree.get(key), dict) for key in KEYS & groups.keys())
    if not complete and (broken := file_problems(CONFIGS)):
        return problems + broken
    valid = choice_words
    for word, override in key_words:
        may_be_new = override.is_add() or override.is_force_add() or override.is_delete()
        if problem := _key_problem(
            override.key_or_group, override.value(), tree, [] if may_be_new else [*groups]
        ):
            problems.append(problem)
        else:
            valid.append(word)
    return problems + _schema_problems(tuple(valid), cached_compose)


def _form_problem(text: str, override: Any, sweep: bool, searches: bool) -> str:
    """Return why an argument is no override, or no sweep that can be used here, or ""."""
    key, equals, _ = text.partition("=")
    if override is None and equals and not key.isascii():
        return f"'{key}' is not a key of the configuration."
    if override is None:
        return f"'{text}' is not of the form key=value."
    key = override.key_or_group
    if not key:
        return f"'{text}' is not of the form key=value: the key is empty."
    if _depth(override.value()) > MAX_DEPTH:
        return f"{key} has more than {MAX_DEPTH} levels of nested brackets; use fewer."
    if not override.is_sweep_override():
        return ""
    if not sweep:
        return f"'{text}' is a sweep over several values: add -m to run them all, or quote it ('{key}=\"...\"') if it is one value."
    if override.is_discrete_sweep():
        return "" if _values(override) else empty_sweep_problem(text)
    advice = "use range(...) or a,b,c, or add hydra/sweeper=optuna"
    return "" if searches else f"'{text}' is an interval, not a list of values to run; {advice}."


def _depth(value: Any) -> int:
    """Return the number of lists and sections around the innermost value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_depth, inside), default=0)


def _choice_problems(text: str, override: Any, choices: Sequence[str]) -> Iterator[str]:
    """Yield why values of a group are no choices, or why their files can't be used."""
    group = override.key_or_group
    single = group in SINGLE_GROUPS
    if override.is_add():
        yield f"'{text}': {group} is already in the configuration; write it without +."
    for choice in [
        one for v in _values(override) for one in (v if isinstance(v, list) and not single else [v])
    ]:
        name = str(choice).removesuffix(".yaml")
        dotted = "." in name and all(map(str.isidentifier, name.split(".")))
        if dotted and (single or group in LIST_GROUPS):
            key = group if single else f"{group}.NAME"
            yield f"{group}={choice} is not a choice; to name a class or function, type {key}._target_={name}."
        elif removed := REMOVED.get(f"{group}.name={name}"):
            yield removed
        elif choice is None:
            if group in KEYS:
                yield f"{group}=null: a run needs one of {listed(choices)}."
        elif name not in choices:  # a list of choices of a group with one has no near name
            page = find_page(name)
            about = f" About {name}: {page_address(page)}." if page else ""
            yield f"{group}={choice} is not a choice{did_you_mean(name, choices)}{about}"
        elif problem := choice_problem(choice_file(group, name)):
            yield problem


def _key_problem(key: str, value: Any, tree: dict[str, Any], groups: list[str]) -> str:
    """Return that a key is unknown, or a list typed as a section, or the reverse. "" for others.

    Without `groups`, which may be meant, it may be new.
    """
    section: Any = tree
    parts = key.split(".")
    for depth, part in enumerate([*parts, None]):
        above = ".".join(parts[:depth])
        if isinstance(section, list) and (part is not None or isinstance(value, dict)):
            return f"{above} is a list, not a section of keys; type it as a whole: {above}=[...]."
        if part is None:
            break
        if not isinstance(section, dict) or part not in section:
            known = [*section] if isinstance(section, dict) else []
            known += [] if depth else [group for group in groups if group not in known]
            hint = did_you_mean(part, known, above)
            return with_keys_meant(unknown_key(key, hint), tree) if groups else ""
        section = section[part]
    if isinstance(section, dict) and isinstance(value, list):
        return f"{key} is a section of keys, not a list; type {key}={{key: value}}."
    return ""


def _values(override: Any) -> list[Any]:
    """Return the value, or all values of a sweep."""
    return [*override.sweep_iterator()] if override.is_sweep_override() else [override.value()]


def _first(text: str, override: Any) -> str:
    """Return the override of the first member of a sweep: a=1,2 becomes a=1."""
    if not override.is_sweep_override():
        return text
    return f"{text.split('=')[0]}={next(iter(override.sweep_string_iterator()))}"


def _schema_problems(overrides: tuple[str, ...], cached_compose: Compose) -> list[str]:
    """Return the problems that the schema finds.

    A value of the wrong type hides other problems, so the check is repeated without the overrides already reported.
    """
    found: list[str] = []
    while True:
        try:
            load(cached_compose(overrides))
            return found
        except Exception as error:
            new = [problem for problem in _problems_of(error) if problem not in found]
        named = [o for o in overrides if any(p.startswith(o.split("=")[0] + "=") for p in new)]
        found += new
        overrides = tuple(o for o in overrides if o not in named)
        if not named:
            return found


def _problems_of(error: Exception) -> list[str]:
    """Return the problems of a refusal. Raises the error itself if it is a bug."""
    if isinstance(error, ConfigError):
        return error.problems
    if not is_configuration_error(error):
        raise error
    return [error_sentence(error) or repr(error)]


def explain_refusal(error: Exception, overrides: Sequence[str], sweep: bool = True) -> str | None:
    """Return the message for a refused request. None for a bug."""
    if isinstance(error, ConfigError) or is_configuration_error(error):
        return shorten(str(diagnose(overrides, error, sweep)))
    message = error_sentence(error)
    return None if message is None else shorten(message)


def shorten(message: str) -> str:
    """Return the message without the middle of very long words, printable on any terminal."""
    short = [w if len(w) <= LONGEST else f"{w[:80]} ... {w[-40:]}" for w in message.split(" ")]
    return " ".join(short).encode("utf-8", "backslashreplace").decode()


def is_configuration_error(error: Exception) -> bool:
    """Return whether an error comes from reading or composing the configuration."""
    if isinstance(error, ProjectError):  # for which Hydra need not be imported
        return False
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, (HydraException, OmegaConfBaseException, yaml.YAMLError, ArgumentError)):
        return True
    if isinstance(error, OSError):
        return False
    files = [Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__)]
    if not isinstance(error, (RecursionError, UnicodeError)):  # which their callers cause
        files = files[-1:]
    return any({*COMPOSING} & {*file} or file[-2:] == ("logging", "config.py") for file in files)


def error_sentence(error: Exception) -> str | None:
    """Return one sentence for an error. None for a bug."""
    if isinstance(error, ProjectError):
        return str(error)
    if isinstance(error, yaml.YAMLError):
        return yaml_sentence(error)
    of_configuration = is_configuration_error(error)
    if isinstance(error, OSError) and not of_configuration:  # some of Hydra's errors are OSErrors
        what = error.strerror or str(error)
        return f"{error.filename}: {what}." if error.filename else f"{what} ({error_location(error)})."
    if isinstance(error, (UnicodeError, JSONDecodeError)):
        return f"{error} ({error_location(error)})."
    if isinstance(error, RecursionError) and of_configuration:
        names = [Path(f.filename).name for f in traceback.extract_tb(error.__traceback__)]
        if names.count("defaults_list.py") > len(names) // 4:  # otherwise Hydra only reads a file of the list
            return "the configuration includes itself: look for a file whose `defaults` name that file."
        return "a value of the configuration has too many nested brackets."
    return hydra_sentence(error) if of_configuration else None


def hydra_sentence(error: BaseException, above: tuple[BaseException, ...] = ()) -> str:
    """Return Hydra's or OmegaConf's message in one line, with the key and the cause."""
    text = str(error).split("\nConfig search path")[0].split("\nSee https:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    message = " ".join(line for line in lines if not line.startswith(("full_key:", "object_type=")))
    cause = error.__cause__
    if cause is not None and cause not in (*above, error) and str(cause).split("\n")[0] not in message:
        message = f"{message}{': ' if message else ''}{hydra_sentence(cause, (*above, error))}"
    start = f"{key}: " if key and key not in message else ""
    return f"{start}{message or type(error).__name__}"


def error_location(error: BaseException) -> str:
    """Return the file and line that raised an error, for errors that do not name a file."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "at the start"
