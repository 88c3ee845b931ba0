"""The driver that the plan keeps, chooses, or refuses, on virtual machines, bare metal and in containers."""

from __future__ import annotations

from typing import Any

import pytest

from plan_world import container, data, probe, promised, saved
from planning import plan, plan_text
from planning.driver import branch_of, driver_options, upstream_version

JAMMY = "http://mirror.example/ubuntu jammy-updates/restricted"
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64 "
IDS = {"RTX 4090": "2684", "RTX 5090": "2b85", "V100": "1db4", "A100": "20b2", "T4": "1eb8"}


def codes(document: dict[str, Any]) -> set[str]:
    return {entry["code"] for entry in document["refusals"] + document["warnings"]}


def refusal(document: dict[str, Any], code: str) -> dict[str, Any]:
    assert document["status"] == "refused", plan_text(document)
    assert document["steps"] == []
    return next(r for r in document["refusals"] if r["code"] == code)


def offer(version: str, source: str = JAMMY, depends: list[str] | None = None) -> list[dict[str, Any]]:
    return [{"version": version, "sources": [source], "depends": depends or []}]


def headless(branch: str, version: str, source: str = JAMMY, leads_to: str = "") -> dict[str, list[dict[str, Any]]]:
    """Ubuntu's packages of one branch, of the -server form, or the transitional ones that lead to another branch."""
    names = (f"nvidia-headless-{branch}-server", f"nvidia-headless-{branch}-server-open")
    return {
        name: offer(
            version, source, [name.replace(branch, leads_to)] if leads_to else [f"libnvidia-compute-{branch}-server"]
        )
        for name in names
    }


def machine(
    *gpus: str,
    offers: dict[str, Any] | None = None,
    loaded: str = "",
    os: tuple[str, str] = ("ubuntu", "22.04"),
    **changes: Any,
) -> dict[str, Any]:
    """A virtual machine with these GPUs, what apt offers, and perhaps a driver at work."""
    apt = {
        "available": True, "locks": [], "holds": [], "half_installed": [], "candidates_asked": True, "nvidia_sources": [],
        "candidates": {"linux-headers-5.15.0-171-generic": "5.15.0-171.181"}, "offers": offers or {}, **changes.pop("apt", {}),
    }  # fmt: skip
    driver = {
        "loaded_version": loaded or None, "flavour": "proprietary" if loaded else None, "smi": None, "device_nodes": [], "packages": [],
        "runfile": None, "nouveau_loaded": False, "libcuda": None, "compat": [], **changes.pop("driver", {}),
    }  # fmt: skip
    kernel = {
        "release": "5.15.0-171-generic", "will_boot": "5.15.0-171-generic", "headers": [], "installed": ["5.15.0-171-generic"],
        "compiler": "gcc (Ubuntu 11.4.0-1ubuntu1~22.04.2) 11.4.0", **changes.pop("kernel", {}),
    }  # fmt: skip
    base = {
        "os": {"id": os[0], "version_id": os[1], "codename": "", "pretty_name": " ".join(os)}, "glibc": "2.35", "nvswitches": [],
        "gcc": {"default": "11.4.0", "available": ["11"]}, "secure_boot": "disabled", "nvidia_driver": None,
    }  # fmt: skip
    cards = [
        {"pci_address": f"0000:0{i}:00.0", "device_id": IDS.get(g, g), "class": "0302", "driver": None}
        for i, g in enumerate(gpus)
    ]
    return probe(gpus=cards, apt=apt, driver=driver, kernel=kernel, **{**base, **changes})


TODAY = {
    **headless("535", "535.309.01-0ubuntu0.22.04.2", leads_to="580"),
    **headless("550", "550.163.01-0ubuntu0.22.04.2", leads_to="570"),
    **headless("580", "580.173.02-0ubuntu0.22.04.1"),
    "nvidia-fabricmanager-580": offer("580.173.02-0ubuntu0.22.04.1"),
    "libnvidia-nscq-580": offer("580.173.02-0ubuntu0.22.04.1"),
}


def inputs(document: dict[str, Any]) -> dict[str, Any]:
    assert document["status"] == "apply", plan_text(document)
    return dict(document["components"]["nvidia_driver"]["inputs"])


# --- versions (P01) ---


@pytest.mark.parametrize(
    ("driver", "stack", "status", "code"),
    [
        ("550.54.14", "cu130", "refused", "GB-DRV-001"),
        ("550.54.14", "cu128", "apply", "GB-DRV-002"),
        ("550.54.15", "cu124", "apply", ""),
        ("470.256.02", "cu124", "refused", "GB-DRV-001"),
        ("525.60.13", "cu126", "apply", "GB-DRV-002"),
        ("525.60.12", "cu126", "refused", "GB-DRV-001"),
        ("580.65.06", "cu132", "apply", "GB-DRV-002"),
        ("580.65.05", "cu130", "refused", "GB-DRV-001"),
        ("620.10.01", "cu132", "apply", ""),
        ("620.10.01", "cu121", "apply", ""),
    ],
)
def test_a_containers_driver_is_held_against_the_floor_and_the_release(
    driver: str, stack: str, status: str, code: str
) -> None:
    """P01."""
    document = plan(container(driver), {"stack": stack}, data())
    assert document["status"] == status
    told = {c for c in codes(document) if c.startswith("GB-DRV")}
    assert told == ({code} if code else set())
    if code == "GB-DRV-001":
        found = refusal(document, code)
        assert driver in found["found"]
        assert data()["cuda"][data()["stacks"][stack]["cuda"]]["driver_floor"] in found["wanted"]
        assert (
            "driver 525.60.13 or newer" in found["nearest"]
            if driver < "525.60.13"
            else found["nearest"].startswith("stack: cu12")
        )
        assert document["components"]["nvidia_driver"]["action"] == "provided"
    if code == "GB-DRV-002":
        assert "JIT" in next(w for w in document["warnings"] if w["code"] == code)["cause"]


def test_what_a_driver_is_called_is_taken_apart() -> None:
    assert upstream_version("535.309.01-0+deb12u1") == "535.309.01"
    assert upstream_version("1:580.178.04-1ubuntu1") == "580.178.04"
    assert upstream_version("535.171.04~deb12u1") == "535.171.04"
    assert branch_of("580.173.02-0ubuntu0.24.04.1") == branch_of("1:580.0") == "580"


# --- choice ---


def test_debian_12_takes_535_from_its_own_archive_for_cuda_12_1() -> None:
    host = saved("debian12_vm_4090")
    driver = inputs(plan(host, {"stack": "cu121"}, data()))
    assert (driver["lead"], driver["version"], driver["flavour"]) == ("nvidia-kernel-dkms", "535.261.03", "proprietary")
    assert driver["source"]["repository"] == {}
    assert driver["source"]["components"] == []
    assert driver["kernel"] == host["kernel"]["will_boot"]
    assert driver["prerequisites"] == ["dkms", "kmod", f"linux-headers-{driver['kernel']}", "gcc-12"]


def test_a_debian_with_main_alone_gets_the_other_components_switched_on() -> None:
    host = machine("RTX 4090", os=("debian", "12"), glibc="2.36")
    driver = inputs(plan(host, {"stack": "cu121", "nvidia_driver_source": "debian"}, data()))
    assert driver["source"]["components"] == ["contrib", "non-free", "non-free-firmware"]
    assert (driver["branch"], driver["version"]) == ("535", "")


def test_a_driver_that_the_archive_lacks_comes_from_nvidias_repository_with_a_known_key() -> None:
    document = plan(saved("debian12_vm_4090"), {"stack": "cu128"}, data())
    driver = inputs(document)
    assert driver["branch"] == "580"
    assert driver["source"]["repository"] == {
        "url": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
        "key": "3bf863cc.pub",
        "fingerprint": "EB693B3035CD5710E231E123A4B469963BF863CC",
    }
    mirrored = plan(
        saved("debian12_vm_4090"), {"stack": "cu128", "mirrors": {"nvidia": "https://m.example/nv/"}}, data()
    )
    assert inputs(mirrored)["source"]["repository"]["url"] == "https://m.example/nv/compute/cuda/repos/debian12/x86_64"


def test_debian_13s_own_driver_is_known_not_to_build() -> None:
    host = saved("debian13_vm_4090")
    driver = inputs(plan(host, {"stack": "cu132"}, data()))
    assert driver["source"]["repository"]["fingerprint"] == "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
    document = plan(
        host,
        {"stack": {"base": "cu132", "name": "cu132"}, "nvidia_driver_source": "debian", "nvidia_driver_branch": "550"},
        data(),
    )
    assert "does not compile" in refusal(document, "GB-DRV-005")["found"]


def test_the_stacks_branch_is_taken_where_it_is_real_and_the_nearest_newer_one_where_it_is_not() -> None:
    real = machine("RTX 4090", offers={**TODAY, **headless("550", "550.163.01-0ubuntu0.22.04.1")})
    document = plan(real, {"stack": "cu124"}, data())
    assert inputs(document)["version"] == "550.163.01"
    assert "GB-DRV-006" not in codes(document)
    gone = machine("RTX 4090", offers=TODAY, os=("ubuntu", "24.04"), glibc="2.39")
    for row in (row for rows in gone["apt"]["offers"].values() for row in rows):
        row["sources"] = [row["sources"][0].replace("jammy", "noble")]
    document = plan(gone, {"stack": "cu124", "nvidia_driver_source": "ubuntu"}, data())
    assert inputs(document)["lead"] == "nvidia-headless-580-server-open"
    document = plan(gone, {"stack": "cu124"}, data())
    assert "GB-DRV-006" in codes(document)
    assert "550" not in inputs(document)["lead"]


# --- a branch that moved (P56) ---


def test_a_pinned_branch_that_became_transitional_is_refused_with_the_source_that_has_it() -> None:
    """P56."""
    host = machine("RTX 4090", offers=TODAY)
    found = refusal(
        plan(host, {"stack": "cu121", "nvidia_driver_branch": "535", "nvidia_driver_source": "ubuntu"}, data()),
        "GB-DRV-007",
    )
    assert "install branch 580 now" in found["found"]
    assert "NVIDIA's repository" in found["wanted"]
    assert found["nearest"] == "nvidia_driver_source: nvidia"
    assert inputs(plan(host, {"stack": "cu121", "nvidia_driver_branch": "535"}, data()))["source"]["repository"]


def test_a_pinned_branch_that_nobody_has_names_the_branch_that_works() -> None:
    lone = {name: rows for name, rows in TODAY.items() if "550" in name or "580" in name}
    host = machine("RTX 4090", offers=lone, os=("ubuntu", "24.04"), glibc="2.39")
    for rows in host["apt"]["offers"].values():
        rows[0]["sources"] = [rows[0]["sources"][0].replace("jammy", "noble")]
    found = refusal(plan(host, {"stack": "cu124", "nvidia_driver_branch": "550"}, data()), "GB-DRV-007")
    assert "no source has any more" in found["wanted"]
    assert found["nearest"].startswith("nvidia_driver_branch: '5")


def test_a_transitional_package_is_told_by_its_version_where_its_dependencies_say_nothing() -> None:
    host = machine("RTX 4090", offers={"nvidia-headless-495-server": offer("510.47.03-0ubuntu0.22.04.1")})
    options = driver_options(host, "ubuntu-22.04", data())
    assert not [o for o in options if o["branch"] == "495"]  # no branch of the table is called so
    host = machine("RTX 4090", offers={"nvidia-headless-530-server": offer("535.54.03-0ubuntu0.22.04.1")})
    assert [o["leads_to"] for o in driver_options(host, "ubuntu-22.04", data()) if o["branch"] == "530"] == ["535"]


def test_names_before_and_after_590_are_known() -> None:
    """P56: NVIDIA's packages lost the branch in their names at 590."""
    offers = {
        "nvidia-open": offer("595.71.05-1ubuntu1", NVIDIA) + offer("590.48.01-1ubuntu1", NVIDIA),
        "nvidia-driver-pinning-595": offer("595-1", NVIDIA),
        "nvidia-open-580": offer("580.178.04-1ubuntu1", NVIDIA),
        "cuda-drivers-580": offer("580.178.04-1ubuntu1", NVIDIA),
    }
    host = machine("RTX 4090", offers=offers)
    new = inputs(plan(host, {"stack": "cu132"}, data()))
    assert (new["lead"], new["version"], new["pinning"]) == ("nvidia-open", "595.71.05", "nvidia-driver-pinning-595")
    assert new["source"]["repository"] == {}
    old = inputs(plan(host, {"stack": "cu130", "nvidia_driver_source": "nvidia"}, data()))
    assert (old["lead"], old["version"], old["pinning"]) == ("nvidia-open-580", "580.178.04", "")


def test_packages_of_one_name_from_two_sources_are_kept_apart() -> None:
    """P41."""
    offers = {
        "nvidia-headless-580-server-open": offer("580.173.02-0ubuntu0.22.04.1") + offer("580.178.04-1ubuntu1", NVIDIA)
    }
    options = driver_options(machine("RTX 4090", offers=offers), "ubuntu-22.04", data())
    assert [o["version"] for o in options if o["source"] == "ubuntu"] == ["580.173.02"]


def test_a_saved_probe_of_an_older_release_still_chooses() -> None:
    host = machine("RTX 4090")
    del host["apt"]["offers"]
    host["apt"]["candidates"]["nvidia-headless-580-server"] = "580.173.02-0ubuntu0.22.04.1"
    assert inputs(plan(host, {"stack": "cu128"}, data()))["version"] == "580.173.02"


# --- kernel modules (P30) ---


@pytest.mark.parametrize(
    ("gpus", "settings", "flavour"),
    [
        (["RTX 5090"], {"stack": "cu128"}, "open"),
        (["V100"], {"stack": "cu128"}, "proprietary"),
        (["A100"], {"stack": "cu128"}, "open"),
        (["A100"], {"stack": "cu121", "nvidia_driver_source": "ubuntu"}, "open"),
        (
            ["A100"],
            {"stack": "cu121"},
            "proprietary",
        ),  # 535 of NVIDIA's repository: open ones are no default before 560
        (["A100", "V100"], {"stack": "cu128"}, "proprietary"),
        (["A100", "RTX 5090"], {"stack": "cu128"}, "open"),
        (["A100"], {"stack": "cu128", "nvidia_driver_flavour": "proprietary"}, "proprietary"),
        (["ffff"], {"stack": "cu128"}, "open"),
    ],
)
def test_kernel_modules_fit_every_gpu(gpus: list[str], settings: dict[str, Any], flavour: str) -> None:
    """P30."""
    driver = inputs(plan(machine(*gpus, offers=TODAY), settings, data()))
    assert driver["flavour"] == flavour
    assert driver["lead"].endswith("-open") is (flavour == "open")


@pytest.mark.parametrize(
    ("gpus", "settings", "code"),
    [
        (["RTX 5090"], {"nvidia_driver_flavour": "proprietary"}, "GB-KMOD-002"),
        (["V100"], {"nvidia_driver_flavour": "open"}, "GB-KMOD-002"),
        (["RTX 5090", "V100"], {}, "GB-KMOD-001"),
        (["RTX 5090"], {"nvidia_driver_branch": "550"}, "GB-DRV-007"),
        (["RTX 5090"], {"nvidia_driver_branch": "570", "nvidia_driver_source": "debian"}, "GB-DRV-005"),
        (["V100"], {"nvidia_driver_branch": "595"}, "GB-DRV-005"),
    ],
)
def test_a_driver_that_cant_drive_the_gpu_is_refused_before_apt_runs(
    gpus: list[str], settings: dict[str, Any], code: str
) -> None:
    """P30."""
    found = refusal(plan(machine(*gpus, offers=TODAY), {"stack": "cu128", **settings}, data()), code)
    assert found["nearest"]


def test_a_loaded_driver_of_the_wrong_kind_is_refused_and_replaced_on_request() -> None:
    host = machine("RTX 5090", offers=TODAY, loaded="580.126.09")
    found = refusal(plan(host, {"stack": "cu128"}, data()), "GB-DRV-003")
    assert "can't drive RTX 5090" in found["found"]
    assert found["nearest"].startswith("nvidia_driver_replace: true (580.173.02")
    document = plan(host, {"stack": "cu128", "nvidia_driver_replace": True}, data())
    assert document["components"]["nvidia_driver"]["action"] == "replace"
    assert inputs(document)["flavour"] == "open"
    assert document["reboot"]["needed"]


# --- NVSwitches (P20) ---


def test_a_board_with_nvswitches_gets_the_fabric_manager_of_exactly_this_driver() -> None:
    """P20."""
    switches = [{"pci_address": "0000:85:00.0", "device_id": "22a3"}]
    host = machine("A100", offers=TODAY, nvswitches=switches)
    driver = inputs(plan(host, {"stack": "cu128"}, data()))
    assert driver["fabric_manager"] == ["nvidia-fabricmanager-580", "libnvidia-nscq-580"]
    assert inputs(plan(machine("A100", offers=TODAY), {"stack": "cu128"}, data()))["fabric_manager"] == []


def test_a_fabric_manager_of_another_version_is_no_fabric_manager() -> None:
    """P20."""
    switches = [{"pci_address": "0000:85:00.0", "device_id": "22a3"}]
    offers = {**TODAY, "nvidia-fabricmanager-580": offer("580.126.09-0ubuntu0.22.04.1")}
    host = machine("A100", offers=offers, nvswitches=switches)
    assert inputs(plan(host, {"stack": "cu128"}, data()))["source"]["repository"], "NVIDIA's repository has both"
    found = refusal(plan(host, {"stack": "cu128", "nvidia_driver_source": "ubuntu"}, data()), "GB-DRV-005")
    assert "offered as 580.126.09, not as 580.173.02" in found["found"]
    debian = machine("A100", os=("debian", "12"), glibc="2.36", nvswitches=switches)
    assert inputs(plan(debian, {"stack": "cu121"}, data()))["source"]["repository"], "Debian has no fabric manager"


def test_a_container_on_such_a_board_is_only_told() -> None:
    """P20."""
    host = container(
        gpu="NVIDIA A100-SXM4-80GB",
        capability="8.0",
        count=8,
        nvswitches=[{"pci_address": "0000:85:00.0", "device_id": "1af1"}],
    )
    document = plan(host, {"stack": "cu124"}, data())
    warning = next(w for w in document["warnings"] if w["code"] == "GB-NVS-001")
    assert "802" in warning["remedy"]
    assert document["components"]["nvidia_driver"]["inputs"]["fabric_manager"] == []


# --- the ground (P25, P41) ---


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"apt": {"candidates": {}}}, "GB-KERN-001", "linux-headers-5.15.0-171-generic"),
        ({"kernel": {"will_boot": "5.15.0-999-generic"}}, "GB-KERN-001", "linux-headers-5.15.0-999-generic"),
        ({"kernel": {"compiler": "gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"}}, "GB-KERN-002", "gcc-12"),
        ({"kernel": {"compiler": "x86_64-linux-gnu-gcc-13 (Ubuntu 13.2) 13.2.0"}}, "GB-KERN-002", "gcc-13"),
        ({"secure_boot": "enabled"}, "GB-BOOT-001", "secure boot"),
        ({"driver": {"runfile": "/usr/bin/nvidia-uninstall"}}, "GB-DRV-009", "/usr/bin/nvidia-uninstall"),
        (
            {"apt": {"holds": ["nvidia-driver-535"]}, "driver": {"packages": [{"name": "nvidia-driver-535", "version": "535.1", "status": "installed"}]}},
            "GB-APT-003",
            "nvidia-driver-535",
        ),
    ],
)  # fmt: skip
def test_a_driver_is_not_begun_where_it_could_not_be_finished(changes: dict[str, Any], code: str, words: str) -> None:
    """P25, P41."""
    found = refusal(plan(machine("RTX 4090", offers=TODAY, **changes), {"stack": "cu128"}, data()), code)
    assert words in found["found"]
    kept = plan(machine("RTX 4090", offers=TODAY, loaded="580.126.09", **changes), {"stack": "cu128"}, data())
    assert kept["status"] == "apply", "a driver that works is kept, whatever could not be built"


@pytest.mark.parametrize(
    "changes",
    [
        {"apt": {"candidates": {}}, "kernel": {"headers": ["5.15.0-171-generic"]}},
        {
            "kernel": {"compiler": "gcc-12 (Ubuntu 12.3.0) 12.3.0"},
            "gcc": {"default": "11.4.0", "available": ["11", "12"]},
        },
        {
            "kernel": {"compiler": "gcc-12 (Ubuntu 12.3.0) 12.3.0"},
            "apt": {"candidates": {"gcc-12": "12.3.0", "linux-headers-5.15.0-171-generic": "1"}},
        },
        {"kernel": {"compiler": None}},
        {"kernel": {"compiler": "Debian clang version 19.1.7"}},
        {
            "apt": {"holds": ["nvidia-driver-535"]},
            "driver": {"packages": [{"name": "nvidia-driver-535", "version": "535.1", "status": "installed"}]},
            "nvidia_driver": {"held": ["nvidia-driver-535"]},
        },
        {"apt": {"holds": ["linux-image-amd64"]}},
        {"apt": {"candidates_asked": False, "candidates": {}}},
    ],
)
def test_and_is_begun_where_it_could(changes: dict[str, Any]) -> None:
    """P25, P41: our own hold never blocks our own next run."""
    assert plan(machine("RTX 4090", offers=TODAY, **changes), {"stack": "cu128"}, data())["status"] == "apply"


@pytest.mark.parametrize("key", ["holds", "runfile"])
def test_leave_to_replace_covers_what_is_in_the_way(key: str) -> None:
    changes: dict[str, Any] = {"driver": {"runfile": "/usr/bin/nvidia-uninstall"}}
    if key == "holds":
        packages = [{"name": "nvidia-driver-535", "version": "535.1", "status": "installed"}]
        changes = {"apt": {"holds": ["nvidia-driver-535"]}, "driver": {"packages": packages}}
    document = plan(
        machine("RTX 4090", offers=TODAY, **changes), {"stack": "cu128", "nvidia_driver_replace": "yes"}, data()
    )
    assert document["status"] == "apply"


# --- what is there ---


@pytest.mark.parametrize("newer", ["580.126.09", "595.71.05", "620.10.01"])
def test_a_driver_that_satisfies_is_kept_whatever_its_branch(newer: str) -> None:
    document = plan(machine("RTX 4090", offers=TODAY, loaded=newer), {"stack": "cu128"}, data())
    assert document["components"]["nvidia_driver"]["action"] == "keep"
    assert not document["reboot"]["needed"]


def test_a_driver_that_is_too_old_is_replaced_only_with_leave() -> None:
    host = machine("RTX 4090", offers=TODAY, loaded="470.256.02")
    found = refusal(plan(host, {"stack": "cu124"}, data()), "GB-DRV-003")
    assert "older than 525.60.13" in found["found"]
    document = plan(host, {"stack": "cu124", "nvidia_driver_replace": True, "reboot_allowed": True}, data())
    assert document["components"]["nvidia_driver"]["action"] == "replace"
    assert document["reboot"]["needed"]
    assert document["reboot"]["allowed"]
    assert document["reboot"]["why"] == "module 470.256.02 is loaded and in use"
    assert document["steps"][-2:] == ["reboot", "verify"]
    left_out = plan(host, {"stack": "cu124", "components": "cuda_toolkit"}, data())
    assert refusal(left_out, "GB-DRV-003")


def test_libraries_that_were_replaced_under_the_module_ask_for_a_reboot_and_no_reinstall() -> None:
    """P05."""
    host = machine(
        "RTX 4090", loaded="550.90.07", driver={"libcuda": "/usr/lib/x86_64-linux-gnu/libcuda.so.550.107.02"}
    )
    document = plan(host, {"stack": "cu124"}, data())
    assert document["components"]["nvidia_driver"]["action"] == "keep"
    warning = next(w for w in document["warnings"] if w["code"] == "GB-DRV-008")
    assert "550.90.07" in warning["found"]
    assert "550.107.02" in warning["found"]
    assert document["reboot"]["needed"]
    assert "GB-BOOT-002" in codes(document)
    assert "GB-BOOT-002" not in codes(plan(host, {"stack": "cu124", "reboot_allowed": True}, data()))


def test_nouveau_and_a_kernel_that_is_not_running_yet_need_a_reboot() -> None:
    """P23."""
    document = plan(machine("RTX 4090", offers=TODAY, driver={"nouveau_loaded": True}), {"stack": "cu128"}, data())
    assert document["reboot"]["why"] == "nouveau has the GPU"
    kernel = {"will_boot": "5.15.0-172-generic", "headers": ["5.15.0-172-generic"]}
    document = plan(machine("RTX 4090", offers=TODAY, kernel=kernel), {"stack": "cu128"}, data())
    assert "5.15.0-172-generic" in document["reboot"]["why"]
    assert not plan(machine("RTX 4090", offers=TODAY), {"stack": "cu128"}, data())["reboot"]["needed"]


def test_no_gpu_needs_no_driver_and_a_component_left_out_installs_none() -> None:
    document = plan(machine(), {"stack": "cu124"}, data())
    assert document["components"]["nvidia_driver"]["action"] == "none"
    document = plan(machine("RTX 4090", offers=TODAY), {"stack": "cu124", "components": "cuda_toolkit"}, data())
    assert "GB-DRV-004" in codes(document)


def test_planning_from_the_promised_state_of_an_installed_driver_needs_nothing() -> None:
    host = machine("RTX 4090", offers=TODAY)
    first = plan(host, {"stack": "cu128"}, data())
    assert "nvidia_driver" in first["steps"]
    assert plan(promised(host, first), {"stack": "cu128"}, data())["status"] == "nothing"


# --- forward compatibility (P32) ---


def compat(gpu: str, capability: str, driver: str) -> dict[str, Any]:
    host = container(driver, gpu=gpu, capability=capability)
    host["driver"]["compat"] = ["/usr/local/cuda/compat/libcuda.so.580.82.07"]
    return host


def test_forward_compatibility_carries_data_centre_gpus_alone() -> None:
    """P32."""
    able = plan(compat("NVIDIA A100-SXM4-80GB", "8.0", "550.54.15"), {"stack": "cu130"}, data())
    assert able["status"] == "apply"
    assert "GB-DRV-010" in codes(able)
    unable = plan(compat("NVIDIA GeForce RTX 4090", "8.9", "550.54.15"), {"stack": "cu130"}, data())
    assert refusal(unable, "GB-DRV-001")
    assert "GB-DRV-011" in codes(unable)
    works = plan(compat("NVIDIA GeForce RTX 4090", "8.9", "550.54.15"), {"stack": "cu124"}, data())
    assert works["status"] == "apply"
    assert "804" in next(w for w in works["warnings"] if w["code"] == "GB-DRV-011")["cause"]
    newer = plan(compat("NVIDIA GeForce RTX 4090", "8.9", "595.71.05"), {"stack": "cu130"}, data())
    assert not {"GB-DRV-010", "GB-DRV-011"} & codes(newer)


def test_nothing_of_the_driver_family_is_planned_in_a_container() -> None:
    """P32: neither a driver, nor its libraries, nor cuda-compat."""
    driver = plan(container(), {"stack": "cu124"}, data())["components"]["nvidia_driver"]["inputs"]
    assert [driver[key] for key in ("lead", "packages", "beside", "pinning", "fabric_manager", "source")] == [
        "",
        [],
        [],
        "",
        [],
        {},
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nvidia_driver_branch": 580.1}, "expected a branch"),
        ({"nvidia_driver_branch": "latest"}, "expected a branch"),
        ({"nvidia_driver_source": "nvidea"}, "did you mean 'nvidia'"),
        ({"nvidia_driver_flavour": "opne"}, "did you mean 'open'"),
        ({"reboot_timeout": "soon"}, "number of seconds"),
    ],
)
def test_a_setting_that_makes_no_sense_is_an_error(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(probe(), {"stack": "cu124", **settings}, data())
