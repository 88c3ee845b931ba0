#!/bin/sh
# Generates the tables of docs/ and of the roles' READMEs from data and specs; --check fails when one is stale.
set -eu
cd "$(dirname "$0")/.."
python tools/docs_versions.py "$@"
python tools/docs_tables.py "$@"
python tools/docs_compatibility.py "$@"
