"""The files of the shell environment: what is kept, what wins, what is refused."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Any

import pytest

import shell_environment_files as files

CUDA = ["/usr/local/cuda/bin"]
HOME = {"CUDA_HOME": "/usr/local/cuda"}


def run_profile(times: int, start: str) -> str:
    script = files.profile_script(HOME, CUDA) * times
    done = subprocess.run(
        ["/bin/sh", "-c", script + 'echo "$PATH"'], env={"PATH": start}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize(
    "start",
    [
        "/usr/bin:/bin",
        "/usr/local/cuda/bin:/usr/bin:/bin",
        "/usr/bin:/usr/local/cuda/bin:/bin",
        "/usr/bin:/bin:/usr/local/cuda/bin",
    ],
)
def test_path_has_one_entry_and_it_is_the_first(times: int, start: str) -> None:
    """P11: no growth, however often the script is read."""
    assert run_profile(times, start) == "/usr/local/cuda/bin:/usr/bin:/bin"


def test_another_cuda_in_path_comes_after_ours() -> None:
    assert (
        run_profile(1, "/usr/local/cuda-11.8/bin:/usr/bin") == "/usr/local/cuda/bin:/usr/local/cuda-11.8/bin:/usr/bin"
    )


def test_etc_environment_keeps_the_users_path_behind_ours() -> None:
    text = 'PATH="/opt/mine:/usr/bin:/bin"\nEDITOR=vi\n'
    block = files.environment_block(HOME, CUDA, text)
    assert block == "CUDA_HOME=/usr/local/cuda\nPATH=/usr/local/cuda/bin:/opt/mine:/usr/bin:/bin\n"
    once = files.with_block(text, block)
    assert once.startswith(text)
    again = files.with_block(once, files.environment_block(HOME, CUDA, once))
    assert again == once


def test_a_missing_or_empty_etc_environment_gets_the_systems_default_path() -> None:
    assert files.environment_block({}, CUDA, "") == f"PATH=/usr/local/cuda/bin:{files.DEFAULT_PATH}\n"


def test_a_block_is_replaced_in_place_and_text_around_it_stays() -> None:
    first = files.with_block("before\n", "a\n") + "after\n"
    second = files.with_block(first, "b\n")
    assert second.startswith("before\n") and second.endswith("after\n")
    assert second.count(files.END) == 1
    assert "\na\n" not in second


def test_a_file_without_a_last_newline_is_not_damaged() -> None:
    assert files.with_block("x=1", "y=2\n").startswith("x=1\n# BEGIN")


@pytest.mark.parametrize(
    ("variables", "path", "word"),
    [
        ({"LD_LIBRARY_PATH": "/x"}, CUDA, "hide the libraries"),
        ({"PATH": "/x"}, CUDA, "PATH"),
        ({"A B": "/x"}, CUDA, "name of a variable"),
        ({"A": "$(reboot)"}, CUDA, "take apart"),
        ({"A": "x\nB=1"}, CUDA, "take apart"),
        ({}, ["cuda/bin"], "absolute"),
        ({}, ["/a:/b"], "absolute"),
    ],
)
def test_unsafe_inputs_are_refused(variables: dict[str, str], path: list[str], word: str) -> None:
    assert word in files.check(variables, path)
    assert files.check(HOME, CUDA) == ""


@pytest.mark.parametrize("systemd", [True, False])
def test_all_kinds_of_shell_have_a_file_and_nothing_sets_a_library_path(systemd: bool) -> None:
    params: dict[str, Any] = {
        "variables": HOME,
        "path": CUDA,
        "user": "me",
        "home": "/home/me",
        "state_dir": "/var/lib/x",
    }
    wanted = files.wanted_files(params, lambda _path: "", systemd)
    assert set(wanted) >= {
        "/etc/profile.d/gpu-bootstrap.sh",
        "/etc/environment",
        "/home/me/.bashrc",
        "/var/lib/x/shell_environment.json",
    }
    assert ("/etc/systemd/system.conf.d/gpu-bootstrap.conf" in wanted) is systemd
    assert not any("LD_LIBRARY_PATH" in content for content, _, _ in wanted.values())


def test_the_module_runs_on_the_hosts_python() -> None:
    source = Path(files.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
