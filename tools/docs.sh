#!/usr/bin/env bash
# Build the site of docs/ (`build`) or serve it here and rebuild on changes (`serve`), with the locked requirements/docs.txt in .docs-env.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/locks/docs.txt
stamp=.docs-env/installed-$(cksum <"$lock" | tr " " -)
if [ ! -e "$stamp" ]; then
  "${PYTHON:-python3}" -m venv --clear .docs-env
  .docs-env/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement="$lock"
  touch "$stamp"
fi
case "$1" in
build) NO_MKDOCS_2_WARNING=1 .docs-env/bin/mkdocs build --strict --quiet && echo "site/index.html" ;;
serve) NO_MKDOCS_2_WARNING=1 .docs-env/bin/mkdocs serve ;;
esac
