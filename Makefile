# make help lists the targets. `make train` and `make test` do all the set-up they need.
.DEFAULT_GOAL := help
.PHONY: help setup lock train test test-engine test-all detach attach update new-task rename docs docs-serve schemas golden chaos matrix bad-inputs bench bench-quick gpu-check lint format horovod system-packages status logs cancel resubmit slurm-up slurm-shell slurm-down
PYTHON ?= python3
ARGS ?=
FRAMEWORK ?=
FROM ?=
LOCKED ?=
# The environment of conda or venv that is active, if it has all that is needed; else .venv, which `make setup` makes.
bin := $(if $(VIRTUAL_ENV)$(CONDA_PREFIX),$(or $(shell FRAMEWORK='$(FRAMEWORK)' $(PYTHON) tools/environment.py),.venv/bin),.venv/bin)

help:  ## list the targets
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-28s %s\n", $$1, $$2}'

setup:  ## make .venv with the locked requirements; FRAMEWORK=NAME: of one framework only
	@[ '$(bin)' != .venv/bin ] || PYTHON='$(PYTHON)' FRAMEWORK='$(FRAMEWORK)' LOCKED='$(LOCKED)' tools/setup.sh

lock:  ## write requirements/locks again after a change of requirements/; ARGS=--upgrade raises what the lists leave open
	@$(PYTHON) tools/lock.py $(ARGS)

train: setup  ## train here, on the bundled digits; ARGS='key=value ...' overrides
	@$(bin)/python src/train.py $(ARGS)

# In CI a missing tool is installed; on your machine its tests are skipped and say what to install.
tools := $(if $(CI),system-packages horovod)
pytest := $(bin)/python -m pytest -n 3 --dist worksteal

test: setup $(tools)  ## test the project: models, tasks, data sets, configs, pages; ARGS='-k name' selects
	@$(pytest) -m 'not slow' tests $(ARGS)

test-engine: engine setup $(tools)  ## test every part of engine/, in minutes
	@$(pytest) -m 'not slow' engine/tests $(ARGS)

test-all: export BAD_INPUTS = all
# Tests that need the whole machine come last, one by one. Exit code 5: ARGS selects none of a part.
test-all: engine setup $(tools)  ## every test, more than an hour on 2 cores: before a release
	@$(pytest) -m 'not alone' --durations=40 $(ARGS); first=$$?; $(bin)/python -m pytest -m alone $(ARGS); last=$$?; \
	[ $$first = 0 ] || [ $$first = 5 ] || exit $$first; [ $$last = 0 ] || [ $$last = 5 ] || exit $$last

# A folder, so this runs only if it is missing.
engine:
	@echo "error: the engine is installed in this project, without its tests and benchmarks; to bring them back: make attach" >&2; exit 2

detach: setup  ## install the engine instead of carrying it in engine/: docs/updates.md; FROM=SOURCE takes another one
	@$(bin)/python tools/engine.py detach '$(FROM)'

attach: setup  ## bring engine/ back, to read or edit it
	@$(bin)/python tools/engine.py attach

update: setup  ## take another version of the engine: FROM=SOURCE; prints what has changed
	@$(bin)/python tools/engine.py update '$(FROM)'

new-task:  ## write the files of a task with its data set and test: NAME=mine
	@$(PYTHON) tools/new_task.py '$(NAME)'

rename:  ## call the project something else, in all places: NAME="My project"
	@$(PYTHON) tools/rename.py '$(NAME)'

docs:  ## build the site of docs/ into site/; a link that leads nowhere is an error
	@PYTHON='$(PYTHON)' tools/docs.sh build

docs-serve:  ## show the site here, and follow changes
	@PYTHON='$(PYTHON)' tools/docs.sh serve

schemas: setup  ## write .vscode/ again: schemas with which editors complete and check configs/
	@PYTHONPATH=engine $(bin)/python -m train_anywhere.config.command.json_schema

golden: engine setup  ## write the golden batch scripts and the list of all keys again; review the diff
	@$(bin)/python engine/tests/golden/renew.py

KILLS ?= 200
chaos: export CHAOS_KILLS = $(KILLS)
chaos: engine setup  ## the crash tests' long form: KILLS=200 kills of each framework, a twentieth of them for ranks and for requeues
	@$(bin)/python -m pytest -q engine/tests/chaos engine/tests/slurm/test_requeue.py -k 'kills or killed_ranks or again_and_again' $(ARGS)

matrix: engine setup  ## as root: every strategy with every launcher on two nodes of a Slurm on this machine, as a table
	@$(bin)/python -m pytest -q -s engine/tests/slurm/test_strategies.py -k matrix $(ARGS)

bad-inputs: engine setup  ## as root: every row of the table of bad inputs, engine/tests/bad_inputs/rows; `make test` runs a twentieth of them
	@BAD_INPUTS=all $(bin)/python -m pytest -q -n 2 engine/tests/bad_inputs $(ARGS)

bench: engine setup  ## every benchmark beside its peers, half an hour on a quiet machine: docs/performance.md
	@PYTHONPATH=engine $(bin)/python -m benchmarks $(ARGS)

bench-quick: engine setup  ## the same in less than five minutes; the last line is one JSON object
	@PYTHONPATH=engine $(bin)/python -m benchmarks --quick $(ARGS)

gpu-check: engine  ## on a machine with a GPU: is it right there, and how fast? PYTHON=... has a framework; installs nothing
	@PYTHONPATH=engine $(PYTHON) -m benchmarks.gpu $(ARGS)

lint: setup  ## ruff and mypy
	@$(bin)/ruff check . && $(bin)/ruff format --check . && $(bin)/mypy

format: setup  ## rewrite the code as ruff formats it
	@$(bin)/ruff check --fix . ; $(bin)/ruff format .
	@[ ! -d engine ] || $(bin)/python tools/engine.py checksums

horovod: setup  ## build Horovod once for the installed frameworks (about 4 minutes), then from the cache
	@PYTHONPATH=engine $(bin)/python -m train_anywhere.distributed.horovod.build

system-packages:  ## as root on Debian: Slurm, Open MPI, compilers for the tests
	@tools/system_packages.sh

status logs cancel resubmit: setup  ## src/jobs.py for RUN=..., or the newest run
	@$(bin)/python src/jobs.py $@ $(RUN) $(ARGS)

slurm-up: setup  ## as root: a real Slurm of four nodes on this machine; ARGS='--site neuron'
	@$(bin)/python slurm/testbed.py up $(ARGS)

slurm-shell: setup  ## a shell on its login node
	@$(bin)/python slurm/testbed.py shell

slurm-down: setup  ## stop it
	@$(bin)/python slurm/testbed.py down
