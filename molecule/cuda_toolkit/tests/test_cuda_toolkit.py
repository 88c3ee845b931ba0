"""What an installation leaves on a host: nvcc as a user meets it, the link, the compiler beside the default."""

from __future__ import annotations

import pytest

PREFIX = "/data/cuda-12.4"
PROGRAM = r"""#include <cstdio>
__global__ void kernel(int *p) { *p = 1; }
int main() { std::printf("gcc %d\n", __GNUC__); return 0; }
"""


@pytest.fixture
def real(host):
    if host.backend.hostname != "cuda-real":
        pytest.skip("the other host has the installers that fail")
    return host


def test_nvcc_is_the_release_through_the_link(real) -> None:
    assert real.file("/usr/local/cuda").linked_to == PREFIX
    assert "release 12.4, V12.4.131" in real.check_output("/usr/local/cuda/bin/nvcc --version")


def test_a_user_compiles_and_runs_a_program_with_the_compiler_beside_the_default(real) -> None:
    real.check_output(f"printf '%s' '{PROGRAM}' >~/s.cu && /usr/local/cuda/bin/nvcc -o ~/s ~/s.cu")
    assert real.check_output("~/s") == "gcc 11"
    assert real.check_output(f"{PREFIX}/bin/nvcc -ccbin g++-11 -o ~/s ~/s.cu && ~/s") == "gcc 11"


def test_nvcc_tells_its_front_end_the_version_of_that_compiler(real) -> None:
    said = real.run("/usr/local/cuda/bin/nvcc --dryrun -o ~/s ~/s.cu").stderr
    assert "--gnu_version=11" in said


def test_the_default_compiler_is_left_alone(real) -> None:
    assert real.run("command -v gcc").rc == 1, "nothing asked for a default compiler"


def test_every_user_can_read_the_toolkit(real) -> None:
    assert real.check_output(f"find {PREFIX}/ ! -perm -o=r ! -type l") == ""


def test_nothing_temporary_is_left(real) -> None:
    assert real.check_output("ls -A /data/tmp") == ""
    assert not real.file("/data/.cuda-12.4.unfinished").exists


def test_no_driver_came_along(real) -> None:
    assert real.run("ls /usr/bin/nvidia-smi /lib/modules/*/updates").rc != 0
    assert "libcuda.so" not in real.check_output("/sbin/ldconfig -p")
