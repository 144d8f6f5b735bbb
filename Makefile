# One command each: `make help` lists them. Nothing here needs more than make, a POSIX shell and
# Python 3.11 or newer; everything else is installed into .venv.

# The first Python that is new enough. Choose another one with `make PYTHON=… TARGET`.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)
# More options for pip, for example a package index with CPU builds of torch.
PIP_ARGS ?=
# What is installed beside the package itself: `pyproject.toml` says what each extra is for.
EXTRAS ?= train,create,dev
# More arguments for the command of a target: `make demo ARGS=--help`.
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FRESH := $(VENV)/fresh

.DEFAULT_GOAL := help
.PHONY: help demo test test-docs lint format soak mutants advisories docs site changelog dist deb constraints locks install clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## a swarm on this machine: trains, loses a node, takes it back
	$(BIN)/distro-node demo $(ARGS)

# Every one of the hundreds of processes that tests start, and every worker, takes the bytecode of the
# first: where an environment forbids to write it, each would compile the project by itself.
unexport PYTHONDONTWRITEBYTECODE

# Four tests at a time, file by file: some of them wait while others compute. tests/xdist_schedule.py
# says which worker begins where. Types are `make lint`: pyright takes minutes and gigabytes of its own.
test: $(INSTALLED) ## style and all tests but those of documents and the long hunts; says how long
	@began=$$(date +%s); \
	$(BIN)/ruff check . && $(BIN)/ruff format --check . || exit 1; \
	$(BIN)/python -m compileall -q crypto node protocol benchmarks; \
	$(BIN)/pytest -n 4 --dist loadfile --ignore tests/benchmarks --ignore tests/documents $(ARGS); tests=$$?; \
	took=$$(( $$(date +%s) - began )); \
	echo "make test: $$(( took / 60 )) min $$(( took % 60 )) s"; \
	exit $$tests

test-docs: $(INSTALLED) ## what documents name exists, the tutorial runs, and benchmarks still work
	$(BIN)/pytest -n 2 --dist loadfile tests/benchmarks tests/documents $(ARGS)

lint: $(INSTALLED) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(INSTALLED) ## put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Once a month or so. ARGS='--most 0 protocol/chain/fork_choice.py' tries all mutants of one module.
mutants: $(INSTALLED) ## changes to protocol/ and crypto/ that no test notices; takes hours, ARGS names modules
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[mutants]" -c constraints.txt
	$(BIN)/python benchmarks/mutants.py --json benchmarks/results/$$(date +%F)-mutants.json $(ARGS)

# `--strict`: a package that PyPI's list of advisories lacks is an error, not a package without any.
advisories: $(INSTALLED) ## known faults of the releases in constraints.txt, from PyPI's list of advisories
	$(PYTHON) -m venv --clear $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) pip-audit
	$(FRESH)/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt $(ARGS); found=$$?; \
		rm -rf $(FRESH); exit $$found

# A hundred seeds at a time are added to the file, so a soak can be stopped and continued.
soak: $(INSTALLED) ## the long fuzz runs, many more examples, and 10,000 seeds of the simulator, 1,000 of whole nodes
	$(BIN)/pytest -m soak $(ARGS)
	$(BIN)/pytest -m "hypothesis and not soak" --hypothesis-profile soak --timeout 7200 $(ARGS)
	$(BIN)/python benchmarks/simulate.py --soak $(VENV)/soak.jsonl --seeds 0:10000 \
		--commit "$$(git rev-parse --short HEAD 2>/dev/null)"
	$(BIN)/python benchmarks/simulate.py --summarise $(VENV)/soak.jsonl
	$(BIN)/python benchmarks/simulate_whole.py --soak $(VENV)/soak-whole.jsonl --seeds 0:1000 \
		--commit "$$(git rev-parse --short HEAD 2>/dev/null)"

docs: $(INSTALLED) ## write the reference tables and diagrams from the code
	$(BIN)/python docs/site/tables.py

site: $(INSTALLED) ## the documents as web pages, in build/site
	$(BIN)/python docs/site/build.py build/site

# CONTRIBUTING.md, "A release", says when. What is written is looked over and committed.
changelog: $(INSTALLED) ## gather the fragments of changes/ in CHANGELOG.md, under this version
	$(BIN)/towncrier build --yes \
		--version "$$($(BIN)/python -c 'import distro_node; print(distro_node.__version__)')" $(ARGS)

dist: $(INSTALLED) ## the wheel and the source archive, in dist/
	rm -rf dist
	$(BIN)/python docs/site/man_pages.py docs/man
	$(BIN)/python -m build --outdir dist

deb: ## the Debian package of a bootstrap peer, in dist/; on Debian 12
	docker/debian/build dist

install: $(INSTALLED) ## the environment alone

# Made anew only when what it is made from has changed. The root's __init__.py holds the version.
$(INSTALLED): pyproject.toml constraints.txt __init__.py
	@test -n "$(PYTHON)" || { \
		echo "error: no Python 3.11 or newer found"; \
		echo "  Install one, or name it: make PYTHON=/path/to/python3.12 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "error: $(PYTHON) cannot make a virtual environment"; \
		echo "  Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-e '.[$(EXTRAS)]' -c constraints.txt || { \
		echo "error: pip could not install what distro-node needs; its words are above"; \
		echo "  libp2p needs a C compiler and the headers of Python and GMP to be installed:"; \
		echo "  Debian and Ubuntu: apt install gcc python3-dev libgmp-dev; macOS: brew install gmp"; \
		exit 1; }
	@mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/distro_node
	@touch $@

# In an environment of its own and without the old constraints, so that it finds the newest
# releases; then without what only this machine needs: local build tags and CUDA packages.
constraints: ## take the newest releases of all dependencies into constraints.txt
	$(PYTHON) -m venv --clear $(FRESH)
	$(FRESH)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -e '.[train,create,diffusion,browser,benchmark,mutants,dev]'
	{ sed '/^[^#]/,$$d' constraints.txt; \
		$(FRESH)/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude wheel \
		| sed -e 's/+.*//' | awk '/^nvidia-ml-py=/ || !/^(nvidia|cuda|triton)/'; } > $(FRESH)/constraints.txt
	mv $(FRESH)/constraints.txt constraints.txt
	rm -rf $(FRESH)

LOCK = $(FRESH)/bin/uv pip compile --quiet --no-config --no-header --no-annotate --generate-hashes \
	-c constraints.txt pyproject.toml
LOCKED = sed -i '1i \# The releases of constraints.txt that the image installs, with the hashes of their files: `make locks`.'

locks: ## the releases that the images install, with the hashes of their files, into docker/*.lock
	$(PYTHON) -m venv --clear $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) uv
	$(LOCK) --universal --python-version 3.11 -o docker/bootstrap.lock
	$(LOCK) --extra train --extra create --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
		-o docker/node.lock
	$(LOCKED) docker/bootstrap.lock docker/node.lock
	rm -rf $(FRESH)

clean: ## remove everything that was made here
	rm -rf $(VENV) build dist demo-out docs/man *.egg-info
	rm -rf .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
