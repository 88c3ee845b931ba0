"""What a user gets in each kind of shell, asked through that kind of shell."""

from __future__ import annotations

import time

import pytest

SHOW = """echo CUDA_HOME=$CUDA_HOME HF_HOME=$HF_HOME
command -v nvcc
echo PATH=$PATH
echo LOADER=$LD_LIBRARY_PATH
"""
VARIABLES = "CUDA_HOME=/usr/local/cuda HF_HOME=/data/huggingface"


@pytest.fixture(scope="module")
def is_vm(host) -> bool:
    host.check_output(f"printf '%s' '{SHOW}' >/tmp/show")
    return host.backend.hostname == "shell-vm"


def check(said: str) -> None:
    """Our variables, our nvcc first, our directory once, nothing for the loader."""
    variables, nvcc, path, loader = said.splitlines()[-4:]
    assert (variables, nvcc, loader) == (VARIABLES, "/usr/local/cuda/bin/nvcc", "LOADER=")
    parts = path.removeprefix("PATH=").split(":")
    assert parts[0] == "/usr/local/cuda/bin"
    assert parts.count("/usr/local/cuda/bin") == 1


@pytest.mark.parametrize(
    "command",
    [
        "sh /tmp/show",
        "bash -c 'sh /tmp/show'",
        "sh -lc 'sh /tmp/show'",
        "bash -lc 'sh /tmp/show'",
        "env -i HOME=$HOME /bin/sh -lc 'sh /tmp/show'",
        "bash -ic 'sh /tmp/show' 2>/dev/null",
        "bash -lic 'sh /tmp/show' 2>/dev/null",
        'bash -lc \'bash -lc "bash -ic \\"sh /tmp/show\\""\' 2>/dev/null',
    ],
    ids=["ssh", "bash", "login sh", "login bash", "login from nothing", "interactive", "interactive login", "nested"],
)
def test_shell_over_ssh(host, is_vm, command) -> None:
    check(host.check_output(command))


@pytest.mark.parametrize(
    "command", ["sudo -i sh /tmp/show", "sudo -i -u deploy sh /tmp/show", "sudo su - root -c 'sh /tmp/show'"]
)
def test_login_through_sudo(host, is_vm, command) -> None:
    if not is_vm:
        pytest.skip("this host has no sudo")
    check(host.check_output(command))


def test_su_where_there_is_no_sudo(host, is_vm) -> None:
    if is_vm:
        pytest.skip("su of an ordinary user asks for a password")
    check(host.check_output("su - root -c 'sh /tmp/show'"))


def test_systemd_unit(host, is_vm) -> None:
    if not is_vm:
        pytest.skip("this host has no systemd")
    check(host.check_output("sudo systemd-run --quiet --wait --pipe --collect /bin/sh /tmp/show"))


def test_cron_job_has_the_variables_and_a_path_of_crons_own(host, is_vm) -> None:
    if not is_vm:
        pytest.skip("this host has no cron")
    job = "* * * * * (sh /tmp/show; $CUDA_HOME/bin/nvcc) >/tmp/cron.new; mv /tmp/cron.new /tmp/cron.out"
    host.check_output(f"rm -f /tmp/cron.out; echo '{job}' | crontab -")
    deadline = time.monotonic() + 90
    while not host.file("/tmp/cron.out").exists and time.monotonic() < deadline:
        time.sleep(2)
    said = host.file("/tmp/cron.out").content_string.splitlines()
    assert (said[0], said[-1]) == (VARIABLES, "this is cuda")


def test_settings_of_the_user_stay(host) -> None:
    text = host.file("/etc/environment").content_string
    assert text.count("gpu-bootstrap") == 2
    assert "EDITOR=vi" in text
    assert "/home/own/bin" in host.check_output("echo $PATH")
    assert host.check_output("echo $EDITOR") == "vi"


def test_start_file_has_one_block_and_keeps_its_owner(host, is_vm) -> None:
    file = host.file("/home/deploy/.bashrc" if is_vm else "/root/.bashrc")
    assert (file.user, file.group) == (("deploy", "deploy") if is_vm else ("root", "root"))
    assert file.content_string.count("BEGIN gpu-bootstrap") == 1
