"""The plan: one document that says what a host needs, decided from one probe before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .components import UNKNOWN_SIZE, Planner, check_installers_place, check_relations, choose_components
from .gpus import find_gpus
from .host import check_host, decide_host_kind
from .notes import Notes
from .rented import check_rented
from .settings import COMPONENTS, read_settings
from .space import check_floors, check_inodes, check_space
from .stacks import check_stack, choose_stack
from .values import Json, one_of

SCHEMA_VERSION = 1
# Steps that are no components follow from what the components need: a usable apt, big files, one reboot, the proofs.
# Downloads go on in the background while the driver's module is built.
STEP_ORDER = (
    "package_manager",
    "prefetch",
    "nvidia_driver",
    "miniconda",
    "cuda_toolkit",
    "cudnn",
    "shell_environment",
    "pytorch_stack",
    "reboot",
    "verify",
)


def plan(probe: Mapping[str, Any], settings: Mapping[str, Any], data: Mapping[str, Any], host: str = "") -> Json:
    """Return the plan document for one host (docs/plan.schema.json).

    Raises ValueError when a setting makes no sense or the probe isn't one.
    """
    if not isinstance(probe, Mapping) or "schema_version" not in probe:
        raise ValueError(
            "the probe is not a document of host_probe (no schema_version): make one with bootstrap.yml or plan.yml, see docs/probe.md"
        )
    if probe["schema_version"] != SCHEMA_VERSION:
        raise ValueError(
            f"the probe has schema_version {probe['schema_version']!r}, expected {SCHEMA_VERSION}: probe the host again with this release"
        )
    chosen = read_settings(settings)
    if chosen["nvidia_driver_source"]:
        one_of("nvidia_driver_source", chosen["nvidia_driver_source"], data["driver_sources"])
    notes = Notes(data["rules"])
    kind = decide_host_kind(probe, chosen["host_kind"], notes)
    gpus = find_gpus(probe, kind["value"], data["gpus"])
    components = choose_components(chosen, kind["value"], notes)
    check_host(probe, gpus, data, notes)
    rented = check_rented(probe, gpus, chosen["rented_as"], data, notes)

    def check(stack: Json) -> Notes:
        trial = Notes(data["rules"])
        check_stack(stack, probe, kind["value"], gpus, components, chosen, data, trial)
        return trial

    stack, chosen_by = choose_stack(chosen["stack"], check, data["stacks"], data["cuda"], notes)
    planner = Planner(probe, chosen, stack, kind["value"], gpus, data, notes)
    planned = {name: getattr(planner, name)() for name in COMPONENTS if name in components}
    check_relations(planned, planner, notes)
    space = check_space(planner.needs, probe, notes)
    check_inodes(planner.inodes, probe, notes)
    check_floors(probe, gpus, data["host_floors"], notes)
    check_installers_place(planner, probe, notes)

    reboot = str((planned.get("nvidia_driver") or {}).get("inputs", {}).get("reboot") or "")
    if reboot and not chosen["reboot_allowed"]:
        notes.warn("GB-BOOT-002", "nvidia_driver", reboot, "reboot_allowed: true")
    rebooting = bool(reboot) and chosen["reboot_allowed"]
    lock_sha256 = str(planner.lock.get("sha256") or "")
    todo = [name for name, entry in planned.items() if entry["action"] in ("install", "replace")]
    barred = kind["value"] not in ("container", "wsl") or bool((probe.get("apt") or {}).get("driver_barred", True))
    proved = not todo and not rebooting and planner.receipt_holds(planned, lock_sha256)
    prefetch = planner.prefetch(planned)
    steps = set(todo)
    if prefetch["files"] or prefetch["wheels"]:
        steps.add("prefetch")
    if todo or not barred:
        steps.add("package_manager")
    if rebooting:
        steps.add("reboot")
    if not proved:
        steps |= {"verify"} | ({"nvidia_driver"} & set(planned))
    refused = bool(notes.refusals)
    return {
        "schema_version": SCHEMA_VERSION,
        "host": host or str(probe.get("hostname") or ""),
        "status": "refused" if refused else "apply" if steps else "nothing",
        "host_kind": kind,
        "stack": {**{k: v for k, v in stack.items() if k not in ("source", "confidence")}, "chosen_by": chosen_by},
        "rented": rented,
        "gpus": [{"name": g["name"], "compute_capability": g["compute_capability"]} for g in gpus],
        "components": planned,
        "steps": [] if refused else [step for step in STEP_ORDER if step in steps],
        "refusals": notes.refusals,
        "warnings": notes.warnings,
        "prefetch": prefetch,
        "verify": planner.verify(planned, lock_sha256),
        "download_bytes": sum(f["size"] or UNKNOWN_SIZE for f in planner.files) + planner.wheel_bytes,
        "space": space,
        "package_manager": {
            "bar_driver": kind["value"] in ("container", "wsl"), "driver_family": list(data["driver_family"]), "timeout": chosen["install_timeout"],
        },
        "reboot": {
            "needed": bool(reboot), "allowed": chosen["reboot_allowed"], "why": reboot, "timeout": chosen["reboot_timeout"],
            "boot_time_command": chosen["reboot_boot_time_command"], "gpus": len(gpus),
        },
        "paths": planner.paths,
        "become": (probe.get("user") or {}).get("uid") != 0,
    }  # fmt: skip
