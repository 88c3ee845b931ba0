"""The components of one host, one method each: keep, install, replace, provided, or refused, with the inputs of their roles."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from .driver import build_prerequisites, decide_driver, installed_driver
from .host import system_of
from .notes import Notes
from .settings import COMPONENTS, urls
from .space import decide_paths, mount_of
from .stacks import cuda_tag, version_rows
from .values import GIB, Json, major_minor, normal_name, version_tuple

VENDOR_BASES = {
    "nvidia": "https://developer.download.nvidia.com",
    "miniconda": "https://repo.anaconda.com/miniconda",
    "pytorch": "https://download.pytorch.org/whl",
}
# An installer without a known size: Miniconda's are 130 to 170 MB (only used to ask for space).
UNKNOWN_SIZE = 200 * 1000**2
# Debian 12's 535 with headers, compiler and DKMS's tree came to 0.4 GB, Debian 13's 550 to 0.8 GB; the desktop form is twice that.
DRIVER_BYTES = 2 * GIB


def artifact(kind: str, row: Mapping[str, Any], settings: Mapping[str, Any], downloads: str) -> Json:
    """One file of the prefetch manifest: mirrors first, the vendor last; pins replaced by artifact_overrides."""
    path = str(row["url_path"])
    if kind == "miniconda":
        path = "/" + posixpath.basename(path)
    pins = settings["artifact_overrides"].get(row["file"], {})
    bases = [*urls(settings["mirrors"].get(kind)), VENDOR_BASES[kind]]
    size = pins.get("size", row.get("size")) if pins else row.get("size")
    return {
        "name": row["file"],
        "urls": list(dict.fromkeys(f"{base}{path}" for base in bases)),
        "sha256": str(pins.get("sha256") or row["sha256"]),
        "size": int(size) if size else None,
        "dest": f"{downloads}/{row['file']}",
    }


class Planner:
    """Plans the components of one host, one method each, in the order of COMPONENTS."""

    def __init__(
        self,
        probe: Mapping[str, Any],
        settings: Json,
        stack: Json,
        kind: str,
        gpus: list[Json],
        data: Mapping[str, Any],
        notes: Notes,
    ) -> None:
        """Take one host, one stack, and the tables; `needs` and `files` fill up while the methods run."""
        self.probe, self.settings, self.stack, self.kind, self.gpus, self.data, self.notes = (
            probe,
            settings,
            stack,
            kind,
            gpus,
            data,
            notes,
        )
        self.rows = version_rows(stack, data)
        self.paths = decide_paths(settings, stack)
        self.lock = dict(data["locks"].get(stack["name"]) or {}) if stack.get("name") in data["stacks"] else {}
        self.files: list[Json] = []
        self.needs: list[tuple[str, str, int]] = []
        self.inodes: list[tuple[str, str, int]] = []
        self.machine = str(probe.get("machine") or "x86_64")

    def nvidia_driver(self) -> Json:
        """The driver of the host. What stands against it was noted when the stack was held against the host."""
        decision = decide_driver(
            self.probe, self.kind, self.gpus, self.stack, self.rows["cuda"], self.settings, system_of(self.probe), True, self.data,
            Notes(self.data["rules"]),
        )  # fmt: skip
        option = decision["option"]
        if decision["action"] in ("install", "replace"):
            self.needs.append(("driver packages and the build of the module", "/usr", DRIVER_BYTES))
        fabric = bool(self.probe.get("nvswitches")) and self.kind in ("vm", "metal")
        kernel = self.probe.get("kernel") or {}
        mirrors = urls(self.settings["mirrors"].get("nvidia"))
        repository = option.get("repository") or {}
        return {
            **{key: decision[key] for key in ("action", "found", "wanted", "why")},
            "inputs": {
                "action": decision["action"], "host_kind": self.kind,
                "found": {"version": decision["found"], "kind": self.kind, "gpus": [g["name"] for g in self.gpus]},
                **{name: option.get(name, "") for name in ("branch", "version", "flavour", "lead", "pinning")},
                **{name: option.get(name, []) for name in ("packages", "beside")},
                "fabric_manager": option.get("fabric_manager", []) if fabric else [],
                "prerequisites": build_prerequisites(self.probe) if option else [],
                "source": {
                    "title": option["title"], "components": option["components"],
                    "repository": {
                        "url": f"{(mirrors or [VENDOR_BASES['nvidia']])[0]}{repository['path']}",
                        "key": repository["key"], "fingerprint": repository["fingerprint"],
                    } if repository else {},
                } if option else {},
                "family": list(self.data["driver_family"]),
                "kernel": str(kernel.get("will_boot") or kernel.get("release") or ""), "systemd": self.probe.get("init") == "systemd",
                "reboot": decision["reboot"], "reboot_follows": bool(decision["reboot"]) and self.settings["reboot_allowed"],
                "state_dir": self.paths["state"], "timeout": self.settings["install_timeout"], "proxy": self.settings["proxy"],
            },
        }  # fmt: skip

    def miniconda(self) -> Json:
        """Conda, and the environment of the stack with its Python."""
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
        have_python = environment and major_minor(environment["python"] or "0") == python
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
            self._files_of("miniconda", prefix)
        return {
            "action": action, "found": found + (f", {self.paths['environment_name']} with Python {environment['python']}" if environment else ""),
            "wanted": f"conda {version}, {self.paths['environment_name']} with Python {python}", "why": "is there" if action == "keep" else "conda or the environment is missing",
            "inputs": {
                "version": version, "installer": file.get("dest", ""), "sha256": file.get("sha256", ""), "prefix": prefix, "channels": channels,
                "channel_alias": (urls(self.settings["mirrors"].get("conda")) or [""])[0], "accept_tos": self.settings["conda_accept_tos"],
                "environment": self.paths["environment_name"], "python": python, "tmp_dir": self.paths["tmp"], "proxy": self.settings["proxy"],
                "timeout": self.settings["install_timeout"], **self._user("user", "user_home"),
            },
        }  # fmt: skip

    def cuda_toolkit(self) -> Json:
        """The toolkit of the stack, and the link to it."""
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
            self._files_of("cuda_toolkit", prefix)
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
        """CuDNN inside the toolkit of the stack."""
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
            self._files_of("cudnn", prefix)
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
        """Variables and PATH of every kind of shell."""
        cuda_home = self.paths["cuda_link"] or self.paths["cuda"]
        variables = {"CUDA_HOME": cuda_home}
        if self.paths["hf_home"]:
            variables["HF_HOME"] = self.paths["hf_home"]
        mirror = urls(self.settings["mirrors"].get("huggingface"))
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
        """The Python packages of the lock."""
        stack, paths = self.stack, self.paths
        environment = self._environment()
        pins = {
            **dict(self.lock.get("packages") or {}),
            **{normal_name(k): v for k, v in (stack.get("packages") or {}).items()},
        }
        have = {normal_name(k): v for k, v in ((environment or {}).get("packages") or {}).items()}
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
            self._files_of("pytorch_stack", paths["environment"])
            shared = mount_of(paths["environment"], self.probe.get("mounts") or []).get("mount") == mount_of(
                paths["uv_cache"], self.probe.get("mounts") or []
            ).get("mount")
            # uv unpacks into its cache and hard-links from there: on one file system the bytes are there once.
            self.needs.append(("uv's cache", paths["uv_cache"], 0 if shared else unpacked))
            self.wheel_bytes = fetch
        index = urls(self.settings["mirrors"].get("pypi"))
        torch_base = (urls(self.settings["mirrors"].get("pytorch")) or [VENDOR_BASES["pytorch"]])[0]
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
        file = artifact(kind, row, self.settings, self.paths["downloads"])
        if fetch:
            self.files.append(file)
            self.needs.append((f"download of {row['file']}", self.paths["downloads"], file["size"] or UNKNOWN_SIZE))
        return file

    def _files_of(self, component: str, path: str) -> None:
        self.inodes.append((component, path, int(self.data["host_floors"]["inodes"][component])))

    def _user(self, name: str, home: str) -> Json:
        user = self.probe.get("user") or {}
        return {name: user.get("name", "root"), home: user.get("home", "/root")}


def choose_components(settings: Mapping[str, Any], kind: str, notes: Notes) -> list[str]:
    """Return the components that are asked for, in order; all of them when none is named."""
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


def check_relations(planned: Mapping[str, Json], planner: Planner, notes: Notes) -> None:
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
        pins = {normal_name(k) for k in [*(planner.stack.get("packages") or {}), *(planner.lock.get("packages") or {})]}
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


def check_installers_place(planner: Planner, probe: Mapping[str, Any], notes: Notes) -> None:
    """Refuse a place for temporary files from which nothing can be run."""
    mount = mount_of(planner.paths["tmp"], probe.get("mounts") or [])
    if planner.files and "noexec" in (mount.get("options") or []):
        notes.refuse(
            "GB-SPACE-002",
            "cuda_toolkit",
            f"{mount['mount']} is mounted noexec",
            f"a place to run installers from for {planner.paths['tmp']}",
            nearest="tmp_dir: a directory on another disk",
        )
