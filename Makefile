# Two commands do everything, each in its own virtual environment under .venv:
#   make demo   installs ServeTwin without torch and simulates the quickstart
#   make test   installs everything and runs linters, types, import rules and the whole test suite

PYTHON ?= python3
BIN := .venv/bin
REPORT := runs/quickstart/report.html

.PHONY: demo test lint docs bench bench-live bench-twin reproductions fidelity profiles clean

demo: .venv/demo
	$(BIN)/servetwin simulate scenarios/quickstart.yaml --output runs/quickstart --report $(REPORT)
	@echo "open $(REPORT) in a browser; it needs no network"
	@echo "the command line from here on: . .venv/bin/activate"

test: lint docs
	$(BIN)/python -m pytest -n auto --dist worksteal

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

lint: .venv/everything
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/everything
	$(BIN)/python -m benchmarks.simulate
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.sweep

bench-live: .venv/everything
	$(BIN)/python -m benchmarks.live

bench-twin: .venv/everything
	$(BIN)/python -m benchmarks.twin runs/twin-$$(date +%Y%m%d-%H%M%S)

reproductions: .venv/everything
	$(BIN)/python -m benchmarks.reproductions

fidelity: .venv/everything
	$(BIN)/python -m benchmarks.fidelity ../shared/data

profiles: .venv/everything
	$(BIN)/python -m calibration.regenerate ../shared/data

clean:
	rm -rf .venv runs build dist

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ServeTwin needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/docs: .venv/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

.venv/everything: .venv/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[live,serve,dev]'
	touch $@
