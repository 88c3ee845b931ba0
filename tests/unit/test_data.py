"""The version data obeys its rules, and the checks that say so reject data that doesn't."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import docs_versions
import lock

Data = dict[str, Any]
VERSIONED = ("cuda", "cudnn", "miniconda", "pytorch", "driver", "uv")
FILE_TABLES = ("cuda", "cudnn", "miniconda")
CONFIDENCES = ("seen", "inferred", "proposed")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def rows(data: Data) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every hand-written row with its address; locks.yml is generated and held to the lock files instead."""
    for table in (*VERSIONED, "stacks", "systems"):
        for key, row in data[table].items():
            yield f"{table}.{key}", row
    for row in data["gpus"]:
        yield f"gpus.{row['model']}", row


def files_of(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The files of a row, however deep they lie under machine, Python or CUDA major."""
    for value in row.values():
        if "sha256" in value:
            yield value
        else:
            yield from files_of(value)


def scalars(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield where, key
            yield from scalars(f"{where}.{key}", item)
    elif isinstance(value, list):
        for item in value:
            yield from scalars(where, item)
    else:
        yield where, value


def check_plain_data(data: Data) -> list[str]:
    """No number where a version belongs, and no Jinja: the tables can be read without Ansible."""
    faults = []
    for where, value in scalars("data", data):
        if isinstance(value, float):
            faults.append(f"{where} is the float {value}: quote it")
        if isinstance(value, str) and re.search(r"\{\{|\{%|\{#", value):
            faults.append(f"{where} holds Jinja: {value}")
    for table in (*VERSIONED, "stacks"):
        faults += [f"{table}.{key!r} is no string: quote it" for key in data[table] if not isinstance(key, str)]
    for where, row in rows(data):
        for key in ("release", "driver", "driver_branch", "cuda", "cudnn", "torch", "torch_cuda", "python", "glibc"):
            value = row.get(key, "")
            if not isinstance(value, (str, list)) or not all(isinstance(item, str) for item in value):
                faults.append(f"{where}.{key} is {value!r}, expected strings")
        faults += [
            f"{where}.packages.{n} is {v!r}" for n, v in (row.get("packages") or {}).items() if not isinstance(v, str)
        ]
    return faults


def check_order(data: Data) -> list[str]:
    """Newest first: a reader and `stack: auto` take the first that fits."""
    faults = []
    orders: list[tuple[str, list[tuple[int, ...]]]] = [(t, [numbers(key) for key in data[t]]) for t in VERSIONED]
    orders.append(("stacks", [numbers(row["cuda"]) for row in data["stacks"].values()]))
    orders.append(("gpus", [numbers(row["compute_capability"]) for row in data["gpus"]]))
    for table, order in orders:
        if order != sorted(order, reverse=True):
            faults.append(f"{table} is not sorted, newest first")
    return faults


def check_sources(data: Data) -> list[str]:
    """Each row says where it comes from and how sure that is."""
    faults = []
    for where, row in rows(data):
        if row.get("confidence") not in CONFIDENCES:
            faults.append(f"{where}.confidence is {row.get('confidence')!r}")
        source = row.get("source")
        if not isinstance(source, str) or len(source) < 10 or "facts/" in source or "shared/" in source:
            faults.append(f"{where}.source is {source!r}, expected a public page or repository")
    return faults


def check_files(data: Data) -> list[str]:
    """Files are pinned, belong to their row, and no two share a checksum."""
    faults = []
    seen: dict[str, str] = {}
    for table in FILE_TABLES:
        for key, row in data[table].items():
            found = list(files_of(row["files"]))
            if not found:
                faults.append(f"{table}.{key} has no file")
            for file in found:
                name, digest, size = file["file"], str(file["sha256"]), file["size"]
                if not re.fullmatch(r"[0-9a-f]{64}", digest):
                    faults.append(f"{name}: sha256 {digest!r} is not 64 hex digits")
                if digest in seen:
                    faults.append(f"{name} has the sha256 of {seen[digest]}")
                seen[digest] = name
                if not file["url_path"].startswith("/") or not file["url_path"].endswith(f"/{name}"):
                    faults.append(f"{name}: url_path {file['url_path']!r} is not a path to it")
                if key not in name or "latest" in name:
                    faults.append(f"{name} lacks its version {key}")
                if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 10**6):
                    faults.append(f"{name}: size {size!r} is no number of bytes")
            if not isinstance(row["installed_bytes"], int) or row["installed_confidence"] not in CONFIDENCES:
                faults.append(f"{table}.{key}: installed_bytes {row['installed_bytes']!r}")
    for version, row in data["uv"].items():
        if len(row["sha256"]) != 2 or not all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in row["sha256"]):
            faults.append(f"uv.{version}: expected two sha256, x86_64 and aarch64")
    return faults


def check_cuda(data: Data) -> list[str]:
    """Limits of toolkits fit together and fit the driver branches."""
    faults = []
    for version, row in data["cuda"].items():
        if row["release"] != release(version):
            faults.append(f"cuda.{version}: release {row['release']}")
        if numbers(row["driver_floor"]) > numbers(row["driver_min"]):
            faults.append(f"cuda.{version}: driver_floor above driver_min")
        if numbers(row["sm_min"]) >= numbers(row["sm_max"]):
            faults.append(f"cuda.{version}: sm_min not below sm_max")
        if not isinstance(row["gcc_max"], int) or not 9 <= row["gcc_max"] <= 20:
            faults.append(f"cuda.{version}: gcc_max {row['gcc_max']!r}")
        if (row["glibc_max"] is None) != (numbers(version) >= (13, 1)):
            faults.append(f"cuda.{version}: glibc_max {row['glibc_max']!r}, headers clash with glibc 2.41 before 13.1")
        branch = data["driver"].get(row["driver_min"].split(".")[0])
        if not branch or numbers(branch["max_cuda"]) < numbers(row["release"]):
            faults.append(f"cuda.{version}: driver_min {row['driver_min']} is of a branch that does not run it")
    return faults


def check_drivers(data: Data) -> list[str]:
    faults = []
    for branch, row in data["driver"].items():
        if row["state"] not in ("supported", "ended", "unknown"):
            faults.append(f"driver.{branch}: state {row['state']!r}")
        versions = row["last_versions"]
        if versions != sorted(versions, key=numbers, reverse=True):
            faults.append(f"driver.{branch}: last_versions not newest first")
        faults += [f"driver.{branch}: {v} is of another branch" for v in versions if v.split(".")[0] != branch]
    limits = [numbers(row["max_cuda"]) for row in data["driver"].values()]
    if limits != sorted(limits, reverse=True):
        faults.append("driver: an older branch runs a newer CUDA")
    return faults


def check_torch(data: Data) -> list[str]:
    """Each torch build has a cuDNN archive for its CUDA, and its tags belong to it."""
    faults = []
    for version, row in data["pytorch"].items():
        where = f"pytorch.{version}"
        if row["cuda_tag"] != "cu" + row["cuda"].replace(".", "") or row["cuda_tag"] not in row["arch_list"]:
            faults.append(f"{where}: cuda_tag {row['cuda_tag']} does not fit CUDA {row['cuda']} or has no arch_list")
        if not set(row["arch_list"]) <= {*row["indexes"], row["cuda_tag"]}:
            faults.append(f"{where}: arch_list of an index without a build")
        for tag, archs in row["arch_list"].items():
            order = [int(a.removeprefix("sm_")) for a in archs]
            if order != sorted(order) or not all(re.fullmatch(r"sm_\d{2,3}", a) for a in archs):
                faults.append(f"{where}.arch_list.{tag}: {archs}")
        major = "cuda" + row["cuda"].split(".")[0]
        if "x86_64" not in data["cudnn"].get(row["cudnn"], {}).get("files", {}).get(major, {}):
            faults.append(f"{where}: cuDNN {row['cudnn']} has no archive for {major} on x86_64")
        if not any(r["release"] == row["cuda"] for r in data["cuda"].values()):
            faults.append(f"{where}: no toolkit with CUDA {row['cuda']}")
    return faults


def check_stacks(data: Data) -> list[str]:
    """Every stack names rows that exist and that belong together."""
    faults = []
    for name, stack in data["stacks"].items():
        missing = [f"{t}.{stack[k]}" for t, k in (("cuda", "cuda"), ("cudnn", "cudnn"), ("miniconda", "miniconda"), ("pytorch", "torch"), ("driver", "driver_branch")) if stack[k] not in data[t]]  # fmt: skip
        if missing:
            faults += [f"stacks.{name} names {m}, which is not there" for m in missing]
            continue
        cuda, torch, branch = (
            data["cuda"][stack["cuda"]],
            data["pytorch"][stack["torch"]],
            data["driver"][stack["driver_branch"]],
        )
        tag = "cu" + stack["torch_cuda"].replace(".", "")
        if name != tag:
            faults.append(f"stacks.{name} is CUDA {stack['torch_cuda']}: call it {tag}")
        if stack["torch_cuda"] != cuda["release"]:
            faults.append(
                f"stacks.{name}: torch is built for CUDA {stack['torch_cuda']}, the toolkit is {cuda['release']}"
            )
        if stack["torch_index"] == "default" and torch["cuda"] != stack["torch_cuda"]:
            faults.append(f"stacks.{name}: the default build of torch {stack['torch']} is for CUDA {torch['cuda']}")
        if stack["torch_index"] != "default" and stack["torch_index"] not in torch["indexes"]:
            faults.append(f"stacks.{name}: torch {stack['torch']} is not in the index {stack['torch_index']}")
        if stack["cudnn"] != torch["cudnn"]:
            faults.append(f"stacks.{name}: torch {stack['torch']} pins cuDNN {torch['cudnn']}, not {stack['cudnn']}")
        if "x86_64" not in data["cudnn"][stack["cudnn"]]["files"].get("cuda" + stack["cuda"].split(".")[0], {}):
            faults.append(f"stacks.{name}: no cuDNN archive for its CUDA")
        if stack["python"] not in torch["python"]:
            faults.append(f"stacks.{name}: torch {stack['torch']} has no wheel for Python {stack['python']}")
        if stack["python"] not in data["miniconda"][stack["miniconda"]]["files"]:
            faults.append(f"stacks.{name}: no Miniconda with Python {stack['python']}")
        if stack["driver"].split(".")[0] != stack["driver_branch"] or stack["driver"] not in branch["last_versions"]:
            faults.append(
                f"stacks.{name}: driver {stack['driver']} is not a seen version of branch {stack['driver_branch']}"
            )
        if numbers(branch["max_cuda"]) < numbers(cuda["release"]):
            faults.append(
                f"stacks.{name}: branch {stack['driver_branch']} runs CUDA {branch['max_cuda']}, not {cuda['release']}"
            )
        if numbers(stack["driver"]) < numbers(cuda["driver_min"]):
            faults.append(f"stacks.{name}: driver {stack['driver']} is older than {cuda['driver_min']}")
        expected = {"torch": stack["torch"], "torchvision": torch["torchvision"], "torchaudio": torch["torchaudio"]}
        for package, version in expected.items():
            if stack["packages"].get(package) != version:
                faults.append(f"stacks.{name}: {package} {stack['packages'].get(package)}, expected {version}")
    return faults


def check_locks(data: Data, folder: Path = lock.LOCKS) -> list[str]:
    """Lock files hold the stack's pins with hashes, and locks.yml says what they hold."""
    faults = []
    if list(data["locks"]) != list(data["stacks"]):
        faults.append(f"locks of {list(data['locks'])}, expected {list(data['stacks'])}")
    stray = {path.name for path in folder.iterdir()} - {stack["lock"] for stack in data["stacks"].values()}
    faults += [f"{name} belongs to no stack" for name in stray]
    for name, stack in data["stacks"].items():
        path, row = folder / stack["lock"], data["locks"].get(name)
        if not path.is_file() or not row:
            faults.append(f"{stack['lock']} of {name} is missing")
            continue
        text = path.read_text()
        pins = lock.parse_lock(text)
        if row["file"] != stack["lock"] or row["sha256"] != hashlib.sha256(text.encode()).hexdigest():
            faults.append(f"locks.{name} is not of this file: make lock STACK={name}")
        if row["packages"] != {package: pin.version for package, pin in pins.items()}:
            faults.append(f"locks.{name}.packages is not what the file holds")
        if row["python"] != stack["python"] or f"-py{stack['python'].replace('.', '')}-x86_64.txt" not in stack["lock"]:
            faults.append(f"locks.{name} is for another Python")
        if not 10**9 < row["download_bytes"] < row["installed_bytes"] < 2 * 10**10:
            faults.append(f"locks.{name}: {row['download_bytes']} bytes make {row['installed_bytes']}")
        for package, version in stack["packages"].items():
            if package not in pins or pins[package].version.split("+")[0] != version.split("+")[0]:
                faults.append(f"{stack['lock']}: {package} is not {version}")
        faults += [f"{stack['lock']}: {package} has no hash" for package, pin in pins.items() if not pin.hashes]
        cudnn = pins.get(f"nvidia-cudnn-cu{stack['cuda'].split('.')[0]}")
        if not cudnn or cudnn.version != stack["cudnn"]:
            faults.append(f"{stack['lock']} brings another cuDNN than {stack['cudnn']}")
        if re.search(r"://|^--?(?!.*hash)|@ ", text, re.MULTILINE):
            faults.append(f"{stack['lock']} names an address or an option")
    return faults


def check_gpus(data: Data) -> list[str]:
    """Each GPU is found by id, its limits fit together, and it is known to the toolkits."""
    faults = []
    seen: dict[str, str] = {}
    for row in data["gpus"]:
        where = f"gpus.{row['model']}"
        for device in row["pci_ids"]:
            if not isinstance(device, str) or not re.fullmatch(r"[0-9a-f]{4}", device):
                faults.append(f"{where}: PCI id {device!r} is not four lower-case hex digits")
            if device in seen:
                faults.append(f"{where}: PCI id {device} is that of {seen[device]}, too")
            seen[device] = row["model"]
        if not row["pci_ids"] or not row["names"]:
            faults.append(f"{where}: no PCI id or no name")
        if not re.fullmatch(r"\d{1,2}\.\d", str(row["compute_capability"])):
            faults.append(f"{where}: compute capability {row['compute_capability']!r}")
        if not all(isinstance(size, int) and 8 <= size <= 512 for size in row["memory_gb"]):
            faults.append(f"{where}: memory {row['memory_gb']}")
        if row["open_modules"] not in ("supported", "required", "impossible"):
            faults.append(f"{where}: open_modules {row['open_modules']!r}")
        if row["nvswitch"] not in ("none", "board", "rack"):
            faults.append(f"{where}: nvswitch {row['nvswitch']!r}")
        for least, most in (("min_driver_branch", "max_driver_branch"), ("min_cuda", "max_cuda")):
            if row[least] and row[most] and numbers(row[least]) > numbers(row[most]):
                faults.append(f"{where}: {least} {row[least]} above {most} {row[most]}")
        capability = numbers(row["compute_capability"])
        for version, cuda in data["cuda"].items():
            between = numbers(row["min_cuda"]) <= numbers(cuda["release"]) <= numbers(row["max_cuda"] or "99")
            if between and not numbers(cuda["sm_min"]) <= capability <= numbers(cuda["sm_max"]):
                faults.append(
                    f"{where}: CUDA {version} should compile for it and does not know {row['compute_capability']}"
                )
            # 10.x came in two steps, between 12.0 and 12.1 of the same toolkits: a range can't tell.
            if not between and numbers(cuda["sm_min"]) <= capability <= numbers(cuda["sm_max"]) and capability[0] != 10:
                faults.append(f"{where}: CUDA {version} knows {row['compute_capability']}, the row says no")
    return faults


def check_systems(data: Data) -> list[str]:
    faults = []
    for name, row in data["systems"].items():
        if not re.fullmatch(r"(debian-\d+|ubuntu-\d\d\.04)", name):
            faults.append(f"systems.{name} is not ID-VERSION_ID")
        if not isinstance(row["gcc"], int) or not isinstance(row["supported"], bool):
            faults.append(f"systems.{name}: gcc {row['gcc']!r}, supported {row['supported']!r}")
    for name, row in data["systems"].items():
        if row["supported"] and not any(
            s["glibc_max"] is None or numbers(row["glibc"]) <= numbers(s["glibc_max"])
            for s in (data["cuda"][stack["cuda"]] for stack in data["stacks"].values())
        ):
            faults.append(f"systems.{name}: no stack compiles on it")
    return faults


CHECKS: tuple[Callable[[Data], list[str]], ...] = (
    check_plain_data, check_order, check_sources, check_files, check_cuda, check_drivers, check_torch, check_stacks,
    check_locks, check_gpus, check_systems,
)  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Data:
    return docs_versions.load()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_shipped_data_obeys_its_rules(data: Data, check: Callable[[Data], list[str]]) -> None:
    assert check(data) == []


# What breaks the data, the check that must notice, and a word of what it says.
BROKEN: list[tuple[str, Callable[[Data], Any], Callable[[Data], list[str]], str]] = [
    ("unquoted version", lambda d: d["stacks"]["cu124"].update(torch_cuda=12.4), check_plain_data, "float"),
    ("unquoted key", lambda d: d["driver"].update({535: d["driver"]["535"]}), check_plain_data, "no string"),
    ("Jinja", lambda d: d["uv"]["0.13.9"].update(source="{{ somewhere }}"), check_plain_data, "Jinja"),
    ("oldest first", lambda d: d.update(cuda=dict(reversed(d["cuda"].items()))), check_order, "cuda is not sorted"),
    ("stacks shuffled", lambda d: d.update(stacks=dict(sorted(d["stacks"].items()))), check_order, "stacks is not"),
    ("no source", lambda d: d["cudnn"]["9.1.0.70"].pop("source"), check_sources, "cudnn.9.1.0.70.source"),
    ("private source", lambda d: d["gpus"][0].update(source="facts/gpus.yml, somewhere"), check_sources, "public page"),
    ("invented confidence", lambda d: d["systems"]["debian-12"].update(confidence="sure"), check_sources, "sure"),
    ("short checksum", lambda d: d["cuda"]["12.4.1"]["files"]["x86_64"].update(sha256="ab12"), check_files, "64 hex"),
    (
        "checksum pasted twice",
        lambda d: d["cuda"]["12.4.1"]["files"].update(aarch64=d["cuda"]["12.4.1"]["files"]["x86_64"]),
        check_files,
        "has the sha256 of",
    ),
    (
        "file of another version",
        lambda d: d["cuda"]["12.4.1"].update(files=d["cuda"]["12.4.0"]["files"]),
        check_files,
        "lacks its version 12.4.1",
    ),
    ("size in words", lambda d: d["cuda"]["12.4.1"]["files"]["x86_64"].update(size="4 GB"), check_files, "no number"),
    (
        "floor above minimum",
        lambda d: d["cuda"]["12.4.1"].update(driver_floor="570.26"),
        check_cuda,
        "above driver_min",
    ),
    ("no glibc ceiling", lambda d: d["cuda"]["12.4.1"].update(glibc_max=None), check_cuda, "glibc_max"),
    (
        "version of another branch",
        lambda d: d["driver"]["550"]["last_versions"].append("535.1"),
        check_drivers,
        "another",
    ),
    ("cuDNN without archive", lambda d: d["cudnn"].pop("9.10.2.21"), check_torch, "no archive"),
    ("torch of another CUDA", lambda d: d["stacks"]["cu124"].update(torch="2.7.1"), check_stacks, "for CUDA 12.6"),
    (
        "toolkit of another CUDA",
        lambda d: d["stacks"]["cu124"].update(cuda="12.6.3"),
        check_stacks,
        "the toolkit is 12.6",
    ),
    ("another cuDNN", lambda d: d["stacks"]["cu124"].update(cudnn="9.5.1.17"), check_stacks, "pins cuDNN 9.1.0.70"),
    ("Python without wheel", lambda d: d["stacks"]["cu124"].update(python="3.14"), check_stacks, "Python 3.14"),
    ("unknown row", lambda d: d["stacks"]["cu124"].update(cuda="12.4.9"), check_stacks, "not there"),
    (
        "driver too old for CUDA",
        lambda d: d["stacks"]["cu124"].update(driver="535.309.01", driver_branch="535"),
        check_stacks,
        "runs CUDA 12.2",
    ),
    (
        "driver nobody saw",
        lambda d: d["stacks"]["cu124"].update(driver="550.999.01"),
        check_stacks,
        "not a seen version",
    ),
    (
        "torchvision of another torch",
        lambda d: d["stacks"]["cu124"]["packages"].update(torchvision="0.22.1"),
        check_stacks,
        "torchvision 0.22.1",
    ),
    ("edited lock", lambda d: d["locks"]["cu124"].update(sha256="0" * 64), check_locks, "not of this file"),
    (
        "pin not in the lock",
        lambda d: d["stacks"]["cu124"]["packages"].update(peft="9.9"),
        check_locks,
        "peft is not 9.9",
    ),
    ("lock missing", lambda d: d["stacks"]["cu124"].update(lock="cu999-py311-x86_64.txt"), check_locks, "is missing"),
    ("upper-case id", lambda d: d["gpus"][0].update(pci_ids=["2E12"]), check_gpus, "lower-case"),
    ("id of two models", lambda d: d["gpus"][0].update(pci_ids=d["gpus"][1]["pci_ids"]), check_gpus, "that of"),
    ("wrong capability", lambda d: d["gpus"][0].update(compute_capability="9.0"), check_gpus, "CUDA 12.4.1 knows 9.0"),
    ("too old a toolkit", lambda d: d["gpus"][0].update(min_cuda="12.1"), check_gpus, "does not know"),
    ("Debian 13 left alone", lambda d: d["stacks"].pop("cu132"), check_systems, "debian-13: no stack"),
]


@pytest.mark.parametrize(("spoil", "check", "word"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_broken_data_is_rejected(
    data: Data, spoil: Callable[[Data], Any], check: Callable[[Data], list[str]], word: str
) -> None:
    broken = copy.deepcopy(data)
    spoil(broken)
    faults = check(broken)
    assert faults
    assert any(word in fault for fault in faults), faults


def test_lock_file_without_a_hash_is_rejected(data: Data, tmp_path: Path) -> None:
    for path in lock.LOCKS.iterdir():
        text = path.read_text()
        if path.name.startswith("cu124"):
            text = re.sub(r"(accelerate==\S+) \\\n\s+--hash=\S+", r"\1", text)
        (tmp_path / path.name).write_text(text)
    assert "cu124-py311-x86_64.txt: accelerate has no hash" in check_locks(data, tmp_path)


def test_lock_file_with_an_index_is_rejected(data: Data, tmp_path: Path) -> None:
    for path in lock.LOCKS.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "cu124-py311-x86_64.txt").write_text("--index-url https://example.com/simple\n")
    with pytest.raises(ValueError, match="is no pin"):
        check_locks(data, tmp_path)


@pytest.mark.parametrize(
    "text", ["torch>=2.6\n", "torch==2.6.0 --hash=md5:00\n", "torch @ https://example.com/t.whl\n"]
)
def test_line_that_is_no_pin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"name==version --hash=sha256"):
        lock.parse_lock(text)


def test_lock_text_survives_the_round_trip(data: Data) -> None:
    pins = {"torch": lock.Pin("2.6.0+cu124", ("a" * 64, "b" * 64)), "six": lock.Pin("1.17.0", ("c" * 64,))}
    text = lock.render_lock("cu124", data["stacks"]["cu124"], "2025-05-05", pins)
    assert lock.parse_lock(text) == pins
    assert text.splitlines()[2].startswith("six==")


def test_locks_table_survives_the_round_trip(data: Data, tmp_path: Path) -> None:
    (tmp_path / "locks.yml").write_text(lock.render_locks_table(data["locks"]))
    assert lock.read_table("locks", tmp_path) == data["locks"]
    assert (tmp_path / "locks.yml").read_text() == (lock.TABLES / "locks.yml").read_text()


@pytest.mark.parametrize(
    ("wheel", "glibc"),
    [
        ("six-1.17.0-py2.py3-none-any.whl", (0, 0)),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", (2, 27)),
        ("torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl", (2, 5)),
        ("pyyaml-6.0.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", (2, 17)),
    ],
)
def test_glibc_is_read_from_the_name_of_a_wheel(wheel: str, glibc: tuple[int, int]) -> None:
    assert lock.glibc_of_wheel(wheel) == glibc


def package(name: str, **files: Any) -> dict[str, Any]:
    return {"name": name, "version": "1.0", **files}


def file(name: str, digit: str, size: int | None = 1000) -> dict[str, Any]:
    return {"url": f"https://example.com/a/{name}", "size": size, "hashes": {"sha256": digit * 64}}


def test_source_archive_counts_only_where_nothing_is_built() -> None:
    both = package("a", sdist=file("a-1.0.tar.gz", "1", 9), wheels=[file("a-1.0-py3-none-any.whl", "2")])
    source = package("b", sdist=file("b-1.0.tar.gz", "3", 500))
    found = lock.read_resolution({"packages": [both, source]})
    assert found.pins == {"a": lock.Pin("1.0", ("2" * 64,)), "b": lock.Pin("1.0", ("3" * 64,))}
    assert found.download_bytes == 1500


def test_package_without_a_checksum_is_refused() -> None:
    bare = {"url": "https://example.com/a/a-1.0-py3-none-any.whl", "size": 1, "hashes": {}}
    with pytest.raises(ValueError, match=r"a 1\.0 has no sha256"):
        lock.read_resolution({"packages": [package("a", wheels=[bare])]})


def test_measured_size_is_kept_only_for_the_same_file(data: Data) -> None:
    stack, old = data["stacks"]["cu124"], data["locks"]["cu124"]
    text = (lock.LOCKS / stack["lock"]).read_text()
    assert lock.lock_row(stack, text, old, None, None) == old
    changed = lock.lock_row(stack, text + "zipp==3.0 --hash=sha256:" + "0" * 64 + "\n", old, None, None)
    assert changed["installed_confidence"] == "inferred"
    assert changed["installed_bytes"] == 2 * old["download_bytes"]


def test_stack_of_another_index_is_resolved_from_it() -> None:
    assert lock.index_of({"torch_index": "default"}) == ""
    assert lock.index_of({"torch_index": "cu126"}).endswith("/whl/cu126")


def test_page_of_versions_is_fresh(data: Data) -> None:
    assert docs_versions.PAGE.read_text() == docs_versions.render(data), "run make docs"


def test_page_shows_where_a_toolkit_compiles(data: Data) -> None:
    assert "debian-13" not in docs_versions.compiles_on(data["cuda"]["12.4.1"], data["systems"])
    assert "debian-13" in docs_versions.compiles_on(data["cuda"]["13.2.1"], data["systems"])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Tesla V100S-PCIE-32GB", "V100"),
        ("Tesla T4", "T4"),
    ],
)
def test_a_name_that_nvidia_smi_prints_is_found_in_the_catalogue(data: Data, name: str, model: str) -> None:
    def bare(text: str) -> str:
        return re.sub(r"nvidia|geforce|[^a-z0-9]", "", text.lower())

    found = next(row["model"] for row in data["gpus"] if bare(name) in {bare(n) for n in [row["model"], *row["names"]]})
    assert found == model
