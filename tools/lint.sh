#!/bin/sh
# All linters; each prints its own findings. The first that fails ends the run.
set -eu
cd "$(dirname "$0")/.."
say() { echo "==> $*"; }
say yamllint; yamllint --strict .
say ruff; ruff check --quiet . && ruff format --check --quiet .
say mypy; mypy filter_plugins inventory_plugins library action_plugins lab tools roles/*/files/*.py
say "generated documents"; tools/docs.sh --check
say ansible-lint; ansible-lint --offline -q
