"""The plan: what it keeps, installs, refuses, and says."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import pytest

from plan_world import ROOT, container, data, probe, promised, saved
from planning import plan, plan_text
from planning.gpus import runs_on
from planning.settings import read_settings
from planning.space import mount_of
from planning.stacks import cuda_tag
from planning.values import version_tuple

SCHEMA = json.loads((ROOT / "docs/plan.schema.json").read_text(encoding="utf-8"))
STACKS = list(data()["stacks"])


def codes(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["code"] for entry in entries]


def refused(document: dict[str, Any]) -> list[str]:
    assert document["status"] == "refused", plan_text(document)
    assert document["steps"] == []
    return codes(document["refusals"])


# --- the three refusals of the README ---


def test_debian_13_is_refused_cu124_and_auto_finds_a_stack() -> None:
    document = plan(saved("debian13_vm_4090"), {"stack": "cu124"}, data())
    assert "GB-OS-002" in refused(document)
    refusal = next(r for r in document["refusals"] if r["code"] == "GB-OS-002")
    assert refusal["found"] == "glibc 2.41"
    assert refusal["nearest"] == "stack: cu132"
    auto = plan(saved("debian13_vm_4090"), {"stack": "auto"}, data())
    assert (auto["status"], auto["stack"]["name"]) == ("apply", "cu132")


def test_container_with_driver_470_is_refused_and_it_is_the_landlords_fault() -> None:
    document = plan(saved("container_driver470_3090"), {"stack": "cu124"}, data())
    assert "GB-DRV-001" in refused(document)
    refusal = document["refusals"][0]
    assert refusal["whose"] == "landlord's"
    assert "470" in refusal["found"]
    assert refusal["nearest"]


def test_rtx_5090_is_refused_cu124_and_auto_finds_a_stack_with_its_kernels() -> None:
    document = plan(saved("ubuntu2404_vm_5090"), {"stack": "cu124"}, data())
    assert {"GB-GPU-001", "GB-GPU-002"} <= set(refused(document))
    auto = plan(saved("ubuntu2404_vm_5090"), {"stack": "auto"}, data())
    assert auto["status"] == "apply"
    assert "sm_120" in data()["pytorch"][auto["stack"]["torch"]]["arch_list"][cuda_tag(auto["stack"])]


# --- stacks ---


@pytest.mark.parametrize("stack", STACKS)
def test_every_shipped_stack_resolves_on_a_plain_host(stack: str) -> None:
    host = probe(driver={"loaded_version": "620.10.01", "smi": None, "device_nodes": ["/dev/nvidia0"]})
    document = plan(host, {"stack": stack}, data())
    jsonschema.validate(document, SCHEMA)
    assert document["status"] == "apply", plan_text(document)
    assert document["steps"] == [
        "package_manager",
        "prefetch",
        "nvidia_driver",
        "miniconda",
        "cuda_toolkit",
        "cudnn",
        "shell_environment",
        "pytorch_stack",
        "verify",
    ]


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("work_dir", ["", "/data"])
def test_planning_from_the_promised_state_needs_nothing(stack: str, work_dir: str) -> None:
    host = probe(driver={"loaded_version": "620.10.01", "smi": None, "device_nodes": []})
    settings = {"stack": stack, "work_dir": work_dir}
    first = plan(host, settings, data())
    second = plan(promised(host, first), settings, data())
    assert second["status"] == "nothing", plan_text(second)
    assert second["steps"] == []
    assert second["download_bytes"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "boot-2"},
        {"driver": {"loaded_version": "580.95.05", "smi": None}},
        {"receipt": None},
    ],
)
def test_a_receipt_of_another_boot_or_driver_is_proved_again_and_nothing_is_installed(change: dict[str, Any]) -> None:
    host = probe(driver={"loaded_version": "620.10.01", "smi": None})
    done = promised(host, plan(host, {"stack": "cu124"}, data()))
    document = plan({**done, **change}, {"stack": "cu124"}, data())
    assert document["steps"] == ["nvidia_driver", "verify"]


def test_a_receipt_of_all_components_holds_for_some_of_them_and_not_the_other_way_round() -> None:
    host = probe()
    done = promised(host, plan(host, {"stack": "cu124"}, data()))
    assert plan(done, {"stack": "cu124", "components": "cuda_toolkit,cudnn"}, data())["status"] == "nothing"
    done["receipt"]["components"] = ["cuda_toolkit"]
    assert plan(done, {"stack": "cu124"}, data())["steps"] == ["nvidia_driver", "verify"]


def test_a_replaced_torch_is_put_back() -> None:
    """P02: a later package swapped torch; the plan sees it without starting pip."""
    host = probe()
    done = promised(host, plan(host, {"stack": "cu124"}, data()))
    done["environments"][0]["packages"]["torch"] = "2.7.1"
    document = plan(done, {"stack": "cu124"}, data())
    assert document["components"]["pytorch_stack"]["action"] == "install"
    assert "torch" in document["components"]["pytorch_stack"]["why"]
    done["environments"][0]["packages"]["torch"] = "2.6.0"
    done["environments"][0]["torch_cuda"] = None
    assert plan(done, {"stack": "cu124"}, data())["components"]["pytorch_stack"]["action"] == "install"


def test_own_stack_starts_from_a_shipped_one() -> None:
    document = plan(
        probe(), {"stack": {"base": "cu124", "name": "mine", "packages": {"transformers": "4.51.3"}}}, data()
    )
    assert document["stack"]["name"] == "mine"
    assert document["paths"]["environment"] == "/opt/miniconda3/envs/mine"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stack": "cu142"}, "did you mean 'cu124'|cu12"),
        ({"stack": 12.4}, 'quote it: "12.4"'),
        (
            {"stack": {"base": "cu124", "torch": 2.6}},
            'stack.torch is the number 2.6: a version is a string, quote it: "2.6"',
        ),
        ({"stack": {"base": "cu124", "tourch": "2.6.0"}}, "did you mean 'torch'"),
        ({"stack": {"cuda": "12.4.1"}}, "lacks cudnn"),
        ({"stack": {"base": "cu124", "cuda": "12.4.9"}}, "did you mean '12.4"),
        ({"components": "cuda_tolkit"}, "did you mean 'cuda_toolkit'"),
        ({"host_kind": "vmm"}, "did you mean 'vm'"),
        ({"work_dir": "data"}, "absolute path"),
        ({"mirrors": {"pipy": "https://m"}}, "did you mean 'pypi'"),
        ({"mirrors": {"pypi": "m.example.com"}}, "expected a URL"),
        ({"conda_accept_tos": "perhaps"}, "expected true or false"),
        ({"artifact_overrides": {"a.run": {"sha256": "12"}}}, "64 hex digits"),
        ({"install_timeout": "soon"}, "number of seconds"),
        ({"rented_as": "4090"}, "expected a mapping"),
        ({"werk_dir": "/data"}, "did you mean 'work_dir'"),
    ],
)
def test_a_request_that_makes_no_sense_gets_an_error_that_names_the_next_step(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match="|".join(re.escape(w) for w in words.split("|"))):
        plan(probe(), settings, data())


def test_typed_settings_and_the_strings_of_ini_files_give_the_same_plan() -> None:
    """P48."""
    typed = {
        "stack": "cu124",
        "components": ["cuda_toolkit", "cudnn"],
        "conda_accept_tos": True,
        "install_timeout": 600,
        "conda_channels": ["conda-forge"],
    }
    texts = {
        "stack": "cu124",
        "components": "cuda_toolkit,cudnn",
        "conda_accept_tos": "true",
        "install_timeout": "600",
        "conda_channels": "conda-forge",
    }
    assert plan(probe(), typed, data()) == plan(probe(), texts, data())


def test_a_probe_of_another_schema_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="schema_version"):
        plan({"schema_version": 2}, {}, data())
    with pytest.raises(ValueError, match="not a document of host_probe"):
        plan({}, {}, data())


# --- containers and kinds (P15) ---


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("debian12_vm_4090", "vm"),
        ("container_driver550_4090", "container"),
        ("container_driver470_3090", "container"),
        ("runpod_a100", "container"),
        ("gpu_none_container", "container"),
        ("wsl2_4090", "wsl"),
        ("v100_vm", "vm"),
    ],
)
def test_host_kind_is_decided_from_several_signs(name: str, kind: str) -> None:
    document = plan(saved(name), {}, data())
    assert document["host_kind"]["value"] == kind
    assert document["host_kind"]["signs"]


def test_nothing_of_the_driver_is_touched_in_a_container() -> None:
    document = plan(container(), {"stack": "cu124"}, data())
    assert document["components"]["nvidia_driver"]["action"] == "provided"
    assert document["reboot"]["needed"] is False


def test_an_override_that_the_signs_contradict_is_refused() -> None:
    assert "GB-KIND-001" in refused(plan(container(), {"host_kind": "vm"}, data()))
    assert plan(probe(), {"host_kind": "metal", "stack": "cu124"}, data())["host_kind"] == {
        "value": "metal", "signs": ["hypervisor bit, QEMU", "host_kind: metal by you"], "overridden": True,
    }  # fmt: skip


def test_auto_follows_the_landlords_driver() -> None:
    assert plan(container("550.54.15"), {}, data())["stack"]["name"] == "cu124"
    assert plan(container("535.183.01"), {}, data())["stack"]["name"] == "cu121"
    document = plan(container("525.60.13"), {}, data())
    assert document["status"] == "apply"
    assert "GB-DRV-002" in codes(document["warnings"])


def test_a_container_without_gpus_is_told_so() -> None:
    document = plan(saved("gpu_none_container"), {"stack": "cu124"}, data())
    assert document["status"] == "apply"
    assert "GB-GPU-005" in codes(document["warnings"])


# --- GPUs ---


@pytest.mark.parametrize(
    ("arch", "capability", "works"),
    [
        (["sm_86"], "8.9", True),  # Ada runs Ampere's code
        (["sm_80"], "9.0", False),
        (["sm_80", "compute_80"], "9.0", True),
        (["sm_90+PTX"], "12.0", True),
        (["sm_90a"], "9.0", True),
        (["sm_90a"], "12.0", False),
        (["sm_120"], "12.0", True),
        (["sm_120"], "10.0", False),
        (["sm_89"], "8.6", False),
        ([], "8.0", False),
    ],
)
def test_arch_list_covers_a_card_by_machine_code_or_ptx(arch: list[str], capability: str, works: bool) -> None:
    assert runs_on(arch, capability) is works


def test_volta_is_refused_cuda_13() -> None:
    document = plan(saved("v100_vm"), {"stack": "cu130"}, data())
    assert "GB-GPU-003" in refused(document)
    assert plan(saved("v100_vm"), {}, data())["stack"]["name"] in ("cu121", "cu124", "cu126", "cu128")


def test_a_mixed_box_takes_the_highest_need() -> None:
    assert "GB-GPU-001" in refused(plan(saved("mixed_4090_5090"), {"stack": "cu124"}, data()))


def test_an_unknown_card_is_warned_about_and_the_pin_is_kept() -> None:
    host = probe(gpus=[{"pci_address": "0000:01:00.0", "device_id": "ffff", "class": "0300", "driver": None}])
    document = plan(host, {"stack": "cu124"}, data())
    assert document["status"] == "apply"
    assert "GB-GPU-004" in codes(document["warnings"])


# --- Python (P22) ---


def test_a_python_without_wheels_is_refused_with_the_nearest() -> None:
    document = plan(probe(), {"stack": {"base": "cu121", "python": "3.13"}}, data())
    refusal = next(r for r in document["refusals"] if r["code"] == "GB-PY-001")
    assert refusal["nearest"] == 'python: "3.12"'


def test_another_python_than_the_locks_is_refused() -> None:
    document = plan(probe(), {"stack": {"base": "cu124", "name": "cu124", "python": "3.12"}}, data())
    assert "GB-PY-002" in refused(document)


def test_a_processor_without_wheels_is_refused() -> None:
    assert "GB-OS-005" in refused(plan(probe(machine="aarch64"), {"stack": "cu124"}, data()))
    assert "GB-OS-005" in refused(plan(saved("aarch64_gh200"), {}, data()))


# --- space (P04, P29) ---


def mounts(**free_gb: float) -> list[dict[str, Any]]:
    named = {"root": "/", "tmp": "/tmp", "data": "/data", "vartmp": "/var/tmp"}
    return [
        {"mount": named[k], "fstype": "ext4", "free_bytes": int(v * 10**9), "options": ["rw"]}
        for k, v in free_gb.items()
    ]


def test_a_small_root_disk_is_refused_with_a_table_and_the_data_disk_is_offered() -> None:
    document = plan(probe(mounts=mounts(root=18, data=500)), {"stack": "cu124"}, data())
    assert refused(document) == ["GB-SPACE-001"]
    refusal = document["refusals"][0]
    assert "free on /" in refusal["found"]
    for word in ("download of cuda_12.4.1", "unpacked runfile", "CUDA toolkit", "Python packages"):
        assert word in refusal["wanted"]
    assert refusal["nearest"].startswith("work_dir: /data")
    moved = plan(probe(mounts=mounts(root=18, data=500)), {"stack": "cu124", "work_dir": "/data"}, data())
    assert moved["status"] == "apply"
    assert [row["mount"] for row in moved["space"]] == ["/data"]


def test_each_mount_is_summed_on_its_own() -> None:
    document = plan(probe(mounts=mounts(root=200, vartmp=3)), {"stack": "cu124"}, data())
    assert refused(document) == ["GB-SPACE-001"]
    assert "on /var/tmp" in document["refusals"][0]["found"]


def test_a_noexec_place_for_installers_is_refused() -> None:
    disks = mounts(root=200, vartmp=50)
    disks[1]["options"].append("noexec")
    assert "GB-SPACE-002" in refused(plan(probe(mounts=disks), {"stack": "cu124"}, data()))


def test_mount_of_takes_the_longest_prefix_and_no_half_names() -> None:
    table = [{"mount": "/"}, {"mount": "/data"}, {"mount": "/data/fast"}]
    assert mount_of("/data/fast/x", table)["mount"] == "/data/fast"
    assert mount_of("/database", table)["mount"] == "/"


# --- components ---


def test_deepspeed_without_a_toolkit_is_refused() -> None:
    """P08."""
    document = plan(probe(), {"stack": "cu124", "components": ["miniconda", "pytorch_stack"]}, data())
    assert "GB-REQ-003" in refused(document)


def test_default_channels_without_accepted_terms_are_refused_before_a_download() -> None:
    """P07."""
    document = plan(probe(), {"stack": "cu124", "conda_channels": ["defaults"]}, data())
    assert refused(document) == ["GB-CONDA-001"]
    assert "conda_accept_tos" in document["refusals"][0]["wanted"]
    assert (
        plan(probe(), {"stack": "cu124", "conda_channels": ["defaults"], "conda_accept_tos": True}, data())["status"]
        == "apply"
    )


def test_components_are_planned_alone() -> None:
    document = plan(probe(), {"stack": "cu124", "components": "cuda_toolkit"}, data())
    assert document["steps"] == ["package_manager", "prefetch", "cuda_toolkit", "verify"]
    assert "GB-REQ-002" in refused(plan(probe(), {"stack": "cu124", "components": "cudnn"}, data()))


def test_another_toolkit_stays_beside_and_the_link_is_moved() -> None:
    host = probe(
        toolkits=[{"prefix": "/usr/local/cuda-12.1", "version": "12.1.1", "nvcc": True}],
        cuda_link="/usr/local/cuda-12.1",
    )
    document = plan(host, {"stack": "cu124"}, data())
    assert document["components"]["cuda_toolkit"]["action"] == "install"
    assert document["components"]["cuda_toolkit"]["inputs"]["prefix"] == "/usr/local/cuda-12.4"


def test_mirrors_come_first_and_the_vendor_last_with_the_same_checksum() -> None:
    document = plan(
        probe(), {"stack": "cu124", "mirrors": {"nvidia": ["https://a.example/nv/", "https://b.example"]}}, data()
    )
    runfile = next(f for f in document["prefetch"]["files"] if f["name"].startswith("cuda_12.4.1"))
    assert [url.split("/compute")[0] for url in runfile["urls"]] == [
        "https://a.example/nv",
        "https://b.example",
        "https://developer.download.nvidia.com",
    ]
    assert runfile["sha256"] == data()["cuda"]["12.4.1"]["files"]["x86_64"]["sha256"]


def test_an_artifact_override_replaces_the_pins_of_one_file() -> None:
    name = data()["cuda"]["12.4.1"]["files"]["x86_64"]["file"]
    document = plan(
        probe(), {"stack": "cu124", "artifact_overrides": {name: {"sha256": "ab" * 32, "size": 61000000}}}, data()
    )
    runfile = next(f for f in document["prefetch"]["files"] if f["name"] == name)
    assert (runfile["sha256"], runfile["size"]) == ("ab" * 32, 61000000)


def test_shadowing_libraries_and_stale_variables_are_named() -> None:
    """P08, P27."""
    shells = {
        "marked_blocks": [],
        "ld_library_path_files": ["/etc/environment"],
        "stale_cuda_home": [{"file": "/etc/environment", "value": "/usr/local/cuda-11"}],
    }
    document = plan(probe(shells=shells), {"stack": "cu124"}, data())
    assert {"GB-ENV-001", "GB-ENV-002"} <= set(codes(document["warnings"]))


def test_a_login_without_root_is_refused() -> None:
    user = {"name": "me", "uid": 1000, "home": "/home/me", "sudo": "none"}
    assert refused(plan(probe(user=user), {"stack": "cu124"}, data())) == ["GB-PRIV-001"]


@pytest.mark.parametrize(
    ("distribution", "version", "code"),
    [
        ("rocky", "9", "GB-OS-001"),
        ("debian", "11", "GB-OS-001"),
        ("debian", "9", "GB-OS-001"),
        ("ubuntu", "20.04", "GB-OS-001"),
        ("ubuntu", "23.10", "GB-OS-001"),
        ("ubuntu", "28.04", "GB-OS-006"),
        ("debian", "12", ""),
        ("ubuntu", "24.04", ""),
    ],
)
def test_systems_of_the_table_are_taken_others_refused_and_newer_ones_warned_about(
    distribution: str, version: str, code: str
) -> None:
    os = {"id": distribution, "version_id": version, "pretty_name": f"{distribution} {version}"}
    document = plan(probe(os=os), {"stack": "cu124"}, data())
    assert document["status"] == ("refused" if code == "GB-OS-001" else "apply")
    found = codes(document["refusals"] + document["warnings"])
    assert (code in found) if code else not {"GB-OS-001", "GB-OS-006"} & set(found)


# --- the function itself ---


@pytest.mark.parametrize("name", [p.stem for p in sorted((ROOT / "tests/unit/fixtures/probes").glob("*.json"))])
@pytest.mark.parametrize("stack", ["auto", *STACKS])
def test_plan_is_deterministic_valid_and_leaves_its_inputs_alone(name: str, stack: str) -> None:
    host, tables = saved(name), data()
    before = copy.deepcopy(host)
    document = plan(host, {"stack": stack}, tables)
    assert document == plan(host, {"stack": stack}, tables)
    assert host == before
    jsonschema.validate(document, SCHEMA)
    assert json.dumps(document)
    text = plan_text(document)
    assert "{" not in text.replace("{'", ""), "a text of the rules was not filled in"
    for refusal in document["refusals"]:
        assert refusal["found"]
        assert refusal["wanted"]


def test_every_code_that_the_plan_uses_is_in_the_table_and_the_other_way_round() -> None:
    sources = (ROOT / "plugin_utils/planning").glob("*.py")
    used = {code for path in sources for code in re.findall(r'"(GB-[A-Z]+-\d+)"', path.read_text(encoding="utf-8"))}
    assert used == set(data()["rules"])


def test_versions_must_be_strings() -> None:
    with pytest.raises(ValueError, match="quote it"):
        version_tuple(12.4)
    assert version_tuple("550.54.15") == (550, 54, 15)
    assert read_settings({})["stack"] == "auto"
