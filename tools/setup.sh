#!/usr/bin/env bash
# Create .venv with the locked requirements of one framework or of all. A second call returns at once; after an interruption, call it again.
# WHEELS=cpu|gpu installs packages for CPUs or for NVIDIA GPUs; without it, those for GPUs if this machine has one.
# LOCKED=no installs the lists instead of the locks: the pinned versions from any files of the package index, for sites with their own wheels.
# .venv remembers FRAMEWORK, WHEELS and LOCKED.
set -euo pipefail
cd "${TEMPLATE_PROJECT:-$(dirname "$0")/..}" # a project of `make project` runs this file from the template
python=${PYTHON:-python3}
shopt -s nullglob

log() { printf '%s\n' "$*" >&2; }
remembered() { cat ".venv/$1" 2>/dev/null || echo "$2"; }
digest() { { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; } | cut -c1-16; } # macOS has shasum only

# The frameworks of this checkout, and those to install: FRAMEWORK, else those of .venv, else all.
frameworks=(src/models/*/__init__.py)
frameworks=("${frameworks[@]#src/models/}")
frameworks=("${frameworks[@]%/__init__.py}")
known=$(IFS='|'; echo "${frameworks[*]}|all")
selected=${FRAMEWORK:-$(remembered framework all)}
[ "$selected" != both ] || selected=all
case "|$known|" in
*"|$selected|"*) [ "$selected" = all ] || frameworks=("$selected") ;;
*) log "error: make setup FRAMEWORK=$selected: use FRAMEWORK=$known"; exit 2 ;;
esac

version=$("$python" -c 'import sys; v = sys.version_info[:2]; print("%d.%d" % v); sys.exit(not (3, 11) <= v <= (3, 13))' 2>/dev/null) || {
  log "error: make setup needs Python 3.11, 3.12 or 3.13, and '$python' is ${version:-missing}: make setup PYTHON=/path/to/python3.12"
  exit 1
}
# Another system's .venv is refused, not replaced: jobs may be using it.
system="$(uname -sm), Python $version"
made_for=$(remembered system "$system")
[ ! -L .venv/bin/python ] || .venv/bin/python -c '' 2>/dev/null || made_for="another system or a Python that is gone"
[ "$made_for" = "$system" ] || {
  log "error: .venv is for $made_for, and this is $system: rm -r .venv, or use another copy of the project here"
  exit 1
}
# A framework may have separate wheels for machines with NVIDIA GPUs.
detected=cpu
! nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || detected=gpu
installed=$(remembered wheels '')
wheels=${WHEELS:-${installed:-$detected}}
case "$wheels" in
cpu | gpu) ;;
*) log "error: make setup WHEELS=$wheels: use WHEELS=cpu|gpu"; exit 2 ;;
esac
[ "$wheels ${WHEELS:-$detected}" != "cpu gpu" ] || log "note: .venv has packages for CPUs, and this machine has a GPU: make setup WHEELS=gpu"
locked=${LOCKED:-$(remembered locked yes)}
files=(requirements/common.txt requirements/dev.txt)
for framework in "${frameworks[@]}"; do
  for file in "requirements/$framework".txt "requirements/$framework-$wheels".txt "requirements/$framework-dev".txt; do
    [ ! -e "$file" ] || files+=("$file")
  done
done
if [ "$locked" != no ]; then
  lists=("${files[@]}") files=() stale=()
  for list in "${lists[@]}"; do
    lock=requirements/locks/${list##*/}
    [ -e "$lock" ] || lock=${lock%.txt}-$wheels.txt # the list has different packages on GPUs
    current=$(printf %s "$(sed -e 's/#.*//' -e 's/^[[:space:]]*//' -e 's/[[:space:]]*$//' "$list" | grep .)" | digest)
    grep -q "^# of: $current\$" "$lock" 2>/dev/null || stale+=("$list")
    files+=("$lock")
  done
  [ ${#stale[@]} = 0 ] || { log "error: ${stale[*]} changed after its lock was written: make lock, or make setup LOCKED=no"; exit 2; }
fi
engine=() # the wheel or other source of the engine, in a project without engine/
[ ! -e requirements/engine.txt ] || engine=(requirements/engine.txt)
packages=.venv/installed-$(cat "${files[@]}" | digest)
stamp=$packages-$(cat ${engine[@]+"${engine[@]}"} </dev/null | digest)
new=yes # whether packages are to be installed, or only the engine, as after `make update`
[ "$installed" != "${WHEELS:-$installed}" ] || ! compgen -G "$packages-*" >/dev/null || new=
find_engine() { # `python -m train_anywhere` runs engine/ of this folder; without it, the installed package
  for site in .venv/lib/python*/site-packages; do
    [ ! -d engine ] || [ -e "$site/train_anywhere.pth" ] || echo ../../../../engine >"$site/train_anywhere.pth"
  done
}
if [ -z "$new" ] && [ -e "$stamp" ]; then find_engine && exit 0; fi

if ! "$python" -c 'import ensurepip' 2>/dev/null; then # Debian has venv in a separate package
  [ "$(id -u)" = 0 ] || { log "make setup needs Python's venv: sudo apt-get install python3-venv"; exit 1; }
  log "installing python3-venv"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
fi
[ -n "$new" ] || files=()
[ -z "$new" ] || log "creating .venv and installing ${files[*]}: a few minutes, up to 3 GB"
clear= # what pip does not replace: torch 2.13.0+cpu counts as 2.13.0
[ -z "$installed${WHEELS:-}" ] || [ "$installed" = "$wheels" ] || clear=--clear
[ -z "$new" ] || "$python" -m venv $clear .venv
rm -f .venv/installed-*
echo "$selected" >.venv/framework
echo "$wheels" >.venv/wheels
echo "$system" >.venv/system
echo "$locked" >.venv/locked
quiet=--quiet # show pip's progress on a terminal only
[ ! -t 1 ] || quiet=
if command -v uv >/dev/null; then
  install=(uv pip install $quiet --python .venv/bin/python)
else
  install=(.venv/bin/python -m pip install $quiet --no-compile --disable-pip-version-check)
fi
options=()
if [ "$locked" != no ]; then
  options=(--require-hashes --no-deps)
  # PyPI has no torch without CUDA for Linux. Use PyTorch's page only if the configured index does not have it either.
  torch=$(cat ${files[@]+"${files[@]}"} </dev/null | grep -ho '^torch==[^ ]*+cpu' || true)
  if [ -n "$torch" ] && [ "$(uname -s)" = Linux ] && ! "${install[@]}" --quiet --no-deps --dry-run "$torch" 2>/dev/null; then
    options+=(--find-links https://download.pytorch.org/whl/cpu/torch/)
  fi
fi
[ -z "$new" ] || "${install[@]}" ${options[@]+"${options[@]}"} "${files[@]/#/--requirement=}"
# a separate call: a rebuilt wheel keeps its version (--force-reinstall), and building needs the setuptools installed above
[ ${#engine[@]} = 0 ] || "${install[@]}" --no-deps --no-build-isolation --force-reinstall --requirement="${engine[0]}"
# on all CPUs (pip uses one); files for other Python versions, which some packages have, fail to compile
.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null || true
find_engine
touch "$stamp"
log "done: .venv is ready (source .venv/bin/activate)"
