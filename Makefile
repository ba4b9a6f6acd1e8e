# make demo: from a profile to a proven, verified, drawn and exported schedule, in out/
# make test: everything that the tests need, and the tests
# PYTHON chooses the interpreter (3.11 or newer), VENV the environment that is made.

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
VENV ?= .venv
BIN := $(VENV)/bin
PROBLEM ?= examples/llama3_8b.toml
LIMIT ?= 30

.DELETE_ON_ERROR:
.PHONY: demo test install-test picture clean

demo: $(VENV)/.installed-plot
	mkdir -p out
	$(BIN)/bubbleproof solve $(PROBLEM) --time-limit $(LIMIT) -o out/schedule.json
	$(BIN)/bubbleproof verify out/schedule.json
	$(BIN)/bubbleproof show out/schedule.json -o out/schedule.svg
	$(BIN)/bubbleproof show out/schedule.json -o out/schedule.png
	$(BIN)/bubbleproof export out/schedule.json --to torch-compute-only -o out/schedule.csv
	@echo
	@echo "$(PROBLEM) is solved. In out/:"
	@echo "  schedule.json  the schedule with its bound and proof (bubbleproof verify, show)"
	@echo "  schedule.svg   its timeline and memory; schedule.png is the same"
	@echo "  schedule.csv   what torch's pipeline runtime loads"

test: install-test
	$(BIN)/python -m pytest -n 2 -m "not alone"
	$(BIN)/python -m pytest -m alone tests

# The picture in the README.
picture: $(VENV)/.installed-plot
	mkdir -p out
	$(BIN)/bubbleproof solve examples/small.toml --workers 1 -o out/small.json
	$(BIN)/bubbleproof show out/small.json -o docs/picture.svg

install-test: $(VENV)/.installed-test

clean:
	rm -rf $(VENV) out build *.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-plot: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[plot]"
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	touch $@ $(VENV)/.installed-plot
