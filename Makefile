# Every target sets up what it needs (tools/setup): nothing else has to be typed on a fresh machine.
.DEFAULT_GOAL := help
.PHONY: help demo test check bench docs long sim fresh mutants figures lock clean

help:  ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo:  ## the main job on real data: three views, DuckDB, a kill in the middle, a proof at the end
	@tools/setup strandline demo

test:  ## everything that CI runs, stage by stage
	@tools/setup --servers python tools/stages.py

check:  ## format, lint, types, layers, words
	@tools/setup --no-jdk python tools/stages.py check

bench:  ## a benchmark, as JSON: make bench NAME=tick (or persist, environment, ivm …)
	@tools/setup strandline bench $(or $(NAME),persist)

docs:  ## the site of docs/, in build/site; a link that leads nowhere stops it
	@NO_MKDOCS_2_WARNING=1 tools/setup --no-jdk mkdocs build --strict

long:  ## the tests that take too long for CI
	@tools/setup --servers python tools/stages.py long

sim:  ## the simulation; one run again: make sim SEED=7; more of them: make sim N=100000
	@STRANDLINE_SIM_SEED=$(SEED) STRANDLINE_SIM_RUNS=$(N) tools/setup --no-jdk python tools/stages.py simulation planted

fresh:  ## new histories of all worlds, in one process: make fresh N=4000; one again: make fresh WORLD=apart SEED=7 N=1
	@PYTHONPATH=tests/simulation:tests/servers tools/setup --no-jdk python -m worlds.fresh $(or $(N),1000) $(if $(SEED),--seed $(SEED)) $(if $(WORLD),--world $(WORLD))

mutants:  ## mistakes planted one by one, and those that no test notices: make mutants N=50 ROOM=persist SEED=7
	@tools/setup python tools/mutants.py $(if $(N),--n $(N)) $(if $(ROOM),--room $(ROOM)) $(if $(SEED),--seed $(SEED))

figures:  ## the reliability figures, one line each; the 40 most expensive tests
	@tools/setup --servers python tools/stages.py --figures simulation planted properties damage kills

lock:  ## write the lock files anew from pyproject.toml (needs uv)
	@tools/lock

clean:  ## forget what can be built again, .venv included
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
