"""Where everything large goes, and whether it fits there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .notes import Notes
from .rented import memory_bytes
from .values import GIB, Json, format_bytes, major_minor


def decide_paths(settings: Mapping[str, Any], stack: Mapping[str, Any]) -> Json:
    """Where everything large goes; `work_dir` moves all of it to the data disk."""
    work = settings["work_dir"]
    cache = settings["cache_dir"] or (f"{work}/cache" if work else "/var/cache/gpu-bootstrap")
    conda = settings["conda_prefix"] or (f"{work}/miniconda3" if work else "/opt/miniconda3")
    name = settings["environment_name"] or stack["name"]
    cuda_root = settings["cuda_prefix"] or work or "/usr/local"
    return {
        "work_dir": work,
        "downloads": settings["downloads_dir"] or f"{cache}/downloads",
        "tmp": settings["tmp_dir"] or (f"{work}/tmp" if work else "/var/tmp/gpu-bootstrap"),
        "uv_cache": f"{cache}/uv",
        "uv": f"{work}/uv" if work else "/opt/gpu-bootstrap/uv",
        "conda": conda,
        "environment": f"{conda}/envs/{name}",
        "environment_name": name,
        "cuda": f"{cuda_root}/cuda-{major_minor(stack['cuda'])}",
        "cuda_link": settings["cuda_link"],
        "hf_home": settings["hf_home"] or (f"{work}/huggingface" if work else ""),
        "state": settings["state_dir"],
    }


def mount_of(path: str, mounts: Iterable[Mapping[str, Any]]) -> Json:
    """The mount that holds a path (which may not exist yet): the longest mount point that is a prefix of it."""
    best: Mapping[str, Any] = {}
    for mount in mounts:
        point = str(mount["mount"])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) > len(str(best.get("mount", ""))):
            best = mount
    return dict(best)


def check_space(needs: list[tuple[str, str, int]], probe: Mapping[str, Any], notes: Notes) -> list[Json]:
    """Sum the needs [(what, path, bytes)] per mount and refuse where a mount is too small."""
    mounts = probe.get("mounts") or []
    table: dict[str, Json] = {}
    for what, path, count in needs:
        mount = mount_of(path, mounts)
        if not mount or not count:
            continue
        row = table.setdefault(
            mount["mount"], {"mount": mount["mount"], "needed": 0, "free": int(mount["free_bytes"]), "for": []}
        )
        row["needed"] += int(count)
        row["for"].append(f"{what} {format_bytes(count)} in {path}")
    roomy = max(
        (m for m in mounts if "ro" not in (m.get("options") or []) and m.get("fstype") != "tmpfs"),
        key=lambda m: int(m["free_bytes"]),
        default=None,
    )
    for row in table.values():
        if row["needed"] > row["free"]:
            near = ""
            if (
                roomy
                and roomy["mount"] != row["mount"]
                and int(roomy["free_bytes"]) > sum(r["needed"] for r in table.values())
            ):
                near = f"work_dir: {roomy['mount']} ({format_bytes(int(roomy['free_bytes']))} free)"
            notes.refuse(
                "GB-SPACE-001",
                "host",
                f"{format_bytes(row['free'])} free on {row['mount']}",
                f"{format_bytes(row['needed'])} ({'; '.join(row['for'])})",
                nearest=near,
            )
    return sorted(table.values(), key=lambda row: str(row["mount"]))


def check_inodes(needs: list[tuple[str, str, int]], probe: Mapping[str, Any], notes: Notes) -> None:
    """Sum the needs [(what, path, files)] per mount and refuse where a mount has too few free inodes."""
    mounts = probe.get("mounts") or []
    table: dict[str, tuple[int, int, list[str]]] = {}
    for what, path, count in needs:
        mount = mount_of(path, mounts)
        if mount and mount.get("free_inodes") is not None:
            needed, free, why = table.get(mount["mount"], (0, int(mount["free_inodes"]), []))
            table[mount["mount"]] = (needed + count, free, [*why, f"{what} {count} in {path}"])
    for place, (needed, free, why) in table.items():
        if needed > free:
            notes.refuse(
                "GB-SPACE-003",
                "host",
                f"{free} free inodes on {place}",
                f"{needed} ({'; '.join(why)})",
                nearest="work_dir on another disk",
            )


def check_floors(probe: Mapping[str, Any], gpus: list[Json], floors: Mapping[str, Any], notes: Notes) -> None:
    """Warn of memory, shared memory and process limits under which training breaks down late."""
    memory = memory_bytes(probe)
    sold = [max(gpu["row"]["memory_gb"]) for gpu in gpus if gpu["row"] and gpu["row"].get("memory_gb")]
    told = [
        int(g["memory_mib"])
        for g in ((probe.get("driver") or {}).get("smi") or {}).get("gpus") or []
        if g.get("memory_mib")
    ]
    on_gpus = sum(told) * 1024**2 if told else sum(sold) * GIB
    least = max(int(floors["memory_gib"]) * GIB, int(on_gpus * float(floors["memory_per_gpu_memory"])))
    # A machine of 16 GiB shows a little less.
    if memory and gpus and memory < 0.95 * least:
        notes.warn("GB-MEM-001", "host", f"{memory / GIB:.1f} GiB", f"{least / GIB:.0f} GiB for {len(gpus)} GPUs")
    shm, share = probe.get("shm_bytes"), int(floors["shm_gib_per_gpu"])
    if shm is not None and gpus and int(shm) < share * len(gpus) * GIB:
        notes.warn("GB-SHM-001", "host", f"{int(shm) / GIB:.2f} GiB", f"{share * len(gpus)} GiB for {len(gpus)} GPUs")
    pids = probe.get("pids_max")
    if pids is not None and gpus and int(pids) < int(floors["pids"]):
        notes.warn("GB-PIDS-001", "host", f"{pids} processes", f"{floors['pids']}")
