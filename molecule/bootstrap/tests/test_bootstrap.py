"""The hosts as their renter meets them, over ssh."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from bench import ssh_calls

ROOT = Path(__file__).resolve().parents[3]
LAB = Path(os.environ["GPU_BOOTSTRAP_LAB"])
PACKAGES = "torch, deepspeed, transformers, peft, bitsandbytes, datasets, accelerate"


@pytest.fixture
def alias(host) -> str:
    return host.backend.hostname


@pytest.fixture
def prefix(alias) -> str:
    return "/data/miniconda3" if alias == "story-vm" else "/opt/miniconda3"


def ssh(alias: str, command: str, timeout: int = 240) -> str:
    """Run a command as `ssh host command` does, and return what it printed."""
    done = subprocess.run(
        ["ssh", "-F", str(LAB / "run/ssh_config"), alias, command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}: rc {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def test_nvcc_is_the_stacks(alias) -> None:
    assert "release 12.4" in ssh(alias, "nvcc --version")


def test_a_cu_file_compiles_and_its_host_part_runs(alias) -> None:
    source = r'#include <cstdio>\n__global__ void k() {}\nint main() { k<<<1, 1>>>(); std::puts("host part ran"); }\n'
    out = ssh(alias, f"cd $(mktemp -d) && printf '{source}' >t.cu && nvcc t.cu -o t && ./t")
    assert "host part ran" in out


def test_the_whole_stack_imports_and_torch_is_built_for_12_4(alias, prefix) -> None:
    out = ssh(alias, f"{prefix}/bin/conda run -n cu124 python -c 'import {PACKAGES}; print(torch.version.cuda)'")
    assert out.splitlines()[-1] == "12.4"


@pytest.mark.parametrize(
    "shell",
    [
        "printenv CUDA_HOME",
        "bash -c 'printenv CUDA_HOME'",
        "bash -lc 'printenv CUDA_HOME'",
        "env -i /bin/sh -lc 'echo $CUDA_HOME'",
        "sudo -n -i printenv CUDA_HOME",
    ],
)
def test_cuda_home_in_every_kind_of_shell(alias, shell) -> None:
    if shell.startswith("sudo") and alias == "story-container":
        shell = shell.removeprefix("sudo -n -i ")  # root without sudo, as marketplaces rent them
    assert ssh(alias, shell) == "/usr/local/cuda"


def test_no_shell_has_a_global_library_path(alias) -> None:
    for shell in ("env", "bash -lc env"):
        assert "LD_LIBRARY_PATH" not in ssh(alias, shell)


def test_conda_activate_works_in_a_login_shell(alias) -> None:
    assert ssh(alias, "bash -lc 'conda activate cu124 && python -V'").startswith("Python 3.11")


def test_the_environments_python_works_by_path(alias, prefix) -> None:
    assert ssh(alias, f"{prefix}/envs/cu124/bin/python -V").startswith("Python 3.11")


def test_nothing_went_into_the_system_python(alias) -> None:
    out = ssh(alias, "ls /usr/lib/python3*/EXTERNALLY-MANAGED && find /usr/local/lib -path '*dist-packages/*' | wc -l")
    assert out.splitlines()[-1] == "0"


def test_everything_large_went_to_the_data_disk(alias) -> None:
    if alias != "story-vm":
        pytest.fail("runs on story-vm only") if alias != "story-container" else None
        return
    for path in ("/opt", "/usr/local", "/var/cache/gpu-bootstrap", "/var/tmp"):
        size = int(ssh(alias, f"sudo -n du -sxk {path} 2>/dev/null | cut -f1 || true") or 0)
        assert size < 50_000, f"{path} holds {size} kB"


def test_cudnn_is_registered_and_its_links_are_links(alias) -> None:
    assert "libcudnn.so.9 " in ssh(alias, "/sbin/ldconfig -p")
    real = ssh(alias, "readlink -f /usr/local/cuda/lib64/libcudnn.so")
    assert real.endswith("libcudnn.so.9.1.0")


def test_report_says_software_only_and_names_the_proofs(alias) -> None:
    report = json.loads((ROOT / "reports" / alias / "report.json").read_text(encoding="utf-8"))
    assert report["verdict"] == "software only"
    proofs = {proof["name"]: proof["status"] for proof in report["proofs"]}
    assert "pass" in proofs.values()
    assert "fail" not in proofs.values()
    assert (ROOT / "reports" / alias / "report.md").is_file()


def run_playbook(*args: str) -> str:
    done = subprocess.run(
        ["ansible-playbook", *args], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_converged_host_costs_one_remote_execution_and_enters_no_role(tmp_path, alias) -> None:
    inventories = ["molecule/shared/inventory/", "molecule/bootstrap/inventory/"]
    _, calls, out = ssh_calls(inventories, ["story-vm", "story-container"], tmp_path)
    assert calls == {"story-vm": 1, "story-container": 1}
    assert set(re.findall(r"TASK \[(\w+) : ", out)) <= {"plan", "report"}
    assert not re.search(r"changed=[1-9]", out)


def test_pasted_ssh_lines_reach_the_same_hosts(tmp_path) -> None:
    """By hand: `ansible-playbook bootstrap.yml -i rented_hosts`."""
    key = LAB / "run/id_ed25519"
    lines = (
        f"story-vm: ssh -p 22211 deploy@127.0.0.1 -i {key}  work_dir=/data\n"
        f"story-container: ssh -p 22212 root@127.0.0.1 -i {key}\n"
    )
    (tmp_path / "rented_hosts").write_text(lines, encoding="utf-8")
    (tmp_path / "group_vars").mkdir()
    shared = (ROOT / "molecule/shared/inventory/group_vars/all.yml").read_text(encoding="utf-8")
    (tmp_path / "group_vars/all.yml").write_text(
        shared.replace("-F {{ lab_dir }}/run/ssh_config", "-o UserKnownHostsFile={{ lab_dir }}/run/known_hosts")
        + "stack: cu124\n",
        encoding="utf-8",
    )
    out = run_playbook("bootstrap.yml", "-i", str(tmp_path / "rented_hosts"))
    assert len(re.findall(r"changed=0", out)) >= 2
