#!/usr/bin/python
"""Looks at a host in one round trip and changes nothing: everything that the plan decides from.

Runs under the system's Python (3.8 or newer), unprivileged, with the standard library only. One small function per
topic reads below `Host.root`, so that a test can put a tree of files in the place of `/`; what only a program can tell
is asked in threads with a time limit each. What can't be read becomes null or empty and a line in `unreadable`.
The document is described by docs/probe.schema.json.
"""

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import copy
import importlib.util
import itertools
import json
import os
import platform
import pwd
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ansible.module_utils.apt_reports import APT_LOCKS, lock_holder, parse_apt_offers, parse_apt_policy
from ansible.module_utils.apt_sources import VENDOR, parse_entries
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

DOCUMENTATION = r"""
module: host_probe
short_description: Look at a rented GPU host in one round trip
version_added: "0.1.0"
author: gpu-bootstrap
description:
  - Reads everything that the plan decides from, and changes nothing.
  - Needs no privileges; what only root can read is left out and named in RV(probe.unreadable).
  - Environment variables are reported by name only, and credentials in URLs are masked.
options:
  state_dir:
    description: Where the receipt of the last proof and the applied shell environment are kept.
    type: str
    default: /var/lib/gpu-bootstrap
  conda_prefixes:
    description: Prefixes to look for conda in, besides the usual ones.
    type: list
    elements: str
    default: []
  toolkit_prefixes:
    description: CUDA toolkits, or directories that hold C(cuda-*), to look at besides C(/usr/local).
    type: list
    elements: str
    default: []
  environments:
    description: Python environments to look at, besides those that the conda installations know.
    type: list
    elements: str
    default: []
  download_dirs:
    description: Directories whose files are listed under RV(probe.downloads).
    type: list
    elements: str
    default: []
  apt_candidates:
    description:
      - Whether to ask apt which versions of the driver family it offers.
      - V(auto) asks where a driver could be installed and none is at work, so not in a container nor in WSL.
    type: str
    choices: [auto, always, never]
    default: auto
attributes:
  check_mode:
    description: The module changes nothing in either mode.
    support: full
  diff_mode:
    description: There is no difference to show.
    support: none
"""

EXAMPLES = r"""
- name: Look at the host
  host_probe:
  register: probed

- name: Look at a host whose large files live on a data disk
  host_probe:
    conda_prefixes: [/data/miniconda3]
    toolkit_prefixes: [/data]
"""

RETURN = r"""
probe:
  description: The document of docs/probe.schema.json.
  type: dict
  returned: always
"""

SCHEMA_VERSION = 1
CAP_SYS_MODULE = 16
MARKER = "gpu-bootstrap"
LOCK_MARK = ".gpu-bootstrap-lock"
TEXT_LIMIT = 64 * 1024 * 1024
# Where programs are that an ssh session's PATH may lack.
PROGRAM_DIRS = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
    "/usr/lib/wsl/lib", "/usr/local/nvidia/bin", "/opt/bin",
)  # fmt: skip
# Seconds. A node of eight GPUs without persistence mode needs ten and more to wake its driver up.
LIMITS = {
    "nvidia-smi": 20.0,
    "apt-cache": 6.0,
    "sudo": 2.0,
    "gcc": 2.0,
    "nvcc": 4.0,
    "conda": 6.0,
    "python": 3.0,
    "statvfs": 2.0,
}

CONDA_PLACES = (
    "/opt/miniconda3",
    "/opt/conda",
    "/opt/miniforge3",
    "/root/miniconda3",
    "/root/miniforge3",
    "/root/anaconda3",
)
CONDA_HOME_PLACES = ("miniconda3", "miniforge3", "anaconda3")
ENVIRONMENT_NAMES = ("CUDA_HOME", "CUDA_PATH", "HF_HOME", "LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH", "TMPDIR")
DRIVER_PACKAGES = re.compile(
    r"(lib)?nvidia-|cuda-(drivers|compat)|libcuda1$|linux-(modules|objects)-nvidia|xserver-xorg-video-nvidia"
)
BRANCHES = range(390, 705, 5)
# Packages that a driver is asked for by, as Debian, Ubuntu and NVIDIA's repository name them.
DRIVER_OFFERS = (
    "nvidia-driver", "cuda-drivers", "nvidia-open", "nvidia-kernel-dkms", "nvidia-open-kernel-dkms", "nvidia-dkms",
    "nvidia-dkms-open", "nvidia-smi", "libcuda1", "nvidia-fabricmanager", "libnvidia-nscq",
    *(f"{name}-{branch}{suffix}" for branch in BRANCHES for suffix in ("", "-open", "-server", "-server-open")
      for name in ("nvidia-driver", "nvidia-headless")),
    *(f"{name}-{branch}" for branch in BRANCHES
      for name in ("cuda-drivers", "nvidia-open", "nvidia-fabricmanager", "nvidia-driver-pinning", "libnvidia-nscq")),
)  # fmt: skip
OTHER_CANDIDATES = ("dkms", "nvidia-container-toolkit", "libcudnn9-cuda-12", "libcudnn9-cuda-13")
# A pin file of ours that bars the driver family from a container carries this name.
BARRED = "/etc/apt/preferences.d/gpu-bootstrap-no-driver"
PSEUDO_FILESYSTEMS = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fusectl", "hugetlbfs", "iso9660", "mqueue", "none", "nsfs", "proc",
    "pstore", "ramfs", "rootfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs", "tracefs",
))  # fmt: skip
HIDDEN_MOUNTS = ("/proc", "/sys", "/run", "/var/run", "/dev", "/var/lib/docker", "/var/lib/containers", "/var/lib/containerd",
                 "/var/lib/kubelet", "/snap", "/usr/lib/wsl", "/usr/lib/modules", "/mnt/wsl", "/mnt/wslg", "/init")  # fmt: skip
SMI_FIELDS = ("index", "name", "uuid", "memory.total", "driver_version", "compute_cap")
# Names of variables and paths by which a landlord's machine is known; values are never read.
PROVIDERS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "autodl",
        ("AutoDLContainerUUID", "AutoDLDeploymentUUID", "AutoDLDataCenter", "AutoDLRegion"),
        ("/init/others/help", "/root/autodl-tmp"),
    ),
    ("runpod", ("RUNPOD_POD_ID", "RUNPOD_DC_ID", "RUNPOD_GPU_COUNT"), ("/etc/rp_environment",)),
    ("vast", ("VAST_CONTAINERLABEL", "VAST_TCP_PORT_22"), ("/etc/vast_boot.d",)),
    ("openbayes", (), ("/openbayes",)),
    ("gpushare", (), ("/hy-tmp",)),
)
DMI_PROVIDERS = (
    ("Amazon EC2", "aws"), ("Google", "gcp"), ("Alibaba Cloud", "alibaba"), ("Tencent Cloud", "tencent"), ("Hetzner", "hetzner"),
    ("DigitalOcean", "digitalocean"), ("Scaleway", "scaleway"), ("OVH", "ovh"), ("Vultr", "vultr"),
)  # fmt: skip


class Answer(NamedTuple):
    """What a program answered; `rc` is null when it couldn't be run or passed its time limit."""

    rc: int | None
    out: str
    err: str


class Job:
    """A function in a thread of its own.

    The thread is a daemon and is never joined without a limit: a program that hangs inside a broken driver, or a
    network file system without its server, can't be killed, and must not hold the probe up.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        """Start it."""
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._value = self._function()
        except Exception as error:
            self._error = error

    def result(self, seconds: float) -> Any:
        """Return the value, or raise what the function raised, or TimeoutError after so many seconds."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"no answer within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._value


def run_command(argv: list[str], seconds: float) -> Answer:
    """Run a program in the C locale, without input, for so many seconds at most."""
    environment = dict(os.environ, LC_ALL="C", LANGUAGE="C", PATH=":".join([os.environ.get("PATH", ""), *PROGRAM_DIRS]))
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
        )  # fmt: skip
    except OSError as error:
        return Answer(None, "", f"{argv[0]}: {error.strerror or error}")
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return Answer(None, "", f"no answer within {seconds:g} s")
    return Answer(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def no_command(argv: list[str], seconds: float) -> Answer:
    """Stand for a host on which no program can be run: what a tree of files under test is."""
    return Answer(None, "", f"{argv[0]}: not run")


class Host:
    """The host as a tree of files, a way to run programs, and the list of what couldn't be read."""

    def __init__(self, root: str = "/", run: Callable[[list[str], float], Answer] | None = None) -> None:
        """Look below `root`; programs run only below the real one unless `run` says how."""
        self.root = root.rstrip("/")
        self.run = run or (run_command if not self.root else no_command)
        self.unreadable: list[dict[str, str]] = []
        self.uid = os.geteuid()
        self.variables: frozenset[str] = frozenset(os.environ)

    def path(self, path: str) -> Path:
        """The path below the root."""
        return Path(self.root + path)

    def note(self, topic: str, why: object) -> None:
        """Remember that something couldn't be read, once."""
        entry = {"topic": topic, "why": str(why)[-300:]}
        if entry not in self.unreadable:
            self.unreadable.append(entry)

    def raw(self, path: str, topic: str = "") -> bytes | None:
        """Content of a file; None when it isn't there, and, with a note under `topic`, when it can't be read."""
        try:
            # In small reads: files of /proc/sys make a buffer as big as the read, and fail above 4 MiB.
            with self.path(path).open("rb", buffering=0) as handle:
                chunks = iter(lambda: handle.read(65536), b"")
                return b"".join(itertools.islice(chunks, TEXT_LIMIT // 65536))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            if topic:
                self.note(topic, f"{path}: {error.strerror or error}")
            return None

    def text(self, path: str, topic: str = "") -> str | None:
        """Content of a text file, as `raw`."""
        content = self.raw(path, topic)
        return None if content is None else content.decode("utf-8", "replace")

    def line(self, path: str) -> str:
        """Content of a file of one line, without white space around it; "" when it can't be read."""
        return (self.text(path) or "").strip()

    def json(self, path: str, topic: str) -> Any:
        """A JSON file; None when it isn't there, and, with a note, when it isn't JSON."""
        content = self.text(path, topic)
        if content is None:
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            self.note(topic, f"{path} isn't JSON: {error}")
            return None

    def names_in(self, path: str, topic: str = "") -> list[str]:
        """Sorted names in a directory; empty when it isn't there or can't be read."""
        try:
            return sorted(entry.name for entry in self.path(path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if topic:
                self.note(topic, f"{path}: {error.strerror or error}")
            return []

    def exists(self, path: str) -> bool:
        """Whether something is there that this user can see."""
        try:
            return self.path(path).exists()
        except OSError:
            return False

    def is_dir(self, path: str) -> bool:
        """Whether a directory is there that this user can see."""
        try:
            return self.path(path).is_dir()
        except OSError:
            return False

    def is_file(self, path: str) -> bool:
        """Whether a file is there that this user can see."""
        try:
            return self.path(path).is_file()
        except OSError:
            return False

    def link(self, path: str) -> str | None:
        """Absolute target of a symbolic link, one hop; None when it isn't one."""
        try:
            target = os.readlink(self.root + path)  # noqa: PTH115 - Path.readlink came with Python 3.9
        except OSError:
            return None
        return os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - not a path of this tree

    def follow(self, path: str) -> str:
        """Follow links of the last component until it is none, inside the root."""
        for _ in range(16):
            target = self.link(path)
            if target is None:
                return path
            path = target
        return path

    def program(self, name: str) -> str | None:
        """Path of a program, in PATH or where PATH should lead; None when it isn't there."""
        if not self.root:
            return shutil.which(name, path=":".join([os.environ.get("PATH", ""), *PROGRAM_DIRS]))
        return next((f"{folder}/{name}" for folder in PROGRAM_DIRS if self.is_file(f"{folder}/{name}")), None)


# --- parsers: text in, data out ----------------------------------------------------------------------------------------


def parse_assignments(text: str) -> dict[str, str]:
    """KEY=value lines, as in os-release and /etc/environment: quotes and `export` gone, comments and other lines skipped."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$", line)
        if match:
            value = match.group(2).strip()
            quoted = re.match(r"""(["'])(.*?)\1""", value)
            found[match.group(1)] = quoted.group(2) if quoted else re.split(r"\s+#|;", value)[0].strip()
    return found


def parse_compiler(version_line: str) -> str | None:
    """The compiler of the kernel in /proc/version, e.g. `gcc-12 (Debian 12.2.0-14) 12.2.0`: the second parenthesis."""
    start = version_line.find("(", version_line.find(")") + 1)
    if start < 0:
        return None
    depth = 0
    for end in range(start, len(version_line)):
        depth += {"(": 1, ")": -1}.get(version_line[end], 0)
        if depth == 0:
            inside = version_line[start + 1 : end]
            return re.split(r",\s*(?:GNU ld|LLD|Ubuntu LLD|Debian LLD)", inside)[0].strip() or None
    return None


def parse_driver_version(text: str) -> tuple[str | None, str | None]:
    """(version, flavour) of /proc/driver/nvidia/version; the open module says `Open Kernel Module for x86_64`."""
    match = re.search(r"NVRM version:.*?(Open )?Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)", text)
    if not match:
        return None, None
    return match.group(2), "open" if match.group(1) else "proprietary"


def parse_smi_query(text: str, fields: Iterable[str] = SMI_FIELDS) -> list[dict[str, Any]]:
    """Rows of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`; lines that aren't such rows are skipped.

    A field that the driver can't tell ([N/A], [Unknown Error], [GPU is lost]) is null. Memory is in MiB.
    """
    names = list(fields)
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names) or not cells[0].isdigit():
            continue
        told = (None if re.match(r"\[.*\]$|N/A$|$", cell) else cell for cell in cells)
        row = {name: cell for name, cell in zip(names, told)}  # noqa: B905, C416 - `strict` came with Python 3.10
        memory = row.get("memory.total")
        gpus.append(
            {
                "index": int(cells[0]),
                "name": row.get("name") or "",
                "uuid": row.get("uuid") or "",
                "memory_mib": int(memory) if memory and memory.isdigit() else None,
                "driver_version": row.get("driver_version"),
                "compute_capability": row.get("compute_cap"),
            }
        )
    return gpus


def parse_dpkg_status(text: str) -> list[dict[str, str]]:
    """Packages of /var/lib/dpkg/status: [{name, version, architecture, want, flag, status}]."""
    packages = []
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Architecture|Version): *(.*)$", paragraph, re.MULTILINE))
        words = fields.get("Status", "").split()
        if "Package" in fields and len(words) == 3:
            packages.append(
                {
                    "name": fields["Package"],
                    "version": fields.get("Version", ""),
                    "architecture": fields.get("Architecture", ""),
                    "want": words[0],
                    "flag": words[1],
                    "status": words[2],
                }
            )
    return packages


def parse_apt_dependencies(text: str) -> dict[tuple[str, str], list[str]]:
    """Records of `apt-cache show a b …`: {(package, version): names of the driver family that it depends on}."""
    found = {}
    for record in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Depends|Pre-Depends): *(.*)$", record, re.MULTILINE))
        if "Package" in fields and "Version" in fields:
            words = re.split(r"[,|]", f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}")
            names = [word.split()[0].split(":")[0] for word in words if word.strip()]
            found[(fields["Package"], fields["Version"])] = sorted({n for n in names if DRIVER_PACKAGES.match(n)})
    return found


def parse_nvcc_version(text: str) -> str | None:
    """`12.4.131` of `nvcc --version`."""
    match = re.search(r"\bV(\d+\.\d+\.\d+)\b", text)
    return match.group(1) if match else None


def parse_cudnn_header(text: str) -> str | None:
    """`9.1.0` of cudnn_version.h (or cudnn.h of old releases)."""
    numbers = [
        re.search(rf"^\s*#\s*define\s+CUDNN_{part}\s+(\d+)", text, re.MULTILINE)
        for part in ("MAJOR", "MINOR", "PATCHLEVEL")
    ]
    return ".".join(number.group(1) for number in numbers if number) if all(numbers) else None


def parse_torch_cuda(text: str) -> str | None:
    """`12.4` of torch/version.py; None for a build without CUDA."""
    match = re.search(r"^cuda\s*(?::[^=]+)?=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def parse_mounts(text: str) -> list[dict[str, Any]]:
    """Rows of /proc/self/mounts, later ones last; octal escapes are undone."""
    rows = []
    for line in text.splitlines():
        cells = [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), cell) for cell in line.split(" ")]
        if len(cells) >= 4:
            # Options with a value name layers by the kilobyte, accounts and addresses; only the size is of use.
            options = [option for option in cells[3].split(",") if "=" not in option or option.startswith("size=")]
            rows.append({"device": cells[0], "mount": cells[1], "fstype": cells[2], "options": options})
    return rows


def parse_listening(text: str) -> set[int]:
    """Ports of /proc/net/tcp or tcp6 in state LISTEN (0A)."""
    return {
        int(port, 16)
        for port in re.findall(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", text, re.MULTILINE)
    }


def parse_loader_cache(data: bytes, library: str, machine: str) -> str | None:
    """First path that /etc/ld.so.cache (format glibc-ld.so.cache1.1) holds for a library of this machine's kind."""
    start = data.find(b"glibc-ld.so.cache1.1")
    if start < 0 or len(data) < start + 48:
        return None
    kind = {"x86_64": 0x0300, "aarch64": 0x0A00}.get(machine)
    (count,) = struct.unpack_from("=I", data, start + 20)

    def string(offset: int) -> str:
        begin = start + offset
        end = data.find(b"\0", begin)
        return data[begin:end].decode("utf-8", "replace") if 0 <= begin < len(data) and end >= 0 else ""

    for index in range(count):
        position = start + 48 + 24 * index
        if position + 24 > len(data):
            return None
        flags, key, value = struct.unpack_from("=iII", data, position)
        if (kind is None or flags & 0xFF00 == kind) and string(key) == library:
            return string(value) or None
    return None


def parse_condarc(text: str) -> list[str]:
    """Channels of a .condarc, in block or flow form."""
    flow = re.search(r"^channels:\s*\[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    if flow:
        return [item.strip().strip("'\"") for item in flow.group(1).split(",") if item.strip()]
    channels = []
    inside = False
    for line in text.splitlines():
        if re.match(r"channels:\s*(#.*)?$", line):
            inside = True
        elif inside and re.match(r"\s*-\s+\S", line):
            channels.append(re.sub(r"\s+#.*$", "", line.split("-", 1)[1]).strip().strip("'\""))
        elif line.strip() and not line.lstrip().startswith("#"):
            inside = False
    return channels


def parse_cgroup_hint(text: str) -> str:
    """docker, podman, lxc or kubepods, read off /proc/1/cgroup or the mounts of /proc/self/mountinfo; else ""."""
    for pattern, hint in (
        (r"kubepods|/kubelet/pods/", "kubepods"),
        (r"libpod|/containers/storage/|overlay-containers", "podman"),
        (r"/docker[/-]|docker/containers/", "docker"),
        (r"[:/]lxc[./]|lxcfs|\.lxc\b", "lxc"),
    ):
        if re.search(pattern, text):
            return hint
    return ""


def normalise(name: str) -> str:
    """A distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def mask(value: Any) -> Any:
    """The document with the credentials gone that a URL may carry."""
    if isinstance(value, str):
        value = re.sub(r"(\w://)[^/@\s'\"]+@", r"\1***@", value)
        return re.sub(r"(\w://[^\s'\"]*?/t/)[^/\s'\"]+", r"\1***", value)
    if isinstance(value, dict):
        return {mask(key): mask(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(item) for item in value]
    return value


# --- the system -------------------------------------------------------------------------------------------------------


def read_os(host: Host) -> dict[str, Any]:
    """Distribution, from os-release."""
    fields = parse_assignments(host.text("/etc/os-release", "os") or host.text("/usr/lib/os-release", "os") or "")
    if not fields:
        host.note("os", "no os-release")
    return {
        "id": fields.get("ID", "").lower(),
        "version_id": fields.get("VERSION_ID", ""),
        "codename": fields.get("VERSION_CODENAME") or fields.get("UBUNTU_CODENAME") or "",
        "pretty_name": fields.get("PRETTY_NAME", ""),
    }


def read_kernel(host: Host) -> dict[str, Any]:
    """The running kernel and its compiler (DKMS wants the same one), and the kernel that will boot: the newest installed."""
    line = host.line("/proc/version")
    release = host.line("/proc/sys/kernel/osrelease") or (os.uname().release if not host.root else "")
    images = [name.partition("-")[2] for name in host.names_in("/boot") if name.startswith(("vmlinuz-", "vmlinux-"))]
    installed = sorted((image for image in images if host.is_dir(f"/lib/modules/{image}")), key=natural)
    headers = [name for name in host.names_in("/lib/modules") if host.exists(f"/lib/modules/{name}/build/Makefile")]
    return {
        "release": release,
        "version_line": line,
        "compiler": parse_compiler(line),
        "installed": installed,
        "will_boot": installed[-1] if installed else release,
        "headers": sorted(headers, key=natural),
    }


def natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts 6.1.0-50 after 6.1.0-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", text)]


def read_user(host: Host) -> dict[str, Any]:
    """Who probes, and by which way this user becomes root."""
    try:
        entry = pwd.getpwuid(host.uid)
        name, home, shell = entry.pw_name, entry.pw_dir, entry.pw_shell
    except KeyError:
        name, home, shell = str(host.uid), os.environ.get("HOME", "/"), ""
    return {"name": name, "uid": host.uid, "home": home, "shell": shell, "sudo": read_sudo(host)}


def read_sudo(host: Host) -> str:
    """root, passwordless, password, or none."""
    if host.uid == 0:
        return "root"
    if not host.program("sudo"):
        return "none"
    answer = host.run(["sudo", "-n", "true"], LIMITS["sudo"])
    if answer.rc == 0:
        return "passwordless"
    return "password" if "password is required" in answer.err or "a terminal is required" in answer.err else "none"


def names_of_pid1(host: Host) -> dict[str, str]:
    """Names of PID 1's variables, and the value of `container` alone; root reads it, others get nothing."""
    raw = host.raw("/proc/1/environ", "signs") or b""
    pairs = [item.decode("utf-8", "replace").partition("=") for item in raw.split(b"\0") if item]
    return {name: value if name == "container" else "" for name, _, value in pairs}


def can_load_modules(host: Host) -> bool:
    """Whether this user, or root by way of this user, may load kernel modules.

    CapEff counts for root, the bounding set for others (what sudo can give back). A user namespace gives the
    capability only over itself, which is worth nothing here.
    """
    key = "CapEff" if host.uid == 0 else "CapBnd"
    match = re.search(rf"^{key}:\s*([0-9a-fA-F]+)", host.text("/proc/self/status") or "", re.MULTILINE)
    mapping = host.line("/proc/self/uid_map").split()
    whole = not mapping or mapping == ["0", "0", "4294967295"]
    open_kernel = host.line("/proc/sys/kernel/modules_disabled") != "1"
    return bool(match and int(match.group(1), 16) >> CAP_SYS_MODULE & 1) and whole and open_kernel


def read_provider(host: Host, names: Iterable[str], vendor: str) -> tuple[str, list[str]]:
    """The landlord and the signs for it, by name only: variables, then files, then the firmware's vendor."""
    known = set(names)
    for provider, variables, paths in PROVIDERS:
        signs = [f"env:{name}" for name in variables if name in known]
        signs += [f"path:{path}" for path in paths if host.exists(path)]
        if signs:
            return provider, signs
    for text, provider in DMI_PROVIDERS:
        if text.lower() in vendor.lower():
            return provider, ["dmi:sys_vendor"]
    return "", []


def read_signs(host: Host) -> dict[str, Any]:
    """Everything that tells a container, a virtual machine, bare metal and WSL apart; the plan weighs it."""
    pid1 = names_of_pid1(host)
    mountinfo = host.text("/proc/self/mountinfo") or ""
    release = host.line("/proc/sys/kernel/osrelease").lower()
    # What the engine mounts over these files names the engine also where the control group's name doesn't.
    engine_mounts = "\n".join(
        line for line in mountinfo.splitlines() if re.search(r" /etc/(hostname|hosts|resolv\.conf) |lxcfs", line)
    )
    hint = parse_cgroup_hint(host.text("/proc/1/cgroup") or "") or parse_cgroup_hint(engine_mounts)
    kubernetes = host.exists("/var/run/secrets/kubernetes.io") or host.exists("/run/secrets/kubernetes.io")
    kubernetes = kubernetes or "KUBERNETES_SERVICE_HOST" in pid1 or "KUBERNETES_SERVICE_HOST" in host.variables
    dmi = {key: host.line(f"/sys/class/dmi/id/{key}") for key in ("sys_vendor", "product_name")}
    provider, provider_signs = read_provider(
        host, [*pid1, *host.variables], f"{dmi['sys_vendor']} {dmi['product_name']}"
    )
    roots = [row["fstype"] for row in parse_mounts(host.text("/proc/self/mounts") or "") if row["mount"] == "/"]
    return {
        "container_env": host.line("/run/systemd/container") or pid1.get("container", "") or host.line("/run/host/container-manager"),
        "dockerenv": host.exists("/.dockerenv"),
        "containerenv": host.exists("/run/.containerenv"),
        "pid1": host.line("/proc/1/comm"),
        "systemd_running": host.is_dir("/run/systemd/system"),
        "cgroup_hint": hint,
        "wsl": "microsoft" in release and ("wsl" in release or host.exists("/proc/sys/fs/binfmt_misc/WSLInterop") or host.exists("/usr/lib/wsl")),
        "dmi": dmi,
        "hypervisor_flag": bool(re.search(r"^flags\s*:.*\bhypervisor\b", host.text("/proc/cpuinfo") or "", re.MULTILINE))
        or host.exists("/proc/device-tree/hypervisor"),
        "xen": host.line("/sys/hypervisor/type") == "xen",
        "kubernetes": kubernetes,
        "can_load_modules": can_load_modules(host),
        "overlay_root": roots[-1:] in (["overlay"], ["fuse-overlayfs"], ["fuse.fuse-overlayfs"], ["aufs"]),
        "provider": provider,
        "provider_signs": provider_signs,
    }  # fmt: skip


def looks_contained(signs: Mapping[str, Any]) -> bool:
    """Whether any plain sign of a container is there; only decides what is worth asking."""
    return any(signs.get(key) for key in ("container_env", "dockerenv", "containerenv", "cgroup_hint", "kubernetes"))


def read_init(signs: Mapping[str, Any]) -> str:
    """systemd, another init system, or none."""
    if signs.get("systemd_running"):
        return "systemd"
    return "other" if signs.get("pid1") in ("init", "openrc-init", "runit", "s6-svscan") else "none"


def read_secure_boot(host: Host) -> str:
    """The firmware's SecureBoot variable: four bytes of attributes, then the value."""
    if not host.exists("/sys/firmware/efi"):
        # A container's /sys/firmware is hidden, so an empty one says nothing.
        return "unsupported" if host.names_in("/sys/firmware") else "unknown"
    value = host.raw("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "secure_boot")
    if value is None:
        return "unsupported" if host.names_in("/sys/firmware/efi/efivars") else "unknown"
    return "unknown" if len(value) != 5 else "enabled" if value[4] == 1 else "disabled"


def read_memory(host: Host) -> dict[str, Any]:
    """Bytes of memory, and the control group's limit."""
    fields: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB", host.text("/proc/meminfo") or "", re.MULTILINE))
    total = int(fields.get("MemTotal", 0)) * 1024
    limit = least(read_cgroup(host, "memory", "memory.max", "memory.limit_in_bytes"))
    return {
        "total_bytes": total,
        "available_bytes": int(fields.get("MemAvailable") or fields.get("MemFree") or 0) * 1024,
        "cgroup_limit_bytes": limit if limit is not None and (not total or limit < total) else None,
    }


def read_cgroup(host: Host, controller: str, name_v2: str, name_v1: str) -> Iterator[str]:
    """Content of a control file in this process's control group and all above it, version 2 first."""
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            bases, name = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), name_v2
        elif controller in controllers.split(","):
            bases, name = (f"/sys/fs/cgroup/{controllers}", f"/sys/fs/cgroup/{controller}"), name_v1
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for base in bases:
            for depth in range(len(parts), -1, -1):
                content = host.line("/".join([base, *parts[:depth], name]))
                if content:
                    yield content


def least(values: Iterable[str]) -> int | None:
    """The smallest of some limits; `max`, and what version 1 writes for it, is none."""
    numbers = [int(value) for value in values if value.isdigit() and int(value) < 1 << 60]
    return min(numbers) if numbers else None


def read_cpus(host: Host) -> dict[str, Any]:
    """CPUs that this process may use, and the control group's quota in CPUs."""
    quotas = []
    for content in read_cgroup(host, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        cells = content.split()
        if len(cells) == 2 and cells[0].isdigit() and int(cells[1]):
            quotas.append(int(cells[0]) / int(cells[1]))
        elif len(cells) == 1 and cells[0].isdigit():
            quotas.append(int(cells[0]) / 100000)  # version 1's period is 100 ms everywhere in practice
    return {"visible": len(os.sched_getaffinity(0)), "cgroup_quota": round(min(quotas), 2) if quotas else None}


def read_glibc() -> str | None:
    """Version of the C library that this Python runs on: the system's."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2] or None
    except (OSError, ValueError):
        return None


def read_gcc(host: Host) -> dict[str, Any]:
    """The default compiler, and the versions for which gcc-N and g++-N are there."""
    names = {name for folder in ("/usr/bin", "/usr/local/bin") for name in host.names_in(folder)}
    versions = {
        tool: sorted({m.group(1) for m in (re.match(rf"{re.escape(tool)}-(\d+)$", n) for n in names) if m}, key=int)
        for tool in ("gcc", "g++")
    }
    default = None
    if host.program("gcc"):
        answer = host.run(["gcc", "-dumpfullversion", "-dumpversion"], LIMITS["gcc"])
        default = answer.out.strip() or None if answer.rc == 0 else None
        if not default:
            host.note("gcc", answer.err or "gcc names no version")
    return {
        "default": default,
        "available": versions["gcc"],
        "cxx": versions["g++"],
        "cxx_default": bool(host.program("g++")),
    }


def read_libxml2(host: Host) -> list[str]:
    """Sonames of libxml2 where the loader looks: the runfile's installer is linked with one of them."""
    folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"]
    folders += [f"/usr/lib/{name}" for name in host.names_in("/usr/lib") if name.endswith("-linux-gnu")]
    return sorted(
        {name for folder in folders for name in host.names_in(folder) if re.match(r"libxml2\.so\.\d+$", name)}
    )


def read_python() -> dict[str, Any]:
    """The Python that runs this."""
    found = None
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec("apt")
    return {"version": platform.python_version(), "path": sys.executable or "", "has_apt_module": found is not None}


def read_uptime(host: Host) -> int:
    """Seconds since the kernel started."""
    return int(float(host.line("/proc/uptime").split()[0]))


def read_pids_max(host: Host) -> int | None:
    """How many processes the control groups allow; None without a limit."""
    return least(read_cgroup(host, "pids", "pids.max", "pids.max"))


def read_object(host: Host, path: str, topic: str) -> dict[str, Any] | None:
    """A JSON file that holds an object; None when it isn't there, and, with a note, when it holds something else."""
    found = host.json(path, topic)
    if found is not None and not isinstance(found, dict):
        host.note(topic, f"{path} holds no object")
    return found if isinstance(found, dict) else None


def read_ports(host: Host) -> list[int]:
    """TCP ports on which something listens."""
    return sorted(
        parse_listening(host.text("/proc/net/tcp") or "") | parse_listening(host.text("/proc/net/tcp6") or "")
    )


# --- disks ------------------------------------------------------------------------------------------------------------


def read_disks(host: Host) -> list[dict[str, Any]]:
    """Disks of the machine. `rotational` is what the kernel was told; a virtual disk often tells it wrong."""
    found = []
    for name in host.names_in("/sys/block"):
        base = f"/sys/block/{name}"
        sectors = host.line(f"{base}/size")
        if re.match(r"(loop|ram|zram|sr|fd|dm-|md)\d*", name) or not sectors.isdigit() or sectors == "0":
            continue
        found.append(
            {
                "name": name,
                "size_bytes": int(sectors) * 512,
                "rotational": host.line(f"{base}/queue/rotational") == "1",
                "model": host.line(f"{base}/device/model"),
            }
        )
    return found


def read_mounts(host: Host) -> list[dict[str, Any]]:
    """File systems that something could be put on, with free bytes and inodes for this user.

    Left out: the kernel's own, single files that an engine mounts, and a mount that only shows the file system above
    it once more (same device number, same read-only state), which would count one disk's space twice.
    """
    rows: dict[str, dict[str, Any]] = {}
    for row in parse_mounts(host.text("/proc/self/mounts", "mounts") or ""):
        point = row["mount"]
        hidden = any(point == top or point.startswith(top + "/") for top in HIDDEN_MOUNTS) and point != "/dev/shm"
        if row["fstype"] not in PSEUDO_FILESYSTEMS and not hidden:
            rows.pop(point, None)
            rows[point] = row
    jobs = {point: Job(partial(measure, host.path(point))) for point in rows}
    found: list[dict[str, Any]] = []
    seen: dict[str, tuple[int, bool]] = {}
    for point in sorted(rows):
        try:
            size = jobs[point].result(LIMITS["statvfs"])
        except Exception as error:
            host.note("mounts", f"{point}: {error}")
            continue
        if size is None:
            continue
        device, total, free, inodes = size
        read_only = "ro" in rows[point]["options"]
        above = max((p for p in seen if p == "/" or point.startswith(p + "/")), key=len, default="")
        if above and not host.root and seen[above] == (device, read_only):
            continue
        seen[point] = (device, read_only)
        found.append({**rows[point], "size_bytes": total, "free_bytes": free, "free_inodes": inodes})
    return found


def measure(path: Path) -> tuple[int, int, int, int | None] | None:
    """(device number, bytes, free bytes, free inodes or None where there is no such limit); None for a single file."""
    if not path.is_dir():
        return None
    size = os.statvfs(path)
    return (
        path.stat().st_dev,
        size.f_blocks * size.f_frsize,
        size.f_bavail * size.f_frsize,
        size.f_favail if size.f_files else None,
    )


def read_shm(host: Host) -> int | None:
    """Bytes of /dev/shm."""
    if not host.is_dir("/dev/shm"):
        return None
    size = os.statvfs(host.path("/dev/shm"))
    return size.f_blocks * size.f_frsize


def read_downloads(host: Host, folders: Iterable[str]) -> list[dict[str, Any]]:
    """Files that earlier runs fetched, unfinished ones (`.part`) too."""
    found = []
    for folder in folders:
        for name in host.names_in(folder, "downloads"):
            path = f"{folder.rstrip('/')}/{name}"
            if host.is_file(path):
                found.append({"path": path, "size": host.path(path).stat().st_size})
    return found


# --- GPUs and driver --------------------------------------------------------------------------------------------------


def read_pci(host: Host) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """GPUs and NVSwitches in sysfs, so that no driver is needed. A container may see its landlord's whole machine here."""
    gpus = []
    switches = []
    folder = "/sys/bus/pci/devices"
    for address in host.names_in(folder):
        base = f"{folder}/{address}"
        if host.line(f"{base}/vendor").lower() != "0x10de":
            continue
        kind = host.line(f"{base}/class").lower()[2:6]
        device = host.line(f"{base}/device").lower().replace("0x", "")
        if kind in ("0300", "0302"):
            driver = host.link(f"{base}/driver")
            gpus.append(
                {
                    "pci_address": address,
                    "device_id": device,
                    "class": kind,
                    "driver": driver.rsplit("/", 1)[-1] if driver else None,
                    "link": {
                        key: host.line(f"{base}/{key}") or None
                        for key in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
                    },
                }
            )
        elif kind == "0680":
            switches.append({"pci_address": address, "device_id": device})
    return gpus, switches


def read_modules(host: Host, release: str) -> list[str]:
    """NVIDIA kernel modules installed for this kernel, by the names that modprobe takes."""
    found = set()
    for line in (host.text(f"/lib/modules/{release}/modules.dep") or "").splitlines():
        path = line.partition(":")[0]
        name = re.sub(r"\.ko(\.\w+)?$", "", path.rsplit("/", 1)[-1]).replace("_", "-")
        own = path.startswith("kernel/drivers/") and not re.match(r"nvidia(-(drm|modeset|uvm|peermem))?$", name)
        if name.startswith("nvidia") and not own:
            found.add(name)
    return sorted(found)


def read_device_nodes(host: Host) -> list[str]:
    """What the driver hands out: /dev/nvidia*, and WSL's /dev/dxg."""
    names = [name for name in host.names_in("/dev") if name.startswith("nvidia") or name == "dxg"]
    return [f"/dev/{name}" for name in names if not host.is_dir(f"/dev/{name}")]


def read_libcuda(host: Host, machine: str) -> str | None:
    """The file behind the libcuda.so.1 that the loader would pick."""
    path = parse_loader_cache(host.raw("/etc/ld.so.cache", "driver") or b"", "libcuda.so.1", machine)
    places = [
        f"/usr/lib/{machine}-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/cuda/compat",
    ]
    for candidate in [path, *(f"{place}/libcuda.so.1" for place in places)]:
        if candidate and host.exists(candidate):
            return host.follow(candidate)
    return None


def read_compat(host: Host) -> list[str]:
    """Files of CUDA's forward compatibility: a libcuda newer than the kernel's half, which few GPUs may use."""
    folders = [
        "/usr/local/cuda/compat",
        *(f"/usr/local/{n}/compat" for n in host.names_in("/usr/local") if n.startswith("cuda-")),
    ]
    found: dict[str, str] = {}
    for folder in folders:
        for name in host.names_in(folder):
            if re.match(r"libcuda\.so\.\d+\.\d+", name):
                found.setdefault(str(host.path(f"{folder}/{name}").resolve()), f"{folder}/{name}")
    return sorted(found.values())


def read_dkms(host: Host) -> list[dict[str, str]]:
    """NVIDIA modules in DKMS's tree: what is added, and for which kernels it was built."""
    found = []
    for module in host.names_in("/var/lib/dkms"):
        if not module.startswith("nvidia"):
            continue
        for version in host.names_in(f"/var/lib/dkms/{module}"):
            base = f"/var/lib/dkms/{module}/{version}"
            if not re.match(r"\d", version) or host.link(base) is not None:
                continue
            kernels = [name for name in host.names_in(base) if re.match(r"\d", name)]
            for kernel in kernels or [""]:
                modules = any(
                    host.names_in(f"{base}/{kernel}/{arch}/module") for arch in host.names_in(f"{base}/{kernel}")
                )
                status = "added" if not kernel else "built" if modules else "failed"
                found.append({"module": module, "version": version, "kernel": kernel, "status": status})
    return found


def ask_smi(host: Host, path: str) -> dict[str, Any]:
    """Ask nvidia-smi for its GPUs. Any exit code but 0 means that the driver isn't active."""
    fields: tuple[str, ...] = SMI_FIELDS
    answer = host.run(smi_query(path, fields), LIMITS["nvidia-smi"])
    if answer.rc not in (0, None) and "compute_cap" in answer.out + answer.err:
        # Drivers before 510 don't know this field, and then answer nothing at all.
        fields = SMI_FIELDS[:-1]
        answer = host.run(smi_query(path, fields), LIMITS["nvidia-smi"])
    gpus = parse_smi_query(answer.out, fields) if answer.rc == 0 else []
    versions = [gpu.pop("driver_version") for gpu in gpus]
    # The tool writes its errors to standard output more often than not.
    said = answer.err.strip() or ("" if answer.rc == 0 and gpus else answer.out.strip())
    return {
        "path": path,
        "rc": 124 if answer.rc is None else answer.rc,
        "stderr": said[-300:],
        "driver_version": next((version for version in versions if version), None),
        "gpus": gpus,
    }


def smi_query(path: str, fields: Iterable[str]) -> list[str]:
    """The command line whose answer `parse_smi_query` reads."""
    return [path, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]


def ask_gpu_processes(host: Host, path: str) -> int | None:
    """Number of processes that compute on the GPUs; a container sees only its own."""
    answer = host.run([path, "--query-compute-apps=pid", "--format=csv,noheader"], LIMITS["nvidia-smi"])
    return sum(line.strip().isdigit() for line in answer.out.splitlines()) if answer.rc == 0 else None


def read_driver(host: Host, packages: Iterable[Mapping[str, str]], kernel: str, machine: str) -> dict[str, Any]:
    """The driver as loaded, as installed, and as handed out; `smi` is filled in by who asked it."""
    version, flavour = parse_driver_version(host.text("/proc/driver/nvidia/version", "driver") or "")
    return {
        "loaded_version": version,
        "flavour": flavour,
        "nouveau_loaded": host.is_dir("/sys/module/nouveau"),
        "modules_installed": read_modules(host, kernel),
        "device_nodes": read_device_nodes(host),
        "libcuda": read_libcuda(host, machine),
        "compat": read_compat(host),
        "runfile": next(
            (path for path in ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer") if host.exists(path)), None
        ),
        "dkms": read_dkms(host),
        "smi": None,
        "packages": [
            {key: package[key] for key in ("name", "version", "status")}
            for package in packages
            if DRIVER_PACKAGES.match(package["name"]) and package["status"] != "not-installed"
        ],
    }


# --- CUDA -------------------------------------------------------------------------------------------------------------


def find_toolkits(host: Host, extra: Iterable[str]) -> list[str]:
    """Prefixes that hold a toolkit: those given, what they hold as cuda-*, the usual ones; a link stands for its target."""
    places = []
    for prefix in [*(place.rstrip("/") for place in extra), "/usr/local", "/opt"]:
        names = [name for name in host.names_in(prefix) if re.match(r"cuda(-\d.*)?$", name)]
        places += [prefix, *(f"{prefix}/{name}" for name in names)]
    found: dict[str, str] = {}
    for place in places:
        if host.link(place) is None and host.is_dir(place) and is_toolkit(host, place):
            found.setdefault(str(host.path(place).resolve()), place)
    if host.is_file("/usr/bin/nvcc") and host.follow("/usr/bin/nvcc").startswith(("/usr/bin/", "/usr/lib/")):
        found.setdefault("/usr", "/usr")
    return sorted(found.values())


def is_toolkit(host: Host, prefix: str) -> bool:
    """Whether something of a toolkit is in a directory, be it whole or half.

    By its name `cuda-12.4` counts even when nearly empty; /usr/local counts only when a toolkit was unpacked into it.
    """
    if re.search(r"/cuda-\d[\d.]*$", prefix):
        return True
    return any(host.exists(f"{prefix}/{mark}") for mark in ("version.json", "version.txt", "nvvm", "include/cuda.h"))


def read_toolkit(host: Host, prefix: str) -> dict[str, Any]:
    """One toolkit: the release's version, and nvcc's own, which says whether the compiler is whole."""
    about = host.json(f"{prefix}/version.json", "toolkits") or {}
    old = re.search(r"CUDA Version (\d+(?:\.\d+)+)", host.text(f"{prefix}/version.txt") or "")

    def version_of(name: str) -> str | None:
        entry = about.get(name) if isinstance(about, dict) else None
        return str(entry["version"]) if isinstance(entry, dict) and entry.get("version") else None

    nvcc = f"{prefix}/bin/nvcc" if host.is_file(f"{prefix}/bin/nvcc") else None
    nvcc_version = version_of("cuda_nvcc") if nvcc else None
    if nvcc and not nvcc_version:
        answer = host.run([nvcc, "--version"], LIMITS["nvcc"])
        nvcc_version = parse_nvcc_version(answer.out) if answer.rc == 0 else None
        if not nvcc_version:
            host.note("toolkits", f"{nvcc} --version: {answer.err.strip() or answer.out.strip() or 'no version'}")
    version = version_of("cuda") or (old.group(1) if old else None)
    return {
        "prefix": prefix,
        "version": version,
        "release": ".".join((nvcc_version or version or "").split(".")[:2]) or None,
        "nvcc": nvcc,
        "nvcc_version": nvcc_version,
    }


def read_cuda_link(host: Host) -> str | None:
    """Where /usr/local/cuda leads, through Debian's alternatives too; None when it is no link."""
    target = host.follow("/usr/local/cuda")
    return target if target != "/usr/local/cuda" else None


def read_cudnn(host: Host, prefix: str, machine: str) -> dict[str, Any] | None:
    """Read cuDNN in a toolkit or in /usr: header, libraries, and whether the links are links that lead somewhere."""
    short = "sbsa" if machine == "aarch64" else machine
    includes = [f"{prefix}/include", f"{prefix}/targets/{short}-linux/include", f"{prefix}/include/{machine}-linux-gnu"]
    folders = [
        f"{prefix}/lib64",
        f"{prefix}/lib",
        f"{prefix}/targets/{short}-linux/lib",
        f"{prefix}/lib/{machine}-linux-gnu",
    ]
    header = None
    for folder in includes:
        text = (
            host.text(f"{folder}/cudnn_version.h", "cudnn")
            or host.text(f"{folder}/cudnn_version_v9.h")
            or host.text(f"{folder}/cudnn.h")
        )
        header = header or parse_cudnn_header(text or "")
    libraries = set()
    whole = True
    for folder in folders:
        for name in host.names_in(folder):
            if re.match(r"libcudnn\w*\.so(\.\d+)*$", name):
                libraries.add(name)
                versioned = re.search(r"\.so\.\d+\.\d+", name)
                is_link = host.link(f"{folder}/{name}") is not None
                # Unpacked as copies, or cut off, `libcudnn.so` is a file or leads nowhere.
                whole = whole and host.exists(f"{folder}/{name}") and bool(versioned or is_link)
    if not header and not libraries:
        return None
    mains = [name for name in sorted(libraries) if name.startswith("libcudnn.so.")]
    return {
        "prefix": prefix,
        "header_version": header,
        "libraries": sorted(libraries),
        "links_ok": whole and bool(mains),
    }


# --- conda and environments -------------------------------------------------------------------------------------------


def find_conda(host: Host, extra: Iterable[str], home: str) -> list[str]:
    """Prefixes with a conda command, each once, in the spelling asked for."""
    places = [
        *(prefix.rstrip("/") for prefix in extra),
        *CONDA_PLACES,
        *(f"{home}/{name}" for name in CONDA_HOME_PLACES),
    ]
    for user in host.names_in("/home"):
        places.append(f"/home/{user}/miniconda3")
    found: dict[str, str] = {}
    for place in places:
        if host.exists(f"{place}/bin/conda") or host.exists(f"{place}/condabin/conda"):
            found.setdefault(str(host.path(place).resolve()), place)
    return sorted(found.values())


def version_in_meta(host: Host, prefix: str, package: str) -> str | None:
    """Version of a package in conda-meta, by the name of its record: NAME-VERSION-BUILD.json."""
    for name in host.names_in(f"{prefix}/conda-meta"):
        match = re.match(rf"{re.escape(package)}-(\d[^-]*)-[^-]+\.json$", name)
        if match:
            return match.group(1)
    return None


def read_conda(host: Host, prefix: str, home: str) -> dict[str, Any]:
    """One conda: version, environments below and beside it, configured channels."""
    version = version_in_meta(host, prefix, "conda")
    if not version:
        answer = host.run([f"{prefix}/bin/conda", "--version"], LIMITS["conda"])
        match = re.search(r"conda (\d\S*)", answer.out) if answer.rc == 0 else None
        version = match.group(1) if match else None
        if not version:
            host.note("conda", f"{prefix}: {answer.err.strip() or 'no version'}")
    environments = [f"{prefix}/envs/{name}" for name in host.names_in(f"{prefix}/envs")]
    environments += (host.text(f"{home}/.conda/environments.txt") or "").split()
    channels: list[str] = []
    for path in (f"{home}/.condarc", f"{prefix}/.condarc", "/etc/conda/.condarc"):
        channels += [channel for channel in parse_condarc(host.text(path) or "") if channel not in channels]
    own = [path for path in environments if path != prefix and host.is_dir(f"{path}/conda-meta")]
    return {"prefix": prefix, "version": version, "environments": sorted(set(own)), "channels": channels}


def read_environment(host: Host, prefix: str) -> dict[str, Any] | None:
    """One Python environment, by its files and without running it: Python, packages, torch's CUDA, the lock it was made from."""
    python = version_in_meta(host, prefix, "python")
    if not python:
        fields = dict(re.findall(r"^(\w+)\s*=\s*(\S+)", host.text(f"{prefix}/pyvenv.cfg") or "", re.MULTILINE))
        python = fields.get("version") or fields.get("version_info")
        python = ".".join(python.split(".")[:3]) if python else None
    folders: dict[str, str] = {}
    for name in host.names_in(f"{prefix}/lib"):
        site = f"{prefix}/lib/{name}/site-packages"
        if re.match(r"python\d", name) and host.is_dir(site):
            folders.setdefault(str(host.path(site).resolve()), site)
    if not python and host.exists(f"{prefix}/bin/python"):
        answer = host.run([f"{prefix}/bin/python", "-V"], LIMITS["python"])
        python = (answer.out + answer.err).strip().partition(" ")[2] or None if answer.rc == 0 else None
    if not python and not folders:
        return None
    packages: dict[str, str] = {}
    torch_cuda = None
    for site in folders.values():
        packages.update(read_packages(host, site))
        torch_cuda = parse_torch_cuda(host.text(f"{site}/torch/version.py", "environments") or "") or torch_cuda
    lock = host.line(f"{prefix}/{LOCK_MARK}")
    return {
        "prefix": prefix,
        "python": python,
        "packages": dict(sorted(packages.items())),
        "torch_cuda": torch_cuda,
        "lock_sha256": lock if re.match(r"[0-9a-f]{64}$", lock) else None,
    }


def read_packages(host: Host, site: str) -> dict[str, str]:
    """{normalised name: version} of a site-packages directory; what has no METADATA is the rest of a broken install."""
    packages: dict[str, str] = {}
    for entry in host.names_in(site, "environments"):
        match = re.match(r"([A-Za-z0-9][\w.-]*?)-(\d[^-]*)(?:\.dist-info|(?:-py\d[\d.]*)?\.egg-info)$", entry)
        if not match:
            continue
        if entry.endswith(".dist-info") and not host.exists(f"{site}/{entry}/METADATA"):
            host.note("environments", f"{site}/{entry} has no METADATA")
            continue
        name = normalise(match.group(1))
        if packages.get(name, match.group(2)) != match.group(2):
            host.note("environments", f"{site} has two versions of {name}: {packages[name]} and {match.group(2)}")
        packages[name] = match.group(2)
    return packages


# --- package manager --------------------------------------------------------------------------------------------------


def read_dpkg(host: Host) -> list[dict[str, str]]:
    """Packages that dpkg knows."""
    return parse_dpkg_status(host.text("/var/lib/dpkg/status", "packages") or "")


def read_locks(host: Host) -> list[dict[str, Any]]:
    """Locks of apt and dpkg that somebody holds. The file's being there says nothing: the lock on it does."""
    table = host.text("/proc/locks") or ""
    found = []
    for path in APT_LOCKS:
        pid = lock_holder(host.path(path), table)
        if pid is not None:
            found.append({"path": path, "pid": pid, "holder": host.line(f"/proc/{pid}/comm")})
    return found


def read_apt(host: Host, packages: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """State of apt and dpkg; the candidates are filled in by who asked for them."""
    half = ("half-installed", "half-configured", "unpacked", "triggers-awaited", "triggers-pending")
    return {
        "available": bool(host.program("apt-get")),
        "locks": read_locks(host),
        "holds": sorted(package["name"] for package in packages if package["want"] == "hold"),
        "half_installed": sorted(p["name"] for p in packages if p["status"] in half or p["flag"] == "reinstreq"),
        "candidates_asked": False,
        "candidates": {},
        "offers": {},
        "nvidia_sources": read_nvidia_sources(host),
        "driver_barred": host.exists(BARRED),
    }


def read_nvidia_sources(host: Host) -> list[dict[str, Any]]:
    """Entries of apt's sources that lead to NVIDIA's repository or a mirror of it."""
    paths = ["/etc/apt/sources.list"]
    paths += [
        f"/etc/apt/sources.list.d/{name}"
        for name in host.names_in("/etc/apt/sources.list.d")
        if name.endswith((".list", ".sources"))
    ]
    return [
        {"file": path, "uri": address, "signed_by": entry.signed_by or None}
        for path in paths
        for entry in parse_entries(host.text(path, "apt") or "", path)
        for address in entry.addresses
        if re.search(VENDOR, address)
    ]


def ask_candidates(host: Host, kernel: Mapping[str, Any]) -> dict[str, Any]:
    """What apt offers of the driver family, of the kernels' headers and of their compiler: {candidates, offers}.

    Unknown names are skipped by apt, so that two calls side by side tell everything.
    """
    # Without its cache apt would write one; a probe leaves no file behind.
    cached = host.exists("/var/cache/apt/pkgcache.bin")
    options = [] if cached else ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
    headers = [f"linux-headers-{release}" for release in dict.fromkeys((kernel["release"], kernel["will_boot"]))]
    compiler = re.search(r"gcc-(\d+)|\)\s+(\d+)\.", kernel["compiler"] or "")
    more = [f"gcc-{compiler.group(1) or compiler.group(2)}"] if compiler else []
    names = [*DRIVER_OFFERS, *OTHER_CANDIDATES, *headers, *more]
    shown = Job(partial(host.run, ["apt-cache", *options, "show", *DRIVER_OFFERS], LIMITS["apt-cache"]))
    answer = host.run(["apt-cache", *options, "policy", *names], LIMITS["apt-cache"])
    records = shown.result(LIMITS["apt-cache"] + 1)
    for told in (answer, records):
        if told.rc is None:
            raise TimeoutError(f"apt-cache: {told.err}")
    needs = parse_apt_dependencies(records.out)
    offers = {
        name: [{**row, "depends": needs.get((name, row["version"]), [])} for row in rows if row["sources"]]
        for name, rows in parse_apt_offers(answer.out).items()
        if DRIVER_PACKAGES.match(name)
    }
    return {
        "candidates": parse_apt_policy(answer.out),
        "offers": {name: rows for name, rows in offers.items() if rows},
    }


# --- shells -----------------------------------------------------------------------------------------------------------


def read_shells(host: Host, home: str) -> dict[str, Any]:
    """What the shells' files set of CUDA's variables; of other variables not even the name is reported."""
    paths = ["/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/zsh/zshenv", "/etc/crontab"]
    for folder in ("/etc/profile.d", "/etc/environment.d", "/etc/systemd/system.conf.d", "/etc/cron.d"):
        paths += [f"{folder}/{name}" for name in host.names_in(folder)]
    paths += [f"{home}/{name}" for name in (".bashrc", ".profile", ".bash_profile", ".zshrc")]
    texts = {path: host.text(path) for path in paths}
    stale = []
    loader = []
    for path, text in texts.items():
        if re.search(r"^\s*(?:export\s+)?LD_LIBRARY_PATH=", text or "", re.MULTILINE):
            loader.append(path)
        value = parse_assignments(text or "").get("CUDA_HOME", "").rstrip("/")
        if value.startswith("/") and "$" not in value and not host.is_dir(value):
            stale.append({"file": path, "value": value})
    environment = parse_assignments(texts["/etc/environment"] or "")
    return {
        "etc_environment": {name: environment[name] for name in ENVIRONMENT_NAMES if name in environment},
        "marked_blocks": [path for path, text in texts.items() if text and MARKER in text],
        "ld_library_path_files": loader,
        "stale_cuda_home": stale,
    }


# --- the document -----------------------------------------------------------------------------------------------------


# What a topic is when it fails whole.
EMPTY: dict[str, Any] = {
    "os": {"id": "", "version_id": "", "codename": "", "pretty_name": ""},
    "kernel": {
        "release": os.uname().release,
        "version_line": "",
        "compiler": None,
        "will_boot": os.uname().release,
        **{key: [] for key in ("installed", "headers")},
    },
    "user": {"name": "", "uid": os.geteuid(), "home": "/", "shell": "", "sudo": "none"},
    "signs": {
        **dict.fromkeys(("container_env", "pid1", "cgroup_hint", "provider"), ""),
        **dict.fromkeys(("dockerenv", "containerenv", "systemd_running", "wsl", "hypervisor_flag", "xen"), False),
        **dict.fromkeys(("kubernetes", "can_load_modules", "overlay_root"), False),
        "dmi": {"sys_vendor": "", "product_name": ""},
        "provider_signs": [],
    },
    "secure_boot": "unknown",
    "pci": ([], []),
    "driver": {
        **dict.fromkeys(("loaded_version", "flavour", "libcuda", "runfile", "smi"), None),
        **{key: [] for key in ("modules_installed", "device_nodes", "compat", "dkms", "packages")},
        "nouveau_loaded": False,
    },
    "memory": {"total_bytes": 0, "available_bytes": 0, "cgroup_limit_bytes": None},
    "cpus": {"visible": 1, "cgroup_quota": None},
    "gcc": {"default": None, "available": [], "cxx": [], "cxx_default": False},
    "python": {"version": platform.python_version(), "path": sys.executable or "", "has_apt_module": False},
    "apt": {
        **{key: [] for key in ("locks", "holds", "half_installed", "nvidia_sources")},
        **dict.fromkeys(("available", "candidates_asked", "driver_barred"), False),
        **{key: {} for key in ("candidates", "offers")},
    },
    "shells": {
        "etc_environment": {},
        **{key: [] for key in ("marked_blocks", "ld_library_path_files", "stale_cuda_home")},
    },
    **{key: [] for key in ("packages", "toolkits", "cudnn", "conda", "environments", "mounts", "libxml2_sonames")},
    **{key: [] for key in ("disks", "listening_ports", "downloads")},
}


def collect(host: Host, options: Mapping[str, Any]) -> dict[str, Any]:
    """Gather the whole document. A topic that fails leaves its empty form and a note, and the rest goes on."""

    def topic(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            host.note(name, f"{type(error).__name__}: {error}")
            return copy.deepcopy(EMPTY.get(name))

    def each(name: str, function: Callable[..., Any], places: Iterable[str], *arguments: Any) -> list[dict[str, Any]]:
        found = [topic(name, function, host, place, *arguments) for place in places]
        return [item for item in found if item]

    state = str(options["state_dir"]).rstrip("/")
    machine = os.uname().machine
    # What takes long is started first and fetched last.
    user_job = Job(partial(read_user, host))
    gcc_job = Job(partial(read_gcc, host))
    smi = host.program("nvidia-smi")
    smi_job = Job(partial(ask_smi, host, smi)) if smi else None
    processes_job = Job(partial(ask_gpu_processes, host, smi)) if smi else None
    kernel = topic("kernel", read_kernel, host)
    signs = topic("signs", read_signs, host)
    wanted = options["apt_candidates"]
    # Where a driver is at work none is chosen, so that a host that needs nothing isn't asked.
    at_work = host.exists("/proc/driver/nvidia/version")
    ask = wanted == "always" or (wanted == "auto" and not at_work and not looks_contained(signs) and not signs["wsl"])
    apt_job = Job(partial(ask_candidates, host, kernel)) if ask and host.program("apt-cache") else None

    user = topic("user", user_job.result, LIMITS["sudo"] + 1)
    home = user["home"].rstrip("/")
    gpus, nvswitches = topic("pci", read_pci, host)
    packages = topic("packages", read_dpkg, host)
    driver = topic("driver", read_driver, host, packages, kernel["release"], machine)
    apt = topic("apt", read_apt, host, packages)
    toolkits = topic("toolkits", find_toolkits, host, options["toolkit_prefixes"])
    conda = each("conda", read_conda, topic("conda", find_conda, host, options["conda_prefixes"], home), home)
    known = [prefix for row in conda for prefix in (*row["environments"], row["prefix"])]
    environments = dict.fromkeys([*(prefix.rstrip("/") for prefix in options["environments"]), *known])
    document = {
        "schema_version": SCHEMA_VERSION,
        "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hostname": os.uname().nodename,
        "os": topic("os", read_os, host),
        "kernel": kernel,
        "machine": machine,
        "boot_id": host.line("/proc/sys/kernel/random/boot_id") or None,
        "uptime_s": topic("uptime_s", read_uptime, host),
        "user": user,
        "signs": signs,
        "init": read_init(signs),
        "secure_boot": topic("secure_boot", read_secure_boot, host),
        "gpus": gpus,
        "nvswitches": nvswitches,
        "driver": driver,
        "toolkits": each("toolkits", read_toolkit, toolkits),
        "cuda_link": topic("cuda_link", read_cuda_link, host),
        "cudnn": each("cudnn", read_cudnn, dict.fromkeys([*toolkits, "/usr"]), machine),
        "conda": conda,
        "environments": each("environments", read_environment, environments),
        "mounts": topic("mounts", read_mounts, host),
        "disks": topic("disks", read_disks, host),
        "memory": topic("memory", read_memory, host),
        "cpus": topic("cpus", read_cpus, host),
        "shm_bytes": topic("shm_bytes", read_shm, host),
        "pids_max": topic("pids_max", read_pids_max, host),
        "glibc": read_glibc(),
        "gcc": topic("gcc", gcc_job.result, LIMITS["gcc"] + 1),
        "libxml2_sonames": topic("libxml2_sonames", read_libxml2, host),
        "python": topic("python", read_python),
        "apt": apt,
        "shells": topic("shells", read_shells, host, home),
        "listening_ports": topic("listening_ports", read_ports, host),
        "receipt": read_object(host, f"{state}/receipt.json", "receipt"),
        "shell_environment": read_object(host, f"{state}/shell_environment.json", "shell_environment"),
        "nvidia_driver": read_object(host, f"{state}/nvidia_driver.json", "nvidia_driver"),
        "prefetch": read_object(host, f"{state}/prefetch/status.json", "prefetch"),
        "downloads": topic("downloads", read_downloads, host, options["download_dirs"]),
        "gpu_processes": None,
    }
    if apt_job:
        told = topic("candidates", apt_job.result, 2 * LIMITS["apt-cache"] + 2)
        apt.update(candidates_asked=told is not None, **(told or {}))
    if smi_job and processes_job:
        # Asked twice, an old driver can take the limit twice.
        driver["smi"] = topic("smi", smi_job.result, 2 * LIMITS["nvidia-smi"] + 1)
        document["gpu_processes"] = topic("gpu_processes", processes_job.result, LIMITS["nvidia-smi"] + 1)
    document["unreadable"] = host.unreadable
    masked: dict[str, Any] = mask(document)
    return masked


def main() -> None:
    """Run as an Ansible module."""
    places = {
        name: {"type": "list", "elements": "str", "default": []}
        for name in ("conda_prefixes", "toolkit_prefixes", "environments", "download_dirs")
    }
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "str", "default": "/var/lib/gpu-bootstrap"},
            "apt_candidates": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            **places,
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, probe=collect(Host(), module.params))


if __name__ == "__main__":
    main()
