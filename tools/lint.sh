#!/bin/sh
# All linters; each prints its own findings. The first that fails ends the run.
# ansible-lint needs a minute for everything: at a desk it looks at what changed since it last passed, in CI at all.
set -eu
cd "$(dirname "$0")/.."
say() { echo "==> $*"; }

passed=build/lint/ansible-lint.sha256 # of the files at the last pass
read_by_ansible_lint() {
  git ls-files --cached --others --exclude-standard -- '*.yml' '*.py' .ansible-lint ansible.cfg requirements.txt |
    while read -r file; do [ ! -e "$file" ] || sha256sum "$file"; done
}
changed_yaml() { # the YAML files that are new or differ; nothing and an error when something that all depend on did
  [ -e "$passed" ] && [ -z "${CI:-}" ] || return 1
  differing=$(diff "$passed" "$1" | sed -n 's/^[<>] [0-9a-f]*  //p' | sort -u)
  for file in $differing; do
    [ -e "$file" ] || return 1
    case $file in
      *.yml) echo "$file" ;;
      tests/* | lab/* | tools/* | molecule/*.py) ;;
      *) return 1 ;;
    esac
  done
}
lint_ansible() {
  mkdir -p build/lint
  now=build/lint/now.sha256
  read_by_ansible_lint >"$now"
  if files=$(changed_yaml "$now"); then
    say "ansible-lint, $(echo "$files" | grep -c .) files that changed since it passed (CI=true make lint: all)"
    # shellcheck disable=SC2086
    [ -z "$files" ] || ansible-lint --offline -q $files
  else
    say ansible-lint
    ansible-lint --offline -q
  fi
  mv "$now" "$passed"
}

say yamllint; yamllint --strict .
say ruff; ruff check --quiet . && ruff format --check --quiet .
say mypy; mypy plugin_utils filter_plugins inventory_plugins library module_utils action_plugins lab tools roles/*/files/*.py
say "generated documents"; tools/docs.sh --check
lint_ansible
