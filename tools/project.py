"""Write a project of your own: `make project DIR=../mine NAME="My project"`.

    DIR         its folder, which is new or empty
    NAME        its title; without it, the name of the folder
    FRAMEWORK   lightning (the default), keras or all: the models, tests, strategies and locks that it gets
    CLUSTER     bundled presets to write into its configs/cluster/, to read or edit, separated by commas: lumi,alvis
    FROM        the engine and the template: a folder, an sdist (.tar.gz) or git+URL; without it, this checkout

The project has the engine as a wheel with its hash. `make update` there replaces the wheel, and the files of the template that the
project has not edited. Exit codes: 0 done, 2 refused (nothing was written).
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

FRAMEWORKS = ("lightning", "keras")

EXAMPLES = {
    "lightning": (
        "lightning_module",
        "`LightningModule`",
        "python src/train.py task._target_=examples.lightning_module.LitDigits "
        "data._target_=examples.lightning_module.DigitsData checkpoint.monitor=val_loss",
    ),
    "keras": (
        "keras_model",
        "`keras.Model`",
        "python src/train.py task._target_=examples.keras_model.make_model "
        "data._target_=examples.keras_model.open_data",
    ),
}
"""Example of each framework: its file, what it is, and its command."""

TOPS = (
    ".editorconfig", ".gitignore", ".pre-commit-config.yaml", "LICENSE", "Makefile", "conftest.py", "AGENTS.md", "pyproject.toml",
    "environment.yml", "mkdocs.yml", ".vscode", "configs", "examples", "hydra_plugins", "notebooks", "requirements", "slurm", "src",
    "tests", "tools",
)  # fmt: skip
"""Files and folders from which projects are made; an sdist with a template has them."""

LEFT_OUT = re.compile(
    r"mkdocs\.yml|tools/.*|tests/(template|notebooks|data)/.*|tests/tasks/\w+/test_alone\.py|requirements/(locks/)?docs\.txt|configs/experiment/(?!debug|example).*"
    r"|configs/cluster/(neuron|technion)\.yaml|examples/README\.md"
)
"""Files of the product that a project does not get. Its tools are in the sdist of the engine, its presets in the engine."""

ONE_FRAMEWORK = {
    "lightning": r"configs/strategy/(ddp|fsdp)\.yaml|configs/data/module\.yaml|configs/callbacks/learning_rate\.yaml"
    r"|requirements/(locks/)?finetune\.txt",
    "keras": r"configs/strategy/(multiworker_)?mirrored\.yaml",
}
"""Files without the name of their framework."""

BOTH_FRAMEWORKS = r"tests/models/(test_gpt|test_parameter_counts)\.py"
"""Tests that compare the frameworks."""

TARGETS = {
    "test-engine", "test-all", "engine", "project", "wheel", "docs", "cast", "docs-serve", "golden", "chaos", "matrix", "bad-inputs",
    "bench", "bench-quick", "gpu-check", "checksums", "schemas",
}  # fmt: skip
"""Targets of the Makefile that need what the project does not have."""


REWRITES = (
    (r"_target_:\n +lightning: (.*)\n +keras: (.*)", r"_target_: \1", r"_target_: \2"),
    (r"\{(?:lightning|keras): ([\w.]+)\}", r"\1", r"\1"),
    (r"PyTorch Lightning or Keras", "PyTorch Lightning", "Keras"),
    (r"(a|any) LightningModule(?: or a|,) ((?:compiled )?keras\.Model)", r"\1 LightningModule", r"\1 \2"),
    (r" The two frameworks never import each other\.", "", ""),
    (r"loaders per rank: processes, or threads in Keras;", "processes per rank;", "threads per rank;"),
    (r"Lightning's Trainer, or the strategy of Keras,", "Lightning's Trainer,", "the strategy"),
    (r"`lightning` has LightningModules, `keras` (.*)\.", "They are LightningModules.", r"They are \1."),
    (r"names the module of each framework, and", "names the module and", "names the module and"),
    (r"module of each framework", "LightningModule", "Keras model"),
    (r"else ddp \(Lightning\), (.*) \(Keras\)\.", "else ddp.", r"else \1."),
    (r"Keras on GPUs: .*", "", r"\g<0>"),
    (r'    "(?:keras|tensorflow)\.\*",\n', "", r"\g<0>"),
    (r'    "(?:lightning|torch)\.\*",\n', r"\g<0>", ""),
    (r"torch\.optim\.RAdam", r"\g<0>", "keras.optimizers.Lion"),
    (r"torch\.optim\.lr_scheduler\.ExponentialLR", r"\g<0>", "keras.optimizers.schedules.ExponentialDecay"),
    (r"(nvidia/|#nvidia/)pytorch:25\.09-py3", r"\g<0>", r"\1tensorflow:25.02-tf2-py3"),
)
"""Patterns in a project's files, and what replaces them in one of Lightning only and in one of Keras only."""


class Refusal(Exception):
    """A request that was refused before anything was written, with its message."""


def template_files(root: Path) -> list[str]:
    """Return the paths of the files from which projects are made, relative to the folder of a template."""
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard", "--", *TOPS]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        names = [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    else:
        found = [path for top in TOPS for path in [root / top, *(root / top).rglob("*")] if path.is_file()]
        names = [str(path.relative_to(root)) for path in found]
    return sorted(
        {name for name in names if not re.search(r"(^|/)__pycache__/|^configs/local/|\.pyc$", name)}
    )


def render(root: Path, choices: dict[str, str]) -> dict[str, bytes]:
    """Return the files of a project with these choices, by their paths."""
    chosen = FRAMEWORKS if choices["framework"] == "all" else (choices["framework"],)
    made = {name: (root / name).read_bytes() for name in template_files(root) if is_wanted(name, chosen)}
    for name in {*choices["cluster"].split(",")} & bundled_presets(root).keys():
        made[f"configs/cluster/{name}.yaml"] = bundled_presets(root)[name].read_bytes()
    words = words_of(root, choices, chosen)
    for name in ("README.md", "tests/test_example.py", "wheels/template.py"):
        made[name] = (root / "tools/project" / Path(name).name).read_bytes()
    for name, change in CHANGES.items():
        if name in made:
            made[name] = change(made[name].decode(), words).encode()
    for name in made:
        if Path(name).suffix in (".md", ".yaml", ".py", ".j2", ".yml", ".txt", ".toml"):
            text = made[name].decode()
            for pattern, *replacements in REWRITES if len(chosen) == 1 else ():
                text = re.sub(pattern, replacements[FRAMEWORKS.index(chosen[0])], text)
            made[name] = link_pages(text, words["pages"]).encode()
    return made


def link_pages(text: str, pages: str) -> str:
    """Replace the paths of pages by their addresses. Without addresses, links become paths of the template."""
    if pages:
        return re.sub(r"(?<![\w/.])docs/(?=[\w/-]+\.md)", f"{pages}/", text)
    return re.sub(r"\[[^\]]*\]\((docs/[^)#]*)[^)]*\)", r"`\1`", text)


def is_wanted(name: str, chosen: tuple[str, ...]) -> bool:
    """Return whether a project gets this file of the template."""
    path = Path(name)
    others = [framework for framework in FRAMEWORKS if framework not in chosen]
    for other in others:
        if other in path.parts or path.name.startswith((f"{other}.", f"{other}-")):
            return False
        if re.fullmatch(ONE_FRAMEWORK[other], name):
            return False
    if LEFT_OUT.fullmatch(name) or (others and re.fullmatch(BOTH_FRAMEWORKS, name)):
        return False
    if path.parts[0] == "examples":
        return name == "examples/__init__.py" or path.stem in {EXAMPLES[framework][0] for framework in chosen}
    return True


def bundled_presets(root: Path) -> dict[str, Path]:
    """Return the presets of the engine in or around a template, by name."""
    below = "train_anywhere/config/presets/cluster/*.yaml"
    return {path.stem: path for folder in (root.parent, root / "engine") for path in folder.glob(below)}


def words_of(root: Path, choices: dict[str, str], chosen: tuple[str, ...]) -> dict[str, str]:
    """Return what replaces the words in braces of the files in tools/project/."""
    _, module, example = EXAMPLES[chosen[0]]
    named = re.search(r"^site_name: (.*)$", (root / "mkdocs.yml").read_text(), re.M)
    product = named[1] if named else "train-anywhere"
    pages = choices["pages"] if "://" in choices["pages"] else ""
    return {
        **choices,
        "pages": pages,
        "note": "" if pages else " Paths that start with `docs/` are pages of the template.",
        "framework": chosen[0] if len(chosen) == 1 else "all",
        "slug": re.sub(r"[ _.-]+", "-", choices["title"]).lower(),
        "product": f"[{product}](docs/index.md)" if pages else product,
        "module": module,
        "example": example,
        "cluster": choices["cluster"].split(",")[0] or "slurm",
    }


def fill(text: str, words: dict[str, str]) -> str:
    """Replace the words in braces."""
    return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), text)


def change_makefile(text: str, words: dict[str, str]) -> str:
    """Leave out the targets that need what the project does not have."""
    kept = []
    for block in text.split("\n\n"):
        target = re.search(r"^([a-z][a-z -]*):(?!=)", block, re.M)
        if not target or target[1] not in TARGETS:
            kept.append(block)
    text = "\n\n".join(kept)
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    left = [name for name in phony[1].split() if name not in TARGETS] if phony else []
    if words["framework"] != "all":
        text = text.replace(" FRAMEWORK=NAME: of one framework only;", "")
    text = re.sub(r"PYTHONPATH=engine |\$\(if \$\(wildcard (?:engine|tools)/.*$", "", text, flags=re.M)
    text = re.sub(r"(?<=python |YTHON\) )tools/(\w+\.py)", r"wheels/template.py \1", text)
    text = re.sub(r"tools/(\w+\.sh)", r"$(PYTHON) wheels/template.py \1", text)
    return re.sub(r"^\.PHONY: .*$", f".PHONY: {' '.join(left)}", text, flags=re.M)


def change_train(text: str, words: dict[str, str]) -> str:
    """Make the framework of a project with one the default."""
    default = "\nframework: keras\n" if words["framework"] == "keras" else ""
    return text.replace("\n# trainer:", f"{default}\n# trainer:")


def change_guide(text: str, words: dict[str, str]) -> str:
    """Name what this project has."""
    text = text.replace(", [docs/](docs/index.md) explains them", ", more is in [the pages](docs/index.md)")
    return re.sub(
        r"replaces `engine/`, the package.*",
        "replaces the engine and the files that you have not edited.",
        text,
    )


def change_environment(text: str, words: dict[str, str]) -> str:
    """Install the lists of requirements that the project has."""
    others = [framework for framework in FRAMEWORKS if words["framework"] not in (framework, "all")]
    text = text.replace("      - -e ./engine\n", "")
    for other in others:
        text = re.sub(rf"^ *- -r requirements/{other}[.-].*\n", "", text, flags=re.M)
    return re.sub(r"^name: .*$", f"name: {words['slug']}", text, flags=re.M)


def change_settings(text: str, words: dict[str, str]) -> str:
    """Name the project, and leave out the engine and the marks of its tests."""
    text = re.sub(
        r'^    "(long|alone|slurm|mpi|git|horovod|needs_root|new_process): .*\n',
        "",
        text,
        flags=re.M,
    )
    text = re.sub(r'^"engine/tests/.*\n', "", text, flags=re.M)
    text = re.sub(r', "engine(/tests)?"|,(engine|tools)/\w+|^mypy_path = "engine"\n', "", text, flags=re.M)
    text = re.sub(r"engine/, or its wheel in .*", "its wheel is in wheels/", text)
    text = re.sub(
        r"^version = .*\ndescription = .*",
        f'version = "0.1.0"\ndescription = "{words["title"]}"',
        text,
        flags=re.M,
    )
    text = text.replace('name = "my-training"', f'name = "{words["slug"]}"', 1)
    return text.replace(', "hydra_plugins", "train_anywhere"]', ', "hydra_plugins"]', 1)


def compact_notebook(text: str, words: dict[str, str]) -> str:
    """Write each cell of a notebook in one line."""
    notebook = json.loads(text)
    cells = ",\n".join(json.dumps(cell) for cell in notebook.pop("cells"))
    return f'{{"cells": [\n{cells}\n], {json.dumps(notebook)[1:]}\n'


CHANGES = {
    "README.md": fill,
    "Makefile": change_makefile,
    "AGENTS.md": change_guide,
    "configs/train.yaml": change_train,
    "environment.yml": change_environment,
    "pyproject.toml": change_settings,
    "notebooks/run.ipynb": compact_notebook,
    "conftest.py": lambda text, words: re.sub(r'    "tools\.testing.*\n', "", text),
    ".gitignore": lambda text, words: text.replace("/engine/build/\n", ""),
    ".editorconfig": lambda text, words: text.partition("\n[tests/template")[0],
}
"""Files that differ from the product's."""


def find_pages(root: Path) -> str:
    """Return the web address of the product's pages, that of its repository; "" if it has none.

    An address without user and password of https, or one of the user `git`, whose path is not one of a machine.
    """
    asked = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        url = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # no git
        return ""
    host, path = r"([\w-]+(?:\.[\w-]+)+)", r"((?:[\w.-]+/)+[\w.-]+?)(?:\.git)?/?"
    found = re.fullmatch(
        rf"(?:https?://(?:[^/@]*@)?{host}(?::\d+)?/|ssh://git@{host}(?::\d+)?/|git@{host}:){path}", url
    )
    if not found:
        return ""
    server = found[1] or found[2] or found[3]
    return f"https://{server}/{found[4]}{'/-' if 'gitlab' in server else ''}/blob/HEAD/docs"


def read_choices(arguments: list[str]) -> tuple[Path, dict[str, str], str]:
    """Return folder, choices and source that were typed."""
    typed, title, framework, cluster, source = (argument.strip() for argument in arguments)
    if not typed:
        raise Refusal('name the folder: make project DIR=../mine NAME="My project"')
    folder = Path(os.path.abspath(Path(typed).expanduser()))
    title = title or folder.name
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9 _.-]*[A-Za-z0-9])?", title):
        raise Refusal(
            f"NAME={title} can't be the name of a package; use letters, digits, spaces, '.', '_' and '-', "
            'starting with a letter: make project DIR=../mine NAME="My project"'
        )
    framework = {"": "lightning", "both": "all"}.get(framework, framework)
    if framework not in (*FRAMEWORKS, "all"):
        raise Refusal(f"FRAMEWORK={framework} is not known; use lightning, keras or all.")
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise Refusal(f"DIR={typed} exists and is not an empty folder; name a new one.")
    if folder.resolve().is_relative_to(ROOT.resolve()):
        raise Refusal(f"DIR={typed} is inside of {ROOT}; name a folder next to it, such as ../mine.")
    if not folder.parent.is_dir():
        raise Refusal(f"DIR={typed}: there is no folder {folder.parent}; create it first.")
    presets = ",".join(re.split(r"[, ]+", cluster))
    return folder, {"title": title, "framework": framework, "cluster": presets}, source


def refuse_unknown(names: str, sources: Path) -> None:
    """Refuse presets that the engine does not have."""
    known = bundled_presets(sources / "template")
    if unknown := sorted({*names.split(",")} - {"", *known}):
        raise Refusal(
            f"CLUSTER={','.join(unknown)} is not a preset; use one of {', '.join(sorted(known))}, or write one later: "
            "python slurm/new_cluster.py NAME --write"
        )


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder next to the new project, with a lock. What a killed call for this project has left is removed."""
    scratch = folder.with_name(f".{folder.name}.engine")
    scratch.mkdir(exist_ok=True, mode=0o700)
    held = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(held).st_uid != os.getuid():
        raise Refusal(f"{scratch} is another user's; name another DIR.")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refusal(f"another `make project` is writing {folder}; wait for it.") from None
    try:
        for left in scratch.iterdir():
            shutil.rmtree(left)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(held)


def make(arguments: list[str]) -> None:
    """Write the project in one step."""
    import engine  # the file next to this one; a template in an sdist is rendered without it

    folder, choices, source = read_choices(arguments)
    choices["pages"] = find_pages(ROOT)
    with scratch_folder(folder) as scratch:
        try:
            sources = engine.sources.fetch_sources(source or str(ROOT), scratch, template=True)
            refuse_unknown(choices["cluster"], sources)
            template = sources / engine.sources.TEMPLATE
            made = engine.render(template if template.is_dir() else ROOT, choices, scratch / "made")
            contents = {str(path.relative_to(made)): path.read_bytes() for path in engine.sources.files(made)}
            engine.place(engine.sources.build(sources, scratch / "built"), made)
            engine.write_made(made, engine.sources.version_of(sources), choices, contents)
        except engine.sources.Refusal as refusal:
            raise Refusal(str(refusal)) from None
        if shutil.which("git"):
            engine.sources.run("git", "-C", str(made), "init", "--quiet")
            engine.sources.run("git", "-C", str(made), "add", "--all")
        os.rename(made, folder)
    print(f"{folder} is the project {choices['title']}.")
    print(f"Next: cd {shlex.quote(str(folder))} && git commit -qm Start && make train")


def write(contents: dict[str, bytes], out: Path) -> None:
    """Write files below a folder, with the permissions that they have in the template."""
    for name, content in contents.items():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if (ROOT / name).exists():
            shutil.copymode(ROOT / name, target)


def main(arguments: list[str]) -> int:
    """Run `make`, or the two commands by which tools/engine.py reads a template: `copy OUT` and `render OUT CHOICES`."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    verb, *words = arguments
    try:
        if verb == "copy":
            write({name: (ROOT / name).read_bytes() for name in template_files(ROOT)}, Path(words[0]))
        elif verb == "render":
            write(render(ROOT, json.loads(words[1])), Path(words[0]))
        else:
            make(words)
        return 0
    except Refusal as refusal:
        message = str(refusal)
    except subprocess.CalledProcessError as failed:
        lines = (failed.stderr or failed.stdout or "").strip().splitlines()
        message = f"{' '.join(map(str, failed.cmd[:4]))} failed: {lines[-1] if lines else failed}"
    except OSError as error:  # such as a folder that can't be written, or no git
        message = f"{error.strerror}: {error.filename}; nothing was written."
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
