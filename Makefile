# Every target sets itself up: a virtual environment in .venv, from constraints.txt.
PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check -q
export PATH := $(abspath $(BIN)):$(PATH)
# packages are installed without byte code, so where none is kept, each of the many processes compiles all that it imports
export PYTHONDONTWRITEBYTECODE :=

# how many processes the tests run in: a test waits for others about a third of its time. Three need 10 GiB of memory
PROCESSES ?= 3

.PHONY: help demo demo-airflow examples test fast test-all test-prefect-latest lint types unit integration e2e chaos bench-start bench-overhead bench-frameworks bench-recovery bench-kills bench-watching bench-tiers bench-triggerer bench-prefect bench-inference bench-tune bench-tracking bench-checkpoints bench-storage bench-listing bench-parsing bench-rows bench-scale azurite horovod framework-table test-gpu matrix walks docs pictures dist fuzz clean

help:
	@echo "make demo          the digits flow on an embedded Ray head: train, evaluate, batch inference"
	@echo "make demo-airflow  the same as a DAG in a real Airflow"
	@echo "make examples      searching, retraining, predicting, and each framework, in Prefect and in a real Airflow"
	@echo "make test          lint, types and tests"
	@echo "make test-all      also the slow tests"
	@echo "make test-prefect-latest  the Prefect tests with Prefect 3.9, in an environment without Airflow"
	@echo "make chaos         everything that a run survives, by doing it"
	@echo "make docs          the documentation as a site, with an API reference and search"
	@echo "make pictures      the pictures of the docs anew, from real runs; needs Chromium"
	@echo "make dist          wheel and sdist, checked as PyPI checks them"
	@echo "make walks         the first pages of the docs, from an empty environment, with the time each takes"
	@echo "make matrix        a smoke test with other versions of Python, Ray, Prefect and Airflow"
	@echo "make fuzz          wrong input of every kind at every way in"
	@echo "make test-gpu      the frameworks on GPUs"
	@echo "make azurite       install Azure's storage for the tests, from npm"
	@echo "make horovod       build Horovod from its sources, and install it"
	@echo "make bench-start     how long a start takes beside torchrun and bare Ray Train"
	@echo "make bench-overhead  what a training costs while it trains, beside torchrun and bare Ray Train"
	@echo "make bench-frameworks what a step costs in TensorFlow, XGBoost and LightGBM, beside their launchers and bare Ray Train"
	@echo "make bench-recovery  what a kill costs, as ratios"
	@echo "make bench-kills     half an hour of kills, beside bare Ray Train and torchrun"
	@echo "make bench-watching  what the ledger and the hang detection cost"
	@echo "make bench-triggerer how many deferred runs one triggerer follows"
	@echo "make bench-prefect   what the Prefect task adds to a step, as a ratio"
	@echo "make bench-inference batch inference beside bare Ray Data and a bare loop, and its memory"
	@echo "make bench-tune      a search beside bare Ray Tune"
	@echo "make bench-checkpoints checkpoints to storage and back, beside bare copies"
	@echo "make bench-storage   what storage is asked, and what a day of it costs"
	@echo "make bench-parsing   what the check of a spec costs while a DAG file is parsed"
	@echo "make bench-listing   raytrain ls over 300 runs on S3"
	@echo "make bench-tracking  a training with and without trackers"
	@echo "make bench-rows      reading that can be resumed at the row, beside bare loaders"
	@echo "make bench-scale     a million reports, a resume over 1,000 checkpoints of 64 ranks, a job log of 1 GB"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# --no-compile: byte code is made for what is imported, which is far less than what is installed
$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing (about a minute or two) ..."
	@$(PIP) install --no-compile -c constraints.txt -e '.[prefect,torch,examples]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing (about a minute) ..."
	@# the whole environment, resolved: nothing is left to find out, and two can install at once
	@# what the new environment already has is replaced first, while no other pip looks at it
	@grep '^setuptools==' constraints.txt | xargs $(PIP) install --no-compile --no-deps
	@grep -v '^#' constraints.txt | xargs -P 2 -n 40 $(PIP) install --no-compile --no-deps
	@$(PIP) install --no-compile --no-deps -e .
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@$(BIN)/python -m example_flows.digits

demo-airflow: $(VENV)/.dev
	@$(BIN)/python example_dags/demo.py

# the loop of retraining on both engines, from an empty registry; and every framework that is installed
examples: $(VENV)/.dev
	@rm -rf .demo/loop
	@$(BIN)/python -m example_flows.loop .demo/loop
	@$(BIN)/python -m example_flows.tune_pbt
	@$(BIN)/python -m example_flows.prepare
	@$(BIN)/python example_dags/demo.py prepare tune_and_train loop
	@$(BIN)/python -m example_flows.frameworks
	@$(BIN)/python example_dags/demo.py frameworks

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/pytest tests/unit -q

integration: $(VENV)/.dev
	$(BIN)/pytest tests/integration -q

e2e: $(VENV)/.dev
	$(BIN)/pytest tests/e2e -q

chaos: $(VENV)/.dev
	$(BIN)/pytest tests/chaos -q -n $(PROCESSES) --no-loadscope-reorder --durations=15

bench-start: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.start

bench-overhead: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.overhead

bench-frameworks: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.frameworks

bench-recovery: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.recovery

# 30 minutes; SECONDS=300 for a look
SECONDS ?= 1800
bench-kills: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.kills $(SECONDS)

bench-watching: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.watching

bench-tiers: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.tiers

bench-triggerer: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.triggerer

bench-prefect: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.prefect_overhead

bench-inference: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.batch_inference

bench-tune: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.tune

bench-checkpoints: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.checkpoints

bench-storage: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.storage

bench-listing: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.listing

bench-parsing: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.parsing

bench-tracking: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.tracking

bench-rows: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.rows

bench-scale: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.scale

# SEED draws other mutations
SEED ?= 20
fuzz: $(VENV)/.dev
	@$(BIN)/python -W ignore -m tests.fuzz --seed $(SEED)

# the suite of the frameworks, and its results as the table of docs/frameworks.md
framework-table: $(VENV)/.dev
	@mkdir -p build
	$(BIN)/pytest tests/integration/test_frameworks.py -q -m "not smoke" --durations=15 --junitxml=build/frameworks.xml
	@$(BIN)/python -m tests.support.framework_table build/frameworks.xml

# where an environment's packages are
PURELIB = import sysconfig; print(sysconfig.get_path('purelib'))

# the site in build/site; a broken link fails it. In the environment of the tests, beside which its own packages are installed.
# Its pictures are of this state where there is a Chromium (six minutes; PICTURES=no leaves them), else those of the repository
PICTURES ?= $(if $(shell command -v chromium),yes,no)
docs: $(VENV)/.dev build/mermaid.min.js $(if $(filter yes,$(PICTURES)),build/browser)
	@test -x build/docs/bin/mkdocs || { $(PYTHON) -m venv build/docs && \
		build/docs/bin/python -m pip -q install --no-compile mkdocs-material==9.8.2 mkdocstrings-python==2.0.11; }
	@$(BIN)/python -c "$(PURELIB)" > "$$(build/docs/bin/python -c "$(PURELIB)")/tests.pth"
	@rm -rf build/images
	@if [ "$(PICTURES)" = yes ]; then $(BIN)/python -m devtools.pictures build/images; \
		else echo "the pictures are those of the repository"; fi
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict -q
	@echo "build/site/index.html"

# the pictures of the repository anew, in docs/images
pictures: $(VENV)/.dev build/browser
	@$(BIN)/python -m devtools.pictures docs/images

# what drives the Chromium of the machine
build/browser: | $(VENV)/.dev
	@$(PIP) install --no-compile --target $@ playwright==1.65.2

# what draws the diagrams on the site; where npm is missing, a reader's browser gets it from unpkg.com
MERMAID = 11.17.2
build/mermaid.min.js:
	@mkdir -p build
	@if command -v npm > /dev/null; then \
		npm pack --silent --pack-destination build mermaid@$(MERMAID) > /dev/null && \
		tar -xzf build/mermaid-$(MERMAID).tgz -C build --strip-components=2 package/dist/mermaid.min.js && rm build/mermaid-$(MERMAID).tgz; \
	else echo "npm is not installed: the site's diagrams need unpkg.com"; fi

# wheel and sdist in dist/, as PyPI wants them
dist: $(VENV)/.dev
	@rm -rf dist build/lib && mkdir -p dist
	@$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" > dist.log 2>&1 || { cat dist.log; exit 1; }
	@rm -f dist.log
	@test -x build/twine/bin/twine || { $(PYTHON) -m venv build/twine && build/twine/bin/python -m pip -q install --no-compile twine==7.0.0; }
	build/twine/bin/twine check --strict dist/*

# the corners of docs/versions.md; WORDS="prefect 2.56" runs those whose names have one of the words
matrix: $(VENV)/.dev
	@$(BIN)/python -m devtools.matrix $(WORDS)

# each persona's page, done as it says in an empty environment, and how long that takes; WORDS chooses some
walks: $(VENV)/.dev
	@$(BIN)/python -m devtools.walks $(WORDS)

# the interpreter's own packages may be used where torch for the GPU is among them: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
test-gpu: export PYTHONPATH := $(CURDIR)
test-gpu:
	$(GPU_PYTHON) -m pytest tests/gpu -q -rs --durations=20

# side by side
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j3 lint types fast

fast: $(VENV)/.dev
	$(BIN)/pytest -q -m "not slow" -n $(PROCESSES) --no-loadscope-reorder --durations=15

test-all: lint types azurite fuzz
	$(BIN)/pytest -q -m "not smoke" -n $(PROCESSES) --no-loadscope-reorder --durations=30 --junitxml=build/test-all.xml

# Azure's storage for the tests, from npm; where that is missing, they are skipped. 3.35.0 is the last for Node before 21
AZURITE = 3.35.0
azurite: .azurite/$(AZURITE)

.azurite/$(AZURITE):
	@if command -v npm > /dev/null; then \
		echo "installing Azurite $(AZURITE) ..."; \
		npm install --prefix .azurite --no-audit --no-fund --ignore-scripts --loglevel=error azurite@$(AZURITE) && touch $@; \
	else echo "npm is not installed: the tests of Azure's storage are skipped"; fi

# a second environment: Prefect 3.9 and Airflow 3.3 cannot be in one
test-prefect-latest: $(VENV)-prefect/.dev
	PATH=$(abspath $(VENV)-prefect/bin):$$PATH $(VENV)-prefect/bin/pytest -q tests/unit/test_prefect*.py tests/e2e/test_prefect*.py

$(VENV)-prefect/.dev: pyproject.toml constraints-prefect.txt
	$(PYTHON) -m venv $(VENV)-prefect
	@$(VENV)-prefect/bin/python -m pip --disable-pip-version-check -q install --no-compile --no-deps -r constraints-prefect.txt
	@$(VENV)-prefect/bin/python -m pip --disable-pip-version-check -q install --no-compile --no-deps -e .
	@touch $@

# Horovod publishes no wheel, and its CMake asks for C++14 where torch's headers need C++20; a few minutes, kept in .wheels
HOROVOD = 0.28.1
horovod: $(VENV)/.horovod

$(VENV)/.horovod: $(VENV)/.dev .wheels/built
	@$(PIP) install --no-deps .wheels/horovod-$(HOROVOD)-*.whl
	@touch $@

.wheels/built: constraints.txt | $(VENV)/.dev
	@mkdir -p .wheels/build
	@printf '#!/bin/sh\nexec g++ "$$@" -std=c++20\n' > .wheels/build/cxx20 && chmod +x .wheels/build/cxx20
	@$(PIP) install --target .wheels/build/site --upgrade --no-deps 'setuptools<81' wheel
	@echo "building Horovod $(HOROVOD) ..."
	@PYTHONPATH=$(abspath .wheels/build/site) CXX=$(abspath .wheels/build/cxx20) MAKEFLAGS=-j2 \
		HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 \
		$(PIP) wheel --no-build-isolation --no-deps -w .wheels horovod==$(HOROVOD)
	@rm -rf .wheels/build && touch $@

clean:
	rm -rf $(VENV) $(VENV)-prefect .demo .wheels .azurite build *.egg-info
