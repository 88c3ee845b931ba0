"""The NVIDIA driver: what is there, what this host could be given, and which of those fits a stack.

Sources, their packages and their limits are tables (`driver_sources.yml`); nothing here knows a package by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .notes import Notes
from .values import Json, at_least, version_tuple

# Flavours of the kernel modules, by what the GPUs of gpus.yml allow.
OPEN, PROPRIETARY = "open", "proprietary"


class Wish(NamedTuple):
    """What is asked of a driver: oldest versions, and what the user pinned (empty: free)."""

    floor: str
    full: str
    branch: str
    version: str
    pinned_branch: str
    pinned_source: str
    pinned_flavour: str


def installed_driver(probe: Mapping[str, Any]) -> str:
    """Version of the loaded driver module, else what nvidia-smi reports, else ""."""
    driver = probe.get("driver") or {}
    return str(driver.get("loaded_version") or (driver.get("smi") or {}).get("driver_version") or "")


def branch_of(version: str) -> str:
    """Branch of a driver's version, of a Debian package's too: "580.173.02-0ubuntu0.24.04.1" -> "580"."""
    return str(version_tuple(version.rpartition(":")[2])[0])


def upstream_version(package_version: str) -> str:
    """The driver's version in a package's: "1:535.309.01-0+deb12u1" -> "535.309.01"."""
    return re.split(r"[-~+]", package_version.rpartition(":")[2])[0]


def libraries_version(probe: Mapping[str, Any]) -> str:
    """Version of the user's half, from the name of libcuda's file; "" when there is none."""
    match = re.search(r"libcuda\.so\.(\d+(?:\.\d+)+)$", str((probe.get("driver") or {}).get("libcuda") or ""))
    return match.group(1) if match else ""


# --- kernel modules ---------------------------------------------------------------------------------------------------


def flavours(gpus: Iterable[Mapping[str, Any]]) -> tuple[set[str], dict[str, list[str]]]:
    """Return the flavours that drive all these GPUs, and the models that need or rule out the open one."""
    allowed = {OPEN, PROPRIETARY}
    models: dict[str, list[str]] = {"required": [], "impossible": []}
    for gpu in gpus:
        need = (gpu.get("row") or {}).get("open_modules")
        if need in models and gpu["name"] not in models[need]:
            models[need].append(gpu["name"])
    if models["required"]:
        allowed.discard(PROPRIETARY)
    if models["impossible"]:
        allowed.discard(OPEN)
    return allowed, models


# --- options ----------------------------------------------------------------------------------------------------------


def _offers(probe: Mapping[str, Any]) -> dict[str, list[Json]]:
    """What apt offers: {package: [{version, sources, depends}]}; a probe of an older release told candidates only."""
    apt = probe.get("apt") or {}
    if apt.get("offers"):
        return dict(apt["offers"])
    return {
        name: [{"version": version, "sources": [], "depends": []}]
        for name, version in (apt.get("candidates") or {}).items()
    }


def _leads_to(name: str, row: Mapping[str, Any]) -> str:
    """Branch that a transitional package installs instead of the one in its name; "" when it is what it says.

    Ubuntu's nvidia-headless-535-server depends on nvidia-headless-580-server and on nothing of 535.
    """
    own = re.search(r"-(\d{3})\b", name)
    if not own:
        return ""
    others = {m.group(1) for m in (re.search(r"-(\d{3})\b", depends) for depends in row.get("depends") or []) if m}
    if others and own.group(1) not in others:
        return max(others, key=int)
    actual = branch_of(str(row["version"]))
    return actual if actual != own.group(1) else ""


def _in_range(branch: str, limits: Iterable[str | None]) -> bool:
    first, last = limits
    return (first is None or int(branch) >= int(first)) and (last is None or int(branch) <= int(last))


def driver_options(probe: Mapping[str, Any], system: str, data: Mapping[str, Any]) -> list[Json]:
    """Every driver that this host could be given, from the tables and from what apt offers.

    [{source, title, flavour, branch, version, package_version, lead, packages, beside, pinning, fabric_manager,
    repository, components, leads_to}]: `version` is empty where only the source itself can tell the newest one, and
    `leads_to` names the branch that a transitional package would really install.
    """
    offers = _offers(probe)
    machine = {"x86_64": "x86_64", "aarch64": "sbsa"}.get(str(probe.get("machine") or "x86_64"), "")
    options: list[Json] = []
    for source, row in data["driver_sources"].items():
        if system not in row["systems"] or not machine:
            continue
        repository = dict((row["repository"] or {}).get(system) or {})
        if repository:
            repository["path"] = repository["path"].format(arch=machine)
        found = [option for form in row["forms"] for option in _offered(form, row, offers, data["driver"])]
        known = bool(found)
        if not known:
            found = [option for form in row["forms"] for option in _foreseen(form, row["offers"].get(system) or [])]
        options += [
            {
                "source": source, "title": row["title"], **option, "components": list(row["components"]) if not known else [],
                "repository": {} if known else repository,
            }
            for option in found
        ]  # fmt: skip
    return options


def _offered(
    form: Mapping[str, Any], source: Mapping[str, Any], offers: Mapping[str, list[Json]], branches: Iterable[str]
) -> list[Json]:
    """Options of one form that apt offers now."""
    named = "{branch}" in form["lead"]
    found = []
    for lead_branch in [*branches] if named else [""]:
        lead = form["lead"].format(branch=lead_branch)
        for row in offers.get(lead) or []:
            if row["sources"] and not any(re.search(source["match"], s) for s in row["sources"]):
                continue
            leads_to = _leads_to(lead, row)
            branch = lead_branch or branch_of(row["version"])
            if _in_range(branch, form["branches"]):
                found.append(
                    _option(form, branch, str(row["version"]), leads_to, _missing_fabric(form, branch, row, offers))
                )
    return found


def _foreseen(form: Mapping[str, Any], branches: Iterable[str]) -> list[Json]:
    """Options of one form that its source is known to have, once it is switched on."""
    return [_option(form, branch, "", "", "") for branch in branches if _in_range(branch, form["branches"])]


def _option(form: Mapping[str, Any], branch: str, package_version: str, leads_to: str, no_fabric: str) -> Json:
    def names(key: str) -> list[str]:
        return [name.format(branch=branch) for name in form[key]]

    return {
        "flavour": form["flavour"], "branch": branch, "version": upstream_version(package_version) if package_version else "",
        "package_version": package_version, "lead": form["lead"].format(branch=branch), "packages": names("packages"),
        "beside": names("beside"), "pinning": form["pinning"].format(branch=branch), "fabric_manager": names("fabric_manager"),
        "no_fabric_manager": no_fabric or ("" if form["fabric_manager"] else "its source has no fabric manager"), "leads_to": leads_to,
    }  # fmt: skip


def _missing_fabric(
    form: Mapping[str, Any], branch: str, row: Mapping[str, Any], offers: Mapping[str, list[Json]]
) -> str:
    """Why this driver has no fabric manager of exactly its version; "" when it has."""
    wanted = upstream_version(str(row["version"]))
    for name in (n.format(branch=branch) for n in form["fabric_manager"]):
        versions = [upstream_version(str(offer["version"])) for offer in offers.get(name) or []]
        if wanted not in versions:
            return f"{name} is offered as {', '.join(versions) or 'nothing'}, not as {wanted}"
    return ""


# --- choice -----------------------------------------------------------------------------------------------------------


def objections(
    option: Mapping[str, Any],
    wish: Wish,
    gpus: list[Json],
    nvswitches: bool,
    limits: Iterable[Mapping[str, Any]],
    system: str,
    kernel: str,
) -> list[str]:
    """Why an option doesn't fit, in words; empty when it does."""
    found = []
    branch, version = str(option["branch"]), str(option["version"] or option["branch"])
    allowed, models = flavours(gpus)
    if option["leads_to"]:
        found.append(f"{option['lead']} is transitional and installs branch {option['leads_to']}")
    # Without an exact version a branch counts by its number: 525 is taken to reach 525.60.13.
    floor = wish.floor if option["version"] else branch_of(wish.floor)
    if not at_least(version, floor):
        found.append(f"older than {wish.floor}")
    if option["flavour"] not in allowed:
        kind = "required" if option["flavour"] == PROPRIETARY else "impossible"
        found.append(f"its {option['flavour']} kernel modules can't drive {', '.join(models[kind])}")
    for gpu in gpus:
        row = gpu.get("row") or {}
        if row.get("min_driver_branch") and int(branch) < int(row["min_driver_branch"]):
            found.append(f"{gpu['name']} needs branch {row['min_driver_branch']} or newer")
        if row.get("max_driver_branch") and int(branch) > int(row["max_driver_branch"]):
            found.append(f"{gpu['name']} is driven up to branch {row['max_driver_branch']}")
    if nvswitches and option["no_fabric_manager"]:
        found.append(f"NVSwitches need a fabric manager of the same version: {option['no_fabric_manager']}")
    for limit in limits:
        same = (limit["source"], limit["system"]) == (option["source"], system)
        # What a source will have once it is switched on is known by its branch alone.
        meant = version == limit["version"] if option["version"] else branch == branch_of(limit["version"])
        if same and meant and at_least(kernel or "0", limit["kernel_from"]):
            found.append(str(limit["why"]))
    for pinned, value, word in (
        (wish.pinned_branch, branch, "branch"),
        (wish.pinned_source, option["source"], "source"),
        (wish.pinned_flavour, option["flavour"], "flavour"),
    ):
        if pinned and pinned != value:
            found.append(f"{word} {pinned} was asked for")
    return list(dict.fromkeys(found))


def rank(option: Mapping[str, Any], wish: Wish, data: Mapping[str, Any], allowed: set[str]) -> tuple[Any, ...]:
    """Sort key of the options that fit, best first: the stack's branch, else the nearest newer one that still gets fixes."""
    branch, wanted = int(option["branch"]), int(wish.branch)
    full = option["version"] or option["branch"]
    # As NVIDIA's own installers choose: the open modules where the GPUs can use them, from the branch on that made them the default.
    modern = OPEN in allowed and branch >= int(data["open_modules"]["default_since"])
    return (
        not at_least(full, wish.full if option["version"] else branch_of(wish.full)),
        branch != wanted,
        branch < wanted,
        (data["driver"].get(option["branch"]) or {}).get("state") != "supported",
        abs(branch - wanted),
        bool(option["repository"]),
        option["flavour"] != (OPEN if modern else PROPRIETARY),
        option["version"] != wish.version,
    )


def choose_driver(
    probe: Mapping[str, Any], wish: Wish, gpus: list[Json], system: str, data: Mapping[str, Any]
) -> tuple[Json, list[str]]:
    """Return the option that is taken ({} when none fits) and a line on each that isn't, one for those alike."""
    kernel = str((probe.get("kernel") or {}).get("will_boot") or (probe.get("kernel") or {}).get("release") or "")
    allowed, _ = flavours(gpus)
    fitting, rejected = [], []
    for option in driver_options(probe, system, data):
        reasons = objections(option, wish, gpus, bool(probe.get("nvswitches")), data["driver_limits"], system, kernel)
        if reasons:
            what = option["version"] or f"branch {option['branch']}"
            rejected.append(f"{what} {option['flavour']} of {option['title']}: {'; '.join(reasons)}")
        else:
            fitting.append(option)
    fitting.sort(key=lambda option: rank(option, wish, data, allowed))
    return (fitting[0] if fitting else {}), list(dict.fromkeys(rejected))


# --- decision ---------------------------------------------------------------------------------------------------------


def decide_driver(
    probe: Mapping[str, Any],
    kind: str,
    gpus: list[Json],
    stack: Mapping[str, Any],
    cuda: Mapping[str, Any],
    settings: Mapping[str, Any],
    system: str,
    wanted: bool,
    data: Mapping[str, Any],
    notes: Notes,
) -> Json:
    """Return {action, found, wanted, why, option, reboot} for one stack; what stands against it goes into the notes.

    `wanted`: whether the component is among those that were asked for. `reboot`: why one is needed, "" when none is.
    """
    found = installed_driver(probe)
    floor, full = str(cuda["driver_floor"]), str(cuda["driver_min"])
    decision: Json = {
        "action": "none", "found": found or "none", "wanted": f"{floor} or newer", "why": "", "option": {}, "reboot": "",
    }  # fmt: skip
    if kind in ("container", "wsl"):
        _check_landlords(probe, found, gpus, cuda, notes)
        why = "the landlord's machine owns the driver of a container" if gpus else "this container sees no GPU"
        return {
            **decision,
            "action": "provided" if gpus else "none",
            "why": why,
            "wanted": f"{floor} or newer" if gpus else "none",
        }
    if not gpus:
        return {**decision, "why": "this machine has no NVIDIA GPU", "wanted": "none"}

    unfit = _unfit(probe, found, gpus, floor) if found else []
    if found and not unfit:
        if not at_least(found, full):
            notes.warn(
                "GB-DRV-002", "nvidia_driver", f"driver {found}", f"{full} or newer for all of CUDA {cuda['release']}"
            )
        libraries = libraries_version(probe)
        stale = f"module {found} is loaded and the libraries are {libraries}" if libraries not in ("", found) else ""
        if stale:
            notes.warn("GB-DRV-008", "nvidia_driver", stale, "one version: a reboot loads the module of the libraries")
        return {**decision, "action": "keep", "why": f"driver {found} is loaded", "reboot": stale}

    if not wanted:
        if found:
            notes.refuse(
                "GB-DRV-003",
                "nvidia_driver",
                f"driver {found}: {'; '.join(unfit)}",
                f"{floor} or newer for CUDA {cuda['release']}",
            )
        else:
            notes.warn("GB-DRV-004", "nvidia_driver", "no driver is loaded", f"driver {stack.get('driver') or floor}")
        return {**decision, "why": "the component was left out"}

    wish = Wish(
        floor, full, str(stack.get("driver_branch") or branch_of(str(stack.get("driver") or full))), str(stack.get("driver") or full),
        settings["nvidia_driver_branch"], settings["nvidia_driver_source"], settings["nvidia_driver_flavour"],
    )  # fmt: skip
    option, rejected = choose_driver(probe, wish, gpus, system, data)
    offer = f"{option['version'] or 'branch ' + option['branch']} of {option['title']}" if option else ""
    if found and not settings["nvidia_driver_replace"]:
        notes.refuse(
            "GB-DRV-003", "nvidia_driver", f"driver {found}: {'; '.join(unfit)}", f"{floor} or newer for CUDA {cuda['release']}",
            nearest=f"nvidia_driver_replace: true ({offer})" if offer else "",
        )  # fmt: skip
        return {**decision, "action": "refuse", "why": "; ".join(unfit)}
    if not option:
        _explain_none(gpus, wish, rejected, probe, system, data, notes)
        return {**decision, "action": "refuse", "why": "no source has a driver that fits"}

    check_ground(probe, settings, notes)
    if option["branch"] != wish.branch and not wish.pinned_branch:
        notes.warn(
            "GB-DRV-006", "nvidia_driver", f"branch {wish.branch} of the stack is not to be had here", f"driver {wish.version}", nearest=offer,
        )  # fmt: skip
    if not at_least(option["version"] or option["branch"], full if option["version"] else branch_of(full)):
        notes.warn(
            "GB-DRV-002", "nvidia_driver", f"driver {offer}", f"{full} or newer for all of CUDA {cuda['release']}"
        )
    return {
        **decision, "action": "replace" if found else "install", "wanted": offer, "option": option,
        "why": f"{found} does not fit: {'; '.join(unfit)}" if found else "no driver is loaded", "reboot": _reboot(probe, found),
    }  # fmt: skip


def _unfit(probe: Mapping[str, Any], found: str, gpus: list[Json], floor: str) -> list[str]:
    """Why the loaded driver doesn't do for this toolkit and these GPUs."""
    reasons = [] if at_least(found, floor) else [f"older than {floor}"]
    allowed, models = flavours(gpus)
    flavour = (probe.get("driver") or {}).get("flavour")
    if flavour and allowed and flavour not in allowed:
        kind = "required" if flavour == PROPRIETARY else "impossible"
        reasons.append(f"its {flavour} kernel modules can't drive {', '.join(models[kind])}")
    for gpu in gpus:
        least = (gpu.get("row") or {}).get("min_driver_branch")
        if least and int(branch_of(found)) < int(least):
            reasons.append(f"{gpu['name']} needs branch {least} or newer")
    return list(dict.fromkeys(reasons))


def _reboot(probe: Mapping[str, Any], found: str) -> str:
    """Why a reboot is needed before the driver that is installed now works; "" when none is."""
    driver, kernel = probe.get("driver") or {}, probe.get("kernel") or {}
    if found:
        return f"module {found} is loaded and in use"
    if driver.get("nouveau_loaded"):
        return "nouveau has the GPU"
    if kernel.get("will_boot") and kernel["will_boot"] != kernel.get("release"):
        return f"the module is built for kernel {kernel['will_boot']}, {kernel.get('release')} is running"
    return ""


def _check_landlords(
    probe: Mapping[str, Any], found: str, gpus: list[Json], cuda: Mapping[str, Any], notes: Notes
) -> None:
    """Hold a toolkit against a driver that can't be changed, and look at what a container's image put before it."""
    if not gpus:
        notes.warn(
            "GB-GPU-005", "nvidia_driver", "no GPU that a driver hands out", "one, or `software only` is the best verdict"
        )  # fmt: skip
        return
    compat = _newest_compat(probe)
    able = all((gpu.get("row") or {}).get("forward_compatibility") for gpu in gpus)
    if compat and found and not at_least(found, compat) and not able:
        names = ", ".join(dict.fromkeys(gpu["name"] for gpu in gpus))
        notes.warn(
            "GB-DRV-011",
            "nvidia_driver",
            f"libcuda {compat} of cuda-compat, driver {found}",
            f"the driver's own libcuda on {names}",
        )
    if found and not at_least(found, str(cuda["driver_floor"])):
        if compat and able and at_least(compat, str(cuda["driver_floor"])):
            notes.warn(
                "GB-DRV-010",
                "nvidia_driver",
                f"libcuda {compat} of cuda-compat over driver {found}",
                f"driver {cuda['driver_floor']}",
            )
        else:
            notes.refuse(
                "GB-DRV-001", "nvidia_driver", f"driver {found}", f"{cuda['driver_floor']} or newer for CUDA {cuda['release']}"
            )  # fmt: skip
    elif found and not at_least(found, str(cuda["driver_min"])):
        notes.warn(
            "GB-DRV-002", "nvidia_driver", f"driver {found}", f"{cuda['driver_min']} or newer for all of CUDA {cuda['release']}"
        )  # fmt: skip
    if probe.get("nvswitches") and len(gpus) > 1:
        notes.warn(
            "GB-NVS-001",
            "nvidia_driver",
            f"{len(probe['nvswitches'])} NVSwitches",
            "a fabric manager on the landlord's machine",
        )


def _newest_compat(probe: Mapping[str, Any]) -> str:
    names = [str(path) for path in (probe.get("driver") or {}).get("compat") or []]
    versions = [m.group(1) for m in (re.search(r"libcuda\.so\.(\d+(?:\.\d+)+)$", name) for name in names) if m]
    return max(versions, key=version_tuple, default="")


def _explain_none(
    gpus: list[Json],
    wish: Wish,
    rejected: list[str],
    probe: Mapping[str, Any],
    system: str,
    data: Mapping[str, Any],
    notes: Notes,
) -> None:
    """Refuse with the plainest reason why nothing fits, and with what would."""
    allowed, models = flavours(gpus)
    if not allowed:
        notes.refuse(
            "GB-KMOD-001", "nvidia_driver", f"{', '.join(models['required'])} and {', '.join(models['impossible'])} in one machine",
            "GPUs that one kind of kernel module drives",
        )  # fmt: skip
        return
    if wish.pinned_flavour and wish.pinned_flavour not in allowed:
        kind = "required" if wish.pinned_flavour == PROPRIETARY else "impossible"
        notes.refuse(
            "GB-KMOD-002", "nvidia_driver", f"nvidia_driver_flavour: {wish.pinned_flavour} for {', '.join(models[kind])}", f"{', '.join(allowed)} kernel modules",
            nearest=f"nvidia_driver_flavour: {', '.join(allowed)}",
        )  # fmt: skip
        return
    free = wish._replace(pinned_branch="", pinned_source="", pinned_flavour="")
    other, _ = choose_driver(probe, free, gpus, system, data)
    near = f"{other['version'] or 'branch ' + other['branch']} {other['flavour']} of {other['title']}" if other else ""
    options = [o for o in driver_options(probe, system, data) if o["branch"] == wish.pinned_branch]
    moved = sorted({o["leads_to"] for o in options if o["leads_to"]})
    if moved:
        having = sorted({o["title"] for o in options if not o["leads_to"]})
        notes.refuse(
            "GB-DRV-007", "nvidia_driver", f"the packages of branch {wish.pinned_branch} install branch {', '.join(moved)} now",
            f"branch {wish.pinned_branch}" + (f", which {', '.join(having)} has" if having else ", which no source has any more"),
            nearest=f"nvidia_driver_source: {next(o['source'] for o in options if not o['leads_to'])}" if having else near and f"nvidia_driver_branch: '{other['branch']}' ({near})",
        )  # fmt: skip
        return
    notes.refuse(
        "GB-DRV-005", "nvidia_driver", "; ".join(rejected[:6]) or "no source serves this system", f"a driver from {wish.floor} on", nearest=near
    )  # fmt: skip


# --- the host, before a driver is installed ---------------------------------------------------------------------------


def check_ground(probe: Mapping[str, Any], settings: Mapping[str, Any], notes: Notes) -> None:
    """Refuse to install a driver where it couldn't be built, loaded, or kept apart from another one."""
    driver, apt, kernel = probe.get("driver") or {}, probe.get("apt") or {}, probe.get("kernel") or {}
    if driver.get("runfile") and not settings["nvidia_driver_replace"]:
        notes.refuse(
            "GB-DRV-009", "nvidia_driver", f"{driver['runfile']} is there", "no driver, or one that came as packages",
            nearest="nvidia_driver_replace: true",
        )  # fmt: skip
    if probe.get("secure_boot") == "enabled":
        notes.refuse(
            "GB-BOOT-001", "nvidia_driver", "secure boot is on and the module that DKMS builds is unsigned",
            "secure boot off, or a machine owner key that DKMS signs with",
        )  # fmt: skip
    held = sorted(name for name in apt.get("holds") or [] if name in {p["name"] for p in driver.get("packages") or []})
    ours = set((probe.get("nvidia_driver") or {}).get("held") or [])
    strangers = [name for name in held if name not in ours]
    if strangers and not settings["nvidia_driver_replace"]:
        notes.refuse(
            "GB-APT-003", "nvidia_driver", f"held: {', '.join(strangers)}", "no hold on packages of the driver family",
            nearest="nvidia_driver_replace: true",
        )  # fmt: skip
    if apt.get("candidates_asked"):
        _check_build(probe, kernel, apt, notes)


def _check_build(probe: Mapping[str, Any], kernel: Mapping[str, Any], apt: Mapping[str, Any], notes: Notes) -> None:
    release = str(kernel.get("will_boot") or kernel.get("release") or "")
    offered = apt.get("candidates") or {}
    if release and release not in (kernel.get("headers") or []) and f"linux-headers-{release}" not in offered:
        newer = [name for name in offered if name.startswith("linux-headers-")]
        notes.refuse(
            "GB-KERN-001", "nvidia_driver", f"no linux-headers-{release} here nor in apt's lists", "headers of the kernel that will boot",
            nearest=f"boot a kernel with headers ({', '.join(newer)})" if newer else "",
        )  # fmt: skip
    compiler = kernel_compiler(kernel)
    gcc = probe.get("gcc") or {}
    have = {str(v) for v in gcc.get("available") or []}
    if gcc.get("default"):
        have.add(str(version_tuple(str(gcc["default"]))[0]))
    if compiler and compiler.partition("-")[2] not in have and compiler not in offered:
        notes.refuse(
            "GB-KERN-002", "nvidia_driver", f"no {compiler} here nor in apt's lists", f"{compiler}, with which the kernel was built"
        )  # fmt: skip


def build_prerequisites(probe: Mapping[str, Any]) -> list[str]:
    """Packages that the build of the module needs: DKMS, the headers of the kernel that will boot, its compiler."""
    kernel, offered = probe.get("kernel") or {}, (probe.get("apt") or {}).get("candidates") or {}
    release, compiler = str(kernel.get("will_boot") or kernel.get("release") or ""), kernel_compiler(kernel)
    wanted = [f"linux-headers-{release}"] if release and release not in (kernel.get("headers") or []) else []
    return ["dkms", "kmod", *wanted, *([compiler] if compiler in offered else [])]


def kernel_compiler(kernel: Mapping[str, Any]) -> str:
    """Package of the compiler that the running kernel was built with: "gcc-12", or "" where /proc/version names none."""
    match = re.search(r"gcc-(\d+)|gcc[^)]*\)\s+(\d+)\.", str(kernel.get("compiler") or ""))
    return f"gcc-{match.group(1) or match.group(2)}" if match else ""
