"""What the host is: its kind, its system, who logs in, what holds its package manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gpus import unique_models
from .notes import Notes
from .values import Json, at_least


def decide_host_kind(probe: Mapping[str, Any], override: str, notes: Notes) -> Json:
    """Return {value, signs, overridden}: one decision from several signs, an override only where it can be true."""
    signs = probe.get("signs") or {}
    container: list[str] = []
    if signs.get("container_env"):
        container.append(f"PID 1 has container={signs['container_env']}")
    if signs.get("dockerenv"):
        container.append("/.dockerenv is there")
    if signs.get("containerenv"):
        container.append("/run/.containerenv is there")
    if signs.get("kubernetes"):
        container.append("Kubernetes service account or environment")
    if signs.get("cgroup_hint"):
        container.append(f"control group of {signs['cgroup_hint']}")
    if signs.get("pid1") and signs["pid1"] not in ("systemd", "init") and not signs.get("can_load_modules"):
        container.append(f"PID 1 is {signs['pid1']} and modules can't be loaded")
    if signs.get("provider") in ("autodl", "runpod", "vast") and not signs.get("can_load_modules"):
        container.append(f"signs of the provider {signs['provider']}")
    dmi = signs.get("dmi") or {}
    hypervisor = signs.get("hypervisor_flag") or signs.get("xen")
    if signs.get("wsl"):
        value, why = "wsl", ["kernel of the Windows Subsystem for Linux"]
    elif container:
        value, why = "container", container
    elif hypervisor:
        value, why = "vm", [f"hypervisor bit, {dmi.get('sys_vendor') or 'vendor unknown'}"]
    else:
        value, why = "metal", [f"no sign of a container or hypervisor, {dmi.get('sys_vendor') or 'vendor unknown'}"]
    decided = {"value": value, "signs": why, "overridden": False}
    if override and override != value:
        if {override, value} <= {"vm", "metal"} or override == "container":
            return {"value": override, "signs": [*why, f"host_kind: {override} by you"], "overridden": True}
        notes.refuse(
            "GB-KIND-001",
            "host",
            f"{value} ({'; '.join(why)})",
            f"host_kind: {override}",
            nearest=f"host_kind: {value}",
        )
    return decided


def system_of(probe: Mapping[str, Any]) -> str:
    """The key of the system in the tables, such as debian-12."""
    os = probe.get("os") or {}
    return f"{os.get('id')}-{os.get('version_id')}"


def check_host(probe: Mapping[str, Any], gpus: list[Json], data: Mapping[str, Any], notes: Notes) -> None:
    """Check the system, the login, the package manager, and that every GPU is known."""
    os = probe.get("os") or {}
    name = str(os.get("pretty_name") or f"{os.get('id')} {os.get('version_id')}")
    systems = {tuple(key.split("-", 1)): row for key, row in data["systems"].items()}
    supported = ", ".join(key.replace("-", " ") for key, row in data["systems"].items() if row["supported"])
    same = [version for distribution, version in systems if distribution == os.get("id")]
    row = systems.get((str(os.get("id")), str(os.get("version_id"))))
    if row is None and same and all(at_least(str(os.get("version_id") or "0"), version) for version in same):
        notes.warn("GB-OS-006", "host", name, supported)
    elif row is None or not row["supported"]:
        notes.refuse("GB-OS-001", "host", name, supported)
    user = probe.get("user") or {}
    if user.get("sudo") == "none":
        notes.refuse("GB-PRIV-001", "host", f"user {user.get('name')} without sudo", "root, or a user with sudo")
    locks = (probe.get("apt") or {}).get("locks") or []
    if locks:
        notes.warn(
            "GB-APT-001",
            "host",
            "; ".join(f"{lock['path']} held by {lock.get('holder') or 'process'} {lock.get('pid')}" for lock in locks),
            "a free lock",
        )
    half = (probe.get("apt") or {}).get("half_installed") or []
    if half:
        notes.warn("GB-APT-002", "host", ", ".join(half), "no half-installed package")
    for gpu in unique_models(gpus):
        if not gpu["row"] and not gpu["compute_capability"]:
            notes.warn("GB-GPU-004", "host", gpu["name"], "a GPU of the catalogue")
