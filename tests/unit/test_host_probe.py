"""The probe: parsers on outputs, trees of files in the place of hosts, and the document against its schema."""

from __future__ import annotations

import ast
import json
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import host_probe as hp

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
PROBES = sorted((FIXTURES / "probes").glob("*.json"))
SOURCE = (ROOT / "library/host_probe.py").read_text()
SCHEMA = json.loads((ROOT / "docs/probe.schema.json").read_text())
OPTIONS: dict[str, Any] = {
    "state_dir": "/var/lib/gpu-bootstrap",
    "conda_prefixes": [],
    "toolkit_prefixes": [],
    "environments": [],
    "download_dirs": [],
    "apt_candidates": "never",
}
EFI_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def output(name: str) -> str:
    return (FIXTURES / "outputs" / name).read_text()


def errors(document: object) -> list[str]:
    return [f"{list(e.path)}: {e.message}" for e in Draft202012Validator(SCHEMA).iter_errors(document)]


class Link(str):
    """A symbolic link in a tree."""


Tree = dict[str, "str | bytes | Link | None"]


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., hp.Host]:
    """Build a host from {path: content | Link | None for a directory}, and programs from {argv's start: answer}."""

    def build(
        tree: Tree | None = None, programs: dict[str, tuple[int | None, str, str]] | None = None, uid: int = 0
    ) -> hp.Host:
        for path, content in (tree or {}).items():
            place = tmp_path / path.lstrip("/")
            if content is None:
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Link):
                place.symlink_to(content)
            elif isinstance(content, bytes):
                place.write_bytes(content)
            else:
                place.write_text(content)

        def run(argv: list[str], seconds: float) -> hp.Answer:
            line = " ".join(argv)
            known = [start for start in programs or {} if line.startswith(start)]
            return hp.Answer(*(programs or {})[max(known, key=len)]) if known else hp.no_command(argv, seconds)

        made = hp.Host(str(tmp_path), run=run)
        made.uid = uid
        made.variables = frozenset()
        return made

    return build


# --- the document and its schema --------------------------------------------------------------------------------------


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", PROBES, ids=lambda p: p.stem)
def test_a_saved_probe_fits_the_schema(path: Path) -> None:
    assert errors(json.loads(path.read_text())) == []


def test_every_saved_probe_is_explained() -> None:
    told = set(re.findall(r"`(\w+)\.json`", (FIXTURES / "probes/README.md").read_text()))
    assert told == {path.stem for path in PROBES}


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("schema_version",), 2),
        (("machine",), None),
        (("gpus", 0, "device_id"), "10DE"),
        (("driver", "smi"), {}),
        (("mounts", 0, "free_bytes"), "12G"),
        (("user", "sudo"), "maybe"),
        (("surprise",), 1),
    ],
)
def test_the_schema_rejects_a_wrong_document(where: tuple[Any, ...], value: object) -> None:
    document = json.loads((FIXTURES / "probes/debian12_vm_4090.json").read_text())
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    assert errors(document)


def test_an_empty_host_gives_a_whole_document(host: Callable[..., hp.Host]) -> None:
    document = hp.collect(host(), OPTIONS)
    assert errors(document) == []
    assert (document["gpus"], document["driver"]["smi"], document["receipt"]) == ([], None, None)


def test_this_machine_gives_a_whole_document() -> None:
    document = hp.collect(hp.Host(), OPTIONS)
    assert errors(document) == []
    assert document["os"]["id"]
    assert any(mount["mount"] == "/" for mount in document["mounts"])
    assert document["memory"]["total_bytes"] > 0


PARTS_OF_TOPICS = {
    "read_sudo", "read_cgroup", "read_provider", "read_modules", "read_device_nodes", "read_libcuda", "read_object",
    "read_packages", "read_locks",
}  # fmt: skip
TOPICS = sorted({*re.findall(r"^def ((?:read|find)_\w+)\(host", SOURCE, re.MULTILINE)} - PARTS_OF_TOPICS)


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_that_fails_leaves_a_whole_document(
    name: str, host: Callable[..., hp.Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(hp, name, fail)
    tree: Tree = {
        "/opt/miniconda3/bin/conda": "",
        "/usr/local/cuda-12.4/version.json": "{}",
        "/opt/miniconda3/lib/python3.11/site-packages": None,
    }
    document = hp.collect(host(tree), OPTIONS)
    assert errors(document) == []
    assert any("the disk is on fire" in entry["why"] for entry in document["unreadable"])


def test_what_may_not_be_read_is_named(host: Callable[..., hp.Host], monkeypatch: pytest.MonkeyPatch) -> None:
    made = host({"/proc/1/environ": b"container=docker\0"})
    real = Path.open

    def deny(path: Path, *rest: Any, **more: Any) -> Any:
        if path.name == "environ":
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **more)

    monkeypatch.setattr(Path, "open", deny)
    document = hp.collect(made, OPTIONS)
    assert document["signs"]["container_env"] == ""
    assert {"topic": "signs", "why": "/proc/1/environ: Permission denied"} in document["unreadable"]


def test_a_receipt_that_is_no_json_is_named_and_null(host: Callable[..., hp.Host]) -> None:
    tree: Tree = {
        "/var/lib/gpu-bootstrap/receipt.json": '{"verdict": ',
        "/var/lib/gpu-bootstrap/shell_environment.json": "[]",
    }
    document = hp.collect(host(tree), OPTIONS)
    assert (document["receipt"], document["shell_environment"]) == (None, None)
    assert {entry["topic"] for entry in document["unreadable"]} >= {"receipt", "shell_environment"}


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_no_secret_reaches_the_document(host: Callable[..., hp.Host]) -> None:
    secret = "s3cr3t-Value-9f8e7d"  # noqa: S105
    tree: Tree = {
        "/proc/1/environ": f"RUNPOD_POD_ID={secret}\0RUNPOD_API_KEY={secret}\0HF_TOKEN={secret}\0AWS_KEY={secret}\0".encode(),
        "/etc/rp_environment": f'export RUNPOD_API_KEY="{secret}"\n',
        "/etc/environment": f'PATH="/usr/bin"\nHF_TOKEN={secret}\nhttp_proxy=http://me:{secret}@proxy.example:3128\n',
        "/root/.condarc": f"channels:\n  - https://conda.example/t/{secret}/private\n  - https://me:{secret}@conda.example/main\n",
        "/opt/miniconda3/bin/conda": "",
        "/opt/miniconda3/conda-meta/conda-26.5.3-py311_0.json": "{}",
        "/var/lib/gpu-bootstrap/prefetch/status.json": json.dumps({"proxy": f"http://me:{secret}@proxy.example:3128"}),
        "/proc/self/mounts": f"//files.example/share / cifs rw,username=me,password={secret} 0 0\n",
        "/root/.bashrc": f"export WANDB_API_KEY={secret}\nexport CUDA_HOME=/usr/local/cuda-11.8\n",
    }
    document = hp.collect(host(tree), {**OPTIONS, "environments": ["/opt/miniconda3"]})
    assert secret not in json.dumps(document)
    assert document["signs"]["provider"] == "runpod"
    assert document["conda"][0]["channels"] == ["https://conda.example/t/***/private", "https://***@conda.example/main"]
    assert document["shells"]["etc_environment"] == {"PATH": "/usr/bin"}


@pytest.mark.parametrize("path", PROBES, ids=lambda p: p.stem)
def test_a_saved_probe_holds_no_secret(path: Path) -> None:
    assert not re.search(r"token(?!izers)|password[^l\"]|secret|api_key|://[^/\s\"]+@", path.read_text(), re.IGNORECASE)


def test_a_directory_called_t_is_no_token() -> None:
    assert hp.mask({"prefix": "/data/t/miniconda3/envs"}) == {"prefix": "/data/t/miniconda3/envs"}


# --- parsers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nvrm-open-580.txt", ("580.173.02", "open")),
        ("nvrm-open-aarch64-580.txt", ("580.126.20", "open")),
        ("nvrm-proprietary-470.txt", ("470.256.02", "proprietary")),
        ("nvrm-broken.txt", (None, None)),
    ],
)
def test_the_loaded_driver_is_read_in_both_forms(name: str, found: tuple[str | None, str | None]) -> None:
    assert hp.parse_driver_version(output(name)) == found


@pytest.mark.parametrize(
    ("name", "compiler"),
    [
        ("kernel-debian-13.txt", "x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0"),
        ("kernel-ubuntu-20.04.txt", "gcc version 9.4.0 (Ubuntu 9.4.0-1ubuntu1~20.04.2)"),
        ("kernel-clang.txt", "Ubuntu clang version 18.1.3 (1ubuntu1)"),
        ("kernel-cut.txt", None),
    ],
)
def test_the_kernels_compiler_is_read(name: str, compiler: str | None) -> None:
    assert hp.parse_compiler(output(name)) == compiler


def test_nvidia_smi_rows_are_read() -> None:
    gpus = hp.parse_smi_query(output("smi-query-4090x2.csv"))
    assert [(g["index"], g["name"], g["memory_mib"], g["compute_capability"]) for g in gpus] == [
        (0, "NVIDIA GeForce RTX 4090", 24564, "8.9"),
        (1, "NVIDIA GeForce RTX 4090", 24564, "8.9"),
    ]


def test_a_field_that_the_driver_cant_tell_is_null() -> None:
    assert hp.parse_smi_query(output("smi-query-gh200-memory-na.csv"))[0]["memory_mib"] is None
    lost = hp.parse_smi_query(output("smi-query-one-lost.csv"))
    assert [(g["index"], g["memory_mib"], g["uuid"]) for g in lost][1] == (2, None, "")


@pytest.mark.parametrize(
    "name", ["smi-no-driver-9.txt", "smi-mismatch-18.txt", "smi-no-devices.txt", "smi-query-no-compute-cap-470.txt"]
)
def test_what_is_no_row_of_nvidia_smi_is_skipped(name: str) -> None:
    assert hp.parse_smi_query(output(name)) == []


def test_dpkg_status_is_read_paragraph_by_paragraph() -> None:
    packages = {p["name"]: p for p in hp.parse_dpkg_status(output("dpkg-status.txt"))}
    assert "cut-off" not in packages
    assert packages["libnvidia-compute-580-server"]["want"] == "hold"
    assert packages["libnvidia-compute-580-server"]["status"] == "installed"
    assert packages["nvidia-dkms-580-server-open"]["version"] == "580.173.02-0ubuntu0.24.04.1"
    assert packages["nvidia-driver-535"]["status"] == "config-files"


def test_apts_candidates_are_read() -> None:
    assert hp.parse_apt_policy(output("apt-policy-noble.txt")) == {
        "nvidia-driver-550-server": "550.163.01-0ubuntu0.24.04.1",
        "nvidia-driver-580-open": "580.173.02-0ubuntu0.24.04.1",
    }
    assert hp.parse_apt_policy(output("apt-policy-cut.txt")) == {}


def test_apts_offers_are_read_with_their_sources() -> None:
    offers = hp.parse_apt_offers(output("apt-policy-noble.txt"))
    assert offers["nvidia-driver-580-open"] == [
        {
            "version": "580.173.02-0ubuntu0.24.04.1",
            "sources": ["http://mirror.example/ubuntu noble-security/restricted"],
        },
        {"version": "580.126.09-0ubuntu0.24.04.1", "sources": []},
    ]
    assert hp.parse_apt_offers(output("apt-policy-cut.txt")) == {}


def test_dependencies_tell_a_transitional_package() -> None:
    """P56: nvidia-headless-535-server says 535 and leads to 580."""
    needs = hp.parse_apt_dependencies(output("apt-show-transitional.txt"))
    assert needs[("nvidia-headless-535-server", "535.309.01-0ubuntu0.24.04.2")] == ["nvidia-headless-580-server"]
    assert needs[("nvidia-headless-580-server", "580.173.02-0ubuntu0.24.04.1")] == [
        "libnvidia-compute-580-server", "nvidia-dkms-580-server", "nvidia-dkms-580-server-open", "nvidia-headless-no-dkms-580-server",
    ]  # fmt: skip
    assert needs[("nvidia-headless-580-server", "580.126.09-0ubuntu0.24.04.1")] == []
    assert len(needs) == 3


def test_sources_of_nvidia_are_found_in_both_forms_and_others_are_not(host: Callable[..., hp.Host]) -> None:
    """P36."""
    made = host(
        {
            "/etc/apt/sources.list": "deb http://mirror.example/ubuntu jammy main\n",
            "/etc/apt/sources.list.d/cuda.list": output("apt-sources-old-cuda.list"),
            "/etc/apt/sources.list.d/ours.sources": output("apt-sources-deb822.sources"),
            "/etc/apt/sources.list.d/cuda.list.save": output("apt-sources-old-cuda.list"),
        }
    )
    base = "https://developer.download.nvidia.com/compute/cuda/repos"
    keyring = "/usr/share/keyrings/cuda-archive-keyring.gpg"
    assert hp.mask(hp.read_nvidia_sources(made)) == [
        {"file": "/etc/apt/sources.list.d/cuda.list", "uri": f"{base}/ubuntu2204/x86_64/", "signed_by": None},
        {
            "file": "/etc/apt/sources.list.d/cuda.list",
            "uri": "https://***@mirror.example/nvidia-cuda/ubuntu2204/x86_64/",
            "signed_by": keyring,
        },
        {
            "file": "/etc/apt/sources.list.d/ours.sources",
            "uri": f"{base}/debian12/x86_64/",
            "signed_by": "/usr/share/keyrings/gpu-bootstrap-nvidia.gpg",
        },
    ]


@pytest.mark.parametrize(
    ("name", "version"), [("nvcc-12.4.txt", "12.4.131"), ("nvcc-13.2.txt", "13.2.51"), ("nvcc-broken.txt", None)]
)
def test_nvccs_version_is_read(name: str, version: str | None) -> None:
    assert hp.parse_nvcc_version(output(name)) == version


@pytest.mark.parametrize(("name", "version"), [("cudnn-version-9.1.0.h", "9.1.0"), ("cudnn-version-cut.h", None)])
def test_cudnns_header_is_read(name: str, version: str | None) -> None:
    assert hp.parse_cudnn_header(output(name)) == version


@pytest.mark.parametrize(
    ("name", "cuda"),
    [("torch-version-cu124.txt", "12.4"), ("torch-version-cpu.txt", None), ("torch-version-old.txt", "11.6")],
)
def test_torchs_cuda_is_read_without_importing_it(name: str, cuda: str | None) -> None:
    assert hp.parse_torch_cuda(output(name)) == cuda


def test_listening_ports_are_read() -> None:
    assert hp.parse_listening(output("proc-net-tcp.txt")) == {22, 8080}
    assert hp.parse_listening(output("proc-net-tcp6.txt")) == {22}


def test_mount_points_are_unescaped_and_options_with_values_dropped() -> None:
    rows = {row["mount"]: row for row in hp.parse_mounts(output("mounts-vm-data-disk.txt"))}
    assert rows["/mnt/big disk"]["options"] == ["ro", "relatime"]
    assert rows["/mnt/share"]["options"] == ["rw"]
    assert "size=2097152k" in rows["/tmp"]["options"]


@pytest.mark.parametrize(
    ("text", "channels"),
    [
        ("channels:\n  - conda-forge\n  - 'nvidia'  # drivers\nauto_activate_base: false\n", ["conda-forge", "nvidia"]),
        ("channels:\n- conda-forge\n", ["conda-forge"]),
        ('channels: [conda-forge, "defaults"]\n', ["conda-forge", "defaults"]),
        ("default_channels:\n  - https://conda.example/main\n", []),
        ("", []),
    ],
)
def test_condas_channels_are_read(text: str, channels: list[str]) -> None:
    assert hp.parse_condarc(text) == channels


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("12:pids:/docker/4f1c\n", "docker"),
        ("0::/system.slice/docker-4f1c.scope\n", "docker"),
        ("0::/machine.slice/libpod-77aa.scope/container\n", "podman"),
        ("0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n", "kubepods"),
        ("11:cpu:/kubepods/besteffort/pod1/docker/2\n", "kubepods"),
        ("4:cpu:/lxc/web1\n", "lxc"),
        ("0::/lxc.payload.web1\n", "lxc"),
        ("0::/init.scope\n", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
    ],
)
def test_the_engine_is_read_off_the_control_group(text: str, hint: str) -> None:
    assert hp.parse_cgroup_hint(text) == hint


def test_assignments_lose_quotes_and_comments() -> None:
    text = "# PATH=/no\nexport CUDA_HOME='/usr/local/cuda 12'\nA=1 # one\nB=\"x\"; export B\n  nonsense\n"
    assert hp.parse_assignments(text) == {"CUDA_HOME": "/usr/local/cuda 12", "A": "1", "B": "x"}


def loader_cache(*entries: tuple[int, str, str]) -> bytes:
    strings = b""
    rows = b""
    start = 48 + 24 * len(entries)
    for flags, name, path in entries:
        rows += struct.pack("=iIIIQ", flags, start + len(strings), start + len(strings) + len(name) + 1, 0, 0)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    return b"glibc-ld.so.cache1.1" + struct.pack("=II20x", len(entries), len(strings)) + rows + strings


def test_the_loaders_cache_tells_which_libcuda_wins() -> None:
    cache = loader_cache(
        (0x0803, "libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1"),
        (0x0303, "libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1"),
        (0x0303, "libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    )
    assert hp.parse_loader_cache(cache, "libcuda.so.1", "x86_64") == "/usr/local/cuda/compat/libcuda.so.1"
    assert hp.parse_loader_cache(cache, "libcuda.so.1", "aarch64") is None
    assert hp.parse_loader_cache(cache[:60], "libcuda.so.1", "x86_64") is None
    assert hp.parse_loader_cache(b"", "libcuda.so.1", "x86_64") is None


def test_the_loaders_cache_of_this_machine_is_understood() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.exists():
        pytest.skip("no loader cache here")
    found = hp.parse_loader_cache(cache.read_bytes(), "libc.so.6", os.uname().machine)
    assert found is not None
    assert Path(found).exists()


# --- what kind of host ------------------------------------------------------------------------------------------------

CAPS_ALL = "CapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n"
CAPS_DOCKER = "CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\n"
CAPS_USER = "CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n"
IDENTITY = "         0          0 4294967295\n"
VM: Tree = {
    "/proc/1/comm": "systemd\n",
    "/proc/1/cgroup": "0::/init.scope\n",
    "/proc/1/environ": b"HOME=/\0TERM=linux\0",
    "/proc/self/status": CAPS_ALL,
    "/proc/self/uid_map": IDENTITY,
    "/proc/self/mounts": "/dev/vda1 / ext4 rw 0 0\n",
    "/proc/sys/kernel/osrelease": "6.1.0-50-amd64\n",
    "/proc/cpuinfo": "flags\t\t: fpu vme hypervisor avx2\n",
    "/run/systemd/system": None,
    "/sys/class/dmi/id/sys_vendor": "QEMU\n",
    "/sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9, 2009)\n",
}
CONTAINER: Tree = {
    "/proc/1/comm": "bash\n",
    "/proc/1/cgroup": "0::/\n",
    "/proc/1/environ": b"HOME=/root\0",
    "/proc/self/status": CAPS_DOCKER,
    "/proc/self/uid_map": IDENTITY,
    "/proc/self/mounts": "overlay / overlay rw,lowerdir=/a:/b 0 0\n",
    "/proc/sys/kernel/osrelease": "5.15.0-97-generic\n",
    "/proc/cpuinfo": "flags\t\t: fpu vme avx2\n",
    "/sys/class/dmi/id/sys_vendor": "Supermicro\n",
}


def test_a_virtual_machine_shows_no_sign_of_a_container(host: Callable[..., hp.Host]) -> None:
    signs = hp.read_signs(host(VM))
    assert not hp.looks_contained(signs)
    assert signs["hypervisor_flag"]
    assert signs["can_load_modules"]
    assert signs["dmi"]["sys_vendor"] == "QEMU"
    assert (signs["provider"], signs["overlay_root"], signs["wsl"]) == ("", False, False)
    assert hp.read_init(signs) == "systemd"


def test_metal_lacks_the_hypervisor_bit(host: Callable[..., hp.Host]) -> None:
    signs = hp.read_signs(host({**VM, "/proc/cpuinfo": "flags\t\t: fpu vme avx2\n"}))
    assert not signs["hypervisor_flag"]
    assert not hp.looks_contained(signs)


def test_a_container_with_systemd_installed_but_not_running_has_no_init(host: Callable[..., hp.Host]) -> None:
    signs = hp.read_signs(host({**CONTAINER, "/.dockerenv": "", "/lib/systemd/systemd": "", "/proc/1/comm": "sleep\n"}))
    assert (signs["dockerenv"], signs["pid1"], signs["systemd_running"], signs["overlay_root"]) == (
        True,
        "sleep",
        False,
        True,
    )
    assert not signs["can_load_modules"]
    assert hp.read_init(signs) == "none"


def test_the_engine_is_known_from_what_it_mounts(host: Callable[..., hp.Host]) -> None:
    line = "612 600 259:1 /var/lib/docker/containers/77aa/hostname /etc/hostname rw,relatime - ext4 /dev/nvme0n1p1 rw\n"
    assert hp.read_signs(host({**CONTAINER, "/proc/self/mountinfo": line}))["cgroup_hint"] == "docker"


def test_docker_on_a_virtual_machine_doesnt_make_it_a_container(host: Callable[..., hp.Host]) -> None:
    line = "80 29 0:47 / /var/lib/docker/overlay2/77aa/merged rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A\n"
    assert hp.read_signs(host({**VM, "/proc/self/mountinfo": line}))["cgroup_hint"] == ""


@pytest.mark.parametrize(
    ("extra", "key", "value"),
    [
        ({"/run/systemd/container": "podman\n", "/run/systemd/system": None}, "container_env", "podman"),
        ({"/proc/1/environ": b"container=lxc\0"}, "container_env", "lxc"),
        ({"/run/.containerenv": ""}, "containerenv", True),
        ({"/proc/1/environ": b"KUBERNETES_SERVICE_HOST=10.0.0.1\0"}, "kubernetes", True),
        ({"/run/secrets/kubernetes.io/serviceaccount/ca.crt": ""}, "kubernetes", True),
        ({"/proc/1/cgroup": "4:cpu:/lxc/web1\n"}, "cgroup_hint", "lxc"),
    ],
)
def test_each_sign_of_a_container_is_seen(host: Callable[..., hp.Host], extra: Tree, key: str, value: object) -> None:
    signs = hp.read_signs(host({**CONTAINER, **extra}))
    assert signs[key] == value
    assert hp.looks_contained(signs)


@pytest.mark.parametrize(
    ("extra", "provider", "sign"),
    [
        ({"/proc/1/environ": b"AutoDLContainerUUID=x\0"}, "autodl", "env:AutoDLContainerUUID"),
        ({"/root/autodl-tmp": None}, "autodl", "path:/root/autodl-tmp"),
        ({"/proc/1/environ": b"RUNPOD_POD_ID=x\0"}, "runpod", "env:RUNPOD_POD_ID"),
        ({"/etc/rp_environment": ""}, "runpod", "path:/etc/rp_environment"),
        ({"/proc/1/environ": b"CONTAINER_ID=1\0VAST_CONTAINERLABEL=C.1\0"}, "vast", "env:VAST_CONTAINERLABEL"),
        ({"/proc/1/environ": b"CONTAINER_ID=1\0"}, "", None),
        ({"/sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, "aws", "dmi:sys_vendor"),
    ],
)
def test_the_landlord_is_known_by_names_alone(
    host: Callable[..., hp.Host], extra: Tree, provider: str, sign: str | None
) -> None:
    signs = hp.read_signs(host({**CONTAINER, **extra}))
    assert signs["provider"] == provider
    assert signs["provider_signs"] == ([sign] if sign else [])


def test_wsl_is_known_by_its_kernel(host: Callable[..., hp.Host]) -> None:
    signs = hp.read_signs(host({**VM, "/proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}))
    assert signs["wsl"]
    azure = {**VM, "/proc/sys/kernel/osrelease": "6.8.0-1031-azure\n"}
    assert not hp.read_signs(host(azure))["wsl"]


@pytest.mark.parametrize(
    ("status", "uid_map", "disabled", "uid", "can"),
    [
        (CAPS_ALL, IDENTITY, "0", 0, True),
        (CAPS_DOCKER, IDENTITY, "0", 0, False),
        (CAPS_USER, IDENTITY, "0", 1000, True),
        (CAPS_USER, IDENTITY, "0", 0, False),
        (CAPS_ALL, "         0     100000      65536\n", "0", 0, False),
        (CAPS_ALL, IDENTITY, "1", 0, False),
    ],
)
def test_modules_load_only_with_the_capability_in_the_first_user_namespace(
    host: Callable[..., hp.Host], status: str, uid_map: str, disabled: str, uid: int, can: bool
) -> None:
    tree: Tree = {
        "/proc/self/status": status,
        "/proc/self/uid_map": uid_map,
        "/proc/sys/kernel/modules_disabled": disabled,
    }
    assert hp.can_load_modules(host(tree, uid=uid)) is can


@pytest.mark.parametrize(
    ("tree", "state"),
    [
        ({EFI_SECURE_BOOT: b"\x06\0\0\0\x01"}, "enabled"),
        ({EFI_SECURE_BOOT: b"\x06\0\0\0\x00"}, "disabled"),
        ({EFI_SECURE_BOOT: b"\x06"}, "unknown"),
        ({"sys/firmware/efi/efivars/Boot0000-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"x"}, "unsupported"),
        ({"sys/firmware/efi/efivars": None}, "unknown"),
        ({"sys/firmware/dmi": None}, "unsupported"),
        ({"sys/firmware": None}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_secure_boot_is_read_off_the_firmware(host: Callable[..., hp.Host], tree: Tree, state: str) -> None:
    assert hp.read_secure_boot(host(tree)) == state


@pytest.mark.parametrize(
    ("uid", "programs", "way"),
    [
        (0, {}, "root"),
        (1000, {"sudo -n": (0, "", "")}, "passwordless"),
        (1000, {"sudo -n": (1, "", "sudo: a password is required\n")}, "password"),
        (1000, {"sudo -n": (1, "", "me is not in the sudoers file.\n")}, "none"),
    ],
)
def test_the_way_to_root_is_found(host: Callable[..., hp.Host], uid: int, programs: dict[str, Any], way: str) -> None:
    assert hp.read_sudo(host({"/usr/bin/sudo": ""}, programs, uid=uid)) == way


def test_without_sudo_there_is_no_way_to_root(host: Callable[..., hp.Host]) -> None:
    assert hp.read_sudo(host(uid=1000)) == "none"


# --- GPUs and driver --------------------------------------------------------------------------------------------------


def pci(address: str, vendor: str, kind: str, device: str) -> Tree:
    base = f"/sys/bus/pci/devices/{address}"
    return {f"{base}/vendor": f"{vendor}\n", f"{base}/class": f"{kind}\n", f"{base}/device": f"{device}\n"}


def test_gpus_and_switches_are_found_without_a_driver(host: Callable[..., hp.Host]) -> None:
    made = host(
        {
            **pci("0000:00:02.0", "0x8086", "0x030000", "0x4680"),
            **pci("0000:07:00.0", "0x10de", "0x030200", "0x20B2"),
            **pci("0000:07:00.1", "0x10de", "0x040300", "0x22ba"),
            **pci("0000:41:00.0", "0x10de", "0x030000", "0x2684"),
            **pci("0000:80:00.0", "0x10de", "0x068000", "0x1af1"),
            "/sys/bus/pci/devices/0000:41:00.0/driver": Link("../../../bus/pci/drivers/nouveau"),
            "/sys/bus/pci/devices/0000:41:00.0/max_link_speed": "16.0 GT/s PCIe\n",
        }
    )
    gpus, switches = hp.read_pci(made)
    assert [(g["pci_address"], g["device_id"], g["class"], g["driver"]) for g in gpus] == [
        ("0000:07:00.0", "20b2", "0302", None),
        ("0000:41:00.0", "2684", "0300", "nouveau"),
    ]
    assert gpus[1]["link"]["max_link_speed"] == "16.0 GT/s PCIe"
    assert switches == [{"pci_address": "0000:80:00.0", "device_id": "1af1"}]


def test_the_driver_is_seen_as_loaded_installed_and_handed_out(host: Callable[..., hp.Host]) -> None:
    release = "6.8.0-112-generic"
    made = host(
        {
            "/proc/driver/nvidia/version": output("nvrm-open-580.txt"),
            f"/lib/modules/{release}/modules.dep": "updates/dkms/nvidia.ko.zst:\nupdates/dkms/nvidia-drm.ko.zst: updates/dkms/nvidia.ko.zst\n"
            "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko:\nkernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko.zst:\n",
            "/dev/nvidia0": "",
            "/dev/nvidiactl": "",
            "/dev/nvidia-caps/nvidia-cap1": "",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1": Link("libcuda.so.580.142"),
            "/usr/lib/x86_64-linux-gnu/libcuda.so.580.142": "",
            "/sys/module/nouveau": None,
        }
    )
    driver = hp.read_driver(made, hp.parse_dpkg_status(output("dpkg-status.txt")), release, "x86_64")
    assert (driver["loaded_version"], driver["flavour"]) == ("580.173.02", "open")
    assert (
        driver["libcuda"] == "/usr/lib/x86_64-linux-gnu/libcuda.so.580.142"
    )  # swapped under the module: both are told
    assert driver["modules_installed"] == ["nvidia", "nvidia-drm"]
    assert driver["device_nodes"] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert driver["nouveau_loaded"]
    assert {p["name"]: p["status"] for p in driver["packages"]} == {
        "libnvidia-compute-580-server": "installed",
        "nvidia-dkms-580-server-open": "half-configured",
        "nvidia-driver-535": "config-files",
    }


@pytest.mark.parametrize(
    ("rc", "name"),
    [
        (9, "smi-no-driver-9.txt"),
        (18, "smi-mismatch-18.txt"),
        (17, "smi-no-driver-9.txt"),
        (255, "smi-mismatch-18.txt"),
    ],
)
def test_any_exit_code_but_zero_gives_no_gpus(host: Callable[..., hp.Host], rc: int, name: str) -> None:
    smi = hp.ask_smi(host(programs={"/usr/bin/nvidia-smi": (rc, output(name), "")}), "/usr/bin/nvidia-smi")
    assert (smi["rc"], smi["gpus"], smi["driver_version"]) == (rc, [], None)
    assert smi["stderr"] == output(name).strip()[-300:]


def test_rows_of_a_failed_nvidia_smi_are_not_believed(host: Callable[..., hp.Host]) -> None:
    smi = hp.ask_smi(host(programs={"nvidia-smi": (15, output("smi-query-one-lost.csv"), "")}), "nvidia-smi")
    assert smi["gpus"] == []
    assert "Unknown Error" in smi["stderr"]


def test_nvidia_smi_without_gpus_says_so(host: Callable[..., hp.Host]) -> None:
    smi = hp.ask_smi(host(programs={"nvidia-smi": (0, output("smi-no-devices.txt"), "")}), "nvidia-smi")
    assert (smi["rc"], smi["gpus"], smi["stderr"]) == (0, [], "No devices were found")


def test_a_driver_that_doesnt_know_compute_cap_is_asked_without_it(host: Callable[..., hp.Host]) -> None:
    programs = {
        "nvidia-smi --query-gpu=index,name,uuid,memory.total,driver_version,compute_cap": (
            2,
            output("smi-query-no-compute-cap-470.txt"),
            "",
        ),
        "nvidia-smi --query-gpu=index,name,uuid,memory.total,driver_version --format": (
            0,
            output("smi-query-3090-without-compute-cap.csv"),
            "",
        ),
    }
    smi = hp.ask_smi(host(programs=programs), "nvidia-smi")
    assert (smi["rc"], smi["driver_version"]) == (0, "470.256.02")
    assert (smi["gpus"][0]["name"], smi["gpus"][0]["compute_capability"]) == ("NVIDIA GeForce RTX 3090", None)


def test_nvidia_smi_that_hangs_is_reported_as_not_active(host: Callable[..., hp.Host]) -> None:
    smi = hp.ask_smi(host(programs={"nvidia-smi": (None, "", "no answer within 20 s")}), "nvidia-smi")
    assert (smi["rc"], smi["gpus"], smi["stderr"]) == (124, [], "no answer within 20 s")


def test_gpu_processes_are_counted(host: Callable[..., hp.Host]) -> None:
    assert hp.ask_gpu_processes(host(programs={"nvidia-smi": (0, "4711\n4712\n", "")}), "nvidia-smi") == 2
    assert hp.ask_gpu_processes(host(programs={"nvidia-smi": (0, "", "")}), "nvidia-smi") == 0
    assert hp.ask_gpu_processes(host(programs={"nvidia-smi": (9, "", "")}), "nvidia-smi") is None


def test_a_program_that_hangs_is_left_behind() -> None:
    begin = time.monotonic()
    assert hp.run_command(["sleep", "30"], 0.1).rc is None
    job = hp.Job(lambda: time.sleep(5))
    with pytest.raises(TimeoutError):
        job.result(0.1)
    assert time.monotonic() - begin < 3


def test_a_program_that_isnt_there_gives_no_exit_code() -> None:
    answer = hp.run_command(["/nonexistent/program"], 1)
    assert (answer.rc, answer.out) == (None, "")
    assert "No such file" in answer.err


# --- CUDA and cuDNN ---------------------------------------------------------------------------------------------------

VERSION_JSON = json.dumps(
    {"cuda": {"name": "CUDA SDK", "version": "12.4.1"}, "cuda_nvcc": {"name": "CUDA NVCC", "version": "12.4.131"}}
)


def test_toolkits_are_found_side_by_side_and_links_counted_once(host: Callable[..., hp.Host]) -> None:
    made = host(
        {
            "/usr/local/cuda-12.4/version.json": VERSION_JSON,
            "/usr/local/cuda-12.4/bin/nvcc": "",
            "/usr/local/cuda-11.8/bin/nvcc": "",
            "/usr/local/cuda-13.0/lib64/libcudart.so": "",
            "/usr/local/cuda-11": Link("cuda-11.8"),
            "/usr/local/cuda": Link("/etc/alternatives/cuda"),
            "/etc/alternatives/cuda": Link("/usr/local/cuda-12.4"),
            "/usr/local/bin/nvcc": Link("../cuda-11.8/bin/nvcc"),
            "/data/cuda-12.8/version.txt": "CUDA Version 12.8.1\n",
        },
        {f"{'/usr/local/cuda-11.8/bin/nvcc'} --version": (0, "Cuda compilation tools, release 11.8, V11.8.89\n", "")},
    )
    prefixes = hp.find_toolkits(made, ["/data", "/usr/local/cuda-12.4"])
    assert prefixes == ["/data/cuda-12.8", "/usr/local/cuda-11.8", "/usr/local/cuda-12.4", "/usr/local/cuda-13.0"]
    found = {row["prefix"]: row for row in (hp.read_toolkit(made, prefix) for prefix in prefixes)}
    whole = found["/usr/local/cuda-12.4"]
    assert (whole["version"], whole["release"], whole["nvcc"], whole["nvcc_version"]) == (
        "12.4.1",
        "12.4",
        "/usr/local/cuda-12.4/bin/nvcc",
        "12.4.131",
    )
    assert (found["/usr/local/cuda-11.8"]["version"], found["/usr/local/cuda-11.8"]["release"]) == (None, "11.8")
    assert (found["/data/cuda-12.8"]["version"], found["/data/cuda-12.8"]["nvcc"]) == ("12.8.1", None)
    assert found["/usr/local/cuda-13.0"]["nvcc"] is None  # half filled
    assert hp.read_cuda_link(made) == "/usr/local/cuda-12.4"


def test_a_real_directory_in_the_place_of_the_link_is_no_link(host: Callable[..., hp.Host]) -> None:
    made = host({"/usr/local/cuda/version.json": VERSION_JSON})
    assert hp.read_cuda_link(made) is None
    assert hp.find_toolkits(made, []) == ["/usr/local/cuda"]


def test_a_toolkit_with_a_broken_nvcc_is_named(host: Callable[..., hp.Host]) -> None:
    made = host(
        {"/usr/local/cuda-12.4/bin/nvcc": ""}, {"/usr/local/cuda-12.4/bin/nvcc": (1, "", output("nvcc-broken.txt"))}
    )
    assert hp.read_toolkit(made, "/usr/local/cuda-12.4")["nvcc_version"] is None
    assert "nvcc fatal" in made.unreadable[0]["why"]


def cudnn(prefix: str, links: bool = True) -> Tree:
    lib = f"{prefix}/lib64"
    tree: Tree = {f"{prefix}/include/cudnn_version.h": output("cudnn-version-9.1.0.h"), f"{lib}/libcudnn.so.9.1.0": "x"}
    for name, target in (("libcudnn.so.9", "libcudnn.so.9.1.0"), ("libcudnn.so", "libcudnn.so.9")):
        tree[f"{lib}/{name}"] = Link(target) if links else "x"
    return tree


def test_cudnn_is_whole_only_with_its_links(host: Callable[..., hp.Host]) -> None:
    made = host({**cudnn("/a"), **cudnn("/b", links=False), **cudnn("/c"), "/d/lib64/libcudart.so": ""})
    (Path(made.root) / "c/lib64/libcudnn.so.9.1.0").unlink()
    whole, copied, cut = (hp.read_cudnn(made, prefix, "x86_64") for prefix in ("/a", "/b", "/c"))
    assert whole == {
        "prefix": "/a",
        "header_version": "9.1.0",
        "libraries": ["libcudnn.so", "libcudnn.so.9", "libcudnn.so.9.1.0"],
        "links_ok": True,
    }
    assert copied is not None
    assert not copied["links_ok"]
    assert cut is not None
    assert not cut["links_ok"]
    assert hp.read_cudnn(made, "/d", "x86_64") is None


# --- conda and environments -------------------------------------------------------------------------------------------


def site(prefix: str, *entries: str) -> Tree:
    return {f"{prefix}/lib/python3.11/site-packages/{entry}/METADATA": "Name: x\n" for entry in entries}


def test_an_environment_is_read_by_its_files(host: Callable[..., hp.Host]) -> None:
    env = "/opt/miniconda3/envs/cu124"
    made = host(
        {
            "/opt/miniconda3/bin/conda": "",
            "/opt/miniconda3/conda-meta/conda-26.5.3-py311h06a4308_0.json": "{}",
            "/opt/miniconda3/conda-meta/conda-libmamba-solver-25.1.0-pyhd3eb1b0_0.json": "{}",
            "/opt/miniconda3/.condarc": "channels:\n  - conda-forge\n",
            f"{env}/conda-meta/python-3.11.2-0_x.json": "{}",
            f"{env}/conda-meta/python_abi-3.11-1.json": "{}",
            f"{env}/bin/python": "",
            f"{env}/lib/python3.1": Link("python3.11"),
            f"{env}/lib/python3.11/site-packages/torch/version.py": output("torch-version-cu124.txt"),
            f"{env}/.gpu-bootstrap-lock": "a" * 64 + "\n",
            **site(
                env,
                "torch-2.6.0+cu124.dist-info",
                "Jinja2-3.1.6.dist-info",
                "ruamel.yaml-0.18.6.dist-info",
                "~orch-2.5.0.dist-info",
            ),
            f"{env}/lib/python3.11/site-packages/peft-0.15.2.dist-info/RECORD": "",
        }
    )
    conda = hp.read_conda(made, "/opt/miniconda3", "/root")
    assert conda == {
        "prefix": "/opt/miniconda3",
        "version": "26.5.3",
        "environments": [env],
        "channels": ["conda-forge"],
    }
    found = hp.read_environment(made, env)
    assert found is not None
    assert (found["python"], found["torch_cuda"], found["lock_sha256"]) == ("3.11.2", "12.4", "a" * 64)
    assert found["packages"] == {"jinja2": "3.1.6", "ruamel-yaml": "0.18.6", "torch": "2.6.0+cu124"}
    assert any("peft" in entry["why"] for entry in made.unreadable)


def test_two_versions_of_one_package_are_named(host: Callable[..., hp.Host]) -> None:
    made = host(
        {
            **site("/env", "numpy-1.26.4.dist-info", "numpy-2.2.5.dist-info"),
            "/env/pyvenv.cfg": "home = /usr/bin\nversion = 3.12.3\n",
        }
    )
    found = hp.read_environment(made, "/env")
    assert found is not None
    assert found["python"] == "3.12.3"
    assert any("two versions of numpy" in entry["why"] for entry in made.unreadable)


def test_a_lock_mark_that_is_no_sha256_is_null(host: Callable[..., hp.Host]) -> None:
    made = host({**site("/env", "pip-25.0.dist-info"), "/env/.gpu-bootstrap-lock": "unfinished"})
    found = hp.read_environment(made, "/env")
    assert found is not None
    assert found["lock_sha256"] is None


def test_no_environment_is_found_where_there_is_none(host: Callable[..., hp.Host]) -> None:
    assert hp.read_environment(host({"/env/notes.txt": ""}), "/env") is None


def test_conda_without_records_is_asked_for_its_version(host: Callable[..., hp.Host]) -> None:
    made = host({"/opt/conda/bin/conda": ""}, {"/opt/conda/bin/conda --version": (0, "conda 24.9.2\n", "")})
    assert hp.find_conda(made, [], "/root") == ["/opt/conda"]
    assert hp.read_conda(made, "/opt/conda", "/root")["version"] == "24.9.2"


def test_conda_on_the_data_disk_is_found_in_the_spelling_asked_for(host: Callable[..., hp.Host]) -> None:
    made = host({"/mnt/nvme/miniconda3/bin/conda": "", "/data": Link("mnt/nvme")})
    assert hp.find_conda(made, ["/data/miniconda3/"], "/root") == ["/data/miniconda3"]


# --- disks, memory, package manager, shells ---------------------------------------------------------------------------


def mounts_of(host: Callable[..., hp.Host], name: str, *directories: str) -> list[str]:
    made = host({"/proc/self/mounts": output(name), **dict.fromkeys(directories)})
    return [row["mount"] for row in hp.read_mounts(made)]


def test_mounts_are_what_something_could_be_put_on(host: Callable[..., hp.Host]) -> None:
    places = (
        "/data",
        "/mnt/big disk",
        "/mnt/share",
        "/tmp",
        "/dev/shm",
        "/run",
        "/snap/core22/1621",
        "/var/lib/docker/overlay2/abc/merged",
    )
    assert mounts_of(host, "mounts-vm-data-disk.txt", *places) == [
        "/",
        "/data",
        "/dev/shm",
        "/mnt/big disk",
        "/mnt/share",
        "/tmp",
    ]


def test_single_files_that_an_engine_mounts_are_no_disks(host: Callable[..., hp.Host]) -> None:
    made = host(
        {
            "/proc/self/mounts": output("mounts-pod.txt"),
            "/usr/bin/nvidia-smi": "",
            "/etc/hosts": "",
            "/etc/hostname": "",
            **dict.fromkeys(("/workspace", "/dev/shm", "/proc/acpi", "/sys/firmware")),
        }
    )
    assert [row["mount"] for row in hp.read_mounts(made)] == ["/", "/dev/shm", "/workspace"]


def test_wsls_helpers_are_no_disks(host: Callable[..., hp.Host]) -> None:
    places = ("/mnt/wsl", "/mnt/wslg", "/usr/lib/wsl/lib", "/usr/lib/wsl/drivers", "/mnt/c", "/dev/shm")
    assert mounts_of(host, "mounts-wsl.txt", *places) == ["/", "/dev/shm", "/mnt/c"]


def test_one_file_system_shown_twice_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "/": (1, 100, 50, 9),
        "/workspace": (1, 100, 50, 9),
        "/archive": (1, 100, 50, 9),
        "/data": (2, 900, 800, 9),
    }
    monkeypatch.setattr(hp, "measure", lambda path: sizes[str(path)])
    made = hp.Host()
    table = (
        "/dev/a / ext4 rw 0 0\n/dev/a /workspace ext4 rw 0 0\n/dev/a /archive ext4 ro 0 0\n/dev/b /data ext4 rw 0 0\n"
    )
    monkeypatch.setattr(made, "text", lambda *_: table)
    assert [row["mount"] for row in hp.read_mounts(made)] == ["/", "/archive", "/data"]


def test_a_disk_that_doesnt_answer_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(path: Path) -> tuple[int, int, int, int]:
        if str(path) == "/nfs":
            time.sleep(5)
        return 1, 100, 50, 9

    monkeypatch.setattr(hp, "measure", slow)
    monkeypatch.setitem(hp.LIMITS, "statvfs", 0.1)
    made = hp.Host()
    monkeypatch.setattr(made, "text", lambda *_: "/dev/a / ext4 rw 0 0\nserver:/x /nfs nfs4 rw 0 0\n")
    assert [row["mount"] for row in hp.read_mounts(made)] == ["/"]
    assert made.unreadable[0]["why"].startswith("/nfs: no answer")


MEMINFO = "MemTotal:       65536 kB\nMemFree:        1024 kB\nMemAvailable:   32768 kB\n"


@pytest.mark.parametrize(
    ("tree", "limit"),
    [
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "1048576\n"}, 1048576),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/memory.max": "2097152\n",
                "/sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            2097152,
        ),
        (
            {
                "/proc/self/cgroup": "3:memory:/docker/x\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
        (
            {"/proc/self/cgroup": "3:memory:/docker/x\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "4194304\n"},
            4194304,
        ),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "999999999999\n"}, None),
    ],
)
def test_the_control_groups_memory_limit_is_read_in_both_versions(
    host: Callable[..., hp.Host], tree: Tree, limit: int | None
) -> None:
    memory = hp.read_memory(host({"/proc/meminfo": MEMINFO, **tree}))
    assert memory == {"total_bytes": 65536 * 1024, "available_bytes": 32768 * 1024, "cgroup_limit_bytes": limit}


@pytest.mark.parametrize(
    ("tree", "quota"),
    [
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "1600000 100000\n"}, 16.0),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"/proc/self/cgroup": "4:cpu,cpuacct:/d\n", "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n"}, 2.5),
        ({"/proc/self/cgroup": "4:cpu,cpuacct:/d\n", "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}, None),
    ],
)
def test_the_cpu_quota_is_read_in_both_versions(host: Callable[..., hp.Host], tree: Tree, quota: float | None) -> None:
    assert hp.read_cpus(host(tree))["cgroup_quota"] == quota


def test_a_lock_is_one_only_while_somebody_holds_it(host: Callable[..., hp.Host]) -> None:
    made = host({"/var/lib/dpkg/lock-frontend": "", "/var/lib/dpkg/lock": "", "/proc/locks": ""})
    assert hp.read_locks(made) == []
    path = str(made.path("/var/lib/dpkg/lock-frontend"))
    program = f"import fcntl, sys; f = open({path!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        found = hp.read_locks(made)
        holder.communicate(b"")
    assert [(lock["path"], lock["pid"]) for lock in found] == [("/var/lib/dpkg/lock-frontend", holder.pid)]
    assert hp.read_locks(made) == []


def test_who_may_not_open_a_lock_reads_the_kernels_table(
    host: Callable[..., hp.Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = host({"/var/lib/dpkg/lock": "", "/proc/1893/comm": "unattended-upgr\n"})
    about = made.path("/var/lib/dpkg/lock").stat()
    where = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    (Path(made.root) / "proc/locks").write_text(
        f"1: FLOCK  ADVISORY  WRITE 7 {where} 0 EOF\n2: POSIX  ADVISORY  WRITE 1893 {where} 0 EOF\n"
    )
    real = Path.open

    def deny(path: Path, *rest: Any, **more: Any) -> Any:
        if path.name == "lock":
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **more)

    monkeypatch.setattr(Path, "open", deny)
    assert hp.read_locks(made) == [{"path": "/var/lib/dpkg/lock", "pid": 1893, "holder": "unattended-upgr"}]


def test_holds_and_half_installed_packages_are_listed(host: Callable[..., hp.Host]) -> None:
    apt = hp.read_apt(host({"/usr/bin/apt-get": ""}), hp.parse_dpkg_status(output("dpkg-status.txt")))
    assert apt["available"]
    assert apt["holds"] == ["libnvidia-compute-580-server"]
    assert apt["half_installed"] == ["broken-thing", "nvidia-dkms-580-server-open", "to-be-reinstalled"]


@pytest.mark.parametrize(
    ("extra", "wanted", "asked"),
    [
        ({}, "auto", True),
        ({"/.dockerenv": ""}, "auto", False),
        ({"/.dockerenv": ""}, "always", True),
        ({}, "never", False),
        ({"/proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}, "auto", False),
    ],
)
def test_apt_is_asked_where_a_driver_could_be_installed(
    host: Callable[..., hp.Host], extra: Tree, wanted: str, asked: bool
) -> None:
    made = host({**VM, "/usr/bin/apt-cache": "", **extra}, {"apt-cache": (0, output("apt-policy-noble.txt"), "")})
    apt = hp.collect(made, {**OPTIONS, "apt_candidates": wanted})["apt"]
    assert apt["candidates_asked"] is asked
    assert bool(apt["candidates"]) is asked


def test_a_host_whose_driver_is_at_work_does_not_ask_apt(host: Callable[..., hp.Host]) -> None:
    loaded = {"/proc/driver/nvidia/version": output("nvrm-open-580.txt")}
    made = host({**VM, "/usr/bin/apt-cache": "", **loaded}, {"apt-cache": (0, output("apt-policy-noble.txt"), "")})
    assert hp.collect(made, {**OPTIONS, "apt_candidates": "auto"})["apt"]["candidates_asked"] is False
    assert hp.collect(made, {**OPTIONS, "apt_candidates": "always"})["apt"]["candidates_asked"] is True


def test_apt_is_asked_for_the_headers_of_both_kernels_and_for_their_compiler(host: Callable[..., hp.Host]) -> None:
    """P25: the kernel that will boot counts, and the compiler that it was built with."""
    asked: list[list[str]] = []

    def run(argv: list[str], seconds: float) -> hp.Answer:
        asked.append(argv)
        if "show" in argv:
            return hp.Answer(0, output("apt-show-transitional.txt"), "")
        return hp.Answer(0, output("apt-policy-noble.txt"), "")

    made = hp.Host(host({}).root, run=run)
    kernel = {
        "release": "6.8.0-9-generic",
        "will_boot": "6.8.0-112-generic",
        "compiler": "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0",
    }
    told = hp.ask_candidates(made, kernel)
    policy = next(argv for argv in asked if "policy" in argv)
    assert {"linux-headers-6.8.0-9-generic", "linux-headers-6.8.0-112-generic", "gcc-13"} <= set(policy)
    assert [row["version"] for row in told["offers"]["nvidia-driver-580-open"]] == ["580.173.02-0ubuntu0.24.04.1"]
    hp.ask_candidates(made, {**kernel, "compiler": "gcc (Debian 12.2.0-14) 12.2.0"})
    assert "gcc-12" in asked[-1] + asked[-2]


def test_the_kernel_that_will_boot_is_the_newest_installed(host: Callable[..., hp.Host]) -> None:
    made = host(
        {
            "/proc/sys/kernel/osrelease": "6.1.0-9-amd64\n",
            **{f"/boot/vmlinuz-6.1.0-{n}-amd64": "" for n in (9, 50, 51)},
            "/lib/modules/6.1.0-9-amd64/build/Makefile": "",
            "/lib/modules/6.1.0-50-amd64": None,
        }
    )
    kernel = hp.read_kernel(made)
    assert kernel["installed"] == ["6.1.0-9-amd64", "6.1.0-50-amd64"]  # 51 has an image and no modules
    assert (kernel["will_boot"], kernel["headers"]) == ("6.1.0-50-amd64", ["6.1.0-9-amd64"])
    assert hp.read_kernel(host({}))["installed"] == kernel["installed"]


def test_dkms_compat_runfile_and_disks_are_seen(host: Callable[..., hp.Host]) -> None:
    tree: Tree = {
        "/var/lib/dkms/nvidia/535.261.03/6.1.0-50-amd64/x86_64/module/nvidia.ko.xz": "",
        "/var/lib/dkms/nvidia/535.261.03/source/dkms.conf": "",
        "/var/lib/dkms/nvidia/550.163.01/build/make.log": "error",
        "/var/lib/dkms/nvidia/kernel-6.1.0-50-amd64-x86_64": Link("535.261.03/6.1.0-50-amd64/x86_64"),
        "/var/lib/dkms/zfs/2.1/6.1.0-50-amd64/x86_64/module/zfs.ko": "",
        "/usr/local/cuda-12.4/compat/libcuda.so.550.54.15": "",
        "/usr/local/cuda-12.4/compat/libcuda.so.1": Link("libcuda.so.550.54.15"),
        "/usr/local/cuda": Link("cuda-12.4"),
        "/usr/bin/nvidia-uninstall": "",
        "/sys/block/sda/size": "1000000\n",
        "/sys/block/sda/queue/rotational": "1\n",
        "/sys/block/sda/device/model": "QEMU HARDDISK   \n",
        "/sys/block/loop0/size": "100\n",
        "/sys/block/sr0/size": "0\n",
    }
    made = host(tree)
    assert hp.read_dkms(made) == [
        {"module": "nvidia", "version": "535.261.03", "kernel": "6.1.0-50-amd64", "status": "built"},
        {"module": "nvidia", "version": "550.163.01", "kernel": "", "status": "added"},
    ]
    assert hp.read_compat(made) == ["/usr/local/cuda/compat/libcuda.so.550.54.15"]
    assert hp.read_driver(made, [], "6.1.0-50-amd64", "x86_64")["runfile"] == "/usr/bin/nvidia-uninstall"
    assert hp.read_disks(made) == [
        {"name": "sda", "size_bytes": 512000000, "rotational": True, "model": "QEMU HARDDISK"}
    ]


def test_apt_that_doesnt_answer_is_named(host: Callable[..., hp.Host]) -> None:
    made = host({**VM, "/usr/bin/apt-cache": ""}, {"apt-cache": (None, "", "no answer within 6 s")})
    document = hp.collect(made, {**OPTIONS, "apt_candidates": "always"})
    assert (document["apt"]["candidates_asked"], document["apt"]["candidates"]) == (False, {})
    assert any(entry["topic"] == "candidates" for entry in document["unreadable"])


def test_shell_files_are_read_for_what_cuda_sees(host: Callable[..., hp.Host]) -> None:
    made = host(
        {
            "/etc/environment": "# gpu-bootstrap: begin\nCUDA_HOME=/usr/local/cuda\n# gpu-bootstrap: end\nEDITOR=vi\n",
            "/usr/local/cuda": None,
            "/etc/profile.d/cuda.sh": "export LD_LIBRARY_PATH=/usr/local/cuda-11.8/lib64:$LD_LIBRARY_PATH\n",
            "/root/.bashrc": "export CUDA_HOME=/usr/local/cuda-11.8\n#export LD_LIBRARY_PATH=/no\n",
            "/root/.profile": 'export CUDA_HOME="$HOME/cuda"\n',
        }
    )
    assert hp.read_shells(made, "/root") == {
        "etc_environment": {"CUDA_HOME": "/usr/local/cuda"},
        "marked_blocks": ["/etc/environment"],
        "ld_library_path_files": ["/etc/profile.d/cuda.sh"],
        "stale_cuda_home": [{"file": "/root/.bashrc", "value": "/usr/local/cuda-11.8"}],
    }


def test_compilers_are_listed_with_their_cxx_side(host: Callable[..., hp.Host]) -> None:
    tree: Tree = dict.fromkeys(
        ("/usr/bin/gcc", "/usr/bin/gcc-12", "/usr/bin/gcc-14", "/usr/bin/g++-12", "/usr/bin/gcc-ar-12"), ""
    )
    found = hp.read_gcc(host(tree, {"gcc": (0, "14.2.0\n", "")}))
    assert found == {"default": "14.2.0", "available": ["12", "14"], "cxx": ["12"], "cxx_default": False}
    assert hp.read_gcc(host())["default"] in (None, "14.2.0")


def test_libxml2_is_listed_by_soname(host: Callable[..., hp.Host]) -> None:
    lib = "/usr/lib/x86_64-linux-gnu"
    assert hp.read_libxml2(
        host({f"{lib}/libxml2.so.16": "", f"{lib}/libxml2.so.16.0.5": "", f"{lib}/libxml2.so": ""})
    ) == ["libxml2.so.16"]


def test_downloads_are_listed_with_their_sizes(host: Callable[..., hp.Host]) -> None:
    made = host({"/data/downloads/a.run": "1234", "/data/downloads/b.sh.part": "12", "/data/downloads/sub/c": "1"})
    assert hp.read_downloads(made, ["/data/downloads/", "/nowhere"]) == [
        {"path": "/data/downloads/a.run", "size": 4},
        {"path": "/data/downloads/b.sh.part", "size": 2},
    ]


# --- the module itself ------------------------------------------------------------------------------------------------


def test_the_source_is_python_3_8() -> None:
    ast.parse(SOURCE, feature_version=(3, 8))
    assert "from __future__ import annotations" in SOURCE
    assert not re.search(r"\.(removeprefix|removesuffix|is_relative_to)\(|(?<!os)\.readlink\(|strict=", SOURCE)


def test_only_the_standard_library_and_ansibles_basic_are_imported() -> None:
    names = set()
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    assert names - {
        "ansible.module_utils.basic",
        "ansible.module_utils.apt_reports",
        "ansible.module_utils.apt_sources",
    } <= {
        *sys.stdlib_module_names,
        "collections.abc",
        "importlib.util",
    }


def test_documentation_and_argument_spec_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Module:
        def __init__(self, **settings: Any) -> None:
            seen.update(settings)
            self.params = {key: value["default"] for key, value in settings["argument_spec"].items()}

        def exit_json(self, **result: Any) -> None:
            seen["result"] = result

    monkeypatch.setattr(hp, "AnsibleModule", Module)
    monkeypatch.setattr(hp, "collect", lambda host, options: dict(options))
    hp.main()
    documented = yaml.safe_load(hp.DOCUMENTATION)["options"]
    assert {
        name: {k: v for k, v in option.items() if k != "description"} for name, option in documented.items()
    } == seen["argument_spec"]
    assert seen["supports_check_mode"] is True
    assert seen["result"] == {"changed": False, "probe": seen["result"]["probe"]}
    assert isinstance(yaml.safe_load(hp.EXAMPLES), list)
    assert set(yaml.safe_load(hp.RETURN)) == {"probe"}


def test_a_file_of_proc_sys_is_read_although_its_buffer_is_as_big_as_the_read() -> None:
    """A read of 64 MiB at once fails there with ENOMEM, and every receipt would look like one of another boot."""
    boot_id = hp.Host().line("/proc/sys/kernel/random/boot_id")
    assert boot_id == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
