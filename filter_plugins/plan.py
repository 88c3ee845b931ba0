"""The plan: what a host needs, decided from one probe before anything is touched.

`plan(probe, settings, data)` is a pure function. `probe` is the document of `library/host_probe.py`
(docs/probe.schema.json), `settings` the user's variables (roles/plan/meta/argument_specs.yml; a missing or null key
takes its default), `data` the version tables of `roles/plan/vars/main/`. The result is the document of
docs/plan.schema.json. Sizes are bytes, versions are strings. A request that makes no sense raises `ValueError` with the
value, what was expected and the nearest thing that works; a host that can't do what is asked is *refused* in the
document, with a code of `rules.yml`.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

SCHEMA_VERSION = 1
COMPONENTS = ("nvidia_driver", "miniconda", "cuda_toolkit", "cudnn", "shell_environment", "pytorch_stack")
# prefetch and verify are steps and not components: they follow from what the components need.
STEP_ORDER = (
    "nvidia_driver",
    "prefetch",
    "miniconda",
    "cuda_toolkit",
    "cudnn",
    "shell_environment",
    "pytorch_stack",
    "verify",
)
HOST_KINDS = ("container", "vm", "metal", "wsl")
STACK_KEYS = {
    "name", "base", "title", "driver", "driver_branch", "cuda", "cudnn", "miniconda", "python", "torch", "torch_cuda",
    "torch_index", "lock", "packages", "source", "confidence",
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "stack": "auto",
    "components": [],
    "host_kind": "",
    "rented_as": {},
    "work_dir": "",
    "conda_prefix": "",
    "cuda_prefix": "",
    "cuda_link": "/usr/local/cuda",
    "downloads_dir": "",
    "tmp_dir": "",
    "cache_dir": "",
    "hf_home": "",
    "environment_name": "",
    "mirrors": {},
    "proxy": "",
    "conda_channels": ["conda-forge"],
    "conda_accept_tos": False,
    "artifact_overrides": {},
    "reboot_allowed": False,
    "install_timeout": 3600,
    "state_dir": "/var/lib/gpu-bootstrap",
}
# Stands for a variable that nobody set (roles/plan/vars/main/settings.yml).
UNSET = "__unset__"
VENDOR_BASES = {
    "nvidia": "https://developer.download.nvidia.com",
    "miniconda": "https://repo.anaconda.com/miniconda",
    "pytorch": "https://download.pytorch.org/whl",
}
MIRROR_KINDS = ("nvidia", "miniconda", "pytorch", "pypi", "conda", "huggingface")
GIB = 1024**3
# An installer without a known size: Miniconda's are 130 to 170 MB (only used to ask for space).
UNKNOWN_SIZE = 200 * 1000**2

Json = dict[str, Any]


class _Refusals:
    """Collects refusals and warnings in the shape of the plan document, with the texts of the rules table."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        self._rules = rules
        self.refusals: list[Json] = []
        self.warnings: list[Json] = []

    def refuse(self, code: str, component: str, found: str, wanted: str, nearest: str = "", **words: object) -> None:
        self.refusals.append(self._entry(code, component, found, wanted, nearest, words))

    def warn(self, code: str, component: str, found: str, wanted: str, nearest: str = "", **words: object) -> None:
        self.warnings.append(self._entry(code, component, found, wanted, nearest, words))

    def _entry(
        self, code: str, component: str, found: str, wanted: str, nearest: str, words: Mapping[str, object]
    ) -> Json:
        rule = self._rules[code]
        texts = {"found": found, "wanted": wanted, "nearest": nearest or "nothing that this release knows", **words}
        return {
            "code": code,
            "component": component,
            "found": found,
            "wanted": wanted,
            "cause": str(rule["cause"]).format(**texts),
            "remedy": str(rule["remedy"]).format(**texts),
            "whose": str(rule["whose"]),
            "nearest": nearest,
        }


# --- small helpers ---------------------------------------------------------------------------------------------------


def version_tuple(version: object) -> tuple[int, ...]:
    """Return the leading numbers of a version ("550.54.15" -> (550, 54, 15)); ValueError when there are none."""
    if not isinstance(version, str):
        raise ValueError(
            f'version {version!r} is a {type(version).__name__}, a string was expected: quote it, as in "{version}"'
        )
    match = re.match(r"\d+(?:\.\d+)*", version)
    if not match:
        raise ValueError(f'version {version!r} does not start with a number, expected something like "12.4"')
    return tuple(int(part) for part in match.group().split("."))


def _at_least(found: str, wanted: str) -> bool:
    width = max(len(version_tuple(found)), len(version_tuple(wanted)))
    padded = [version_tuple(v) + (0,) * (width - len(version_tuple(v))) for v in (found, wanted)]
    return padded[0] >= padded[1]


def _release(version: str) -> str:
    """Major.minor of a version: "12.4.1" -> "12.4"."""
    return ".".join(str(part) for part in version_tuple(version)[:2])


def _one_of(what: str, value: object, known: Iterable[str]) -> str:
    names = list(known)
    if value in names:
        return str(value)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise ValueError(f"{what} '{value}' is unknown, expected one of: {', '.join(names)}{hint}")


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1000**3), ("MB", 1000**2), ("kB", 1000)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{int(count)} B"


# --- settings --------------------------------------------------------------------------------------------------------


def _flag(name: str, value: object) -> bool:
    """Accept what people write in INI files and after -e: true, yes, 0."""
    if isinstance(value, bool):
        return value
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
        "": False,
    }
    if str(value).strip().lower() in words:
        return words[str(value).strip().lower()]
    raise ValueError(f"{name} is {value!r}, expected true or false")


def _names(name: str, value: object) -> list[str]:
    """Accept a list, or the comma separated words of `-e components=a,b`."""
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("[] ").split(",") if part.strip().strip("'\"")]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} is {value!r}, expected a list of names such as [cuda_toolkit, cudnn]")
    return [str(item).strip("'\" ") for item in value]


def _no_floats(path: str, value: object) -> None:
    """Refuse numbers where versions belong: YAML reads 12.10 as the number 12.1."""
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        raise ValueError(f'{path} is the number {value}: a version is a string, quote it: "{value}"')
    if isinstance(value, Mapping):
        for key, item in value.items():
            _no_floats(f"{path}.{key}", item)


def read_settings(settings: Mapping[str, Any]) -> Json:
    """Return the settings with defaults filled in and types made right; ValueError names what is wrong."""
    unknown = sorted(set(settings) - set(DEFAULTS))
    if unknown:
        _one_of("setting", unknown[0], DEFAULTS)
    result = {
        key: default if settings.get(key) in (None, UNSET) else settings[key] for key, default in DEFAULTS.items()
    }
    for key, default in DEFAULTS.items():
        if isinstance(default, bool):
            result[key] = _flag(key, result[key])
        elif isinstance(default, list):
            result[key] = _names(key, result[key])
        elif isinstance(default, dict):
            if not isinstance(result[key], Mapping):
                raise ValueError(f"{key} is {result[key]!r}, expected a mapping")
            result[key] = dict(result[key])
        elif isinstance(default, int):
            if not str(result[key]).isdigit():
                raise ValueError(f"{key} is {result[key]!r}, expected a number of seconds such as {default}")
            result[key] = int(result[key])
        elif key != "stack":
            result[key] = str(result[key]).strip()
    stack = result["stack"]
    if isinstance(stack, Mapping):
        _no_floats("stack", {k: v for k, v in stack.items() if k != "title"})
    elif not isinstance(stack, str):
        _no_floats("stack", stack)
        raise ValueError(f"stack is {stack!r}, expected a name, auto, or a mapping")
    for component in result["components"]:
        _one_of("component", component, COMPONENTS)
    if result["host_kind"]:
        _one_of("host_kind", result["host_kind"], HOST_KINDS)
    for kind, url in result["mirrors"].items():
        _one_of("mirror", kind, MIRROR_KINDS)
        for one in _urls(url):
            if not re.match(r"(https?|file)://", one):
                raise ValueError(f"mirrors.{kind} is {one!r}, expected a URL such as https://mirror.example.com/path")
    for key in (
        "work_dir",
        "conda_prefix",
        "cuda_prefix",
        "cuda_link",
        "downloads_dir",
        "tmp_dir",
        "cache_dir",
        "hf_home",
        "state_dir",
    ):
        path = result[key]
        if path and (not path.startswith("/") or re.search(r"\s", path)):
            raise ValueError(f"{key} is {path!r}, expected an absolute path without spaces such as /data")
        result[key] = posixpath.normpath(path) if path else ""
    if result["environment_name"] and not re.fullmatch(r"[\w.-]+", result["environment_name"]):
        raise ValueError(
            f"environment_name is {result['environment_name']!r}, expected letters, digits, '.', '_' and '-'"
        )
    for name, pins in result["artifact_overrides"].items():
        if not isinstance(pins, Mapping) or not re.fullmatch(r"[0-9a-f]{64}", str(pins.get("sha256", ""))):
            raise ValueError(f"artifact_overrides.{name} needs sha256 (64 hex digits) and size (bytes), found {pins!r}")
    return result


def _urls(value: object) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return [str(item).rstrip("/") for item in items if item]


# --- host kind -------------------------------------------------------------------------------------------------------


def decide_host_kind(probe: Mapping[str, Any], override: str, notes: _Refusals) -> Json:
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


# --- GPUs ------------------------------------------------------------------------------------------------------------


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
                (r for r in catalogue if any(_same_model(n, gpu["name"]) for n in [r["model"], *r.get("names", [])])),
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


def _same_model(one: str, other: str) -> bool:
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


# --- stacks ----------------------------------------------------------------------------------------------------------


def _user_stack(request: Mapping[str, Any], stacks: Mapping[str, Json]) -> Json:
    for key in request:
        _one_of("key of stack", key, sorted(STACK_KEYS))
    base = dict(stacks[_one_of("stack.base", request["base"], stacks)]) if request.get("base") else {}
    row = {**base, **request}
    row.setdefault("name", f"{request['base']}-own" if request.get("base") else "own")
    missing = sorted({"cuda", "cudnn", "miniconda", "python", "torch", "lock"} - set(row))
    if missing:
        raise ValueError(
            f"stack lacks {', '.join(missing)}: give them, or start from a shipped one with base: {next(iter(stacks))}"
        )
    row.setdefault("torch_cuda", _release(row["cuda"]))
    row.setdefault("torch_index", "default")
    row.setdefault("packages", {})
    return row


def _rows(stack: Mapping[str, Any], data: Mapping[str, Any]) -> Json:
    """Look the stack's versions up in the tables; ValueError names what is unknown and the nearest."""

    def known(table: str, what: str) -> Json:
        return dict(data[table][_one_of(f"stack {stack['name']}: {what}", stack[what], data[table])])

    torch = dict(data["pytorch"].get(stack["torch"]) or {})
    return {
        "cuda": known("cuda", "cuda"),
        "cudnn": known("cudnn", "cudnn"),
        "miniconda": known("miniconda", "miniconda"),
        "pytorch": torch,
    }


def _check_stack(
    stack: Mapping[str, Any],
    probe: Mapping[str, Any],
    kind: str,
    gpus: list[Json],
    components: list[str],
    data: Mapping[str, Any],
    notes: _Refusals,
) -> None:
    """Hold one stack against one host."""
    rows = _rows(stack, data)
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
    if "pytorch_stack" in wants and torch.get("glibc_min") and not _at_least(glibc, torch["glibc_min"]):
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
            nearest=f"python: \"{_nearest_version(stack['python'], torch['python'])}\"",
        )  # fmt: skip
    if lock and lock.get("python") and lock["python"] != stack["python"]:
        notes.refuse(
            "GB-PY-002",
            "pytorch_stack",
            f"Python {stack['python']}",
            f"the lock {stack['lock']} is for Python {lock['python']}",
        )

    # driver
    driver = installed_driver(probe)
    if driver and gpus:
        if not _at_least(driver, cuda["driver_floor"]):
            code = "GB-DRV-001" if kind in ("container", "wsl") else "GB-DRV-003"
            notes.refuse(
                code, "nvidia_driver", f"driver {driver}", f"{cuda['driver_floor']} or newer for CUDA {release}"
            )
        elif not _at_least(driver, cuda["driver_min"]):
            notes.warn(
                "GB-DRV-002",
                "nvidia_driver",
                f"driver {driver}",
                f"{cuda['driver_min']} or newer for all of CUDA {release}",
            )

    # GPUs
    for gpu in _unique(gpus):
        row, capability = gpu["row"], gpu["compute_capability"]
        if row and row.get("min_cuda") and not _at_least(release, row["min_cuda"]):
            notes.refuse(
                "GB-GPU-001",
                "cuda_toolkit",
                f"{gpu['name']} (compute capability {capability})",
                f"CUDA {row['min_cuda']} or newer, the stack has {release}",
            )
        elif row and row.get("max_cuda") and not _at_least(row["max_cuda"], release):
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


def _check_compiler(
    stack: Mapping[str, Any], cuda: Mapping[str, Any], probe: Mapping[str, Any], notes: _Refusals
) -> None:
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
    return "cu" + str(stack.get("torch_cuda") or _release(stack["cuda"])).replace(".", "")


def _nearest_version(wanted: str, known: Iterable[str]) -> str:
    return min(
        known,
        key=lambda v: (
            abs(version_tuple(v)[0] - version_tuple(wanted)[0]),
            abs(version_tuple(v)[1] - version_tuple(wanted)[1]),
        ),
    )


def _unique(gpus: list[Json]) -> list[Json]:
    seen: dict[str, Json] = {}
    for gpu in gpus:
        seen.setdefault(gpu["name"], gpu)
    return list(seen.values())


def installed_driver(probe: Mapping[str, Any]) -> str:
    """Version of the loaded driver module, else what nvidia-smi reports, else ""."""
    driver = probe.get("driver") or {}
    return str(driver.get("loaded_version") or (driver.get("smi") or {}).get("driver_version") or "")


def _choose_stack(
    request: object, check: Callable[[Json], _Refusals], stacks: Mapping[str, Json], notes: _Refusals
) -> tuple[Json, str]:
    """Return the stack and who chose it; adds the refusals of a stack that can't work, with the nearest that can."""
    named = {name: {**row, "name": name} for name, row in stacks.items()}
    trials = {name: check(row) for name, row in named.items()}
    working = [name for name, trial in trials.items() if not trial.refusals]
    if request == "auto":
        clean = [name for name in working if not any(w["code"] == "GB-DRV-002" for w in trials[name].warnings)]
        for name in [*clean, *working]:
            notes.warnings += trials[name].warnings
            return named[name], "auto: the newest that this host allows"
        # None works: show why the one with the fewest faults doesn't.
        name = min(trials, key=lambda n: len(trials[n].refusals))
        notes.refusals += trials[name].refusals
        return named[name], "auto: no shipped stack works on this host"
    stack = (
        _user_stack(request, stacks)
        if isinstance(request, Mapping)
        else named[_one_of("stack", request, ["auto", *named])]
    )
    trial = check(stack)
    near = ""
    if working:
        nearest = min(working, key=lambda n: (abs(version_tuple(named[n]["cuda"])[0] * 100 + version_tuple(named[n]["cuda"])[1]
                                                  - version_tuple(stack["cuda"])[0] * 100 - version_tuple(stack["cuda"])[1]), n))  # fmt: skip
        near = f"stack: {nearest}"
    for refusal in trial.refusals:
        refusal["nearest"] = refusal["nearest"] or near or "none of the shipped stacks"
    notes.refusals += trial.refusals
    notes.warnings += trial.warnings
    return stack, "you"


# --- paths, space, downloads -----------------------------------------------------------------------------------------


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
        "cuda": f"{cuda_root}/cuda-{_release(stack['cuda'])}",
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


def _artifact(kind: str, row: Mapping[str, Any], settings: Mapping[str, Any], downloads: str) -> Json:
    """One file of the prefetch manifest: mirrors first, the vendor last; pins replaced by artifact_overrides."""
    path = str(row["url_path"])
    if kind == "miniconda":
        path = "/" + posixpath.basename(path)
    pins = settings["artifact_overrides"].get(row["file"], {})
    bases = [*_urls(settings["mirrors"].get(kind)), VENDOR_BASES[kind]]
    size = pins.get("size", row.get("size")) if pins else row.get("size")
    return {
        "name": row["file"],
        "urls": list(dict.fromkeys(f"{base}{path}" for base in bases)),
        "sha256": str(pins.get("sha256") or row["sha256"]),
        "size": int(size) if size else None,
        "dest": f"{downloads}/{row['file']}",
    }


def _space(needs: list[tuple[str, str, int]], probe: Mapping[str, Any], notes: _Refusals) -> list[Json]:
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
        row["for"].append(f"{what} {_bytes(count)} in {path}")
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
                near = f"work_dir: {roomy['mount']} ({_bytes(int(roomy['free_bytes']))} free)"
            notes.refuse(
                "GB-SPACE-001",
                "host",
                f"{_bytes(row['free'])} free on {row['mount']}",
                f"{_bytes(row['needed'])} ({'; '.join(row['for'])})",
                nearest=near,
            )
    return sorted(table.values(), key=lambda row: str(row["mount"]))


# --- components ------------------------------------------------------------------------------------------------------


class _Planner:
    """Plans the components of one host, one method each, in the order of COMPONENTS."""

    def __init__(
        self,
        probe: Mapping[str, Any],
        settings: Json,
        stack: Json,
        kind: str,
        gpus: list[Json],
        data: Mapping[str, Any],
        notes: _Refusals,
    ) -> None:
        self.probe, self.settings, self.stack, self.kind, self.gpus, self.data, self.notes = (
            probe,
            settings,
            stack,
            kind,
            gpus,
            data,
            notes,
        )
        self.rows = _rows(stack, data)
        self.paths = decide_paths(settings, stack)
        self.lock = dict(data["locks"].get(stack["name"]) or {}) if stack.get("name") in data["stacks"] else {}
        self.files: list[Json] = []
        self.needs: list[tuple[str, str, int]] = []
        self.machine = str(probe.get("machine") or "x86_64")

    def nvidia_driver(self) -> Json:
        found = installed_driver(self.probe)
        least = self.rows["cuda"]["driver_floor"]
        if self.kind in ("container", "wsl"):
            action, why = "provided", "the landlord's machine owns the driver of a container"
            if not self.gpus:
                action, why = "none", "this container sees no GPU"
                self.notes.warn(
                    "GB-GPU-005",
                    "nvidia_driver",
                    "no GPU that a driver hands out",
                    "one, or `software only` is the best verdict",
                )
        elif found:
            action, why = "keep", f"driver {found} is loaded"
        elif self.gpus:
            action, why = "none", "no driver is loaded"
            self.notes.warn(
                "GB-DRV-004", "nvidia_driver", "no driver is loaded", f"driver {self.stack.get('driver') or least}"
            )
        else:
            action, why = "none", "this machine has no NVIDIA GPU"
        return {
            "action": action, "found": found or "none", "wanted": f"{least} or newer" if self.gpus else "none", "why": why,
            "inputs": {"action": action, "found": {"version": found, "kind": self.kind, "gpus": [g["name"] for g in self.gpus]}},
        }  # fmt: skip

    def miniconda(self) -> Json:
        row, prefix, python = self.rows["miniconda"], self.paths["conda"], self.stack["python"]
        channels = self.settings["conda_channels"]
        if any(c == "defaults" or "repo.anaconda.com" in c for c in channels) and not self.settings["conda_accept_tos"]:
            self.notes.refuse(
                "GB-CONDA-001",
                "miniconda",
                f"conda_channels: {channels}",
                "conda_accept_tos: true, or conda_channels: [conda-forge]",
                nearest="conda_channels: [conda-forge]",
            )
        here = next((c for c in self.probe.get("conda") or [] if c["prefix"] == prefix), None)
        environment = self._environment()
        version = row["conda"]
        found = f"conda {here['version']}" if here else "none"
        if here and here.get("version") and here["version"] != version:
            self.notes.warn("GB-CONDA-002", "miniconda", f"conda {here['version']} in {prefix}", f"conda {version}")
            version = here["version"]
        have_python = environment and _release(environment["python"] or "0") == python
        action = "keep" if here and have_python else "install"
        if environment and not have_python:
            self.notes.refuse(
                "GB-CONDA-003",
                "miniconda",
                f"{environment['prefix']} has Python {environment['python']}",
                f"Python {python}",
                nearest="another environment_name",
            )
        file = self._file(
            "miniconda", "miniconda", row["files"].get(python) or next(iter(row["files"].values()), {}), here is None
        )
        if action != "keep":
            self.needs.append(("Miniconda", prefix, 0 if here else int(row.get("installed_bytes") or GIB)))
            self.needs.append(("conda environment", self.paths["environment"], GIB // 2))
        return {
            "action": action, "found": found + (f", {self.paths['environment_name']} with Python {environment['python']}" if environment else ""),
            "wanted": f"conda {version}, {self.paths['environment_name']} with Python {python}", "why": "is there" if action == "keep" else "conda or the environment is missing",
            "inputs": {
                "version": version, "installer": file.get("dest", ""), "sha256": file.get("sha256", ""), "prefix": prefix, "channels": channels,
                "channel_alias": (_urls(self.settings["mirrors"].get("conda")) or [""])[0], "accept_tos": self.settings["conda_accept_tos"],
                "environment": self.paths["environment_name"], "python": python, "tmp_dir": self.paths["tmp"], "proxy": self.settings["proxy"],
                "timeout": self.settings["install_timeout"], **self._user("user", "user_home"),
            },
        }  # fmt: skip

    def cuda_toolkit(self) -> Json:
        row, prefix, version = self.rows["cuda"], self.paths["cuda"], self.stack["cuda"]
        here = next((t for t in self.probe.get("toolkits") or [] if t["prefix"] == prefix), None)
        whole = bool(
            here
            and here.get("nvcc")
            and here.get("version")
            and version_tuple(here["version"])[:3] == version_tuple(version)[:3]
        )
        linked = not self.paths["cuda_link"] or self.probe.get("cuda_link") == prefix
        action = "keep" if whole and linked else "install"
        if here and not whole and here.get("nvcc") and here.get("version"):
            action = "replace"
        file = self._file("nvidia", "cuda_toolkit", row["files"], not whole)
        if not whole:
            size = file.get("size") or UNKNOWN_SIZE
            overridden = self.settings["artifact_overrides"].get(file.get("name"), {})
            self.needs += [
                ("unpacked runfile", self.paths["tmp"], int(size * 1.1)),
                (
                    "CUDA toolkit",
                    prefix,
                    int(
                        overridden.get("installed_bytes")
                        or (size * 2 if overridden else row.get("installed_bytes") or size * 2)
                    ),
                ),
            ]
        return {
            "action": action, "found": str((here or {}).get("version") or "none"), "wanted": f"{version} in {prefix}",
            "why": "is there" if action == "keep" else "another version is in the way" if action == "replace" else f"{self.paths['cuda_link']} points elsewhere" if whole else "is missing",
            "inputs": {
                "version": version, "nvcc_release": row["release"], "runfile": file.get("dest", ""), "sha256": file.get("sha256", ""), "prefix": prefix,
                "link": self.paths["cuda_link"], "tmp_dir": self.paths["tmp"], "gcc_max": int(row["gcc_max"]), "timeout": self.settings["install_timeout"],
            },
        }  # fmt: skip

    def cudnn(self) -> Json:
        row, version, prefix = self.rows["cudnn"], self.stack["cudnn"], self.paths["cuda"]
        major = f"cuda{version_tuple(self.stack['cuda'])[0]}"
        if major not in row["files"]:
            self.notes.refuse(
                "GB-REQ-001", "cudnn", f"cuDNN {version} for {', '.join(row['files'])}", f"an archive for {major}"
            )
            return {"action": "refuse", "found": "", "wanted": version, "why": "no archive", "inputs": {}}
        here = next((c for c in self.probe.get("cudnn") or [] if c["prefix"] == prefix), None)
        whole = bool(
            here
            and here.get("header_version")
            and here.get("links_ok")
            and version_tuple(here["header_version"]) == version_tuple(version)[:3]
        )
        file = self._file("nvidia", "cudnn", row["files"][major], not whole)
        if not whole:
            size = file.get("size") or UNKNOWN_SIZE
            overridden = file.get("name") in self.settings["artifact_overrides"]
            self.needs += [
                ("unpacked cuDNN", prefix, int(size * 3 if overridden else row.get("installed_bytes") or size * 3))
            ]
        return {
            "action": "keep" if whole else "install", "found": str((here or {}).get("header_version") or "none"), "wanted": version, "why": "is there" if whole else "is missing",
            "inputs": {
                "version": version, "archive": file.get("dest", ""), "sha256": file.get("sha256", ""), "cuda_major": str(version_tuple(self.stack["cuda"])[0]),
                "toolkit_prefix": prefix, "tmp_dir": self.paths["tmp"],
            },
        }  # fmt: skip

    def shell_environment(self) -> Json:
        cuda_home = self.paths["cuda_link"] or self.paths["cuda"]
        variables = {"CUDA_HOME": cuda_home}
        if self.paths["hf_home"]:
            variables["HF_HOME"] = self.paths["hf_home"]
        mirror = _urls(self.settings["mirrors"].get("huggingface"))
        if mirror:
            variables["HF_ENDPOINT"] = mirror[0]
        inputs = {
            "variables": variables,
            "path": [f"{cuda_home}/bin"],
            "state_dir": self.paths["state"],
            **self._user("user", "user_home"),
        }
        applied = self.probe.get("shell_environment") or {}
        same = all(applied.get(key) == inputs[key] for key in ("variables", "path", "user"))
        blocks = set((self.probe.get("shells") or {}).get("marked_blocks") or [])
        whole = same and {"/etc/environment", "/etc/profile.d/gpu-bootstrap.sh"} <= blocks
        for stale in (self.probe.get("shells") or {}).get("stale_cuda_home") or []:
            self.notes.warn(
                "GB-ENV-001",
                "shell_environment",
                f"CUDA_HOME={stale['value']} in {stale['file']}",
                f"CUDA_HOME={cuda_home}",
            )
        for file in (self.probe.get("shells") or {}).get("ld_library_path_files") or []:
            self.notes.warn(
                "GB-ENV-002",
                "shell_environment",
                f"LD_LIBRARY_PATH is set in {file}",
                "none: the loader's cache and the wheels find their libraries",
            )
        return {
            "action": "keep" if whole else "install", "found": "our blocks" if blocks else "none", "wanted": ", ".join(f"{k}={v}" for k, v in variables.items()),
            "why": "is there" if whole else "is missing or differs", "inputs": inputs,
        }  # fmt: skip

    def pytorch_stack(self) -> Json:
        stack, paths = self.stack, self.paths
        environment = self._environment()
        pins = {
            **dict(self.lock.get("packages") or {}),
            **{_normal(k): v for k, v in (stack.get("packages") or {}).items()},
        }
        have = {_normal(k): v for k, v in ((environment or {}).get("packages") or {}).items()}
        wrong = sorted(
            name for name, version in pins.items() if have.get(name, "").split("+")[0] != version.split("+")[0]
        )
        same_lock = bool(environment) and (
            not self.lock or (environment or {}).get("lock_sha256") == self.lock["sha256"]
        )
        torch_cuda = str((environment or {}).get("torch_cuda") or "")
        whole = bool(environment) and not wrong and same_lock and torch_cuda == stack["torch_cuda"]
        if not whole:
            fetch, unpacked = (
                int(self.lock.get("download_bytes") or 4 * GIB),
                int(self.lock.get("installed_bytes") or 8 * GIB),
            )
            self.needs.append(("Python packages", paths["environment"], unpacked))
            shared = mount_of(paths["environment"], self.probe.get("mounts") or []).get("mount") == mount_of(
                paths["uv_cache"], self.probe.get("mounts") or []
            ).get("mount")
            # uv unpacks into its cache and hard-links from there: on one file system the bytes are there once.
            self.needs.append(("uv's cache", paths["uv_cache"], 0 if shared else unpacked))
            self.wheel_bytes = fetch
        index = _urls(self.settings["mirrors"].get("pypi"))
        torch_base = (_urls(self.settings["mirrors"].get("pytorch")) or [VENDOR_BASES["pytorch"]])[0]
        uv_version = next(iter(self.data["uv"]))
        return {
            "action": "keep" if whole else "install",
            "found": f"torch {have['torch']}" + (f" (CUDA {torch_cuda})" if torch_cuda else "") if "torch" in have else "none",
            "wanted": f"torch {stack['torch']} (CUDA {stack['torch_cuda']}) and {len(pins)} pinned packages",
            "why": "is there" if whole else f"differs: {', '.join(wrong[:5])}{' …' if len(wrong) > 5 else ''}" if wrong and environment else "is missing" if not environment else "other lock or CUDA build",
            "inputs": {
                "environment": paths["environment"], "lock_file": self._lock_path(), "torch": stack["torch"], "cuda": stack["torch_cuda"], "packages": dict(stack.get("packages") or {}),
                "index_url": index[0] if index else "", "torch_index_url": "" if stack["torch_index"] == "default" else f"{torch_base}/{cuda_tag(stack)}",
                "cache_dir": paths["uv_cache"], "tmp_dir": paths["tmp"], "uv_prefix": paths["uv"], "uv_version": uv_version, "uv_hashes": list(self.data["uv"][uv_version]["sha256"]),
                "cuda_home": paths["cuda_link"] or paths["cuda"], "proxy": self.settings["proxy"], "timeout": self.settings["install_timeout"],
            },
        }  # fmt: skip

    wheel_bytes = 0

    def prefetch(self, components: Mapping[str, Json]) -> Json:
        """Inputs of the one background job that fetches everything big."""
        wheels: Json = {}
        stack = components.get("pytorch_stack")
        if stack and stack["action"] == "install":
            chosen = stack["inputs"]
            wheels = {
                "python": f"{self.paths['environment']}/bin/python", "cache_dir": chosen["cache_dir"], "index_url": chosen["index_url"],
                "torch_index_url": chosen["torch_index_url"], "uv_prefix": chosen["uv_prefix"], "uv_version": chosen["uv_version"], "uv_hashes": chosen["uv_hashes"],
            }  # fmt: skip
        return {
            "files": self.files, "wheels": wheels, "lock_file": self._lock_path() if wheels else "", "state_dir": f"{self.paths['state']}/prefetch",
            "tmp_dir": self.paths["tmp"], "proxy": self.settings["proxy"],
        }  # fmt: skip

    def verify(self, components: Mapping[str, Json], lock_sha256: str) -> Json:
        """Inputs of the proofs: what was asked of this host."""
        return {
            "environment": self.paths["environment"], "cuda_home": self.paths["cuda_link"] or self.paths["cuda"], "state_dir": self.paths["state"],
            "user": (self.probe.get("user") or {}).get("name", "root"),
            "expected": {
                "stack": self.stack["name"], "driver_min": self.rows["cuda"]["driver_floor"], "cuda": self.stack["cuda"], "cudnn": self.stack["cudnn"],
                "torch": self.stack["torch"], "torch_cuda": self.stack["torch_cuda"], "python": self.stack["python"], "packages": dict(self.stack.get("packages") or {}),
                "components": sorted(components), "lock_sha256": lock_sha256, "host_kind": self.kind, "boot_id": self.probe.get("boot_id"),
                "gpus": [{"name": g["name"], "compute_capability": g["compute_capability"]} for g in self.gpus],
            },
        }  # fmt: skip

    def receipt_holds(self, components: Mapping[str, Json], lock_sha256: str) -> bool:
        """A passed proof of the same stack, boot, driver, GPUs and components is still on the host."""
        receipt = self.probe.get("receipt") or {}
        uuids = sorted(g.get("uuid", "") for g in ((self.probe.get("driver") or {}).get("smi") or {}).get("gpus") or [])
        return bool(receipt) and (
            receipt.get("verdict") not in (None, "not ready")
            and receipt.get("stack") == self.stack["name"]
            and receipt.get("lock_sha256") == lock_sha256
            and receipt.get("boot_id") == self.probe.get("boot_id")
            and (receipt.get("driver_version") or "") == installed_driver(self.probe)
            and sorted(receipt.get("gpu_uuids") or []) == uuids
            and set(components) <= set(receipt.get("components") or [])
        )

    def _lock_path(self) -> str:
        """Path on the controller: a name is a shipped lock, anything with a slash the user's own file."""
        lock = str(self.stack["lock"])
        return lock if "/" in lock else posixpath.normpath(f"{self.data['lock_dir']}/{lock}")

    def _environment(self) -> Json | None:
        return next(
            (dict(e) for e in self.probe.get("environments") or [] if e["prefix"] == self.paths["environment"]), None
        )

    def _file(self, kind: str, component: str, by_machine: Mapping[str, Any], fetch: bool) -> Json:
        row = by_machine.get(self.machine)
        if not row:
            return {}
        artifact = _artifact(kind, row, self.settings, self.paths["downloads"])
        if fetch:
            self.files.append(artifact)
            self.needs.append((f"download of {row['file']}", self.paths["downloads"], artifact["size"] or UNKNOWN_SIZE))
        return artifact

    def _user(self, name: str, home: str) -> Json:
        user = self.probe.get("user") or {}
        return {name: user.get("name", "root"), home: user.get("home", "/root")}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- the plan --------------------------------------------------------------------------------------------------------


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
    notes = _Refusals(data["rules"])
    kind = decide_host_kind(probe, chosen["host_kind"], notes)
    gpus = find_gpus(probe, kind["value"], data["gpus"])
    components = _choose_components(chosen, kind["value"], notes)
    _check_host(probe, gpus, chosen, data, notes)

    def check(stack: Json) -> _Refusals:
        trial = _Refusals(data["rules"])
        _check_stack(stack, probe, kind["value"], gpus, components, data, trial)
        return trial

    stack, chosen_by = _choose_stack(chosen["stack"], check, data["stacks"], notes)
    planner = _Planner(probe, chosen, stack, kind["value"], gpus, data, notes)
    planned = {name: getattr(planner, name)() for name in COMPONENTS if name in components}
    _check_components(planned, planner, notes)
    space = _space(planner.needs, probe, notes)
    _check_tmp(planner, probe, notes)

    lock_sha256 = str(planner.lock.get("sha256") or "")
    todo = [name for name, entry in planned.items() if entry["action"] in ("install", "replace")]
    proved = not todo and planner.receipt_holds(planned, lock_sha256)
    prefetch = planner.prefetch(planned)
    steps = set(todo)
    if prefetch["files"] or prefetch["wheels"]:
        steps.add("prefetch")
    if not proved:
        steps |= {"verify"} | ({"nvidia_driver"} & set(planned))
    refused = bool(notes.refusals)
    return {
        "schema_version": SCHEMA_VERSION,
        "host": host or str(probe.get("hostname") or ""),
        "status": "refused" if refused else "apply" if steps else "nothing",
        "host_kind": kind,
        "stack": {**{k: v for k, v in stack.items() if k not in ("source", "confidence")}, "chosen_by": chosen_by},
        "gpus": [{"name": g["name"], "compute_capability": g["compute_capability"]} for g in gpus],
        "components": planned,
        "steps": [] if refused else [step for step in STEP_ORDER if step in steps],
        "refusals": notes.refusals,
        "warnings": notes.warnings,
        "prefetch": prefetch,
        "verify": planner.verify(planned, lock_sha256),
        "download_bytes": sum(f["size"] or UNKNOWN_SIZE for f in planner.files) + planner.wheel_bytes,
        "space": space,
        "reboot": False,
        "paths": planner.paths,
        "become": (probe.get("user") or {}).get("uid") != 0,
    }


def _choose_components(settings: Mapping[str, Any], kind: str, notes: _Refusals) -> list[str]:
    asked = settings["components"]
    if not asked:
        return list(COMPONENTS)
    if kind in ("container", "wsl") and asked == ["nvidia_driver"]:
        notes.refuse(
            "GB-KIND-002",
            "nvidia_driver",
            f"this host is a {kind}",
            "a vm or metal",
            nearest="components without nvidia_driver",
        )
    return [name for name in COMPONENTS if name in asked]


def _check_host(
    probe: Mapping[str, Any], gpus: list[Json], settings: Mapping[str, Any], data: Mapping[str, Any], notes: _Refusals
) -> None:
    os = probe.get("os") or {}
    name = str(os.get("pretty_name") or f"{os.get('id')} {os.get('version_id')}")
    systems = {tuple(key.split("-", 1)): row for key, row in data["systems"].items()}
    supported = ", ".join(key.replace("-", " ") for key, row in data["systems"].items() if row["supported"])
    same = [version for distribution, version in systems if distribution == os.get("id")]
    row = systems.get((str(os.get("id")), str(os.get("version_id"))))
    if row is None and same and all(_at_least(str(os.get("version_id") or "0"), version) for version in same):
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
    for gpu in _unique(gpus):
        if not gpu["row"] and not gpu["compute_capability"]:
            notes.warn("GB-GPU-004", "host", gpu["name"], "a GPU of the catalogue")
    _check_rented(gpus, settings["rented_as"], notes)


def _check_rented(gpus: list[Json], rented: Mapping[str, Any], notes: _Refusals) -> None:
    """First form: number and model of the GPUs that are paid for."""
    if rented.get("count") is not None and str(rented["count"]).isdigit() and int(rented["count"]) != len(gpus):
        notes.warn("GB-RENT-001", "host", f"{len(gpus)} GPUs", f"{rented['count']} GPUs as rented")
    wanted = str(rented.get("gpu") or "")
    other = [
        g["name"]
        for g in gpus
        if wanted
        and not _same_model(wanted, g["name"])
        and not any(_same_model(wanted, n) for n in ((g["row"] or {}).get("names") or []))
    ]
    if other:
        notes.warn("GB-RENT-002", "host", ", ".join(dict.fromkeys(other)), wanted)


def _check_components(planned: Mapping[str, Json], planner: _Planner, notes: _Refusals) -> None:
    """Relations between components: each needs what it builds on, chosen now or there already."""
    toolkit_here = any(
        t["prefix"] == planner.paths["cuda"] and t.get("nvcc") for t in planner.probe.get("toolkits") or []
    )
    if "cudnn" in planned and "cuda_toolkit" not in planned and not toolkit_here:
        notes.refuse(
            "GB-REQ-002",
            "cudnn",
            f"no CUDA toolkit in {planner.paths['cuda']}",
            "component cuda_toolkit",
            nearest="components: [cuda_toolkit, cudnn]",
        )
    if "pytorch_stack" in planned:
        pins = {_normal(k) for k in [*(planner.stack.get("packages") or {}), *(planner.lock.get("packages") or {})]}
        if "deepspeed" in pins and "cuda_toolkit" not in planned and not toolkit_here:
            notes.refuse(
                "GB-REQ-003",
                "pytorch_stack",
                f"deepspeed in the stack and no CUDA toolkit in {planner.paths['cuda']}",
                "component cuda_toolkit",
                nearest="components: [miniconda, cuda_toolkit, shell_environment, pytorch_stack]",
            )
        if "miniconda" not in planned and planner._environment() is None:
            notes.refuse(
                "GB-REQ-002",
                "pytorch_stack",
                f"no environment {planner.paths['environment']}",
                "component miniconda",
                nearest="components: [miniconda, pytorch_stack]",
            )


def _check_tmp(planner: _Planner, probe: Mapping[str, Any], notes: _Refusals) -> None:
    mount = mount_of(planner.paths["tmp"], probe.get("mounts") or [])
    if planner.files and "noexec" in (mount.get("options") or []):
        notes.refuse(
            "GB-SPACE-002",
            "cuda_toolkit",
            f"{mount['mount']} is mounted noexec",
            f"a place to run installers from for {planner.paths['tmp']}",
            nearest="tmp_dir: a directory on another disk",
        )


# --- text ------------------------------------------------------------------------------------------------------------


def plan_text(document: Mapping[str, Any]) -> str:
    """Render a plan for a terminal."""
    kind, stack = document["host_kind"], document["stack"]
    gpus: dict[str, int] = {}
    for gpu in document["gpus"]:
        gpus[gpu["name"]] = gpus.get(gpu["name"], 0) + 1
    lines = [
        f"{document['host']}: {_status(document)}",
        f"  host   {kind['value']} ({'; '.join(kind['signs'])})",
        f"  GPUs   {', '.join(f'{count} x {name}' for name, count in gpus.items()) or 'none'}",
        f"  stack  {stack['name']} (chosen by {stack['chosen_by']}): CUDA {stack['cuda']}, cuDNN {stack['cudnn']}, torch {stack['torch']}, Python {stack['python']}",
    ]
    if document["components"]:
        rows = [
            (name, entry["action"], entry["found"], entry["wanted"], entry["why"])
            for name, entry in document["components"].items()
        ]
        widths = [max(len(str(row[i])) for row in rows) for i in range(3)]
        lines += [
            f"  {name:<{widths[0]}}  {action:<{widths[1]}}  found {found:<{widths[2]}}  wanted {wanted} ({why})"
            for name, action, found, wanted, why in rows
        ]
    if document["status"] == "apply" and document["download_bytes"]:
        lines.append(f"  fetch  {_bytes(document['download_bytes'])}")
    lines += [
        f"  space  {row['mount']}: {_bytes(row['needed'])} needed, {_bytes(row['free'])} free"
        for row in document["space"]
    ]
    if document["steps"]:
        lines.append(f"  steps  {' > '.join(document['steps'])}")
    for word, entries in (("warning", document["warnings"]), ("REFUSED", document["refusals"])):
        for entry in entries:
            lines.append(f"  {word} {entry['code']} ({entry['component']}): {entry['cause']}")
            lines.append(
                f"    found {entry['found']}; wanted {entry['wanted']}"
                + (f"; nearest that works: {entry['nearest']}" if entry["nearest"] else "")
            )
            lines.append(f"    {entry['remedy']} (whose: {entry['whose']})")
    return "\n".join(lines)


def _status(document: Mapping[str, Any]) -> str:
    return {"refused": "refused, nothing was changed", "nothing": "nothing to do", "apply": "can be made ready"}[
        document["status"]
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"plan": plan, "plan_text": plan_text}
