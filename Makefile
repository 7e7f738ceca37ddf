# make check: lint, types, imports, unit tests; under a minute on two cores. script/test runs everything.
.PHONY: check lint format types imports unit install
V := .venv/bin
# The pure rooms, and what needs no other process.
UNIT := tests/model tests/check tests/place tests/hosts tests/native/test_ring.py tests/native/test_ring_abi.py \
        tests/daemon/test_turn.py tests/daemon/test_config.py tests/daemon/test_freeze.py \
        tests/discover/paste tests/discover/test_snapshot.py tests/discover/test_render.py \
        tests/feed/test_itch50.py tests/feed/test_moldudp64.py tests/rpc/test_wire.py tests/test_docs.py \
        tests/cli/standalone/test_screen.py tests/cli/standalone/test_reference.py
install: ; @script/setup --test
lint: ; $(V)/ruff check . && $(V)/ruff format --check .
format: ; $(V)/ruff check --fix . ; $(V)/ruff format .
types: ; $(V)/mypy
imports: ; $(V)/lint-imports
unit: ; $(V)/pytest -q -m "not slow" $(UNIT)
check: install lint types imports unit
