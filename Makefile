# pyspec. `make help` lists what there is.

VENV   ?= .venv
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 python3.10,$(shell \
	command -v $(p) >/dev/null 2>&1 && $(p) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 10))' \
	>/dev/null 2>&1 && echo $(p))))

bin    := $(VENV)/bin
stamp  := $(VENV)/.pyspec-tools
editable := $(VENV)/.pyspec-editable

# The build finds cmake and ninja on the path, these first.
export PATH := $(abspath $(bin)):$(PATH)

PROMPT ?= Write a short story about a lighthouse keeper who finds a message in a bottle.

# What pyproject.toml lists, to build with and to run with; not what only tools/train needs, as PyTorch is large.
# (tomllib came with Python 3.11; pip carries its predecessor.)
define requirements
try: import tomllib
except ImportError: from pip._vendor import tomli as tomllib
p = tomllib.load(open("pyproject.toml", "rb"))
extras = [needed for name, needed in p["project"]["optional-dependencies"].items() if name != "train"]
print(*p["build-system"]["requires"], *p["project"]["dependencies"], *sum(extras, []), sep="\n")
endef
export requirements

.DEFAULT_GOAL := help
.PHONY: help venv build run test lint bench serving example lists clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r t d; do \
		printf '  make %-8s %s\n' "$$t" "$$d"; done

venv: $(stamp) ## create the virtual environment with the tools to build, test and lint

$(stamp): pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "error: no Python 3.10 or newer with venv found; name one: make PYTHON=/path/to/python3"; exit 1; }
	test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	$(bin)/python -c "$$requirements" > $(VENV)/requirements.txt
	$(bin)/python -m pip install -q --disable-pip-version-check -r $(VENV)/requirements.txt
	touch $@

# Compiles what changed. The package itself is installed once, as a link to this tree.
build: $(editable) ## compile the extension modules and libllama in place
	$(bin)/python setup.py -q build_ext --inplace

$(editable): $(stamp) pyproject.toml setup.py
	$(bin)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $@

run: build ## fetch SmolLM2 and write text with speculative decoding, compared with plain decoding
	$(bin)/pyspec models fetch smollm2-f32
	$(bin)/pyspec generate -m smollm2-f32 -md smollm2 --chat -p "$(PROMPT)" -n 160 --temp 0 \
		--spec-draft-n-max 8 --compare

test: build ## run all tests, the ones on real models included (ARGS="-k name" to choose)
	$(bin)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

lint: $(stamp) ## ruff and mypy
	$(bin)/ruff check .
	$(bin)/mypy

bench: example ## compare with llama.cpp's own speculative decoding on this machine
	$(bin)/python benchmarks/compare.py

serving: example ## compare with llama.cpp's server, several requests at once
	$(bin)/python benchmarks/serving.py

example: build ## build llama.cpp's own speculative decoding example and its server, for the benchmarks
	$(bin)/python setup.py -q build_example

lists: build ## make the draft vocabularies that come with the package anew (on Debian; takes half an hour)
	$(bin)/python tools/draft_vocab_lists.py

clean: ## remove what was built (not the virtual environment, not fetched sources and models)
	rm -rf build dist pyspec/lib pyspec/_build_info.py pyspec/*.so *.egg-info
