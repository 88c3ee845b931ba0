"""The GPUs that a host may use, and which builds have code for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .values import Json, version_tuple


def find_gpus(probe: Mapping[str, Any], kind: str, catalogue: list[Json]) -> list[Json]:
    """Return the GPUs that this host may use: [{name, compute_capability|None, row|None, device_id}].

    A container sees every PCI device of its landlord's machine, so there only what the driver hands out counts.
    """
    smi = ((probe.get("driver") or {}).get("smi") or {}).get("gpus") or []
    by_id = {device: row for row in catalogue for device in row["pci_ids"]}
    if kind in ("container", "wsl") or (smi and not probe.get("gpus")):
        found = []
        for gpu in smi:
            row = next(
                (r for r in catalogue if any(same_model(n, gpu["name"]) for n in [r["model"], *r.get("names", [])])),
                None,
            )
            capability = gpu.get("compute_capability") or (row or {}).get("compute_capability")
            found.append({"name": gpu["name"], "compute_capability": capability, "row": row, "device_id": ""})
        if not found and kind == "container" and (probe.get("driver") or {}).get("device_nodes"):
            nodes = [n for n in probe["driver"]["device_nodes"] if re.search(r"/nvidia\d+$", n)]
            devices = list(probe.get("gpus") or [])[: len(nodes)]
            found = [_from_pci(g, by_id) for g in devices]
        return found
    return [_from_pci(g, by_id) for g in probe.get("gpus") or []]


def _from_pci(gpu: Mapping[str, Any], by_id: Mapping[str, Json]) -> Json:
    row = by_id.get(str(gpu["device_id"]).lower())
    name = row["model"] if row else f"unknown GPU 10de:{gpu['device_id']}"
    return {
        "name": name,
        "compute_capability": row["compute_capability"] if row else None,
        "row": row,
        "device_id": gpu["device_id"],
    }


def same_model(one: str, other: str) -> bool:
    """Compare two names of a GPU as landlords, pci.ids and nvidia-smi spell it."""
    return _squash(one) == _squash(other)


def _squash(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("nvidia", "").replace("geforce", ""))


def runs_on(arch_list: Iterable[str], capability: str) -> bool:
    """Tell whether a build with this list (`sm_86`, `compute_90`, `sm_90+PTX`) has code for a compute capability.

    Machine code runs on the same major version with an equal or higher minor one; PTX on everything newer.
    Source: CUDA C++ Programming Guide, "Compute Capability" and "Application Compatibility".
    """
    card = version_tuple(capability)
    for entry in arch_list:
        match = re.match(r"(sm|compute)_(\d+)(\d)([a-z]?)(\+PTX)?$", entry)
        if not match:
            continue
        form, major, minor, feature, ptx = match.groups()
        built = (int(major), int(minor))
        if feature and built != card:
            continue
        if form == "sm" and built[0] == card[0] and built[1] <= card[1]:
            return True
        if (form == "compute" or ptx) and built <= card:
            return True
    return False


def unique_models(gpus: list[Json]) -> list[Json]:
    """The first GPU of each model."""
    seen: dict[str, Json] = {}
    for gpu in gpus:
        seen.setdefault(gpu["name"], gpu)
    return list(seen.values())
