"""Compose overrides with Hydra, and list the groups of the configuration."""

import atexit
import json
import os
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from train_anywhere.config.command.yaml_files import is_changed, parse, read_mapping
from train_anywhere.config.keys import (
    CUSTOM,
    LIST_GROUPS,
    MODULE,
    SINGLE_GROUPS,
    TARGET,
    choice_name,
    defaults,
)
from train_anywhere.config.load import read_target, to_plain_tree
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import field_types, section_class
from train_anywhere.files import HAS_PROJECT, OWN, ROOT, WORK
from train_anywhere.files.root import refuse_deleted_folder

if TYPE_CHECKING:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigResult

CONFIGS = ROOT / "configs"

BUNDLED = Path(__file__).parents[1] / "presets"
"""Choices that come with the engine, such as `cluster=neuron`; a file of the project with the same name replaces one."""

PROGRAM_FOLDERS = [WORK]
"""Without a project: folders whose conf/cluster/ may have presets."""


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the composed configuration as a plain tree, outside of a Hydra application. Raises as `config_loader`."""
    from hydra.types import RunMode

    return to_plain_tree(
        config_loader().load_configuration("train", [*overrides], RunMode.RUN, from_shell=False)
    )


def config_loader() -> "ConfigLoader":
    """Return Hydra's reader of configs/. Raises ProjectError: the current folder was deleted, which Hydra needs."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    refuse_deleted_folder()
    GlobalHydra.instance().clear()
    install_choice_loader()
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return GlobalHydra.instance().config_loader()


def install_choice_loader() -> None:
    """Let Hydra find bundled presets, and read files with only a target, and `${own_default:...}`."""
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("own_default", _own_default, replace=True)
    OmegaConf.register_new_resolver("data_name", _data_name, replace=True)
    OmegaConf.register_new_resolver("unset", lambda value: value, replace=True)
    if not HAS_PROJECT:  # presets name the launchers of a project
        for name in ("slurm", "here"):
            ConfigStore.instance().store(group="hydra/launcher", name=name, node={"_target_": name})
    Plugins.instance()  # the first call creates the class that is patched below
    files: Any = SourcesRegistry.instance().resolve("file")
    if files.load_config is not _load_choice:
        files.load_config = _load_choice

        class BundledPresets(SearchPathPlugin):
            def manipulate_search_path(self, search_path: "ConfigSearchPath") -> None:
                for folder in presets():  # after the project's own
                    search_path.append("train_anywhere", f"file://{folder}")

        Plugins.instance().register(BundledPresets)


@cache
def presets() -> tuple[Path, ...]:
    """Return the folders of presets besides configs/: without a project the user's own, as links, then the bundled ones."""
    if HAS_PROJECT:
        return (BUNDLED,)
    folder = tempfile.TemporaryDirectory(prefix="train-anywhere-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    links = Path(folder.name)
    of_program = [folder / "conf" / "cluster" for folder in PROGRAM_FOLDERS]
    for group, folders in (("cluster", [*of_program, OWN / "clusters"]), ("local", [OWN / "local"])):
        (links / group).mkdir()
        files = [file for folder in reversed(folders) for file in folder.glob("*.yaml")]
        for name, file in {file.name: file for file in files if group == "local" or _is_preset(file)}.items():
            (links / group / name).symlink_to(file.absolute())
    return (links, BUNDLED)


def _is_preset(file: Path) -> bool:
    """Return whether a file of a group `cluster` is a preset: the program may have a group of this name."""
    text = file.read_text(errors="replace")
    return "@package _global_" in text and bool(re.search(r"^cluster:", text, re.M))


def _own_default(section: str, argument: str, otherwise: Any, *, _root_: Any) -> Any:
    """Return the target's default for an argument according to its source."""
    target = read_target(_root_, section)
    known = target.parameters.get(argument) if target else None
    return known.default if known and type(known.default) is type(otherwise) else otherwise


def _data_name(*, _root_: Any) -> str | None:
    """Return the name of the data, or of the class or function that was typed in its place. Raises InterpolationKeyError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError

    group = "task" if OmegaConf.select(_root_, "data.name") == MODULE else "data"
    name, target = (OmegaConf.select(_root_, f"{group}.{key}") for key in ("name", TARGET))
    if name is None:
        raise InterpolationKeyError(f"Interpolation key '{group}.name' not found")
    target = target.get(_root_.framework) if OmegaConf.is_dict(target) else target
    return choice_name(name, target if isinstance(target, str) else None)


def _load_choice(source: "FileConfigSource", config_path: str) -> "ConfigResult":
    """Load a file for Hydra: values as typed, with the defaults of its keys."""
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import OmegaConf

    path = os.path.realpath(os.path.join(source.path, source._normalize_file_name(config_path)))
    with open(path, encoding="utf-8-sig") as file:  # a byte order mark would hide the header
        header = source._get_header_dict(file.read(512))
        file.seek(0)
        tree = parse(file)
    tree = {} if tree is None else tree
    if not isinstance(tree, dict | list):
        raise yaml.YAMLError(f"{path} has no keys")
    group, _, choice = config_path.removesuffix(".yaml").rpartition("/")
    if (group, choice) == ("", "train"):
        engine = defaults(Config) | read_mapping(Path(__file__).with_name("hydra.yaml"))
        tree = _put_above(engine, tree)
    elif group and isinstance(tree, dict) and not header.get("package"):
        tree = _complete_choice(group, choice, tree)
    return ConfigResult(source.provider, f"file://{source.path}", OmegaConf.create(tree), header)


def _complete_choice(group: str, choice: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a choice, with the name of its file, the keys of the group's custom.yaml, and the defaults of its class."""
    inherits = "defaults" in tree  # the keys of those files must stay
    if choice == CUSTOM and group in SINGLE_GROUPS:
        tree = _unset(tree)
    elif TARGET in tree and group in LIST_GROUPS:
        tree = {choice: tree}
    elif TARGET in tree and group in SINGLE_GROUPS:
        known = {} if inherits else read_mapping(CONFIGS / group / f"{CUSTOM}.yaml")
        tree = {**_unset(known), **_unset({"name": choice}), **tree}
    if group in (*SINGLE_GROUPS, "strategy", "container") and not inherits:
        cls = section_class(field_types(Config)[group], tree)
        tree = {**tree, **(defaults(cls) if cls else {}), **tree}
    return tree


def _unset(section: dict[str, Any]) -> dict[str, Any]:
    """Mark the values of a section as defaults, which a target does not get as arguments."""
    plain = {
        key: value
        for key, value in section.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and "$" not in value)
    }
    return section | {key: f"${{unset:{json.dumps(value)}}}" for key, value in plain.items()}


def _put_above(known: Any, written: Any) -> Any:
    """Return the defaults with the written values. A section without keys changes nothing."""
    if isinstance(known, dict) and isinstance(written, dict):
        return known | {key: _put_above(known.get(key), value) for key, value in written.items()}
    return known if isinstance(known, dict) and written is None else written


def list_groups() -> dict[str, list[str]]:
    """Return the config groups and the choices of each, without hosts."""
    folders = [p.relative_to(top) for top in (CONFIGS, *presets()) for p in top.rglob("*") if p.is_dir()]
    return {str(folder): [*choice_files(str(folder))] for folder in folders if folder.name != "hosts"}


def choice_files(group: str) -> dict[str, Path]:
    """Return the file of each choice of a group, by its name: the project's, or else the engine's."""
    files = {f.stem: f for top in (*reversed(presets()), CONFIGS) for f in (top / group).glob("*.yaml")}
    return dict(sorted(files.items()))


def choice_file(group: str, name: str) -> Path:
    """Return the file of a choice, or the path at which the project would have it."""
    return choice_files(group).get(name, CONFIGS / group / f"{name}.yaml")


def parse_override(text: str, loader: "ConfigLoader | None" = None) -> "Override | None":
    """Parse one argument with Hydra's grammar. Return None if it is invalid. A `loader` finds the choices of a pattern."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create(loader).parse_overrides([text])[0]
    except (HydraException, ValueError, RecursionError):
        return None


_OF_CLUSTER = ("partition", "qos", "gres", "reservation", "exclude", "nodelist", "mail_type")
ONE_VALUE = (*(f"cluster.{key}" for key in _OF_CLUSTER), "program.metrics", "program.resume_args")
"""Keys whose value may have commas, as a list in the scheduler's notation, and is no sweep: a job array has one value of each."""


def quote_value(argument: str) -> str:
    """Return the argument, with its value in quotes if Hydra would misread it.

    For example, the shell removes the quotes of `cluster.comment="field=nlp;appl=pytorch"`, and Hydra needs them.
    Minutes get quotes, too: in a file, such a number would be an unquoted H:MM:SS (`slurm.script.units`).
    """
    key, equals, value = argument.partition("=")
    if key in ("cluster.time", "cluster.time_min") and re.fullmatch(r"\d{4,8}", value, re.ASCII):
        return f'{key}="{value}"'
    if is_changed(key.lstrip("+"), value):  # Hydra reads account=1_000 as a number
        return f'{key}="{value}"'
    several = key in ONE_VALUE and "," in value and value[0] not in "'\"["
    words = key == "note" and value not in ("", "null") and value[0] not in "'\""  # such as `[draft] a, b`
    if argument.startswith("-") or not equals:
        return argument
    plain = re.fullmatch(r"[\w./+-]{,1000}", value, re.ASCII)  # Python can't parse a number of 5,000 digits
    if not several and not words and (plain or parse_override(argument)):
        return argument
    # a backslash is special only before a quote: https://hydra.cc/docs/advanced/override_grammar/basic/#quoted-values
    escaped = re.sub(r'(\\*)("|\Z)', lambda m: 2 * m[1] + ('\\"' if m[2] else ""), value)
    return candidate if parse_override(candidate := f'{key}="{escaped}"') else argument


def empty_sweep_problem(text: str) -> str:
    """Return the sentence for a sweep without values, such as range(0)."""
    return f"'{text}' is an empty sweep: it has no values."
