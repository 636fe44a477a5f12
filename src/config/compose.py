"""Hydra's part of a command: the folder of the configuration, its groups, and what a list of overrides composes to."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from src.config.environment_values import plain
from src.files import ROOT

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

CONFIGS = ROOT / "configs"


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration as a plain tree, outside of a Hydra application."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = hydra.compose("train", overrides=list(overrides))
        return plain(cfg)


def groups() -> dict[str, list[str]]:
    """The config groups and the choices of each."""
    folders = (p for p in CONFIGS.rglob("*") if p.is_dir())
    return {str(d.relative_to(CONFIGS)): sorted(f.stem for f in d.glob("*.yaml")) for d in folders}


def parse_override(text: str) -> "Override | None":
    """One argument, parsed by Hydra's grammar; None for what the grammar does not know."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except (HydraException, ValueError, RecursionError):
        return None


def quoted(argument: str) -> str:
    """The argument with its value in quotes if Hydra's grammar can't parse it as it stands.

    So `cluster.comment="field=nlp;appl=pytorch"`, whose quotes the shell removes, means what it says.
    """
    key, equals, value = argument.partition("=")
    if (
        argument.startswith("-")
        or not equals
        or re.fullmatch(r"[\w./+-]{,1000}", value, re.ASCII)  # Python reads no number of 5,000 digits
        or parse_override(argument)
    ):
        return argument
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return candidate if parse_override(candidate := f'{key}="{escaped}"') else argument


def empty_sweep(text: str) -> str:
    """The sentence for range(0), or a pattern that matches no choice."""
    return f"'{text}' is an empty sweep: it has no values."
