"""What kind of host each saved probe is, which overrides are taken, and that a container's driver is left alone (P15)."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import pytest

from plan_world import PROBES, ROOT, data, saved
from planning import plan, plan_text
from planning.host import decide_host_kind
from planning.notes import Notes

SCHEMA = json.loads((ROOT / "docs/plan.schema.json").read_text(encoding="utf-8"))
# Written by hand: what a person who looks at the host would say.
KINDS = {
    "aarch64_gh200": "metal",
    "autodl_v100": "container",
    "container_driver470_3090": "container",
    "container_driver550_4090": "container",
    "debian12_vm_4090": "vm",
    "debian13_vm_4090": "vm",
    "docker_a100": "container",
    "gcp_vm_l4": "vm",
    "gpu_none_container": "container",
    "kubernetes_h100x8": "container",
    "lab_vm_done": "container",
    "lxc_3090": "container",
    "metal_b200x8": "metal",
    "metal_h200x8": "metal",
    "metal_pascal": "metal",
    "mixed_4090_5090": "metal",
    "podman_l40s": "container",
    "runpod_a100": "container",
    "small_root_disk": "vm",
    "systemd_container_4090": "container",
    "ubuntu2204_vm_a100x8": "vm",
    "ubuntu2404_vm_5090": "vm",
    "ubuntu2404_vm_h100": "vm",
    "v100_vm": "vm",
    "vast_4090x4_ssh": "container",
    "wsl2_4090": "wsl",
    "xen_t4": "vm",
}
OVERRIDES = ("container", "vm", "metal", "wsl")
# Any host may be treated as a container, which only does less; and nothing is lost when vm and metal are mixed up.
TAKEN = {("vm", "metal"), ("metal", "vm"), ("vm", "container"), ("metal", "container"), ("wsl", "container")}
CONTAINERS = sorted(name for name, kind in KINDS.items() if kind == "container")
LANDLORDS = sorted(name for name, kind in KINDS.items() if kind in ("container", "wsl"))
# How each decisive sign goes away.
GONE: dict[str, dict[str, Any]] = {
    "container_env": {"container_env": ""},
    "dockerenv": {"dockerenv": False},
    "containerenv": {"containerenv": False},
    "kubernetes": {"kubernetes": False},
    "cgroup_hint": {"cgroup_hint": ""},
    "pid1": {"pid1": "systemd"},
    "provider": {"provider": "", "provider_signs": []},
}
# And what of it must stand in the decision.
WORDS = {
    "container_env": "container={container_env}",
    "dockerenv": "/.dockerenv",
    "containerenv": "/run/.containerenv",
    "kubernetes": "Kubernetes",
    "cgroup_hint": "control group of {cgroup_hint}",
    "pid1": "PID 1 is {pid1}",
    "provider": "provider {provider}",
}


def decisive(name: str) -> list[str]:
    """The decisive signs of a container that a saved probe shows; the last two count only without the right to load modules."""
    signs = saved(name)["signs"]
    bound = not signs["can_load_modules"]
    shown = {
        **{
            key: bool(signs[key]) for key in ("container_env", "dockerenv", "containerenv", "kubernetes", "cgroup_hint")
        },
        "pid1": bound and signs["pid1"] not in ("systemd", "init"),
        "provider": bound and signs["provider"] in ("autodl", "runpod", "vast"),
    }
    return [key for key in GONE if shown[key]]


def without(name: str, *gone: str) -> dict[str, Any]:
    """A saved probe without these signs."""
    host = copy.deepcopy(saved(name))
    for key in gone:
        host["signs"].update(GONE[key])
    return host


def kind_of(host: dict[str, Any], override: str = "") -> dict[str, Any]:
    return decide_host_kind(host, override, Notes(data()["rules"]))


def codes(document: dict[str, Any]) -> set[str]:
    return {entry["code"] for entry in document["refusals"]}


# --- the kind of every saved probe ---


def test_every_saved_probe_has_a_kind_here() -> None:
    assert set(KINDS) == {path.stem for path in PROBES.glob("*.json")}
    assert {"container", "vm", "metal", "wsl"} == set(KINDS.values())


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_kind_is_what_a_person_would_say(name: str, kind: str) -> None:
    decided = kind_of(saved(name))
    assert decided["value"] == kind, decided
    assert decided["signs"]
    assert decided["overridden"] is False


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_shown_with_all_its_signs(name: str) -> None:
    decided = kind_of(saved(name))
    expected = [WORDS[key].format(**saved(name)["signs"]) for key in decisive(name)]
    assert len(decided["signs"]) == len(expected) > 1
    for words, line in zip(expected, decided["signs"], strict=True):
        assert words in line


@pytest.mark.parametrize(("name", "kept"), [(name, key) for name in CONTAINERS for key in decisive(name)])
def test_one_decisive_sign_is_enough(name: str, kept: str) -> None:
    decided = kind_of(without(name, *(key for key in GONE if key != kept)))
    assert decided["value"] == "container"
    assert len(decided["signs"]) == 1


@pytest.mark.parametrize("name", CONTAINERS)
def test_no_single_sign_carries_a_container_alone(name: str) -> None:
    for key in decisive(name):
        assert kind_of(without(name, key))["value"] == "container", key


@pytest.mark.parametrize("name", CONTAINERS)
def test_without_any_sign_it_is_no_container(name: str) -> None:
    expected = "vm" if saved(name)["signs"]["hypervisor_flag"] else "metal"
    assert kind_of(without(name, *GONE))["value"] == expected


def test_the_saved_containers_show_every_decisive_sign() -> None:
    """A sign that no saved probe shows is a sign that nothing here tests."""
    assert {key for name in CONTAINERS for key in decisive(name)} == set(GONE)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind in ("vm", "metal")])
def test_who_may_load_modules_is_no_container_for_its_pid_1_or_its_landlord(name: str) -> None:
    """A machine may start with another init, and Vast and RunPod may rent out machines too."""
    host = without(name)
    host["signs"].update(pid1="runit", provider="vast", provider_signs=["env:VAST_CONTAINERLABEL"])
    assert kind_of(host)["value"] == KINDS[name]
    host["signs"]["can_load_modules"] = False
    assert kind_of(host)["value"] == "container"


def test_a_container_that_may_load_modules_is_one_all_the_same() -> None:
    """Started with --privileged, and systemd is its PID 1."""
    signs = saved("systemd_container_4090")["signs"]
    assert signs["can_load_modules"] and signs["systemd_running"]
    assert kind_of(saved("systemd_container_4090"))["value"] == "container"


def test_xen_without_a_hypervisor_bit_is_a_machine_too() -> None:
    host = without("xen_t4")
    host["signs"]["hypervisor_flag"] = False
    assert kind_of(host)["value"] == "vm"
    host["signs"]["xen"] = False
    assert kind_of(host)["value"] == "metal"


# --- overrides ---


@pytest.mark.parametrize("override", OVERRIDES)
@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_an_override_is_taken_where_it_can_be_true_and_refused_elsewhere(name: str, kind: str, override: str) -> None:
    document = plan(saved(name), {"host_kind": override}, data())
    jsonschema.validate(document, SCHEMA)
    decided = document["host_kind"]
    own = kind_of(saved(name))["signs"]
    if override == kind:
        assert decided == {"value": kind, "signs": own, "overridden": False}
        assert "GB-KIND-001" not in codes(document)
    elif (kind, override) in TAKEN:
        assert decided == {"value": override, "signs": [*own, f"host_kind: {override} by you"], "overridden": True}
        assert "GB-KIND-001" not in codes(document)
        assert f"host_kind: {override} by you" in plan_text(document)
    else:
        assert (document["status"], document["steps"]) == ("refused", [])
        assert decided == {"value": kind, "signs": own, "overridden": False}
        refusal = next(entry for entry in document["refusals"] if entry["code"] == "GB-KIND-001")
        assert all(sign in refusal["found"] for sign in own)
        assert refusal["wanted"] == f"host_kind: {override}"
        assert refusal["nearest"] == f"host_kind: {kind}"


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind != "container"])
def test_a_machine_that_is_treated_as_a_container_keeps_its_driver(name: str) -> None:
    settings = {"host_kind": "container", "nvidia_driver_replace": True, "reboot_allowed": True}
    document = plan(saved(name), settings, data())
    assert document["components"]["nvidia_driver"]["action"] in ("provided", "none")
    assert document["reboot"]["needed"] is False


# --- the plans ---


@pytest.mark.parametrize("name", KINDS)
def test_every_saved_probe_gives_a_plan(name: str) -> None:
    document = plan(saved(name), {"stack": "auto"}, data())
    jsonschema.validate(document, SCHEMA)
    assert document["host_kind"]["value"] == KINDS[name]
    assert (document["status"] == "refused") is bool(document["refusals"])
    assert f"host   {KINDS[name]} (" in plan_text(document)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nvidia_driver_branch": "580"},
        {"nvidia_driver_branch": "550", "nvidia_driver_replace": True},
        {"nvidia_driver_branch": "595", "nvidia_driver_source": "nvidia", "nvidia_driver_flavour": "open", "nvidia_driver_replace": "yes"},
        {"nvidia_driver_replace": True, "reboot_allowed": True},
        {"nvidia_driver_replace": True, "stack": "cu132"},
        {"nvidia_driver_replace": True, "components": "nvidia_driver"},
        {"nvidia_driver_replace": True, "host_kind": "vm"},
        {"nvidia_driver_replace": True, "host_kind": "metal"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", LANDLORDS)
def test_a_driver_of_the_landlord_is_never_installed_nor_replaced(name: str, settings: dict[str, Any]) -> None:
    document = plan(saved(name), settings, data())
    assert document["components"]["nvidia_driver"]["action"] in ("provided", "none"), plan_text(document)
    assert document["reboot"]["needed"] is False
    assert not [row for row in document["space"] for what in row["for"] if "driver" in what.split(" of ")[0]]


def test_and_on_a_machine_of_one_s_own_it_is() -> None:
    """The broken fixture of the test above: were the kind decided wrong, the action would be another one."""
    host = without("podman_l40s", *GONE)
    host["driver"].update(loaded_version="470.256.02", smi=None)
    host["signs"]["can_load_modules"] = True
    document = plan(host, {"stack": "cu124", "nvidia_driver_replace": True}, data())
    assert document["components"]["nvidia_driver"]["action"] == "replace"
    assert document["reboot"]["needed"]


# --- the table of the saved probes ---


def test_the_table_of_the_saved_probes_has_one_row_for_each_file_and_is_sorted() -> None:
    text = (PROBES / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)\.json` \| (.+) \|$", text, re.MULTILINE)
    names = [name for name, _ in rows]
    assert names == sorted(KINDS)
    assert len({host for _, host in rows}) == len(rows), "two hosts are described in the same words"
