"""What was rented against what was found: keep it, keep it as degraded, or give it back, with the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gpus import same_model
from .notes import Notes
from .values import GIB, Json, one_of

# What a host or a group may say of its offer; egress_mbps and price_per_hour are for the proofs and the report.
KEYS = {
    "gpu", "count", "gpu_memory_gb", "cpus", "ram_gb", "system_disk_gb", "data_disk_gb", "ssd", "egress_mbps",
    "price_per_hour",
}  # fmt: skip
VERDICTS = ("keep", "keep, degraded", "return")


def read_rented(rented: Mapping[str, Any]) -> Json:
    """Return the offer with numbers as numbers; ValueError names a key or a value that makes no sense."""
    offer: Json = {}
    for key, value in rented.items():
        one_of("key of rented_as", key, sorted(KEYS))
        if value is None or value == "":
            continue
        if key == "gpu":
            offer[key] = str(value)
        elif key == "ssd":
            if str(value).lower() not in ("true", "false", "yes", "no"):
                raise ValueError(f"rented_as.ssd is {value!r}, expected true or false")
            offer[key] = str(value).lower() in ("true", "yes")
        else:
            try:
                offer[key] = float(str(value))
            except ValueError:
                raise ValueError(f"rented_as.{key} is {value!r}, expected a number such as 8") from None
            if not 0 <= offer[key] < 1e9:
                raise ValueError(f"rented_as.{key} is {value!r}, expected a positive number")
    return offer


def check_rented(
    probe: Mapping[str, Any], gpus: list[Json], rented: Mapping[str, Any], data: Mapping[str, Any], notes: Notes
) -> Json:
    """Return {verdict, rows}; each row is {what, rented, found, verdict}. A machine that should go back is refused."""
    offer, rows = read_rented(rented), []
    tolerance = data["rented_tolerance"]

    def row(code: str, what: str, promised: str, found: str, verdict: str) -> None:
        rows.append({"what": what, "rented": promised, "found": found, "verdict": verdict})
        if verdict == "return":
            notes.refuse(
                code, "host", f"{what}: {found}", f"{promised} as rented", nearest=f"rented_as with {what}: {found}"
            )
        elif verdict != "keep":
            notes.warn(code, "host", f"{what}: {found}", f"{promised} as rented")

    def amount(code: str, what: str, key: str, limits: str, found: float | None, unit: str) -> None:
        if key not in offer:
            return
        if found is None:
            row(code, what, f"{offer[key]:g} {unit}", "can't be told", "keep, degraded")
            return
        share = found / offer[key] if offer[key] else 1.0
        limit = tolerance[limits]
        verdict = "return" if share < limit["return"] else "keep, degraded" if share < limit["degraded"] else "keep"
        row(code, what, f"{offer[key]:g} {unit}".strip(), f"{found:g} {unit}".strip(), verdict)

    if "count" in offer:
        row(
            "GB-RENT-001",
            "count",
            f"{offer['count']:g}",
            f"{len(gpus)}",
            "keep" if len(gpus) >= offer["count"] else "return",
        )
    if "gpu" in offer:
        others = [gpu["name"] for gpu in gpus if not _is_model(offer["gpu"], gpu)]
        unknown = [gpu["name"] for gpu in gpus if not gpu["row"] and gpu["name"] in others]
        verdict = "keep" if not others and gpus else "keep, degraded" if gpus and others == unknown else "return"
        row("GB-RENT-002", "gpu", offer["gpu"], ", ".join(dict.fromkeys(g["name"] for g in gpus)) or "none", verdict)
    amount("GB-RENT-003", "gpu_memory_gb", "gpu_memory_gb", "gpu_memory", _gpu_memory(probe, gpus), "GB")
    amount("GB-RENT-004", "cpus", "cpus", "cpus", _cpus(probe), "")
    amount("GB-RENT-005", "ram_gb", "ram_gb", "memory", _memory_gb(probe), "GB")
    mounts = probe.get("mounts") or []
    system = next((m for m in mounts if m["mount"] == "/"), None)
    data_disks = [m for m in mounts if m["mount"] != "/" and m.get("fstype") not in ("tmpfs", "overlay")]
    amount("GB-RENT-006", "system_disk_gb", "system_disk_gb", "disk", _size_gb(system), "GB")
    largest = max(data_disks, key=lambda m: int(m.get("size_bytes") or 0), default=None)
    amount("GB-RENT-006", "data_disk_gb", "data_disk_gb", "disk", _size_gb(largest) or 0.0, "GB")
    if offer.get("ssd"):
        spinning = [disk["name"] for disk in probe.get("disks") or [] if disk.get("rotational")]
        found = f"{', '.join(spinning)} said to be rotational" if spinning else "no rotational disk"
        row("GB-RENT-007", "ssd", "SSD", found, "keep, degraded" if spinning else "keep")
    verdict = max((r["verdict"] for r in rows), key=VERDICTS.index, default="keep") if rows else ""
    return {"verdict": verdict, "rows": rows}


def _is_model(wanted: str, gpu: Mapping[str, Any]) -> bool:
    names = [gpu["name"], *((gpu["row"] or {}).get("names") or [])]
    return any(same_model(wanted, name) for name in names)


def _gpu_memory(probe: Mapping[str, Any], gpus: list[Json]) -> float | None:
    """Memory of the smallest GPU in GiB, as offers count it: what nvidia-smi says, else the least that the model is sold with."""
    told = [
        int(g["memory_mib"])
        for g in ((probe.get("driver") or {}).get("smi") or {}).get("gpus") or []
        if g.get("memory_mib")
    ]
    if told:
        return round(min(told) / 1024, 1)
    sold = [min(gpu["row"]["memory_gb"]) for gpu in gpus if gpu["row"] and gpu["row"].get("memory_gb")]
    return float(min(sold)) if sold and len(sold) == len(gpus) else None


def _cpus(probe: Mapping[str, Any]) -> float | None:
    cpus = probe.get("cpus") or {}
    limits = [float(cpus[key]) for key in ("visible", "cgroup_quota") if cpus.get(key)]
    return min(limits) if limits else None


def memory_bytes(probe: Mapping[str, Any]) -> int:
    """Bytes of memory that this host may use: the machine's, or its control group's limit; 0 when unknown."""
    memory = probe.get("memory") or {}
    limits = [int(memory[key]) for key in ("total_bytes", "cgroup_limit_bytes") if memory.get(key)]
    return min(limits) if limits else 0


def _memory_gb(probe: Mapping[str, Any]) -> float | None:
    count = memory_bytes(probe)
    return round(count / GIB, 1) if count else None


def _size_gb(mount: Mapping[str, Any] | None) -> float | None:
    return round(int(mount["size_bytes"]) / 1000**3, 1) if mount and mount.get("size_bytes") else None
