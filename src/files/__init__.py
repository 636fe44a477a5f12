"""Files, folders and the terminal, by the standard library alone: what every other room may use.

- `atomic`: files are replaced in one step, and nothing of the user's is lost by it.
- `marked`: the folders that this project has made, and how it recognises them.
- `removal`: the one place where anything is removed.
- `plain_json`: JSON that every reader accepts.
- `output`: a terminal that closes, a pipe that ends, a disk that is full.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the project."""
