#!/usr/bin/env bash
# Make .venv with the pinned requirements. A second call returns at once; an interrupted one is repeated.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

say() { printf '%s\n' "$*" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  say "make setup needs Python 3.11 or newer, and '$python' is not; name one: make setup PYTHON=/path/to/python3.11"
  exit 1
}
stamp=.venv/installed-$(cat requirements.txt requirements-dev.txt | sha256sum | cut -c1-16)
[ ! -e "$stamp" ] || exit 0

if ! "$python" -c 'import ensurepip' 2>/dev/null; then # Debian ships venv as a package of its own
  [ "$(id -u)" = 0 ] || { say "make setup needs Python's venv: sudo apt-get install python3-venv"; exit 1; }
  say "installing python3-venv"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
fi
say "making .venv and installing requirements.txt: a few minutes, about 3 GB"
"$python" -m venv .venv
rm -f .venv/installed-*
quiet=--quiet # in a log pip's lines are noise, on a terminal they are progress
[ ! -t 1 ] || quiet=
.venv/bin/python -m pip install $quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
touch "$stamp"
say "done: .venv is ready (source .venv/bin/activate)"
