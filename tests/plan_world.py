"""Builds probes and reads the shipped tables, for the tests of the plan."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
VARS = ROOT / "roles/plan/vars/main"
PROBES = ROOT / "tests/unit/fixtures/probes"
TABLES = (
    "stacks", "locks", "cuda", "cudnn", "miniconda", "pytorch", "gpus", "uv", "systems", "rules", "driver", "open_modules",
    "driver_sources", "driver_limits", "driver_family", "host_floors", "rented_tolerance",
)  # fmt: skip


@cache
def _tables() -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path in VARS.glob("*.yml"):
        merged.update(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    return {
        **{name: merged[f"plan_{name}"] for name in TABLES},
        "lock_dir": "/checkout/roles/pytorch_stack/files/locks",
    }


def data() -> dict[str, Any]:
    """The tables as the role hands them to the plan (a copy that a test may break)."""
    return copy.deepcopy(_tables())


def saved(name: str) -> dict[str, Any]:
    """One of the saved probes."""
    return dict(json.loads((PROBES / f"{name}.json").read_text(encoding="utf-8")))


def probe(**changes: Any) -> dict[str, Any]:
    """A Debian 12 virtual machine with one RTX 4090 and driver 550; keyword arguments replace top-level keys."""
    document: dict[str, Any] = {
        "schema_version": 1,
        "hostname": "trainer",
        "os": {"id": "debian", "version_id": "12", "codename": "bookworm", "pretty_name": "Debian GNU/Linux 12 (bookworm)"},
        "machine": "x86_64",
        "boot_id": "boot-1",
        "user": {"name": "root", "uid": 0, "home": "/root", "shell": "/bin/bash", "sudo": "root"},
        "signs": {"pid1": "systemd", "hypervisor_flag": True, "can_load_modules": True, "dmi": {"sys_vendor": "QEMU"}},
        "gpus": [{"pci_address": "0000:01:00.0", "device_id": "2684", "class": "0300", "driver": "nvidia"}],
        "driver": {"loaded_version": "550.163.01", "smi": None, "device_nodes": ["/dev/nvidia0", "/dev/nvidiactl"]},
        "toolkits": [],
        "cuda_link": None,
        "cudnn": [],
        "conda": [],
        "environments": [],
        "mounts": [{"mount": "/", "fstype": "ext4", "free_bytes": 200 * 10**9, "size_bytes": 250 * 10**9, "options": ["rw"]}],
        "glibc": "2.36",
        "gcc": {"default": "12.2.0", "available": ["12"]},
        "apt": {"available": True, "locks": [], "holds": [], "half_installed": [], "candidates": {}},
        "shells": {"etc_environment": {}, "marked_blocks": [], "ld_library_path_files": [], "stale_cuda_home": []},
        "receipt": None,
        "shell_environment": None,
    }  # fmt: skip
    return {**document, **changes}


def container(
    driver: str = "550.54.15",
    gpu: str = "NVIDIA GeForce RTX 4090",
    capability: str = "8.9",
    count: int = 1,
    **changes: Any,
) -> dict[str, Any]:
    """A rented Debian 12 container whose landlord has this driver and these GPUs."""
    smi = {
        "path": "/usr/bin/nvidia-smi", "rc": 0, "stderr": "", "driver_version": driver,
        "gpus": [{"index": i, "name": gpu, "uuid": f"GPU-{i}", "memory_mib": 24564, "compute_capability": capability} for i in range(count)],
    }  # fmt: skip
    return probe(
        signs={"container_env": "docker", "dockerenv": True, "pid1": "sshd", "can_load_modules": False, "dmi": {}},
        driver={"loaded_version": driver, "smi": smi, "device_nodes": ["/dev/nvidia0"]},
        **changes,
    )


def promised(before: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """The probe of the same host after the plan was carried out and proved."""
    after = copy.deepcopy(before)
    paths, stack, components = plan["paths"], plan["stack"], plan["components"]
    tables = data()
    if "cuda_toolkit" in components:
        after["toolkits"] = [t for t in after["toolkits"] if t["prefix"] != paths["cuda"]]
        after["toolkits"].append({"prefix": paths["cuda"], "version": stack["cuda"], "nvcc": True})
        after["cuda_link"] = paths["cuda"]
    if "cudnn" in components:
        header = ".".join(stack["cudnn"].split(".")[:3])
        after["cudnn"] = [{"prefix": paths["cuda"], "header_version": header, "libraries": [], "links_ok": True}]
    if "miniconda" in components:
        after["conda"] = [
            {"prefix": paths["conda"], "version": tables["miniconda"][stack["miniconda"]]["conda"], "environments": []}
        ]
        after["environments"] = [
            {
                "prefix": paths["environment"],
                "python": f"{stack['python']}.9",
                "packages": {},
                "torch_cuda": None,
                "lock_sha256": None,
            }
        ]
    if "pytorch_stack" in components:
        lock = tables["locks"][stack["name"]]
        after["environments"][0].update(
            packages={**lock["packages"], "torch": f"{stack['torch']}+{'cu'}"},
            torch_cuda=stack["torch_cuda"],
            lock_sha256=lock["sha256"],
        )
    if "shell_environment" in components:
        after["shell_environment"] = dict(components["shell_environment"]["inputs"])
        after["shells"]["marked_blocks"] = ["/etc/environment", "/etc/profile.d/gpu-bootstrap.sh"]
    if "package_manager" in plan["steps"]:
        after.setdefault("apt", {})["driver_barred"] = plan["package_manager"]["bar_driver"]
    driver = components.get("nvidia_driver")
    if driver and driver["action"] in ("install", "replace"):
        version = driver["inputs"]["version"] or f"{driver['inputs']['branch']}.999"
        after["driver"].update(loaded_version=version, flavour=driver["inputs"]["flavour"], nouveau_loaded=False)
        after["kernel"]["release"] = after["kernel"]["will_boot"]
    expected = plan["verify"]["expected"]
    uuids = [g["uuid"] for g in ((before["driver"].get("smi") or {}).get("gpus") or [])]
    after["receipt"] = {
        "schema_version": 1, "verdict": "ready", "stack": stack["name"], "lock_sha256": expected["lock_sha256"], "boot_id": before["boot_id"],
        "driver_version": after["driver"].get("loaded_version") or "", "gpu_uuids": uuids, "components": expected["components"],
    }  # fmt: skip
    return after
