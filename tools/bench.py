"""Measure what a run costs that has nothing to do: remote executions, and times as ratios to floors of the same run.

Floors: a play without a remote task (Ansible itself), and one ssh connection that runs `true`. All are run in turn,
several times; medians are compared. Times are never a test; the number of remote executions is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WRAPPER = """#!/bin/sh
# Counts what Ansible runs over ssh; the last argument but the command is the host.
printf '%s\\n' "$*" >>"$SSH_COUNT_FILE"
exec ssh "$@"
"""
EMPTY_PLAY = "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.meta: noop\n"


def ssh_calls(inventories: list[str], hosts: list[str], directory: Path) -> tuple[float, Counter[str], str]:
    """Run bootstrap.yml with a counting ssh: seconds, remote executions for each host, and the output."""
    wrapper, count = directory / "ssh", directory / "count"
    wrapper.write_text(WRAPPER, encoding="utf-8")
    wrapper.chmod(0o755)
    count.write_text("", encoding="utf-8")
    env = {**os.environ, "ANSIBLE_SSH_EXECUTABLE": str(wrapper), "SSH_COUNT_FILE": str(count)}
    start = time.monotonic()
    arguments = [part for inventory in inventories for part in ("-i", inventory)]
    done = subprocess.run(
        ["ansible-playbook", "bootstrap.yml", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"bootstrap.yml ended with {done.returncode}\n{done.stdout}{done.stderr}")
    calls: Counter[str] = Counter()
    for line in count.read_text(encoding="utf-8").splitlines():
        for host in hosts:
            if f" {host} " in line:
                calls[host] += 1
    return seconds, calls, done.stdout


def timed(command: list[str]) -> float:
    """Seconds that a command takes; its failure ends the benchmark."""
    start = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.monotonic() - start


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", nargs="+", help="inventory of hosts that are already provisioned")
    parser.add_argument("--ssh-config", required=True, help="ssh_config that knows the hosts, for the ssh floor")
    parser.add_argument("--address", required=True, help="one of the hosts, as the ssh_config names it")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turn (default 5)")
    args = parser.parse_args()
    arguments = [part for inventory in args.inventory for part in ("-i", inventory)]
    rows: dict[str, list[float]] = {"nothing to do": [], "empty play": [], "ssh true": []}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        play = directory / "empty.yml"
        play.write_text(EMPTY_PLAY, encoding="utf-8")
        for _ in range(args.runs):
            rows["nothing to do"].append(ssh_calls(args.inventory, [], directory)[0])
            rows["empty play"].append(timed(["ansible-playbook", str(play), *arguments]))
            rows["ssh true"].append(timed(["ssh", "-F", args.ssh_config, args.address, "true"]))
    floor = statistics.median(rows["empty play"])
    for what, seconds in rows.items():
        median = statistics.median(seconds)
        print(
            f"{what:<14} median {median:6.2f} s   {median / floor:5.2f} x empty play   ({min(seconds):.2f} to {max(seconds):.2f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
