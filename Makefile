# `make demo` and `make test` are all that a fresh machine needs: both make .venv where it is missing or out of date.

PYTHON ?= python3
CONSTRAINTS ?= -c constraints.txt
BIN := .venv/bin
RLDS := $(BIN)/rlds --root .demo
# The tests wait for servers and processes a good deal: two workers are worth it even on one core or two.
PYTEST ?= $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test quick lint slow lowest coverage mutations bench gpu docs clean

demo: .venv/demo.stamp  ## the main job on built-in data: download, look, verify, sample, score
	$(RLDS) download demo/pendulum
	$(RLDS) info demo/pendulum
	$(RLDS) verify demo/pendulum --deep
	$(RLDS) sample demo/pendulum -n 4
	$(RLDS) score demo/pendulum -1205.62 -600 -167.13

test: .venv/test.stamp  ## the default tests
	$(PYTEST)

quick: .venv/test.stamp  ## what a change most likely broke, in half a minute: ruff, mypy, the nearest tests; SINCE=main
	$(BIN)/python tests/quick.py $(SINCE)

lint: .venv/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

slow: .venv/test.stamp  ## property runs, kill tests, and further cases of what the default tests cover; PART=3/14 runs a part
	$(PYTEST) -m slow $(if $(PART),--part $(PART))

# uv finds the lowest versions. LOWEST='--constraint FILE' pins some of them, such as torch. A library may need newer
# versions of others than this package: WITHOUT='datasets transformers tokenizers' leaves them and their tests out.
# Ray before 2.60 leaves a process of its own to the garbage collector, which warns in the test of another module.
lowest:  ## the default tests with the lowest versions that pyproject.toml allows, in .venv-lowest; TESTS=... runs some
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	for name in $(WITHOUT); do echo "$$name; python_version < '3'"; done > .venv-lowest/without.txt
	.venv-lowest/bin/uv pip compile --quiet --python .venv-lowest/bin/python --resolution lowest-direct --no-build --extra test --override .venv-lowest/without.txt $(LOWEST) pyproject.toml -o .venv-lowest/versions.txt
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python -r .venv-lowest/versions.txt
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --no-deps --editable .
	.venv-lowest/bin/python -m pytest -n 2 --dist loadfile -W ignore::DeprecationWarning -W ignore:subprocess:ResourceWarning $(TESTS)

coverage: .venv/test.stamp  ## the default tests, and which lines and branches they do not reach
	$(PYTEST) --cov --cov-report=term --cov-report=html $(TESTS)

mutations: .venv/test.stamp  ## faults that are planted in the package, and which of them no test finds; AREAS=samplers
	$(BIN)/python tests/mutations/run.py $(AREAS)

# TorchRL's compiled parts and own dependencies are not needed.
bench: .venv/test.stamp  ## timings at full size, with their limits; needs the machine alone, and 5 GB of the temporary folder
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchrl hoptorch cpprb
	$(BIN)/python -m pytest -m bench -s

gpu: .venv/test.stamp  ## the tests that need a GPU, then values, kernels and microseconds of batches on it; DEVICE=cpu for what needs none
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python tests/gpu.py $(if $(DEVICE),--device $(DEVICE))

docs: .venv/docs.stamp  ## the documentation as a site, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf .demo .coverage .coverage.* .coverage-html build dist site *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable .
	touch $@

.venv/test.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[test]'
	touch .venv/demo.stamp $@

.venv/docs.stamp: .venv/test.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[docs]'
	touch $@
