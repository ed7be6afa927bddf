# Each target sets up what it needs, so that each is one command on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NAME ?=

# Spinning OpenMP threads cost 12x on a machine that does anything else; must be set before torch is imported.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup quickstart digits test test-cpus lint format bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints/cpu.txt -e '.[dev]'
	touch $(READY)

quickstart digits: setup
	$(BIN)/rlvlm train $@

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# By hand, in hours: the suite as other CPUs and thread counts round, and the quickstart's accuracy under each.
CPUS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX2 \
	OMP_NUM_THREADS=1 OMP_NUM_THREADS=2 OMP_NUM_THREADS=4

test-cpus: setup
	@for setting in $(CPUS); do \
		echo "== $$setting"; \
		env OMP_NUM_THREADS=1 $$setting $(BIN)/python -m pytest -q -n 2 --dist loadfile || exit 1; \
		folder=$$(mktemp -d) && env OMP_NUM_THREADS=1 $$setting $(BIN)/rlvlm train quickstart run.dir=$$folder run.name=cpus \
			&& $(BIN)/python -m tests.band $$folder || exit 1; \
	done

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/make_algorithms.py --check
	$(BIN)/python docs/make_rewards.py --check
	$(BIN)/python docs/make_configuration.py --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One benchmark: make bench NAME=update. All of them: make bench.
bench: setup
	$(BIN)/python -m benchmarks.run $(NAME)

docs: setup
	$(BIN)/python docs/make_algorithms.py
	$(BIN)/python docs/make_rewards.py
	$(BIN)/python docs/make_configuration.py

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache runs outputs multirun
