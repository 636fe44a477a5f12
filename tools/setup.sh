#!/usr/bin/env bash
# Make .venv with the locked requirements of one framework or of all. A second call returns at once; an interrupted one is repeated.
# LOCKED=no takes the lists instead of the locks: what they pin, in whatever files the package index has, as sites with wheels of their own need it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
shopt -s nullglob

say() { printf '%s\n' "$*" >&2; }
digest() { { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; } | cut -c1-16; } # macOS has the second

# The frameworks of this checkout, and those to install: as asked, else as .venv has them, else all.
sides=(src/models/*/__init__.py)
sides=("${sides[@]#src/models/}")
sides=("${sides[@]%/__init__.py}")
known=$(IFS='|'; echo "${sides[*]}|all")
asked=${FRAMEWORK:-$(cat .venv/framework 2>/dev/null || echo all)}
[ "$asked" != both ] || asked=all
case "|$known|" in
*"|$asked|"*) [ "$asked" = all ] || sides=("$asked") ;;
*) say "error: make setup FRAMEWORK=$asked: use FRAMEWORK=$known"; exit 2 ;;
esac

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  say "make setup needs Python 3.11 or newer, and '$python' is not; name one: make setup PYTHON=/path/to/python3.11"
  exit 1
}
# A framework may have wheels of its own for a machine with NVIDIA GPUs.
wheels=cpu
! nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || wheels=gpu
locked=${LOCKED:-yes}
files=(requirements/common.txt requirements/dev.txt)
for side in "${sides[@]}"; do
  for file in "requirements/$side".txt "requirements/$side-$wheels".txt "requirements/$side-dev".txt; do
    [ ! -e "$file" ] || files+=("$file")
  done
done
if [ "$locked" != no ]; then
  lists=("${files[@]}") files=() stale=()
  for list in "${lists[@]}"; do
    lock=requirements/locks/${list##*/}
    [ -e "$lock" ] || lock=${lock%.txt}-$wheels.txt # of a list whose packages differ on GPUs
    of=$(printf %s "$(sed -e 's/#.*//' -e 's/^[[:space:]]*//' -e 's/[[:space:]]*$//' "$list" | grep .)" | digest)
    grep -q "^# of: $of\$" "$lock" 2>/dev/null || stale+=("$list")
    files+=("$lock")
  done
  [ ${#stale[@]} = 0 ] || { say "error: ${stale[*]} changed after its lock was written: make lock, or make setup LOCKED=no"; exit 2; }
fi
engine=() # of a project without engine/: its wheel, or another source
[ ! -e requirements/engine.txt ] || engine=(requirements/engine.txt)
stamp=.venv/installed-$(cat "${files[@]}" ${engine[@]+"${engine[@]}"} | digest)
[ ! -e "$stamp" ] || exit 0

if ! "$python" -c 'import ensurepip' 2>/dev/null; then # Debian ships venv as a package of its own
  [ "$(id -u)" = 0 ] || { say "make setup needs Python's venv: sudo apt-get install python3-venv"; exit 1; }
  say "installing python3-venv"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
fi
say "making .venv and installing ${files[*]}: a few minutes, up to 3 GB"
"$python" -m venv .venv
rm -f .venv/installed-*
echo "$asked" >.venv/framework
quiet=--quiet # in a log pip's lines are noise, on a terminal they are progress
[ ! -t 1 ] || quiet=
if command -v uv >/dev/null; then
  install=(uv pip install $quiet --python .venv/bin/python)
else
  install=(.venv/bin/python -m pip install $quiet --no-compile --disable-pip-version-check)
fi
options=()
if [ "$locked" != no ]; then
  options=(--require-hashes --no-deps)
  # PyPI has no torch without CUDA for Linux; PyTorch's own page has, and is asked only where no other place is known to have it
  torch=$(grep -ho '^torch==[^ ]*+cpu' "${files[@]}" || true)
  if [ -n "$torch" ] && [ "$(uname -s)" = Linux ] && ! "${install[@]}" --quiet --no-deps --dry-run "$torch" 2>/dev/null; then
    options+=(--find-links https://download.pytorch.org/whl/cpu/torch/)
  fi
fi
"${install[@]}" ${options[@]+"${options[@]}"} "${files[@]/#/--requirement=}"
# a call of its own: a version that is built again keeps its number, and a source needs the setuptools installed above
[ ${#engine[@]} = 0 ] || "${install[@]}" --no-deps --no-build-isolation --force-reinstall --requirement="${engine[0]}"
# on all CPUs, where pip takes one; a few packages ship files of other versions of Python, which can't be compiled
.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null || true
touch "$stamp"
say "done: .venv is ready (source .venv/bin/activate)"
