# `make train` and `make test` set themselves up in .venv; all that must be there is make and Python 3.11 or newer.
PYTHON ?= python3
# Further arguments of pip, e.g. PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
NAME := $(or $(NAME),default-$(shell date +%Y%m%d-%H%M%S))
# What `make train` compares on: graphs kept from the training of two families, and two families never trained on. The placers take about a second a trial or less; column s says it.
UNSEEN := cifar10 gpt inception bert
PLACERS := single random round-robin contiguous memory-fill heft m-etf rollout annealing local-search refine policy policy-sample

# Pairs of torch and Python that `make versions` runs, all by default; folder that `make gpu-check` writes, and one of wheels.
PAIRS ?=
OUT ?= build/gpu-check
WHEELS ?=

BIN := .venv/bin
# Named after what the environment was made from, so that it is made anew when that changes and only then.
INSTALLED := .venv/installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
# One worker a core, which takes one file of tests after the other; tests/conftest.py says how many and in which order.
ON_ALL_CORES := -n auto --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup train test coverage lint check docs bench versions gpu-check data

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 11

setup: $(INSTALLED) ## make .venv, or find it current

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Placewalk needs Python 3.11 or newer, not " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	@echo "1 of 3: .venv, a few seconds"
	$(PYTHON) -m venv .venv
	@echo "2 of 3: torch and what else Placewalk needs, 2 to 10 minutes"
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@rm -f .venv/installed-*
	@echo "3 of 3: compile the kernels, 1 to 3 minutes"
	$(BIN)/python train_agent.py --compile
	@touch $@

train: setup ## train the default policy, then compare it on graphs it never saw
	$(BIN)/python train_agent.py --config agent/lab/default.json --name '$(NAME)'
	$(BIN)/python evaluate.py --policy 'runs/$(NAME)' --families $(UNSEEN) --placers $(PLACERS) --jobs 2 --out 'runs/$(NAME)/evaluation'
	@echo "TensorBoard: $(BIN)/tensorboard --logdir runs"

test: setup ## run the tests, on all cores
	$(BIN)/python -m tests.compile_kernels
	$(BIN)/python -m pytest $(ON_ALL_CORES)

coverage: setup ## run the tests and count the lines and branches that they reach
	$(BIN)/python -m tests.compile_kernels
	$(BIN)/python -m pytest $(ON_ALL_CORES) --cov --cov-report=term:skip-covered

lint: setup ## lint, check the format and the types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test ## lint and test

docs: setup ## build the documentation in site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: setup ## measure speed
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only

versions: ## run the capture and policy tests on versions of torch and Python, for hours: make versions PAIRS="2.15.0:3.12"
	$(PYTHON) -m tests.versions $(PAIRS)

gpu-check: ## check this machine's GPU in eight minutes, without a network or .venv: make gpu-check OUT=folder WHEELS=folder
	$(PYTHON) -m tests.gpu.check --out '$(OUT)' $(if $(WHEELS),--wheels '$(WHEELS)')

data: setup ## rebuild the benchmark graphs of graphs/data/
	$(BIN)/python -m graphs.dataset --build
