# The project's verbs. Each sets up what it needs; nothing outside the checkout is written but caches.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-gpu lint bench bench-placement sim reference clean

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Courtier needs python3 >= 3.11"; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	@echo "installing into .venv ..."
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]' -c constraints.txt
	@touch $@

demo: install
	@$(BIN)/python -m courtier.cli.demo

test: install
	@$(BIN)/python -m pytest -rs

test-gpu: install
	@$(BIN)/python -m pytest -rs tests/gpu

lint: install
	@$(BIN)/ruff check src tests bench
	@$(BIN)/ruff format --check src tests bench
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: install
	@$(BIN)/python bench/main.py

TRACES ?= ../shared/traces
bench-placement: install
	@$(BIN)/python bench/placement.py $(TRACES)

reference: install
	@$(BIN)/python -m courtier.cli.reference docs/reference

sim: install
	@$(BIN)/python -m courtier.sim --seeds 10000

clean:
	rm -rf .venv build dist src/*.egg-info
