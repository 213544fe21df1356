# Everything runs in .venv, which is made on first use; nothing else has to be installed by hand.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test lint docs check clean

quickstart: .venv/ready  ## Make a small model and train it with PODS (about a minute on 2 CPU cores)
	$(BIN)/trl-pods quickstart

test: .venv/ready  ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/ready  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready  ## Run the examples in the docstrings
	$(BIN)/python -m pytest --doctest-modules trl_pods

check: lint docs test  ## All that CI runs

.venv/ready: pyproject.toml constraints.txt
	@echo "Setting up .venv, which takes a few minutes ..."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[math,plot,test]'
	touch $@

clean:  ## Remove the environment and what the quickstart made
	rm -rf .venv runs
