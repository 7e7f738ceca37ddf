# make check: lint, types, imports, unit tests; under a minute on two cores.
.PHONY: check lint format types imports unit install
V := .venv/bin
install: ; @script/setup --test
lint: ; $(V)/ruff check . && $(V)/ruff format --check .
format: ; $(V)/ruff check --fix . ; $(V)/ruff format .
types: ; $(V)/mypy
imports: ; $(V)/lint-imports
unit: ; $(V)/pytest -q -m "not slow"
check: install lint types imports unit
