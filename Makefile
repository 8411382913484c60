# Every target sets itself up: .venv and what it needs from pyproject.toml. ARGS="..." goes to the command behind it.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
# DATABASE_URL wins; without one, this starts an embedded PostgreSQL for the command that follows.
WITH_DATABASE := $(PY) example_project/services/postgres.py

.PHONY: help demo serve test chaos mutants bench lint types clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 12

demo: .venv/.ready-example  ## run the shop, break it, repair it, and show the numbers
	@$(PY) example_project/manage.py demo $(ARGS)

serve: .venv/.ready-example  ## leave the shop running and print the admin's address; Ctrl-C stops it
	@$(PY) example_project/manage.py serve $(ARGS)

test: .venv/.ready-test  ## run the suite, on DATABASE_URL or on an embedded PostgreSQL
	@$(WITH_DATABASE) --no-fsync -- $(PY) -m pytest -n logical --maxprocesses 4 --dist worksteal $(ARGS)

chaos: .venv/.ready-test  ## kill workers, cut wires and restart PostgreSQL for CHAOS_SECONDS, then audit what became of each job
	@$(PY) -m tests.chaos

mutants: .venv/.ready-test  ## take out one guard after the other, and see a test go red for each
	@$(WITH_DATABASE) --no-fsync -- $(PY) tools/mutants.py $(ARGS)

bench: .venv/.ready-bench  ## measure the app beside its database's own limit, on DATABASE_URL or an embedded PostgreSQL
	@$(WITH_DATABASE) -- $(PY) -m benchmarks $(ARGS)

lint: .venv/.ready-lint  ## ruff, and its formatter
	@$(PY) -m ruff check . $(ARGS)
	@$(PY) -m ruff format --check .

types: .venv/.ready-lint  ## mypy, strict
	@$(PY) -m mypy $(ARGS)

clean:  ## remove .venv and all caches
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready-%: pyproject.toml tools/setup.sh
	@sh tools/setup.sh $*
	@touch $@
