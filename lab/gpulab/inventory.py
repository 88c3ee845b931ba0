"""`run/inventory/`: the lab's hosts as a user would paste them, and the variables that point at the lab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpulab import state as lab_state
from gpulab.base import Home, write_text

HEADER = "# Written by lab/lab.py: changes here are lost.\n"


def render_rented_hosts(hosts: list[lab_state.Host]) -> str:
    """Render the pasted ssh lines; a host with a data disk keeps everything large on it."""
    text = HEADER
    for host in hosts:
        suffix = " work_dir=/data" if host.volumes else ""
        text += f"{host.name}: ssh -p {host.port} {host.user}@127.0.0.1{suffix}\n"
    return text


def render_group_vars(run_dir: Path, mirrors: dict[str, str], overrides: dict[str, dict[str, Any]]) -> str:
    """Render group_vars/all.yml: strings are JSON, which is YAML."""
    values: dict[str, Any] = {
        "stack": "cu124",
        "ansible_ssh_common_args": f'-F "{run_dir / "ssh_config"}"',
        "mirrors": mirrors,
        "artifact_overrides": overrides,
    }
    return HEADER + "---\n" + "".join(f"{key}: {json.dumps(value, indent=2)}\n" for key, value in values.items())


def write(home: Home, mirrors: dict[str, str], overrides: dict[str, dict[str, Any]]) -> Path:
    """Write the inventory of the standard hosts; return its directory."""
    hosts = [host for host in lab_state.load(home).hosts.values() if host.in_inventory]
    directory = home.run / "inventory"
    write_text(directory / "rented_hosts", render_rented_hosts(sorted(hosts, key=lambda host: host.port)))
    write_text(directory / "group_vars" / "all.yml", render_group_vars(home.run, mirrors, overrides))
    return directory
