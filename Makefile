# `make help` lists the targets. `make train`, `make test` and others run `make setup` first.
.DEFAULT_GOAL := help
.PHONY: help setup lock train test test-engine test-all update new-task project wheel docs cast docs-serve schemas golden chaos matrix bad-inputs bench bench-quick gpu-check lint format checksums horovod system-packages status logs cancel resubmit slurm-up slurm-shell slurm-down
# Python 3.11, 3.12 or 3.13: that of .venv if it works here.
PYTHON ?= $(shell .venv/bin/python -c '' 2>/dev/null && echo .venv/bin/python || echo python3)
ARGS ?=
FRAMEWORK ?=
WHEELS ?=
FROM ?=
LOCKED ?=
# What users type reaches programs as it is, through the environment: a quote would end the shell's string, and make would expand a $.
typed := DIR NAME CLUSTER FROM FRAMEWORK WHEELS LOCKED
$(foreach name,$(typed) RUN,$(eval override $(name) := $$(value $(name))))
export $(typed)
# The active conda or venv environment if it has all requirements, else .venv, which `make setup` creates.
bin := $(if $(VIRTUAL_ENV)$(CONDA_PREFIX),$(or $(shell FRAMEWORK='$(subst ','\'',$(FRAMEWORK))' $(PYTHON) tools/environment.py),.venv/bin),.venv/bin)

help:  ## list the targets
	@awk -F':[^#]*## ' '/^[a-z -]+:.*##/ {printf "  make %-28s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## create .venv with the locked requirements; FRAMEWORK=NAME: of one framework only; WHEELS=gpu: for GPUs that this machine does not have
	@[ '$(bin)' != .venv/bin ] || PYTHON='$(PYTHON)' tools/setup.sh

lock:  ## update requirements/locks after a change of requirements/; ARGS=--upgrade: also newer versions of unpinned packages
	@$(PYTHON) tools/lock.py $(ARGS)

train: setup  ## train on this machine, on the bundled digits; ARGS='key=value ...' overrides the configuration
	@$(bin)/python src/train.py $(ARGS)

# In CI missing tools are installed; elsewhere tests that need them are skipped and print what to install.
tools := $(if $(CI),system-packages horovod)
pytest := $(bin)/python -m pytest -n 4 --dist worksteal

test: setup $(tools)  ## test the project: models, tasks, data sets, configs, pages; ARGS='-k name' selects tests
	@$(pytest) -m 'not slow' tests $(ARGS)

test-engine: engine setup $(tools)  ## test engine/, about 11 minutes on 2 cores
	@$(pytest) -m 'not slow' engine/tests $(ARGS)

# Tests that need the whole machine run last, one by one. pytest's exit code 5: ARGS selects no test.
test-all: engine setup $(tools)  ## run every test, before a release, next to chaos, matrix and bad-inputs: three hours on 2 cores
	@$(pytest) -m 'not alone and not long' --durations=40 $(ARGS); first=$$?; $(bin)/python -m pytest -m alone $(ARGS); last=$$?; \
	[ $$first = 0 ] || [ $$first = 5 ] || exit $$first; [ $$last = 0 ] || [ $$last = 5 ] || exit $$last

# engine/ is a folder, so this runs only if it is missing.
engine:
	@echo "error: this project has the engine installed, without its tests and benchmarks; they are in a clone of the template" >&2; exit 2

update: setup  ## get another version of the engine, FROM=SOURCE, and print the changes
	@$(bin)/python tools/engine.py update "$$FROM"

new-task:  ## write the files of a new task, with its data set and test: NAME=mine
	@$(PYTHON) tools/new_task.py "$$NAME"

project:  ## write a project of your own, without engine/ and pages: DIR=../mine NAME="My project" [FRAMEWORK=keras] [CLUSTER=neuron] [FROM=SOURCE]
	@$(PYTHON) tools/project.py make "$$DIR" "$$NAME" "$$FRAMEWORK" "$$CLUSTER" "$$FROM"

wheel: engine  ## build the wheel and the sdist of the engine into dist/
	@$(PYTHON) tools/engine.py wheel

docs:  ## build the site of docs/ into site/; a broken link is an error
	@PYTHON='$(PYTHON)' tools/docs.sh build

cast: setup  ## record the terminal session of the README on a Slurm of this machine, as root, and draw it
	@[ -e .cast-env/bin/termtosvg ] || { $(PYTHON) -m venv .cast-env && .cast-env/bin/pip install --quiet termtosvg==1.1.0; }
	@$(bin)/python slurm/testbed.py up --nodes 6 >/dev/null
	@PATH="$(CURDIR)/.venv/bin:/var/tmp/slurm-testbed-$$(id -u)/bin:$$PATH" OMP_NUM_THREADS=1 $(bin)/python tools/cast.py; \
	code=$$?; $(bin)/python slurm/testbed.py down; exit $$code

docs-serve:  ## serve the site on this machine and rebuild it on changes
	@PYTHON='$(PYTHON)' tools/docs.sh serve

schemas: engine setup  ## update .vscode/, with which editors complete and check configs/, and docs/reference/keys.md
	@PYTHONPATH=engine $(bin)/python engine/tools/json_schema.py
	@PYTHONPATH=engine $(bin)/python engine/tools/keys_page.py

golden: engine setup  ## update the golden batch scripts and the list of all keys; review the diff
	@$(bin)/python engine/tests/golden/renew.py

KILLS ?= 200
chaos: export CHAOS_KILLS = $(KILLS)
chaos: engine setup  ## run the long crash and disk tests: KILLS=200 kills per framework, a twentieth of them of ranks and with requeues
	@$(bin)/python -m pytest -q engine/tests/chaos engine/tests/slurm/test_requeue.py -k 'kill_at or kills or killed_ranks or again_and_again or test_disk' $(ARGS)

matrix: engine setup  ## as root: run every strategy with every launcher on two nodes of a Slurm on this machine; print a table
	@$(bin)/python -m pytest -q -s engine/tests/slurm/test_strategies.py -k matrix $(ARGS)

bad-inputs: engine setup  ## as root: run every row of engine/tests/bad_inputs/rows; the other targets run a twentieth of them
	@BAD_INPUTS=all $(bin)/python -m pytest -q -n 2 engine/tests/bad_inputs $(ARGS)

bench: engine setup  ## run every benchmark against other libraries, half an hour on an idle machine: docs/concepts/performance.md
	@PYTHONPATH=engine $(bin)/python -m benchmarks $(ARGS)

bench-quick: engine setup  ## run short benchmarks, in less than five minutes; the last line is one JSON object
	@PYTHONPATH=engine $(bin)/python -m benchmarks --quick $(ARGS)

gpu-check: engine  ## on a machine with a GPU: check results and measure speed; PYTHON=... has a framework; installs nothing
	@PYTHONPATH=engine $(PYTHON) -m benchmarks.gpu $(ARGS)

lint: setup  ## run ruff and mypy
	@$(bin)/ruff check . && $(bin)/ruff format --check . && $(bin)/mypy$(if $(wildcard examples), && $(bin)/mypy -p examples)$(if $(wildcard engine/benchmarks), && $(bin)/mypy -p benchmarks)$(if $(wildcard tools/testing), && $(bin)/mypy $(wildcard tools/testbed tools/testing tools/build_*.py engine/tools/*_page.py engine/tools/*_schema.py))

format: setup  ## format the code with ruff
	@$(bin)/ruff check --fix . ; $(bin)/ruff format .

checksums: engine setup  ## after edits of engine/ in the template itself: from engine/CHECKSUMS `make update` knows which files a project has edited
	@$(bin)/python tools/engine.py checksums

horovod: setup  ## install Horovod for the installed frameworks: built once (about 4 minutes), then from the cache
	@PYTHONPATH=engine $(bin)/python tools/build_horovod.py

system-packages:  ## as root on Debian: install Slurm, Open MPI and compilers for the tests
	@tools/system_packages.sh

status logs cancel resubmit: export RUN := $(RUN)
status logs cancel resubmit: setup  ## run src/jobs.py for RUN=..., or the newest run
	@$(bin)/python src/jobs.py $@ $${RUN:+"$$RUN"} $(ARGS)

slurm-up: setup  ## as root: start a Slurm with four nodes on this machine; ARGS='--site neuron'
	@$(bin)/python slurm/testbed.py up $(ARGS)

slurm-shell: setup  ## open a shell on its login node
	@$(bin)/python slurm/testbed.py shell

slurm-down: setup  ## stop that Slurm
	@$(bin)/python slurm/testbed.py down
