# Everything a user or developer types. `make help` lists it.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
# The interpreter of the virtual environment (default: python3, else a newer one): make setup PYTHON=python3.13
export PYTHON ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.requirements-installed
export PATH := $(CURDIR)/$(BIN):$(PATH)
export UV_SYSTEM_CERTS := 1
# Where the lab keeps images, the mirror and the keys of its hosts: outside the checkout, shared by clones.
export GPU_BOOTSTRAP_LAB ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpu-bootstrap/lab
INVENTORY ?= rented_hosts
# Handed to ansible-playbook as they are: make bootstrap ARGS="--limit trainer-1 --check"
ARGS ?=
# Scenarios of `make test`, the story last. `make test-all` adds the slow ones.
SLOW_SCENARIOS := debian13 nvidia_driver
SCENARIOS := $(sort $(filter-out shared bootstrap $(SLOW_SCENARIOS),$(notdir $(patsubst %/molecule.yml,%,$(wildcard molecule/*/molecule.yml))))) bootstrap

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9_-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bootstrap: setup ## the main job: the hosts of `rented_hosts`, or two lab hosts when there is no such file
	@if [ -e "$(INVENTORY)" ]; then \
	  echo "==> provisioning the hosts of $(INVENTORY)"; \
	  ansible-playbook bootstrap.yml -i "$(INVENTORY)" $(ARGS); \
	else \
	  $(MAKE) --no-print-directory lab-up && \
	  echo "==> no file $(INVENTORY): provisioning the two lab hosts over SSH" && \
	  ansible-playbook bootstrap.yml -i "$$(python lab/lab.py inventory)" $(ARGS); \
	fi

plan: setup ## show what bootstrap would do, touch nothing
	@ansible-playbook plan.yml -i "$$( [ -e "$(INVENTORY)" ] && echo "$(INVENTORY)" || python lab/lab.py inventory )" $(ARGS)

verify: setup ## prove the hosts again, install nothing
	@ansible-playbook verify.yml -i "$$( [ -e "$(INVENTORY)" ] && echo "$(INVENTORY)" || python lab/lab.py inventory )" $(ARGS)

setup: $(STAMP) ## the virtual environment with everything that runs on this machine

$(STAMP): requirements.txt tools/setup.sh
	@tools/setup.sh venv $(VENV)
	@touch $@

lab-setup: $(STAMP)
	@tools/setup.sh lab

lab-up: lab-setup ## start the lab: mirror, lab-vm, lab-container
	@python lab/lab.py up

lab-down: setup ## stop the lab's containers (images and downloads stay cached)
	@python lab/lab.py down

test: lint unit matrix molecule ## lint, unit tests, every supported ansible-core, all molecule scenarios

test-newest: ## the same tests with the newest ansible-core that the lock has, in .venv-newest (PYTHON=python3.12 or newer)
	@$(MAKE) --no-print-directory test VENV=.venv-newest PYTHON="$(or $(PYTHON),python3.13)"

test-all: test ## test, and the slow scenarios
	@for s in $(SLOW_SCENARIOS); do $(MAKE) --no-print-directory molecule SCENARIO=$$s || exit 1; done

lint: setup ## yamllint, ansible-lint (production), ruff, mypy (strict), generated docs are fresh
	@tools/lint.sh

unit: setup ## unit tests: plan, data, inventory plugin, parsers, proofs, reports
	@mkdir -p build/reports && python -m pytest -n auto --junit-xml=build/reports/unit.xml tests/unit

matrix: lab-setup ## the playbooks on every supported ansible-core; unit tests and lint on the newest
	@mkdir -p build/reports && python lab/lab.py mirror && python -m pytest -n 2 --dist loadgroup --junit-xml=build/reports/matrix.xml tests/matrix

molecule: lab-setup ## all scenarios, or one: make molecule SCENARIO=cudnn
	@tools/molecule.sh $(if $(SCENARIO),$(SCENARIO),$(SCENARIOS))

lock: setup ## make a lock file anew: make lock STACK=cu124
	@python tools/lock.py $(STACK)

docs: setup ## generate the tables of docs/ and of the roles' READMEs
	@tools/docs.sh

requirements: setup ## pin the versions of requirements.txt anew
	@uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --group dev pyproject.toml -o requirements.txt

clean: ## remove build output and the virtual environment (not the lab: make lab-down; not reports)
	@rm -rf build .venv .venv-newest .mypy_cache .pytest_cache .ruff_cache

.PHONY: help bootstrap plan verify setup lab-setup lab-up lab-down test test-all test-newest lint unit matrix molecule lock docs requirements clean
