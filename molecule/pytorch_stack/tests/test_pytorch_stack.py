"""The environment after all that it went through."""

from __future__ import annotations

ENVIRONMENT = "/opt/miniconda3/envs/train"
PYTHON = f"{ENVIRONMENT}/bin/python"


def versions(host) -> dict[str, str]:
    lines = host.check_output(f"{PYTHON} -m pip list --format freeze").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_the_locked_versions_are_there_with_their_cuda_build(host) -> None:
    found = versions(host)
    assert found["torch"] == "2.6.0+cu124"
    assert found["torchvision"] == "0.21.0+cu124"
    assert found["einops"] == "0.8.1"


def test_a_package_of_the_users_own_is_left_alone(host) -> None:
    assert versions(host)["mpmath"] == "1.3.0"


def test_cuda_home_is_set_in_the_environment_and_put_back(host) -> None:
    activate = ". /opt/miniconda3/etc/profile.d/conda.sh; conda activate train"
    assert host.check_output(f"env -u CUDA_HOME bash -c '{activate}; echo $CUDA_HOME'") == "/usr/local/cuda"
    assert host.check_output(f"CUDA_HOME=/mine bash -c '{activate}; conda deactivate; echo $CUDA_HOME'") == "/mine"


def test_the_lock_is_remembered_by_its_checksum(host) -> None:
    lock = host.file("/var/cache/gpu-bootstrap/uv/good.txt")
    assert host.file(f"{ENVIRONMENT}/.gpu-bootstrap-lock").content_string.strip() == lock.sha256sum


def test_a_compiler_is_there_for_triton_and_deepspeed(host) -> None:
    host.check_output("echo 'int main() { return 0; }' >/tmp/t.cpp && g++ -o /tmp/t /tmp/t.cpp && /tmp/t")


def test_packages_are_links_into_the_cache_and_take_no_space_twice(host) -> None:
    file = f"{ENVIRONMENT}/lib/python3.11/site-packages/einops/einops.py"
    assert int(host.check_output(f"stat -c %h {file}")) > 1


def test_the_system_python_got_nothing(host) -> None:
    assert host.file("/usr/lib/python3.11/EXTERNALLY-MANAGED").exists
    assert host.check_output("find /usr/local/lib -name '*torch*' -o -path '*site-packages/*' -name uv") == ""
