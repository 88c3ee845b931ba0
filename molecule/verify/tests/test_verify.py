"""What a proof leaves on a host, and what it takes back."""

from __future__ import annotations

import json

import pytest

STATE = "/var/lib/gpu-bootstrap"


@pytest.fixture
def name(host) -> str:
    return host.backend.hostname


@pytest.fixture
def root(host):
    with host.sudo():
        yield host


def test_a_proved_host_keeps_a_receipt_of_this_boot(host, name) -> None:
    receipt = host.file(f"{STATE}/receipt.json")
    if name != "ver-good":
        assert not receipt.exists
        return
    assert (receipt.user, receipt.group, receipt.mode) == ("root", "root", 0o644)
    left = json.loads(receipt.content_string)
    assert left["verdict"] == "software only"
    assert left["boot_id"] == host.file("/proc/sys/kernel/random/boot_id").content_string.strip()
    assert left["components"] == ["miniconda", "shell_environment"]
    assert {proof["status"] for proof in left["proofs"]} == {"pass", "skip"}


def test_only_the_two_programs_stay_behind(host) -> None:
    assert sorted(host.file(f"{STATE}/verify").listdir()) == ["measure.py", "measure_environment.py"]
    assert host.run("pgrep -f measure_environment").rc == 1


def test_the_program_measures_by_hand_without_root(host, name) -> None:
    request = json.dumps({"environment": "/opt/stub", "components": ["miniconda"]})
    document = json.loads(host.check_output(f"echo '{request}' | python3 {STATE}/verify/measure.py"))
    assert document["measurements"]["environment"]["data"]["python"].startswith("3.11.")
    assert all(entry["ok"] for entry in document["measurements"].values())
    if name == "ver-good":
        kinds = document["measurements"]["shells"]["data"]["kinds"]
        assert kinds["login"]["variables"]["CUDA_HOME"] == "/usr/local/cuda"


def test_every_kind_of_shell_was_looked_at(root, name) -> None:
    if name != "ver-good":
        pytest.skip("shells are judged on the other host")
    request = json.dumps({"user": "deploy", "only": ["shells"]})
    document = json.loads(root.check_output(f"echo '{request}' | python3 {STATE}/verify/measure.py"))
    kinds = document["measurements"]["shells"]["data"]["kinds"]
    assert {kind: entry["variables"].get("CUDA_HOME") for kind, entry in kinds.items()} == dict.fromkeys(
        ("login", "command", "sudo_login", "systemd_unit"), "/usr/local/cuda"
    )
