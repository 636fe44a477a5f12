"""Hydra's part of a command: the folder of the configuration, its groups, and what a list of overrides composes to."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from train_anywhere.config.environment_values import plain
from train_anywhere.config.open_groups import CHOSEN, CUSTOM, LISTED, TARGET
from train_anywhere.config.signatures import TargetError, read
from train_anywhere.files import ROOT

if TYPE_CHECKING:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigResult

CONFIGS = ROOT / "configs"


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The composed configuration as a plain tree, outside of a Hydra application."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    complete_choices()
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = hydra.compose("train", overrides=list(overrides))
        return plain(cfg)


def complete_choices() -> None:
    """Let Hydra read files of configs/ that have only a target, see `_load_choice`, and `${own_default:...}` in them."""
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("own_default", _own_default, replace=True)
    Plugins.instance()  # looks for plugins once, and makes the classes of its own anew
    files: Any = SourcesRegistry.instance().resolve("file")
    if not hasattr(files, "load_written"):
        files.load_written, files.load_config = files.load_config, _load_choice


def _own_default(section: str, argument: str, otherwise: Any, *, _root_: Any) -> Any:
    """Return the default of a section's target for an argument, as far as its source says; `otherwise` if it is of another type."""
    target = _root_[section].get(TARGET)
    with suppress(TargetError, KeyError, TypeError, ValueError):  # reported where the target is checked
        dotted = target if isinstance(target, str) else target[_root_["framework"]]
        default = read(dotted).parameters[argument].default
        return default if type(default) is type(otherwise) else otherwise
    return otherwise


def _load_choice(source: "FileConfigSource", config_path: str) -> "ConfigResult":
    """Load a file for Hydra; one choice of an open group gets its file's name and the keys of the group's custom.yaml."""
    from omegaconf import OmegaConf

    found: ConfigResult = source.load_written(config_path)  # type: ignore[attr-defined]
    group, _, choice = config_path.removesuffix(".yaml").rpartition("/")
    if TARGET not in found.config or found.header.get("package") or choice == CUSTOM:
        return found
    if group in LISTED:
        found.config = OmegaConf.create({choice: found.config})
    elif group in CHOSEN:
        inherits = "defaults" in found.config  # and the keys of those files must stay
        known: Any = {} if inherits else OmegaConf.load(CONFIGS / group / f"{CUSTOM}.yaml")
        found.config = OmegaConf.merge(known, {"name": choice}, found.config)
    return found


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
