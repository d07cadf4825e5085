# The whole of a developer's day: make audit, make test, make check, make proof, make bench, make soak, make mutants,
# make coverage, make gpu.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: audit test proof soak cluster mutants coverage check bench gpu requirements clean
.DELETE_ON_ERROR:
# Hundreds of processes import the same files: each file is compiled once.
unexport PYTHONDONTWRITEBYTECODE

audit: $(VENV)/.demo
	$(BIN)/tempscale audit

# A file's tests together.
PYTEST = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

# Before every commit: the equations, every table of one audit, one run of every command. Five minutes.
test: $(VENV)/.dev
	$(PYTEST) -n 2 -m "not proof and not soak" --ignore tests/test_typing.py

# Before a change lands: faults, kills, other inputs and other ways, on one node and on several. Three at a time, since a run
# waits for Ray a third of its time.
proof: $(VENV)/.dev $(VENV)/.sbom
	$(PYTEST) -n 3 -m "proof and not soak" --durations 40

# The tests of both under coverage.py: the lines and branches that they run, for docs/dev/coverage.md. An hour.
coverage: $(VENV)/.dev $(VENV)/.sbom
	$(BIN)/python tests/covered.py

# What takes minutes a test, and a hundred kills in all stages of all commands on a cluster of four nodes: tests/soak.py.
# An hour and a half.
soak: $(VENV)/.dev
	$(BIN)/python tests/soak.py

# The job of cluster/slurm on a real Slurm, the image on a cluster of Ray, two machines each on this one: tests/clusters.py. As
# root; half an hour.
cluster: $(VENV)/.dev
	$(BIN)/python tests/clusters.py

# Whether the tests would notice a mistake: each of tests/mutations.py is made in a copy, and its tests are run. Two hours.
mutants: $(VENV)/.dev
	$(BIN)/python tests/mutants.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py tests/test_typing.py
	$(BIN)/python tests/mutants.py --stale

# Every benchmark but the million texts, on a quiet machine; then docs/dev/performance.md. Some of them: python -m benchmarks NAME …
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# On a machine with a GPU, in an environment whose torch has CUDA (make gpu PYTHON=…): every test of a GPU, then its rates, into
# benchmarks/results/ and docs/dev/performance.md. No Ray. Under nine minutes.
gpu:
	$(PYTHON) -m benchmarks.card

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
	  { echo "tempscale needs Python 3.11 to 3.14; $(PYTHON) is another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Every file is compared with its hash, but for torch's: which build of it is right depends on the device.
$(VENV)/.demo $(VENV)/.dev: $(VENV)/.%: $(BIN)/python pyproject.toml constraints.txt requirements/%.txt requirements/build.txt
	@echo "installing tempscale[$*] into $(VENV) (a few minutes the first time)"
	$(INSTALL) --require-hashes --no-deps -r requirements/$*.txt
	$(INSTALL) --require-hashes --no-deps -r requirements/build.txt
	$(INSTALL) -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(INSTALL) --no-deps --no-build-isolation -e .
	$(BIN)/python -m tempscale.precompile
	@touch $@

# What writes down the packages of an image, apart, as in the image: with rfc3987-syntax, which it needs, `import ray` takes three
# times as long, in every process of Ray.
$(VENV)/.sbom: $(BIN)/python requirements/sbom.txt
	$(BIN)/python -m venv $(VENV)/sbom
	$(VENV)/sbom/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/sbom.txt
	@touch $@

# The lists of requirements/ again, after a change of pyproject.toml or constraints.txt.
requirements: $(VENV)/.dev
	$(BIN)/python requirements/write.py
