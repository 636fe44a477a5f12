"""Run a tool of the template, which is in the sdist of the engine: `python wheels/template.py engine.py update SOURCE`."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(name: str, *arguments: str) -> int:
    """Run the tool on this project and return its exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = ROOT / "engine/template"
        if not folder.is_dir():
            required = (ROOT / "requirements/engine.txt").read_text()
            sdists = (ROOT / "wheels").glob("train_anywhere-*.tar.gz")
            known = [path for path in sdists if hashlib.sha256(path.read_bytes()).hexdigest() in required]
            if not known:
                print(
                    "error: wheels/ lacks the sdist that requirements/engine.txt names: git checkout wheels",
                    file=sys.stderr,
                )
                return 2
            with tarfile.open(known[0]) as archive:
                tools = [member for member in archive if "/template/" in member.name]
                safely = (
                    {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                )  # setup.sh refuses older Pythons itself
                archive.extractall(scratch, tools, **safely)
            folder = next(Path(scratch).glob("*/template"))
        environment = {**os.environ, "TEMPLATE_PROJECT": str(ROOT)}
        program = "bash" if name.endswith(".sh") else sys.executable
        return subprocess.call([program, str(folder / "tools" / name), *arguments], env=environment)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
