"""P58: a host without Python; P54: check mode looks and changes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INVENTORIES = ("-i", "molecule/shared/inventory/", "-i", "molecule/plan/inventory/")
# Everything but what sshd itself writes while we look.
TREE = "find / -xdev -not -path '/proc/*' -not -path '/run/*' -not -path '/tmp/*' -not -path '/var/log/*' -printf '%p %s %l\\n' | sort | sha256sum"


@pytest.fixture
def name(host) -> str:
    return host.backend.hostname


def test_python_is_there_where_a_real_run_was(host, name) -> None:
    assert host.exists("python3") is (name == "plan-nopython")


def test_check_mode_says_what_it_would_do_and_changes_nothing(host, name) -> None:
    if name != "plan-bare":
        assert host.package("python3-apt").is_installed
        return
    before = host.check_output(TREE)
    done = subprocess.run(
        ["ansible-playbook", "plan.yml", "--check", *INVENTORIES, "--limit", "plan-bare"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no Python: a real run installs python3" in done.stdout
    assert host.check_output(TREE) == before
    assert not host.exists("python3")
