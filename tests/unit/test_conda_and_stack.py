"""What the roles miniconda and pytorch_stack read from a host, on trees made for it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROLES = Path(__file__).resolve().parents[2] / "roles"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROLES / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


conda = load("miniconda/files/conda_state.py")
stack = load("pytorch_stack/files/look_at_stack.py")


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def look(root: Path) -> dict[str, Any]:
    prefix = root / "opt/miniconda3"
    found: dict[str, Any] = conda.look(prefix, prefix / "envs/cu124", root / "mc.sh", root / "home")
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "opt").mkdir()
    return tmp_path


def test_a_bare_host_has_nothing(root: Path) -> None:
    found = look(root)
    assert (found["prefix"], found["conda"], found["python"], found["pip"]) == ("absent", "", "", False)
    assert (found["bashrc"], found["bashrc_mode"], found["installer"]) == ("none", "0644", "")


def test_an_installer_is_known_by_its_checksum(root: Path) -> None:
    (root / "mc.sh").write_text("installer")
    assert look(root)["installer"] == hashlib.sha256(b"installer").hexdigest()


def test_a_conda_with_its_environment_is_found(root: Path) -> None:
    prefix = root / "opt/miniconda3"
    script(prefix / "bin/conda", "echo conda 26.5.3")
    script(prefix / "envs/cu124/bin/python", "echo 3.11.9")
    (prefix / "envs/cu124/conda-meta").mkdir()
    (prefix / "envs/cu124/conda-meta/history").touch()
    (prefix / ".condarc").write_text("# Written by gpu-bootstrap\n")
    found = look(root)
    assert (found["prefix"], found["conda"], found["python"], found["pip"]) == ("conda", "26.5.3", "3.11.9", True)
    assert found["condarc"] == "ours"


def test_an_environment_that_conda_did_not_finish_is_none(root: Path) -> None:
    script(root / "opt/miniconda3/envs/cu124/bin/python", "echo 3.11.9")
    assert look(root)["python"] == ""


@pytest.mark.parametrize("make", ["echo broken >&2; exit 1", ""])
def test_files_without_a_conda_that_answers_are_somebody_elses(root: Path, make: str) -> None:
    script(root / "opt/miniconda3/bin/conda", make)
    assert look(root)["prefix"] == "other"


def test_an_empty_directory_is_told_from_a_full_one(root: Path) -> None:
    (root / "opt/miniconda3").mkdir()
    assert look(root)["prefix"] == "empty"


def test_a_half_filled_prefix_is_known_by_the_note_beside_it(root: Path) -> None:
    script(root / "opt/miniconda3/bin/conda", "echo conda 26.5.3")
    (root / "opt/.miniconda3.gpu-bootstrap-installing").touch()
    found = look(root)
    assert (found["prefix"], found["conda"], found["interrupted"]) == ("other", "", True)


@pytest.mark.parametrize(("prefix", "kind"), [("/home/me/anaconda3", "other"), ("{root}/opt/miniconda3", "plain")])
def test_conda_init_of_another_installation_is_noticed(root: Path, prefix: str, kind: str) -> None:
    started = prefix.format(root=root)
    text = f'# >>> conda initialize >>>\neval "$({started}/bin/conda shell.bash hook)"\n# <<< conda initialize <<<\n'
    (root / "home/.bashrc").write_text(text)
    (root / "home/.bashrc").chmod(0o600)
    found = look(root)
    assert (found["bashrc"], found["bashrc_mode"]) == (kind, "0600")


PINS = {"torch": "2.6.0", "torchvision": "0.21.0", "Typing_Extensions": "4.13.2"}
GOOD = {"torch": "2.6.0", "torchvision": "0.21.0", "typing-extensions": "4.13.2"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"torch": "2.6.0+cu124"}, []),
        ({"torch": "2.6.0+cpu"}, ["torch 2.6.0+cpu, wanted 2.6.0"]),
        ({"torch": "2.6.0+cu118"}, ["torch 2.6.0+cu118, wanted 2.6.0"]),
        ({"torch": "2.6.0+rocm6.2"}, ["torch 2.6.0+rocm6.2, wanted 2.6.0"]),
        ({"torch": "2.6.0+mine.1"}, []),
        ({"torch": "2.7.0"}, ["torch 2.7.0, wanted 2.6.0"]),
        ({"typing-extensions": ""}, ["Typing_Extensions is missing, wanted 4.13.2"]),
    ],
)
def test_each_pin_that_is_not_met_is_named(change: dict[str, str], said: list[str]) -> None:
    assert stack.differences(PINS, GOOD | change, "cu124") == said


def test_a_pin_with_a_build_takes_no_other() -> None:
    assert stack.differences({"torch": "2.5.1+cu121"}, {"torch": "2.5.1"}, "cu121") == [
        "torch 2.5.1, wanted 2.5.1+cu121"
    ]


def test_only_packages_of_the_right_version_and_another_build_are_installed_again() -> None:
    have = GOOD | {"torch": "2.6.0+cpu", "torchvision": "0.20.0+cpu"}
    assert stack.other_builds(PINS, have, "cu124") == ["torch"]


@pytest.mark.parametrize(
    ("line", "cuda"),
    [("cuda: Optional[str] = '12.4'", "12.4"), ('cuda = "12.1"', "12.1"), ("cuda: Optional[str] = None", ""), ("", "")],
)
def test_the_cuda_of_torch_is_read_from_its_version_file(tmp_path: Path, line: str, cuda: str) -> None:
    file = tmp_path / "lib/python3.11/site-packages/torch/version.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"__version__ = '2.6.0'\ndebug = False\n{line}\n")
    assert stack.torch_cuda(tmp_path) == cuda


def test_a_cpu_build_under_the_same_version_is_named_and_installed_again(tmp_path: Path) -> None:
    """P02: the version alone does not tell, `torch 2.6.0` may be for the CPU."""
    site = tmp_path / "lib/python3.11/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text("__version__ = '2.6.0'\ncuda = None\n")
    request = {"pins": {}, "cuda": "12.4", "cuda_home": "/nonexistent", "uv": "/nonexistent"}
    original = stack.metadata.distributions
    stack.metadata.distributions = lambda: original(path=[str(site)])
    (site / "torch-2.6.0.dist-info").mkdir()
    (site / "torch-2.6.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n")
    try:
        found = stack.look(request, tmp_path)
    finally:
        stack.metadata.distributions = original
    assert found["differences"] == ["torch is built for the CPU, wanted CUDA 12.4"]
    assert found["other_builds"] == ["torch"]
    assert (found["nvcc"], found["uv"]) == ("", "")


@pytest.mark.parametrize("path", ["miniconda/files/conda_state.py", "prefetch/files/prefetch.py"])
def test_programs_for_hosts_parse_under_the_oldest_supported_python(path: str) -> None:
    ast.parse((ROLES / path).read_text(), feature_version=(3, 8))
