"""Why a command line was refused: every problem of it at once, each with what to type instead.

Hydra stops at the first fault, and a value of the wrong type hides contradictions. This is only run after a refusal: it
looks at each argument by itself, then composes the rest so that the schema can speak too.
"""

import re
from collections.abc import Sequence
from typing import Any

from src.environment_values import plain
from src.errors import ConfigError
from src.rundir import ROOT
from src.schema import load
from src.strict import did_you_mean

CONFIGS = ROOT / "configs"


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration as a plain tree, outside of a Hydra application."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = hydra.compose("train", overrides=list(overrides))
        return plain(cfg)


def diagnose(arguments: Sequence[str], first: Exception) -> ConfigError:
    """An error with one sentence per problem of the overrides among `arguments`.

    Args:
        arguments: the command line after the program's name; flags are passed over.
        first: what was raised; its own problems stay in the list, and Hydra's words are used when nothing clearer is found.
    """
    problems: list[str] = []
    known_groups = groups()
    selected, valued = [], []
    for text in (a for a in arguments if not a.startswith("-")):
        override = _parse(text, problems)
        if override is None:
            continue
        key = override.key_or_group
        if key in known_groups:
            if _check_choice(override, known_groups[key], problems):
                selected.append(text)
        elif not key.startswith(("hydra.", "hydra/")):
            valued.append((text, key, override))
    tree = compose(_first_choices(selected))
    good = list(selected)
    for text, key, override in valued:
        if override.is_add() or override.is_delete() or _check_key(key, tree, known_groups, problems):
            good.append(text)
    problems += _schema_problems(_first_choices(good))
    known = first.problems if isinstance(first, ConfigError) else []
    return ConfigError(
        [*known, *(p for p in problems if not any(p in k for k in known))] or [str(first).strip()]
    )


def groups() -> dict[str, list[str]]:
    """The config groups and the choices of each."""
    folders = (p for p in CONFIGS.rglob("*") if p.is_dir())
    return {str(d.relative_to(CONFIGS)): sorted(f.stem for f in d.glob("*.yaml")) for d in folders}


def quoted(argument: str) -> str:
    """The argument as Hydra reads it: a value that is no word of Hydra's grammar is quoted as it stands.

    So `cluster.comment="field=nlp;appl=pytorch"`, whose quotes the shell takes, means what it says.
    """
    key, equals, value = argument.partition("=")
    if argument.startswith("-") or not equals or re.fullmatch(r"[\w./+-]*", value) or _parsed(argument):
        return argument
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return candidate if _parsed(candidate := f'{key}="{escaped}"') else argument


def _parsed(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException:
        return None


def _parse(text: str, problems: list[str]) -> Any:
    override = _parsed(text)
    if override is None:
        problems.append(f"'{text}' is not of the form key=value.")
    return override


def _check_choice(override: Any, choices: list[str], problems: list[str]) -> bool:
    before = len(problems)
    for value in _values(override):
        if value is not None and str(value) not in choices:
            known = "" if len(choices) <= 12 else f" There are {', '.join(choices)}."
            problems.append(
                f"{override.key_or_group}={value} is not a choice{did_you_mean(str(value), choices)}{known}"
            )
    return len(problems) == before


def _check_key(
    key: str, tree: dict[str, Any], known_groups: dict[str, list[str]], problems: list[str]
) -> bool:
    section: Any = tree
    for depth, part in enumerate(key.split(".")):
        if not isinstance(section, dict) or part not in section:
            here = list(section) if isinstance(section, dict) else []
            here += [] if depth else [g for g in known_groups if g not in here]
            problems.append(
                f"'{key}' is not a key of the configuration{_nearest_key(key, part, depth, here)}"
            )
            return False
        section = section[part]
    return True


def _nearest_key(key: str, part: str, depth: int, here: list[str]) -> str:
    suggestion = did_you_mean(part, here)
    prefix = ".".join(key.split(".")[:depth])
    return suggestion.replace("Did you mean '", f"Did you mean '{prefix}.") if prefix else suggestion


def _values(override: Any) -> list[Any]:
    if override.is_sweep_override():
        return list(override.sweep_iterator()) if override.is_discrete_sweep() else []
    return [override.value()]


def _first_choices(texts: list[str]) -> list[str]:
    """Overrides with each sweep (a=1,2) cut to its first value: what one member of the sweep is composed from."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    out = []
    for text, override in zip(texts, OverridesParser.create().parse_overrides(texts), strict=True):
        swept = _values(override) if override.is_sweep_override() else []
        out.append(f"{text.split('=')[0]}={swept[0]}" if swept else text)
    return out


def _schema_problems(overrides: list[str]) -> list[str]:
    """What the schema says, again without the overrides it named until it names none: a wrong type hides what comes later."""
    found: list[str] = []
    while True:
        new = [p for p in _load_problems(overrides) if p not in found]
        named = [o for o in overrides if any(p.startswith(o.split("=")[0] + "=") for p in new)]
        found += new
        overrides = [o for o in overrides if o not in named]
        if not named:
            return found


def _load_problems(overrides: list[str]) -> list[str]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        load(compose(overrides))
    except ConfigError as error:
        return error.problems
    except (HydraException, OmegaConfBaseException) as error:
        return [str(error).split("\n")[0]]
    return []
