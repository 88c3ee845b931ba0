"""Stacks: which versions belong together, which of them work on a host, which one is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .driver import decide_driver
from .gpus import runs_on, unique_models
from .host import system_of
from .notes import Notes
from .values import Json, at_least, major_minor, nearest_version, one_of, version_tuple

STACK_KEYS = {
    "name", "base", "title", "driver", "driver_branch", "cuda", "cudnn", "miniconda", "python", "torch", "torch_cuda",
    "torch_index", "lock", "packages", "source", "confidence",
}  # fmt: skip


def user_stack(request: Mapping[str, Any], stacks: Mapping[str, Json]) -> Json:
    """A stack from the inventory, whole or on the base of a shipped one; ValueError names what is missing."""
    for key in request:
        one_of("key of stack", key, sorted(STACK_KEYS))
    base = dict(stacks[one_of("stack.base", request["base"], stacks)]) if request.get("base") else {}
    row = {**base, **request}
    row.setdefault("name", f"{request['base']}-own" if request.get("base") else "own")
    missing = sorted({"cuda", "cudnn", "miniconda", "python", "torch", "lock"} - set(row))
    if missing:
        raise ValueError(
            f"stack lacks {', '.join(missing)}: give them, or start from a shipped one with base: {next(iter(stacks))}"
        )
    row.setdefault("torch_cuda", major_minor(row["cuda"]))
    row.setdefault("torch_index", "default")
    row.setdefault("packages", {})
    return row


def version_rows(stack: Mapping[str, Any], data: Mapping[str, Any]) -> Json:
    """Look the stack's versions up in the tables; ValueError names what is unknown and the nearest."""

    def known(table: str, what: str) -> Json:
        return dict(data[table][one_of(f"stack {stack['name']}: {what}", stack[what], data[table])])

    torch = dict(data["pytorch"].get(stack["torch"]) or {})
    return {
        "cuda": known("cuda", "cuda"),
        "cudnn": known("cudnn", "cudnn"),
        "miniconda": known("miniconda", "miniconda"),
        "pytorch": torch,
    }


def check_stack(
    stack: Mapping[str, Any],
    probe: Mapping[str, Any],
    kind: str,
    gpus: list[Json],
    components: list[str],
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    notes: Notes,
) -> None:
    """Hold one stack against one host."""
    rows = version_rows(stack, data)
    cuda, torch = rows["cuda"], rows["pytorch"]
    wants = set(components)
    machine = str(probe.get("machine") or "x86_64")
    glibc = str(probe.get("glibc") or "0")
    release = cuda["release"]

    # machine and operating system
    if "cuda_toolkit" in wants and machine not in cuda["files"]:
        notes.refuse("GB-OS-005", "cuda_toolkit", machine, f"CUDA {stack['cuda']} for {', '.join(cuda['files'])}")
    lock = data["locks"].get(stack["name"]) if stack.get("lock") else None
    if "pytorch_stack" in wants and machine != "x86_64" and f"{machine}" not in str(stack.get("lock")):
        notes.refuse("GB-OS-005", "pytorch_stack", machine, f"a lock file for {machine} (shipped: x86_64)")
    if (
        "cuda_toolkit" in wants
        and cuda.get("glibc_max")
        and version_tuple(glibc)[:2] > version_tuple(cuda["glibc_max"])[:2]
    ):
        notes.refuse(
            "GB-OS-002",
            "cuda_toolkit",
            f"glibc {glibc}",
            f"glibc {cuda['glibc_max']} or older for CUDA {stack['cuda']}",
        )
    if "pytorch_stack" in wants and torch.get("glibc_min") and not at_least(glibc, torch["glibc_min"]):
        notes.refuse(
            "GB-OS-004",
            "pytorch_stack",
            f"glibc {glibc}",
            f"glibc {torch['glibc_min']} or newer for torch {stack['torch']}",
        )
    if "cuda_toolkit" in wants:
        _check_compiler(stack, cuda, probe, notes)

    # Python
    if "pytorch_stack" in wants and torch.get("python") and stack["python"] not in torch["python"]:
        notes.refuse(
            "GB-PY-001", "pytorch_stack", f"Python {stack['python']}", f"torch {stack['torch']} has wheels for Python {', '.join(torch['python'])}",
            nearest=f"python: \"{nearest_version(stack['python'], torch['python'])}\"",
        )  # fmt: skip
    if lock and lock.get("python") and lock["python"] != stack["python"]:
        notes.refuse(
            "GB-PY-002",
            "pytorch_stack",
            f"Python {stack['python']}",
            f"the lock {stack['lock']} is for Python {lock['python']}",
        )

    decide_driver(
        probe, kind, gpus, stack, cuda, settings, system_of(probe), "nvidia_driver" in wants, data, notes
    )  # fmt: skip

    # GPUs
    for gpu in unique_models(gpus):
        row, capability = gpu["row"], gpu["compute_capability"]
        if row and row.get("min_cuda") and not at_least(release, row["min_cuda"]):
            notes.refuse(
                "GB-GPU-001",
                "cuda_toolkit",
                f"{gpu['name']} (compute capability {capability})",
                f"CUDA {row['min_cuda']} or newer, the stack has {release}",
            )
        elif row and row.get("max_cuda") and not at_least(row["max_cuda"], release):
            notes.refuse(
                "GB-GPU-003",
                "cuda_toolkit",
                f"{gpu['name']} (compute capability {capability})",
                f"CUDA {row['max_cuda']} or older, the stack has {release}",
            )
        elif not row and capability and version_tuple(capability) > version_tuple(cuda["sm_max"]):
            notes.refuse(
                "GB-GPU-001",
                "cuda_toolkit",
                f"{gpu['name']} (compute capability {capability})",
                f"at most {cuda['sm_max']} for CUDA {release}",
            )
        arch = (torch.get("arch_list") or {}).get(cuda_tag(stack)) or []
        if "pytorch_stack" in wants and capability and arch and not runs_on(arch, capability):
            notes.refuse(
                "GB-GPU-002",
                "pytorch_stack",
                f"{gpu['name']} (sm_{capability.replace('.', '')})",
                f"torch {stack['torch']} ({cuda_tag(stack)}) has {' '.join(arch)}",
            )


def _check_compiler(stack: Mapping[str, Any], cuda: Mapping[str, Any], probe: Mapping[str, Any], notes: Notes) -> None:
    default = str((probe.get("gcc") or {}).get("default") or "")
    if default and version_tuple(default)[0] > int(cuda["gcc_max"]):
        available = [
            v for v in (probe.get("gcc") or {}).get("available") or [] if version_tuple(v)[0] <= int(cuda["gcc_max"])
        ]
        beside = f"gcc-{available[-1]} is installed" if available else f"gcc-{cuda['gcc_max']} gets installed beside it"
        notes.warn(
            "GB-OS-003",
            "cuda_toolkit",
            f"gcc {default}",
            f"gcc {cuda['gcc_max']} or older for CUDA {stack['cuda']}",
            nearest=beside,
        )


def cuda_tag(stack: Mapping[str, Any]) -> str:
    """Name of the wheel index of the stack's torch: "12.4" -> "cu124"."""
    return "cu" + str(stack.get("torch_cuda") or major_minor(stack["cuda"])).replace(".", "")


def choose_stack(
    request: object, check: Callable[[Json], Notes], stacks: Mapping[str, Json], cuda: Mapping[str, Json], notes: Notes
) -> tuple[Json, str]:
    """Return the stack and who chose it; adds the refusals of a stack that can't work, with the nearest that can."""
    named = {name: {**row, "name": name} for name, row in stacks.items()}
    trials = {name: check(row) for name, row in named.items()}
    working = [name for name, trial in trials.items() if not trial.refusals]
    floors = {name: version_tuple(cuda[str(row["cuda"])]["driver_floor"]) for name, row in named.items()}
    lowest = min(floors, key=lambda name: floors[name])
    if request == "auto":
        clean = [name for name in working if not any(w["code"] == "GB-DRV-002" for w in trials[name].warnings)]
        for name in [*clean, *working]:
            notes.warnings += trials[name].warnings
            return named[name], "auto: the newest that this host allows"
        # None works: show why the one with the fewest faults doesn't, and of those alike the one that asks least of the driver.
        name = min(trials, key=lambda n: (len(trials[n].refusals), floors[n]))
        notes.refusals += trials[name].refusals
        return named[name], "auto: no shipped stack works on this host"
    stack = (
        user_stack(request, stacks)
        if isinstance(request, Mapping)
        else named[one_of("stack", request, ["auto", *named])]
    )
    trial = check(stack)
    near = ""
    if working:
        nearest = min(working, key=lambda n: (abs(version_tuple(named[n]["cuda"])[0] * 100 + version_tuple(named[n]["cuda"])[1]
                                                  - version_tuple(stack["cuda"])[0] * 100 - version_tuple(stack["cuda"])[1]), n))  # fmt: skip
        near = f"stack: {nearest}"
    for refusal in trial.refusals:
        older = f"a host with driver {cuda[str(named[lowest]['cuda'])]['driver_floor']} or newer, with stack: {lowest}"
        nothing = older if refusal["code"] == "GB-DRV-001" else "none of the shipped stacks"
        refusal["nearest"] = refusal["nearest"] or near or nothing
    notes.refusals += trial.refusals
    notes.warnings += trial.warnings
    return stack, "you"
