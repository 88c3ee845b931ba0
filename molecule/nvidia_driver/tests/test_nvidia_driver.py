"""The driver's packages as apt, DKMS and dpkg see them; no module is loaded, for there is no GPU here."""

from __future__ import annotations

import json

import pytest

FAMILY = (
    "nvidia-kernel-dkms",
    "nvidia-smi",
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-alternative",
    "nvidia-kernel-support",
)
WANTED = "535.261.03"


@pytest.fixture
def builds(host):
    if host.backend.hostname != "driver-builds":
        pytest.skip("another host")
    return host


@pytest.fixture
def fails(host):
    if host.backend.hostname != "driver-fails":
        pytest.skip("another host")
    return host


@pytest.fixture
def barred(host):
    if host.backend.hostname != "driver-barred":
        pytest.skip("another host")
    return host


def sudo(host, command: str) -> str:
    with host.sudo():
        return str(host.check_output(command))


def test_the_whole_family_has_the_version_that_was_asked_for_and_not_the_newest(builds) -> None:
    for name in FAMILY:
        assert builds.package(name).version.startswith(WANTED), name
    newest = builds.check_output("apt-cache madison nvidia-smi | awk '{print $3}' | sort -V | tail -1")
    assert not newest.startswith(WANTED), "the archive has nothing newer: this test can't fail"


def test_dkms_built_the_module_for_the_kernel_that_will_boot(builds) -> None:
    """P25."""
    kernel = builds.check_output("cat /var/tmp/kernel")
    assert kernel != builds.check_output("uname -r"), "built for the installed headers, not for what runs here"
    assert f"{WANTED}, {kernel}, x86_64: installed" in sudo(builds, "dkms status")
    assert sudo(builds, f"modinfo -k {kernel} -F license nvidia-current").splitlines()[0] == "NVIDIA"


def test_no_upgrade_moves_the_family(builds) -> None:
    """P05."""
    simulated = sudo(builds, "apt-get -s dist-upgrade")
    assert not [line for line in simulated.splitlines() if line.startswith("Inst") and "nvidia" in line]
    with builds.sudo():
        told = builds.run("unattended-upgrade --dry-run --debug")
    assert told.rc == 0
    upgraded = [line for line in told.stdout.splitlines() + told.stderr.splitlines() if "will be upgraded" in line]
    assert "nvidia" not in " ".join(upgraded)
    held = sudo(builds, "apt-mark showhold").splitlines()
    assert set(FAMILY) <= set(held)


def test_without_its_hold_and_pin_the_family_would_move(builds) -> None:
    """P05: what keeps it there is what the role wrote, not chance."""
    script = (
        "apt-mark showhold > /tmp/holds && xargs -r apt-mark unhold < /tmp/holds > /dev/null; "
        "apt-get -s -o Dir::Etc::preferencesparts=/nonexistent dist-upgrade; rc=$?; "
        "xargs -r apt-mark hold < /tmp/holds > /dev/null; exit $rc"
    )
    with builds.sudo():
        simulated = builds.check_output(f"sh -c '{script}'")
    assert [line for line in simulated.splitlines() if line.startswith("Inst nvidia-smi")]


def test_unattended_upgrades_know_the_family_without_the_hold(builds) -> None:
    """P05."""
    told = sudo(builds, "apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert "nvidia-(" in told
    assert "lib(cuda1" in told


def test_nouveau_is_kept_away_and_uvm_loaded_at_boot(builds) -> None:
    """P21, P23."""
    assert "blacklist nouveau" in builds.file("/etc/modprobe.d/gpu-bootstrap-nouveau.conf").content_string
    modules = builds.file("/etc/modules-load.d/gpu-bootstrap-nvidia.conf").content_string.splitlines()
    assert modules.count("nvidia_uvm") == 1


def test_the_persistence_daemon_is_enabled(builds) -> None:
    assert builds.service("nvidia-persistenced").is_enabled


def test_dpkg_was_mended_and_the_driver_left_as_it_was(builds) -> None:
    """P41."""
    assert sudo(builds, "dpkg --audit") == ""
    assert not builds.package("nvidia-driver-broken").is_installed


def test_the_state_says_what_is_installed_and_that_the_reboot_is_done(builds) -> None:
    """P37."""
    state = json.loads(builds.file("/var/lib/gpu-bootstrap/nvidia_driver.json").content_string)
    assert (state["version"], state["branch"], state["flavour"], state["reboot"]) == (WANTED, "535", "proprietary", "")
    assert set(FAMILY) <= set(state["held"])


def test_a_build_that_fails_is_told_with_its_reason_and_leaves_nothing_half_done(fails) -> None:
    """P25: Debian 13's 550.163.01 does not compile against Debian 13's kernel; once it does, the driver is there."""
    outcome = fails.file("/var/tmp/outcome").content_string
    assert sudo(fails, "dpkg --audit") == ""
    if outcome == "installed":
        assert fails.package("nvidia-kernel-dkms").version.startswith("550.163.01")
        return
    assert "Its kernel module does not build" in outcome
    assert "error" in outcome
    assert fails.file("/var/tmp/kernel").content_string in outcome
    assert not fails.package("nvidia-kernel-dkms").is_installed
    assert not fails.package("nvidia-smi").is_installed
    assert not fails.file("/etc/apt/preferences.d/gpu-bootstrap-nvidia-driver").exists
    with fails.sudo():
        assert fails.run("apt-get install -y --no-install-recommends hello").rc == 0, "apt works for everything else"


def test_nothing_of_the_family_can_get_into_the_container(barred) -> None:
    """P32: neither by name nor as somebody's dependency."""
    assert barred.run(
        "sed -i 's/main$/main contrib non-free non-free-firmware/' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list"
    ).rc in (0, 2)
    assert barred.run("apt-get update").rc == 0
    assert "nvidia-smi" in barred.check_output("apt-cache pkgnames nvidia-smi"), "the archive has it"
    for name in ("nvidia-smi", "libcuda1", "nvidia-cuda-toolkit", "nvidia-driver"):
        assert barred.run(f"apt-get -s install {name}").rc != 0, name
    assert barred.run("apt-get -s install gcc").rc == 0
    assert barred.run("apt-get -s -o Dir::Etc::preferencesparts=/nonexistent install nvidia-smi").rc == 0
