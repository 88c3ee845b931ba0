"""What was rented against what was found (P-rent): keep, keep as degraded, or give back, before anything is installed."""

from __future__ import annotations

from typing import Any

import pytest

from plan_world import container, data, probe, saved
from planning import plan, plan_text

GB = 10**9
OFFER = {
    "gpu": "RTX 4090",
    "count": 2,
    "gpu_memory_gb": 24,
    "cpus": 32,
    "ram_gb": 128,
    "system_disk_gb": 100,
    "data_disk_gb": 500,
}


def rented(**changes: Any) -> dict[str, Any]:
    """A container with two RTX 4090 that is what was rented; keyword arguments replace keys of the probe."""
    host = container(
        count=2,
        cpus={"visible": 64, "cgroup_quota": 32.0},
        memory={"total_bytes": 512 * 1024**3, "available_bytes": 0, "cgroup_limit_bytes": 128 * 1024**3},
        mounts=[
            {"mount": "/", "fstype": "overlay", "size_bytes": 100 * GB, "free_bytes": 90 * GB, "options": ["rw"]},
            {"mount": "/data", "fstype": "ext4", "size_bytes": 500 * GB, "free_bytes": 490 * GB, "options": ["rw"]},
        ],
        disks=[{"name": "nvme0n1", "size_bytes": 4000 * GB, "rotational": False, "model": ""}],
        shm_bytes=8 * 1024**3,
        pids_max=None,
    )
    return {**host, **changes}


def judged(host: dict[str, Any], **offer: Any) -> dict[str, Any]:
    return plan(host, {"stack": "cu124", "work_dir": "/data", "rented_as": {**OFFER, **offer}}, data())


def test_a_machine_that_is_what_was_rented_is_kept() -> None:
    document = judged(rented(), ssd=True, egress_mbps=50, price_per_hour=2.1)
    assert document["rented"]["verdict"] == "keep", document["rented"]
    assert len(document["rented"]["rows"]) == 8
    assert document["status"] == "apply"
    assert "rented keep" in plan_text(document)
    assert plan(rented(), {"stack": "cu124", "work_dir": "/data"}, data())["rented"] == {"verdict": "", "rows": []}


@pytest.mark.parametrize(
    ("changes", "offer", "verdict", "code"),
    [
        ({}, {"count": 8}, "return", "GB-RENT-001"),
        ({}, {"count": 1}, "keep", ""),
        ({}, {"gpu": "RTX 3090"}, "return", "GB-RENT-002"),
        ({}, {"gpu": "GeForce RTX 4090"}, "keep", ""),
        ({}, {"gpu": "NVIDIA GeForce RTX 4090"}, "keep", ""),
        ({}, {"gpu": "RTX 4090 D"}, "return", "GB-RENT-002"),
        ({}, {"gpu_memory_gb": 48}, "return", "GB-RENT-003"),
        ({}, {"gpu_memory_gb": 25.5}, "keep, degraded", "GB-RENT-003"),
        ({"cpus": {"visible": 64, "cgroup_quota": 20.0}}, {}, "keep, degraded", "GB-RENT-004"),
        ({"cpus": {"visible": 8, "cgroup_quota": None}}, {}, "return", "GB-RENT-004"),
        ({"cpus": {}}, {}, "keep, degraded", "GB-RENT-004"),
        ({"memory": {"total_bytes": 100 * 1024**3, "cgroup_limit_bytes": None}}, {}, "keep, degraded", "GB-RENT-005"),
        ({"memory": {"total_bytes": 512 * 1024**3, "cgroup_limit_bytes": 32 * 1024**3}}, {}, "return", "GB-RENT-005"),
        ({}, {"system_disk_gb": 120}, "keep, degraded", "GB-RENT-006"),
        ({}, {"data_disk_gb": 2000}, "return", "GB-RENT-006"),
        ({"disks": [{"name": "sda", "size_bytes": 1, "rotational": True, "model": ""}]}, {"ssd": True}, "keep, degraded", "GB-RENT-007"),
        ({"disks": [{"name": "sda", "size_bytes": 1, "rotational": True, "model": ""}]}, {"ssd": False}, "keep", ""),
    ],
)  # fmt: skip
def test_each_part_is_judged(changes: dict[str, Any], offer: dict[str, Any], verdict: str, code: str) -> None:
    document = judged(rented(**changes), **offer)
    assert document["rented"]["verdict"] == verdict, document["rented"]
    notes = {"return": "refusals", "keep, degraded": "warnings"}.get(verdict)
    told = [
        entry["code"] for entry in document["refusals"] + document["warnings"] if entry["code"].startswith("GB-RENT")
    ]
    assert told == ([code] if code else [])
    if notes:
        assert code in [entry["code"] for entry in document[notes]]
    if verdict == "return":
        assert document["status"] == "refused"
        assert "rented_as" in next(r for r in document["refusals"] if r["code"] == code)["remedy"]


def test_a_machine_without_its_data_disk_or_its_gpus_goes_back() -> None:
    host = rented()
    host["mounts"] = host["mounts"][:1]
    assert judged(host)["rented"]["verdict"] == "return"
    none = saved("gpu_none_container")
    assert plan(none, {"rented_as": {"gpu": "A100", "count": 1}}, data())["rented"]["verdict"] == "return"


def test_a_gpu_that_nobody_knows_is_no_reason_to_give_back() -> None:
    host = probe(gpus=[{"pci_address": "0000:01:00.0", "device_id": "ffff", "class": "0300", "driver": None}])
    document = plan(host, {"stack": "cu124", "rented_as": {"gpu": "RTX 6090"}}, data())
    assert document["rented"]["verdict"] == "keep, degraded"


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        ({"gpus": 8}, "did you mean 'gpu'"),
        ({"count": "eight"}, "expected a number"),
        ({"ram_gb": -1}, "positive number"),
        ({"ssd": "nvme"}, "true or false"),
    ],
)
def test_an_offer_that_makes_no_sense_is_an_error(offer: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(probe(), {"stack": "cu124", "rented_as": offer}, data())
