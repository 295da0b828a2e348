# Everything a developer runs. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT_BUILD := gcc make clang llvm libbpf-dev libbpf1 python3 python3-venv
APT_TEST := g++ bpftool clang-format ocl-icd-libopencl1 pocl-opencl-icd chromium openssl shellcheck systemd curl \
	qemu-system-x86 python3-bpfcc opencl-c-headers gdb
STAMP := $(VENV)/.setup-stamp

.DEFAULT_GOAL := help
.PHONY: help setup system-build system-test demo picture test lint fmt bpf native gen bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: system-build $(STAMP) ## Install system packages and the Python environment (.venv)

system-build:
	@missing=""; for tool in cc clang llvm-strip $(PYTHON); do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	[ -e /usr/include/bpf/bpf_helpers.h ] || missing="$$missing libbpf-dev"; \
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || missing="$$missing python3-venv"; \
	if [ -n "$$missing" ]; then echo "installing for the build:$$missing"; \
	$(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(APT_BUILD) >/dev/null; fi

system-test: system-build
	@missing=""; for tool in g++ bpftool clang-format chromium openssl shellcheck systemd-analyze curl qemu-system-x86_64 gdb; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	ls /etc/OpenCL/vendors/pocl.icd >/dev/null 2>&1 || missing="$$missing pocl"; \
	[ -e /usr/include/CL/cl_icd.h ] || missing="$$missing opencl-c-headers"; \
	[ -e /usr/lib/python3/dist-packages/bcc ] || missing="$$missing python3-bpfcc"; \
	command -v go >/dev/null || missing="$$missing go"; \
	if [ -n "$$missing" ]; then echo "installing for the tests:$$missing"; \
	$(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(APT_TEST) \
	  $$(command -v go >/dev/null || echo golang-go) >/dev/null; fi

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -e '.[agent]'
	@touch $@

$(VENV)/.dev-stamp: $(STAMP)
	$(BIN)/python -m pip install -q --group dev --group examples
	@touch $@

demo: setup ## Replay the bundled H200 recording: tables, pprof and HTML in out/
	$(BIN)/otel-gpuflame demo

picture: system-test $(VENV)/.dev-stamp ## Render docs/images/demo.png from the bundled recording
	$(BIN)/python -m tests.integration.browser.picture

test: system-test $(VENV)/.dev-stamp bpf native ## Install what is needed and pass all tests but those that need a GPU
	$(BIN)/python -m tests.integration.collector.build
	$(BIN)/python -m pytest -m 'not gpu'

lint: $(VENV)/.dev-stamp ## ruff, mypy, import-linter, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h')

fmt: $(VENV)/.dev-stamp ## Format Python and C
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format .
	clang-format -i $$(git ls-files '*.c' '*.h')

bpf: ## Compile the BPF object and the ring drain
	$(MAKE) -s -C bpf

native: ## Compile the libraries that run inside applications
	$(MAKE) -s -C otel_gpuflame/native

gen: bpf $(VENV)/.dev-stamp ## Regenerate otel_gpuflame/events/wire.py and wire_gpu.py from BTF
	$(MAKE) -s -C bpf OUT=$(abspath $(VENV)) $(abspath $(VENV))/gpu_layout.o
	$(BIN)/python bpf/generate_wire.py bpf otel_gpuflame/_artifacts/capture.bpf.o > $(VENV)/wire.py
	$(BIN)/python bpf/generate_wire.py gpu $(VENV)/gpu_layout.o > $(VENV)/wire_gpu.py
	$(BIN)/ruff format -q $(VENV)/wire.py $(VENV)/wire_gpu.py
	cp $(VENV)/wire.py $(VENV)/wire_gpu.py otel_gpuflame/events/

bench: $(VENV)/.dev-stamp bpf native ## Measure: events/s, start-up, encoding (needs root)
	$(BIN)/python -m tests.benchmarks.run

clean: ## Remove what was built
	$(MAKE) -s -C bpf clean
	$(MAKE) -s -C otel_gpuflame/native clean
	rm -rf out build dist
