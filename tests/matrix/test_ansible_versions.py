"""The same playbooks on every supported ansible-core: no crash, no warning, the same plan (P48)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import CORES, HOST, NEWEST, ROOT, UNSUPPORTED, Core, complaints

from plan_world import data, saved
from planning import plan

PROBES = ROOT / "tests/unit/fixtures/probes"
PLAYBOOKS = ("bootstrap.yml", "plan.yml", "verify.yml")
# One request twice: as a YAML inventory has it, and as INI files and key=value on the command line give it.
TYPED: dict[str, Any] = {
    "stack": "cu124",
    "components": ["cuda_toolkit", "cudnn", "miniconda", "pytorch_stack"],
    "conda_accept_tos": True,
    "reboot_allowed": False,
    "install_timeout": 600,
    "conda_channels": ["conda-forge"],
    "proxy": "",
}
STRINGS = {
    "stack": "cu124",
    "components": "cuda_toolkit,cudnn,miniconda,pytorch_stack",
    "conda_accept_tos": "true",
    "reboot_allowed": "false",
    "install_timeout": "600",
    "conda_channels": "conda-forge",
    "proxy": "",
}


def planned(core: Core, reports: Path, name: str, probe: str, settings: list[str]) -> dict[str, Any]:
    """Plan from a saved probe and return the plan, less the name of the host."""
    code, out = core.run(
        "ansible-playbook", "plan.yml", "-e", f"plan_probe_file={PROBES}/{probe}.json", "-e", f"plan_host={name}", *settings
    )  # fmt: skip
    assert (code, complaints(out)) == (0, []), out
    document: dict[str, Any] = json.loads((reports / name / "plan.json").read_text(encoding="utf-8"))
    return {key: value for key, value in document.items() if key != "host"}


def test_syntax(core: Core) -> None:
    code, out = core.run("ansible-playbook", "--syntax-check", "-i", "inventories/example", *PLAYBOOKS)
    assert (code, complaints(out)) == (0, []), out


def test_typed_values_and_strings_give_one_plan(core: Core, reports: Path) -> None:
    probe = "container_driver550_4090"
    typed = planned(core, reports, f"matrix-{core.version}-typed", probe, ["-e", json.dumps(TYPED)])
    words = [word for key, value in STRINGS.items() for word in ("-e", f"{key}='{value}'")]
    strings = planned(core, reports, f"matrix-{core.version}-strings", probe, words)
    assert typed == strings
    assert typed["steps"], "a plan that does nothing compares nothing"
    # The filter itself, without any Ansible between.
    tables = {**data(), "lock_dir": str(ROOT / "roles/pytorch_stack/files/locks")}
    pure = plan(saved(probe), TYPED, tables)
    assert typed == {key: value for key, value in pure.items() if key != "host"}


@pytest.mark.usefixtures("reports")
def test_a_refused_host_ends_with_2(core: Core) -> None:
    code, out = core.run(
        "ansible-playbook", "plan.yml", "-e", f"plan_probe_file={PROBES}/debian13_vm_4090.json", "-e", f"plan_host=matrix-{core.version}-refused",
        "-e", "stack=cu124",
    )  # fmt: skip
    assert (code, complaints(out)) == (2, []), out
    assert "GB-OS-002" in out


@pytest.mark.usefixtures("reports")
def test_an_unquoted_version_is_refused_in_words(core: Core) -> None:
    """2.19 changed how numbers and strings travel through templates; 12.10 must never become 12.1."""
    code, out = core.run(
        "ansible-playbook", "plan.yml", "-e", f"plan_probe_file={PROBES}/container_driver550_4090.json",
        "-e", f"plan_host=matrix-{core.version}-float", "-e", '{"stack": {"name": "cu124", "cuda": 12.10}}',
    )  # fmt: skip
    assert code == 2, out
    assert "quote it" in out
    assert "Traceback" not in out


def test_check_mode_on_a_bare_host(core: Core, bare_host: str) -> None:
    code, out = core.run(
        "ansible-playbook", "bootstrap.yml", "--check", "-i", "molecule/shared/inventory", "-i", bare_host, timeout=600
    )  # fmt: skip
    assert (code, complaints(out)) == (0, []), out
    recap = next(line for line in out.splitlines() if line.startswith(HOST))
    assert re.search(r"changed=[1-9]\d* +unreachable=0 +failed=0 ", recap), out


def test_unit_tests_on_the_newest(newest: Core) -> None:
    code, out = newest.run("pytest", "-n", "auto", "tests/unit", timeout=600)
    assert code == 0, out


def test_lint_on_the_newest(newest: Core) -> None:
    code, out = newest.run("ansible-lint", "--offline", "-q", timeout=600)
    assert code == 0, out


def test_an_older_ansible_is_refused_in_words(old_core: Core) -> None:
    code, out = old_core.run("ansible-playbook", "plan.yml", "-e", f"plan_probe_file={PROBES}/debian12_vm_4090.json")
    assert code != 0
    assert f"found ansible-core {old_core.version}." in out
    assert "make setup" in out


def test_the_range_is_the_same_wherever_it_is_written() -> None:
    oldest = next(iter(CORES))
    after = f"2.{int(NEWEST.split('.')[1]) + 1}"
    assert f'"ansible-core>={oldest},<{after}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"{oldest} to {NEWEST}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"version('{oldest}', '>=')" in (ROOT / "playbooks/stages/plan.yml").read_text(encoding="utf-8")
    for meta in (ROOT / "roles").glob("*/meta/main.yml"):
        galaxy = yaml.safe_load(meta.read_text(encoding="utf-8"))["galaxy_info"]
        assert galaxy["min_ansible_version"] == oldest, meta
    assert list(UNSUPPORTED) == [f"2.{int(oldest.split('.')[1]) - 1}"]
