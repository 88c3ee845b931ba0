"""The programs that run on a host: they measure, survive hangs and crashes, and judge nothing."""

from __future__ import annotations

import ast
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import measure
import measure_environment

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "roles/verify/files"
PROGRAMS = sorted(FILES.glob("*.py"))
SCHEMA = json.loads((ROOT / "docs/measurements.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with the programs, as the role puts them onto a host; they write beside themselves."""
    directory = tmp_path / "programs"
    shutil.copytree(FILES, directory, ignore=shutil.ignore_patterns("__pycache__", "run-*"))
    return directory


def run(place: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Run measure.py as the role does: a request on standard input, one document on standard output."""
    done = subprocess.run(
        [sys.executable, str(place / "measure.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    document = dict(json.loads(done.stdout))
    jsonschema.validate(document, SCHEMA)
    assert not list(place.glob("run-*")), "the place where it worked was not cleaned up"
    return document


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


# --- the programs themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_run_on_the_oldest_python_of_a_host(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_need_the_standard_library_alone(path: Path) -> None:
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert {name.split(".")[0] for name in imported} <= {*sys.stdlib_module_names, "__future__"}


def test_programs_are_small_enough_to_be_copied_each_time() -> None:
    assert sum(path.stat().st_size for path in PROGRAMS) < 100_000


def test_every_measurement_has_a_limit_and_a_place_in_the_schema() -> None:
    names = {*measure.SYSTEM, *measure_environment.MEASUREMENTS}
    assert names == {*measure.FIRST, *measure.SERVES}
    assert names == set(measure.LIMITS)
    assert names == set(SCHEMA["properties"]["measurements"]["propertyNames"]["enum"])
    assert set(measure.IN_ENVIRONMENT) == set(measure_environment.MEASUREMENTS)


# --- the conductor ---------------------------------------------------------------------------------------------------


def test_a_host_is_measured_without_root_or_network(place: Path) -> None:
    document = run(place, {"only": ["host", "simulated", "driver", "shells", "libcuda"]})
    assert set(document["measurements"]) == {"host", "simulated", "driver", "shells", "libcuda"}
    assert document["measurements"]["host"]["data"]["boot_id"]
    assert "_environment" not in json.dumps(document)


def environment(folder: Path, body: str) -> str:
    """Make an environment whose Python is a script: it gets --one NAME REQUEST RESULT behind the program."""
    program(folder, "bin/python", f"#!/bin/bash\nname=$3 request=$4 result=$5\n{body}\n")
    return str(folder)


def test_a_hang_is_a_result_and_not_the_end_of_the_run(place: Path, tmp_path: Path) -> None:
    marker = tmp_path / "survivor"
    prefix = environment(
        tmp_path, f'[ $name = torch ] || {{ echo "{{}}" >$result; exit; }}\n(sleep 3; touch {marker}) & sleep 60'
    )
    started = time.monotonic()
    document = run(
        place,
        {
            "environment": prefix,
            "only": ["environment", "torch", "imports"],
            "components": ["pytorch_stack"],
            "limits": {"torch": 1},
        },
    )
    assert time.monotonic() - started < 15
    torch = document["measurements"]["torch"]
    assert (torch["ok"], torch["timed_out"], torch["rc"]) == (False, True, -9)
    assert torch["error"] == "did not end within 1 s"
    assert document["measurements"]["imports"]["ok"] is True
    time.sleep(3)
    assert not marker.exists(), "a child of the hanging program lived on"


def test_a_crash_leaves_its_exit_code_and_its_last_words(place: Path, tmp_path: Path) -> None:
    prefix = environment(
        tmp_path,
        'case $name in torch) echo "ImportError: libx"; exit 1;; imports) kill -SEGV $$;; *) echo "no json" >$result;; esac',
    )
    found = run(
        place, {"environment": prefix, "only": ["environment", "torch", "imports"], "components": ["pytorch_stack"]}
    )["measurements"]
    assert not any(entry["ok"] for entry in found.values())
    assert (found["torch"]["rc"], found["torch"]["error"]) == (1, "ImportError: libx")
    assert found["imports"]["rc"] == -11
    assert found["environment"]["error"] == "left no result"


def test_an_environment_that_is_not_there_is_said_so(place: Path, tmp_path: Path) -> None:
    found = run(place, {"environment": str(tmp_path / "none"), "only": ["environment"]})["measurements"]["environment"]
    assert found["ok"] is False
    assert "No such file" in found["error"]


def test_what_no_time_is_left_for_is_not_started(place: Path, tmp_path: Path) -> None:
    prefix = environment(tmp_path, "sleep 60")
    found = run(place, {"environment": prefix, "only": ["environment", "torch", "imports", "lora_step"], "limit": 2})[
        "measurements"
    ]
    assert all(entry["timed_out"] for entry in found.values())


def test_the_whole_run_ends_when_it_is_told_to(place: Path, tmp_path: Path) -> None:
    prefix = environment(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")
    with subprocess.Popen(
        [sys.executable, str(place / "measure.py")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stdin
        process.stdin.write(json.dumps({"environment": prefix, "only": ["torch"]}).encode())
        process.stdin.close()
        pid = tmp_path / "pid"
        deadline = time.monotonic() + 15
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(15) == 143
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert not list(place.glob("run-*"))


def test_only_what_serves_a_chosen_component_is_measured() -> None:
    def names(**request: Any) -> set[str]:
        return set(measure.Conductor(request, "/nonexistent").wanted())

    assert names(components=["cudnn"], environment="/e") == {"cudnn", "libcuda"}
    assert names(components=["miniconda"], environment="/e") == {"environment", "libcuda"}
    assert names(components=["pytorch_stack"], environment="/e") == {
        "environment",
        "torch",
        "imports",
        "lora_step",
        "libcuda",
    }
    assert "gpu_product" in names(components=["pytorch_stack"], environment="/e", gpus=2)
    assert names(components=["pytorch_stack"]) == {"libcuda"}


def test_programs_meet_what_a_login_shell_gives(tmp_path: Path) -> None:
    conductor = measure.Conductor({"cuda_home": "/usr/local/cuda"}, str(tmp_path))
    login = {"LD_LIBRARY_PATH": "/opt/shadow", "PATH": "/bin", "SECRET_TOKEN": "s3cret"}
    conductor.measurements = {"shells": {"ok": True, "data": {"kinds": {}, "_environment": login}}}
    conductor._take_over_environment()
    assert conductor.environment["LD_LIBRARY_PATH"] == "/opt/shadow"
    assert conductor.environment["CUDA_HOME"] == "/usr/local/cuda"
    assert conductor.environment["HF_HUB_OFFLINE"] == "1"
    assert "s3cret" not in json.dumps(conductor.measurements)


# --- measurements of the system --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rc", "said"),
    [(9, "couldn't communicate with the NVIDIA driver"), (17, "GPU access blocked"), (255, "Unknown Error")],
)
def test_nvidia_smi_is_recorded_with_its_exit_code_and_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rc: int, said: str
) -> None:
    program(tmp_path, "nvidia-smi", f'#!/bin/sh\necho "{said}"\nexit {rc}\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = measure.ask_smi()
    assert found is not None
    assert (found["rc"], found["said"], found["gpus"]) == (rc, said, [])


def test_cells_of_nvidia_smi_stay_as_they_were_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "0, NVIDIA A100, GPU-1, 00000000:07:00.0, 550.163.01, [Unknown Error], 8.0\nUnable to determine the device handle for GPU0000:0F:00.0: Unknown Error"
    program(tmp_path, "nvidia-smi", f"#!/bin/sh\necho '{text}'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = measure.ask_smi()
    assert found is not None
    assert found["gpus"] == [
        {"index": "0", "name": "NVIDIA A100", "uuid": "GPU-1", "pci_bus_id": "00000000:07:00.0", "driver_version": "550.163.01", "memory_total": "[Unknown Error]", "compute_cap": "8.0"}
    ]  # fmt: skip
    assert "0000:0F:00.0" in found["said"]


def test_drivers_that_do_not_know_the_compute_capability_are_asked_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path,
        "nvidia-smi",
        '#!/bin/sh\ncase $1 in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2;; esac\necho "0, Tesla T4, GPU-1, 0:1, 470.82.01, 15109"\n',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = measure.ask_smi()
    assert found is not None
    assert found["rc"] == 0
    assert found["gpus"][0]["driver_version"] == "470.82.01"


def test_no_nvidia_smi_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measure.ask_smi() is None


def toolkit(folder: Path, compiles: str) -> dict[str, Any]:
    program(
        folder,
        "bin/nvcc",
        f'#!/bin/bash\n[ "$1" = --version ] && {{ echo "Cuda compilation tools, release 12.4, V12.4.131"; exit; }}\necho "$@" >{folder}/arguments\n{compiles}\n',
    )
    return measure.toolkit({"cuda_home": str(folder), "capabilities": ["8.0", "9.0"]})


def test_the_compiled_program_is_run_and_its_output_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = '{"host_sum": 499500, "count": 0, "count_error": 35, "kernels": []}'
    program(tmp_path, "made", f"#!/bin/sh\necho '{output}'\n")
    found = toolkit(tmp_path, "mv made sample")
    assert (found["release"], found["build"]) == ("12.4", "12.4.131")
    assert found["run"]["output"] == json.loads(output)
    assert (
        "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90"
        in (tmp_path / "arguments").read_text()
    )


def test_a_compiler_that_fails_leaves_its_words_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = toolkit(tmp_path, 'echo "error: cospi" >&2; exit 1')
    assert (found["compile"]["rc"], found["compile"]["said"], found["run"]) == (1, "error: cospi", None)


def test_a_missing_compiler_is_not_an_error_of_the_measurement(tmp_path: Path) -> None:
    found = measure.toolkit({"cuda_home": str(tmp_path)})
    assert (found["nvcc_rc"], found["release"], found["compile"]) == (None, None, None)


def test_cudnn_is_read_from_header_and_library(tmp_path: Path) -> None:
    assert measure.cudnn({"cuda_home": str(tmp_path)})["header_version"] is None
    program(
        tmp_path,
        "include/cudnn_version.h",
        "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 1\n#define CUDNN_PATCHLEVEL 0\n",
    )
    program(tmp_path, "lib64/libcudnn.so", "no library")
    found = measure.cudnn({"cuda_home": str(tmp_path)})
    assert found["header_version"] == "9.1.0"
    assert found["number"] is None
    assert "libcudnn.so" in found["error"]


def test_directories_of_a_search_path_with_cuda_libraries_are_named(tmp_path: Path) -> None:
    program(tmp_path, "shadow/libcudnn_ops.so.9", "")
    program(tmp_path, "other/libssl.so.3", "")
    found = measure._cuda_libraries(f"{tmp_path}/shadow::{tmp_path}/other:{tmp_path}/none:{tmp_path}/shadow")
    assert found == [{"directory": f"{tmp_path}/shadow", "libraries": ["libcudnn_ops"]}]


def test_files_that_set_a_variable_are_named_unless_it_is_a_comment(tmp_path: Path) -> None:
    program(tmp_path, ".bashrc", "export LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH\n")
    program(tmp_path, ".profile", "# LD_LIBRARY_PATH=/x\n")
    found = measure._files_that_set("LD_LIBRARY_PATH", str(tmp_path))
    assert f"{tmp_path}/.bashrc" in found
    assert f"{tmp_path}/.profile" not in found


def test_the_marker_of_the_lab_is_a_sign_of_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(measure.SIMULATION_VARIABLE, raising=False)
    monkeypatch.setattr(measure, "MARKER", str(tmp_path / "marker"))
    assert measure.simulated({})["marker"] is None
    program(tmp_path, "marker", "two A100, played by the lab\n")
    monkeypatch.setenv(measure.SIMULATION_VARIABLE, "1")
    found = measure.simulated({})
    assert found["marker"] == str(tmp_path / "marker")
    assert found["variables"] == [measure.SIMULATION_VARIABLE]


# --- measurements in the environment ---------------------------------------------------------------------------------


def test_pieces_of_work_hang_crash_and_fail_without_taking_the_others_along() -> None:
    pieces: list[tuple[str, Any]] = [
        ("fine", lambda: {"answer": 42}),
        ("hangs", lambda: time.sleep(60)),
        ("crashes", lambda: os.kill(os.getpid(), signal.SIGKILL)),
        ("fails", lambda: 1 / 0),
        ("unwritable", lambda: {"answer": object()}),
    ]
    started = time.monotonic()
    found = measure_environment.in_children(pieces, 1.5, 2)
    assert time.monotonic() - started < 10
    assert list(found) == [name for name, _ in pieces]
    assert found["fine"]["data"] == {"answer": 42}
    assert (found["hangs"]["timed_out"], found["hangs"]["error"]) == (True, "did not end within 2 s")
    assert found["crashes"]["rc"] == -9
    assert found["fails"]["error"] == "ZeroDivisionError: division by zero"
    assert [name for name, entry in found.items() if entry["ok"]] == ["fine"]


def test_the_environment_tells_its_versions_and_unmet_requirements() -> None:
    found = measure_environment.environment({})
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "pytest" in found["packages"]
    broken = measure_environment._unmet({"a": "1.0", "b": "2.0"}, {"a": ["B>=3", "c; extra == 'x'", "d"], "b": []})
    assert broken["unmet"] == ["a 1.0 wants B>=3, found 2.0", "a 1.0 wants d, found none"]


@pytest.mark.parametrize(
    ("distribution", "module"),
    [("pytest", "pytest"), ("PyYAML", "yaml"), ("jsonschema", "jsonschema"), ("ansible-core", "ansible")],
)
def test_the_module_of_a_distribution_is_found(distribution: str, module: str) -> None:
    assert measure_environment.module_of(distribution) == module


def test_imports_are_made_one_by_one() -> None:
    found = measure_environment.imports({"packages": ["PyYAML", "no-such-package"]})["packages"]
    assert found["PyYAML"]["data"]["module"] == "yaml"
    assert "no-such-package" in found["no-such-package"]["error"]


def test_mapped_libraries_are_those_in_memory(tmp_path: Path) -> None:
    """P27: the file that was really mapped counts, not the one that should have been."""
    path = program(tmp_path, "lib/libcudnn_graph.so.9", "x" * 4096)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert str(path) in measure_environment.mapped_libraries()["libcudnn"]
    assert str(path) not in measure_environment.mapped_libraries().get("libcudnn", [])


def test_numbers_that_json_does_not_know_are_null() -> None:
    assert measure_environment._number(float("nan")) is None
    assert measure_environment._number(float("inf")) is None
    assert measure_environment._number(1.5) == 1.5


def test_the_product_is_compared_with_double_precision() -> None:
    torch = pytest.importorskip("torch")
    found = measure_environment.products(torch, "cpu", ["float32", "bfloat16"], edge=64)
    assert 0 < found["float32"]["error"] < 1e-5
    assert 1e-4 < found["bfloat16"]["error"] < 1e-2
