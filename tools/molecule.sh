#!/bin/sh
# Runs molecule scenarios one after the other and ends with one line for each; a failure doesn't stop the others.
set -u
cd "$(dirname "$0")/.."
export ANSIBLE_FORCE_COLOR="${ANSIBLE_FORCE_COLOR:-0}" PY_COLORS="${PY_COLORS:-0}"
mkdir -p build/reports/molecule build/logs
# Images and mirror once, with progress; the scenarios only start hosts.
python lab/lab.py mirror || exit 1
summary="" failed=0
for scenario in "$@"; do
  echo "==> molecule test -s $scenario"
  start=$(date +%s)
  if timeout "${SCENARIO_TIMEOUT:-2400}" molecule test -s "$scenario" >"build/logs/molecule-$scenario.log" 2>&1; then
    result=passed
  else
    result=FAILED failed=$((failed + 1))
    tail -n 120 "build/logs/molecule-$scenario.log"
  fi
  line="$scenario: $result in $(($(date +%s) - start)) s"
  echo "    $line"
  summary="$summary
  $line"
done
echo "==> molecule: $# scenarios, $failed failed$summary"
[ "$failed" = 0 ]
