"""What the archive leaves in the toolkit, and what programs find."""

from __future__ import annotations

import pytest

LIB = "/usr/local/cuda-12.4/targets/x86_64-linux/lib"


@pytest.fixture
def real(host):
    if host.backend.hostname != "cudnn-real":
        pytest.skip("the other host has what was refused")
    return host


def test_links_are_links_and_lead_to_one_file(real) -> None:
    assert real.file(f"{LIB}/libcudnn.so").is_symlink
    for name in ("libcudnn.so", "libcudnn.so.9"):
        assert real.file(f"{LIB}/{name}").linked_to == f"{LIB}/libcudnn.so.9.1.0"
    assert real.check_output(f"find {LIB} -name 'libcudnn*.so*' -type f ! -name '*.so.9.1.0'") == ""


def test_nothing_of_the_release_before_is_left(real) -> None:
    assert real.check_output(f"find {LIB}/ -name 'libcudnn*8*'") == ""
    assert not real.file("/usr/local/cuda-12.4/include/cudnn_adv_infer.h").exists
    assert "CUDNN_MAJOR 9" in real.check_output("grep -w CUDNN_MAJOR /usr/local/cuda-12.4/include/cudnn_version.h")


def test_what_is_not_cudnn_is_left_alone(real) -> None:
    assert real.file("/usr/local/cuda-12.4/include/cudnn_frontend.h").exists
    assert real.file(f"{LIB}/libcublas.so.12").exists


def test_loader_finds_it_once_and_without_a_warning(real) -> None:
    known = real.check_output("/sbin/ldconfig -p").splitlines()
    assert [line.split("=> ")[1] for line in known if "libcudnn.so.9 " in line] == [f"{LIB}/libcudnn.so.9"]
    assert real.run("/sbin/ldconfig").stderr == ""


def test_a_program_meets_the_version_without_ld_library_path(real) -> None:
    program = 'import ctypes; print(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())'
    assert real.check_output(f"env -i /usr/bin/python3 -c '{program}'") == "90100"
