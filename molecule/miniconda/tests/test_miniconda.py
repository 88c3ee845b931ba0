"""conda as a user meets it, and what belongs to somebody else."""

from __future__ import annotations

import json

import pytest
import yaml

PREFIX = "/data/miniconda3"


@pytest.fixture
def good(host):
    if host.backend.hostname != "conda-good":
        pytest.skip("the other host is the one where something is in the way")
    return host


@pytest.fixture
def odd(host):
    if host.backend.hostname != "conda-odd":
        pytest.skip("only where something was in the way")
    return host


def test_login_shells_and_interactive_shells_can_activate(good) -> None:
    for shell in ("bash -lc", "bash -ic"):
        said = good.run(f"{shell} 'conda activate train && command -v python'")
        assert said.stdout.splitlines()[-1:] == [f"{PREFIX}/envs/train/bin/python"], said


def test_programs_of_the_environment_run_by_path_without_activation(good) -> None:
    assert (
        good.check_output(f"env -i {PREFIX}/envs/train/bin/python -c 'import pip, sys; print(sys.version_info[:2])'")
        == "(3, 11)"
    )


def test_no_shell_starts_in_base(good) -> None:
    assert good.check_output("bash -lc 'echo _$CONDA_PREFIX_'") == "_"


def test_the_start_file_has_one_block_and_belongs_to_its_user(good) -> None:
    file = good.file("/home/deploy/.bashrc")
    assert file.content_string.count("BEGIN gpu-bootstrap conda") == 1
    assert (file.user, file.group) == ("deploy", "deploy")


def test_settings_name_one_channel_and_one_key_for_activation(good) -> None:
    text = good.file(f"{PREFIX}/.condarc").content_string
    assert "conda-forge" in text
    assert "defaults" not in text
    # conda 25.11 and newer refuse a file with both names of this key
    assert ("auto_activate:" in text, "auto_activate_base" in text) == (True, False)


def test_other_users_have_directories_that_they_may_write(good) -> None:
    """The lab's conda does not look for one that is writable, conda itself does: so only the settings are read."""
    settings = yaml.safe_load(good.file(f"{PREFIX}/.condarc").content_string)
    assert settings["envs_dirs"] == [f"{PREFIX}/envs", "~/.conda/envs"]
    assert settings["pkgs_dirs"] == [f"{PREFIX}/pkgs", "~/.conda/pkgs"]


def test_the_system_python_is_untouched(host) -> None:
    assert host.file("/usr/lib/python3.11/EXTERNALLY-MANAGED").exists
    assert host.run("sha256sum --quiet -c /var/tmp/system-python").stdout == ""


def test_packages_and_temporary_files_stay_on_the_data_disk(good) -> None:
    assert good.file(f"{PREFIX}/pkgs").is_directory
    assert good.check_output("ls -A /data/tmp") == ""


def test_settings_and_start_file_of_somebody_else_are_as_they_were(odd) -> None:
    assert odd.file("/opt/miniconda3/.condarc").content_string == "channels: [mine]\n"
    assert "gpu-bootstrap" not in odd.file("/root/.bashrc").content_string


def test_accepted_terms_are_kept_in_the_installation(odd) -> None:
    found = odd.check_output("find / -name accepted.json -not -path '/proc/*'").splitlines()
    assert len(found) == 1
    assert not found[0].startswith("/root")
    assert set(json.loads(odd.file(found[0]).content_string)) == {
        "https://repo.anaconda.com/pkgs/main",
        "https://repo.anaconda.com/pkgs/r",
    }
