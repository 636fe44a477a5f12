"""Record the terminal session of the README on a real Slurm, and draw it: `make cast`, as root on Debian.

The session is docs/cast.json (asciinema v2); docs/cast-light.svg and docs/cast-dark.svg are its pictures, drawn by termtosvg.
Waiting is cut: the output of a command takes at most `LONGEST` seconds, and what happens between two commands is left out.
"""

import argparse
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAST = ROOT / "docs/cast.json"
COLUMNS, ROWS = 100, 27
LONGEST, PAUSE, KEY = 1.5, 1.0, 0.018
"""Seconds of a command's output, after it, and for each typed character."""

PROMPT = b"\x1b]133;A\x07"
"""A mark that terminals do not show; bash prints it before each prompt."""

THEMES = {
    "light": ("#1f2328", "#f6f8fa", "#1f2328 #cf222e #116329 #9a6700 #0969da #8250df #1b7c83 #6e7781"),
    "dark": ("#e6edf3", "#161b22", "#484f58 #ff7b72 #3fb950 #d29922 #58a6ff #bc8cff #39c5cf #b1bac4"),
}
"""Foreground, background, and the eight colours of a terminal."""


class Terminal:
    """A bash in a pseudo-terminal; `run` types a command and records what it prints."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str]] = []
        self.clock = 0.0
        variables = {"PS1": "$ ", "PROMPT_COMMAND": r"printf '\e]133;A\a'", "TERM": "xterm-256color"}
        child, self.file = pty.fork()
        if child == 0:
            os.chdir(ROOT)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], os.environ | variables)
        subprocess.run(["stty", "cols", str(COLUMNS), "rows", str(ROWS)], stdin=self.file, check=True)
        self.show(self.read())

    def read(self) -> list[tuple[float, bytes]]:
        """Return what is printed until the next prompt, with the seconds since the call."""
        begun = time.monotonic()
        pieces: list[tuple[float, bytes]] = []
        while PROMPT not in b"".join(piece for _, piece in pieces):
            if not select.select([self.file], [], [], 180)[0]:
                sys.exit(f"no prompt for 180 s: {pieces[-3:]}")
            pieces.append((time.monotonic() - begun, os.read(self.file, 65536)))
        while select.select([self.file], [], [], 0.3)[0]:  # the prompt itself
            pieces.append((time.monotonic() - begun, os.read(self.file, 65536)))
        return pieces

    def show(self, pieces: list[tuple[float, bytes]]) -> None:
        """Add output to the recording, faster if it took long."""
        scale = min(1.0, LONGEST / max(at for at, _ in pieces))
        for at, piece in pieces:
            text = piece.replace(PROMPT, b"").decode(errors="replace")
            self.events.append((round(self.clock + scale * at, 3), "o", text))
        self.clock = self.events[-1][0] + PAUSE

    def run(self, command: str) -> None:
        """Type a command, and wait until it has ended."""
        for character in command:
            self.events.append((round(self.clock, 3), "o", character))
            self.clock += KEY
        os.write(self.file, command.encode() + b"\n")
        pieces = self.read()
        echoed = b"".join(piece for _, piece in pieces).partition(b"\n")[
            2
        ]  # the command was shown as it was typed
        self.show([(at, b"") for at, _ in pieces[:1]] + cut(pieces, len(echoed)))


def cut(pieces: list[tuple[float, bytes]], keep: int) -> list[tuple[float, bytes]]:
    """Return the last `keep` bytes of what was printed, after a line break."""
    skip = sum(len(piece) for _, piece in pieces) - keep
    left = []
    for at, piece in pieces:
        left.append((at, piece[skip:] if skip < len(piece) else b""))
        skip = max(0, skip - len(piece))
    return [(left[0][0], b"\r\n" + left[0][1]), *left[1:]]


def wait_for(status: Callable[[str], object]) -> None:
    """Wait until the status of the newest run is as wished."""
    for _ in range(60):
        done = subprocess.run(["python", "src/jobs.py", "status"], cwd=ROOT, capture_output=True, text=True)
        if status(done.stdout):
            return
        time.sleep(2)
    sys.exit(f"the run did not get there: {done.stdout}{done.stderr}")


def record() -> None:
    """Record the session: a training here, the same on four nodes, and one node that loses its power."""
    terminal = Terminal()
    terminal.run("python src/train.py trainer.max_epochs=3")
    terminal.run("python src/train.py cluster=slurm trainer.nodes=4 trainer.max_epochs=500")
    wait_for(lambda text: re.search(r"step [1-9]\d\d/", text) and "Checkpoint" in text)
    terminal.run("clear; python src/jobs.py status")
    terminal.run("python slurm/testbed.py kill node2        # it loses its power")
    wait_for(lambda text: "resumed" in text and re.search(r"step \d+/.*\n(.*\n)*Now: +train, \d+", text))
    terminal.run("clear; python src/jobs.py status          # a minute later")
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Train here, then on four nodes"}
    lines = [header, *terminal.events, (round(terminal.clock + PAUSE, 3), "o", "")]
    CAST.write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run(["python", "src/jobs.py", "cancel"], cwd=ROOT, check=True)


def draw() -> None:
    """Draw the recording in both themes."""
    picture = CAST.with_name("cast.svg")
    termtosvg = [
        f"{ROOT}/.cast-env/bin/termtosvg",
        "render",
        str(CAST),
        str(picture),
        "-m",
        "60",
        "-D",
        "4000",
        "-t",
        "gjm8",
    ]
    subprocess.run(termtosvg, check=True)
    drawn = picture.read_text()
    picture.unlink()
    drawn = start_at_the_end(drawn)
    for name, (foreground, background, palette) in THEMES.items():
        colors = {"foreground": foreground, "background": background}
        colors |= {f"color{number}": color for number, color in enumerate(palette.split() * 2)}
        text = drawn
        for style, color in colors.items():
            text = re.sub(rf"\.{style} \{{fill: #\w+;\}}", f".{style} {{fill: {color};}}", text)
        CAST.with_name(f"cast-{name}.svg").write_text(text)


def start_at_the_end(drawn: str) -> str:
    """Return the picture with its last screen as the first one, also for viewers without animation: it begins empty."""
    last = re.findall(r"%\{transform:(translateY\(-?\d+px\))\}", drawn)[-1]
    drawn = re.sub(r"\b0\.000%\{transform:translateY\(0px\)\}", f"0.000%{{transform:{last}}}", drawn)
    return drawn.replace("#screen_view {", f"#screen_view {{\n                transform: {last};", 1)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    record()
    draw()
