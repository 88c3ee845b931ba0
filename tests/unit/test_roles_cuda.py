"""The programs that cuda_toolkit and cudnn run on a host: what is chosen, what is refused, what stays whole."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


toolkit = load("roles/cuda_toolkit/files/look_at_toolkit.py")
cudnn = load("roles/cudnn/files/put_cudnn.py")
archive = load("molecule/cudnn/fixtures/archive.py")


# --- cuda_toolkit -----------------------------------------------------------------------------------------------------

BOOKWORM = {
    "g++": "4:12.2.0-3",
    "libxml2": "2.9.14",
    **{f"{n}-{v}": f"{v}.1" for v in (11, 12) for n in ("gcc", "g++")},
}
NOBLE = {
    "g++": "4:13.2.0-7",
    "libxml2": "2.9.14",
    **{f"{n}-{v}": f"{v}.1" for v in (11, 12, 13) for n in ("gcc", "g++")},
}


@pytest.mark.parametrize(
    ("candidates", "default", "gcc_max", "expected"),
    [
        (BOOKWORM, None, 13, ["g++"]),
        (NOBLE, None, 12, ["gcc-12", "g++-12"]),  # P60: Ubuntu 24.04 and CUDA 12.1
        (NOBLE, 13, 12, ["gcc-12", "g++-12"]),
        (BOOKWORM, 12, 11, ["gcc-11", "g++-11"]),
    ],
    ids=["distribution's own", "too new in the packages", "too new on the host", "newest that is allowed"],
)
def test_compiler_within_the_ceiling_is_chosen(
    candidates: dict[str, str], default: int | None, gcc_max: int, expected: list[str]
) -> None:
    chosen = toolkit.choose_packages(
        compiler=False, default=default, gcc_max=gcc_max, soname=True, candidates=candidates
    )
    assert chosen == (expected, [])


def test_library_of_the_installer_is_chosen_by_its_soname() -> None:
    assert toolkit.choose_packages(compiler=True, default=12, gcc_max=13, soname=False, candidates=BOOKWORM) == (
        ["libxml2"],
        [],
    )


def test_nothing_is_chosen_where_nothing_is_missing() -> None:
    assert toolkit.choose_packages(compiler=True, default=12, gcc_max=13, soname=True, candidates={}) == ([], [])


def test_host_whose_packages_do_not_help_is_told_what_would() -> None:
    """P60: a distribution that has only libxml2.so.16 and a g++ that is too new."""
    newest = {"g++": "4:15.2.0-1", "gcc-15": "15", "g++-15": "15", "libxml2-16": "2.14"}
    packages, problems = toolkit.choose_packages(
        compiler=False, default=15, gcc_max=13, soname=False, candidates=newest
    )
    assert packages == []
    assert "found gcc 15, wanted gcc and g++ 13 or older" in problems[0]
    assert "libxml2.so.2" in problems[1]


def test_candidates_of_apt_are_read() -> None:
    text = (
        "g++:\n  Installed: (none)\n  Candidate: 4:12.2.0-3\n  Version table:\n     4:12.2.0-3 500\n"
        "g++-13:\n  Installed: (none)\n  Candidate: (none)\n"
    )
    assert toolkit.parse_policy(text) == {"g++": "4:12.2.0-3"}


@pytest.mark.parametrize(
    ("text", "expected"), [("12\n", 12), ("11.4.0", 11), ("4:12.2.0-3", 12), ("", None), ("clang", None)]
)
def test_major_of_a_compiler_is_read(text: str, expected: int | None) -> None:
    assert toolkit.major(text) == expected


def make_toolkit(prefix: Path, version: str = "12.4.1", release: str = "12.4") -> None:
    (prefix / "bin").mkdir(parents=True)
    nvcc = prefix / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.131'\n")
    nvcc.chmod(0o755)
    (prefix / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": version}}))


def look(prefix: Path, **more: Any) -> dict[str, Any]:
    request = {
        "prefix": str(prefix),
        "version": "12.4.1",
        "nvcc_release": "12.4",
        "gcc_max": 13,
        "link": "",
        "tmp_dir": "",
    }
    return dict(toolkit.look({**request, **more}))


def test_whole_toolkit_is_left_alone(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda-12.4")
    assert look(tmp_path / "cuda-12.4")["whole"]


@pytest.mark.parametrize("fault", ["version", "release", "nvcc", "json", "mark"])
def test_toolkit_with_a_fault_is_not_whole(tmp_path: Path, fault: str) -> None:
    prefix = tmp_path / "cuda-12.4"
    make_toolkit(prefix, *{"version": ["12.4.0"], "release": ["12.4.1", "12.3"]}.get(fault, []))
    if fault == "nvcc":
        (prefix / "bin/nvcc").write_text("#!/bin/sh\nexit 1\n")
    if fault == "json":
        (prefix / "version.json").write_text("{")
    if fault == "mark":
        (tmp_path / ".cuda-12.4.unfinished").touch()
    assert not look(prefix)["whole"]


def test_directory_in_the_way_is_set_aside_under_a_free_name(tmp_path: Path) -> None:
    prefix = tmp_path / "cuda-12.4"
    make_toolkit(prefix, "12.4.0")
    assert look(prefix)["aside"] == str(tmp_path / "cuda-12.4.0")
    (tmp_path / "cuda-12.4.0").mkdir()
    assert look(prefix)["aside"] == str(tmp_path / "cuda-12.4.set-aside")
    (tmp_path / "cuda-12.4.set-aside").symlink_to("nowhere")
    assert look(prefix)["aside"] == str(tmp_path / "cuda-12.4.set-aside-2")


def test_link_counts_when_it_leads_to_the_toolkit_by_any_way(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda-12.4")
    link, alternative = tmp_path / "cuda", tmp_path / "alternative"
    assert not look(tmp_path / "cuda-12.4", link=str(link))["linked"]
    alternative.symlink_to(tmp_path / "cuda-12.4")
    link.symlink_to(alternative)
    assert look(tmp_path / "cuda-12.4", link=str(link))["linked"]
    link.unlink()
    link.mkdir()
    assert look(tmp_path / "cuda-12.4", link=str(link))["link"]["kind"] == "directory"


def test_toolkit_with_an_older_compiler_of_its_own_is_told_from_one_without(tmp_path: Path) -> None:
    prefix = tmp_path / "cuda-12.4"
    make_toolkit(prefix)
    assert toolkit.own_compiler(prefix) is None
    (prefix / "bin/nvcc").rename(prefix / "bin/nvcc.bin")
    (prefix / "bin/nvcc").write_bytes((ROOT / "roles/cuda_toolkit/files/nvcc").read_bytes())
    (prefix / "bin/nvcc").chmod(0o755)
    assert toolkit.own_compiler(prefix) is None, "its directory is not there"
    (prefix / "host-compiler").mkdir()
    compiler = prefix / "host-compiler/g++"
    compiler.write_text("#!/bin/sh\necho 11\n")
    compiler.chmod(0o755)
    assert toolkit.own_compiler(prefix) == 11
    assert look(prefix)["whole"], "nvcc answers through the script"


def test_nvcc_finds_its_own_compiler_first_also_through_a_link(tmp_path: Path) -> None:
    prefix = tmp_path / "cuda 12.4"
    make_toolkit(prefix)
    (prefix / "bin/nvcc").write_bytes((ROOT / "roles/cuda_toolkit/files/nvcc").read_bytes())
    (prefix / "bin/nvcc.bin").write_text('#!/bin/sh\necho "${PATH%%:*}" "$@"\n')
    (prefix / "bin/nvcc.bin").chmod(0o755)
    (tmp_path / "cuda").symlink_to(prefix)
    done = subprocess.run([tmp_path / "cuda/bin/nvcc", "-o", "a b"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{prefix}/host-compiler -o a b\n"


def test_telling_lines_of_the_log_are_found() -> None:
    log = "[INFO]: Checking\n\n[ERROR]: Install of 12.4.1 failed, quitting\ncp: error writing: No space left on device\n[INFO]: end\n"
    assert toolkit.log_lines([log])["errors"] == [
        "[ERROR]: Install of 12.4.1 failed, quitting",
        "cp: error writing: No space left on device",
    ]
    assert toolkit.log_lines(["one\n", "two\n"]) == {"errors": [], "tail": ["one", "two"]}


# --- cudnn ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries of the fixture are bytes; let each answer as its name says."""

    def answer(library: Path) -> tuple[int | None, str]:
        return cudnn.number_of(library.resolve().name.removeprefix("libcudnn.so.")), ""

    monkeypatch.setattr(cudnn, "answer_of", answer)
    monkeypatch.setattr(cudnn.platform, "machine", lambda: "x86_64")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    prefix = tmp_path / "cuda-12.4"
    script = ROOT / "molecule/cudnn/fixtures/toolkit.sh"
    text = script.read_text().replace("/lib/x86_64-linux-gnu/libm.so.6", str(script))
    subprocess.run(["/bin/sh", "-c", text, "sh", str(prefix), "12.4.1"], check=True)
    return prefix


def request(prefix: Path, version: str = "9.1.0.70", **more: Any) -> dict[str, Any]:
    """Write an archive and ask for it."""
    place = prefix.parent / "cudnn.tar.xz"
    archive.write(
        str(place),
        more.pop("packed", version),
        more.pop("major", "12"),
        more.pop("spoil", ""),
        more.pop("machine", "x86_64"),
    )
    sha256 = hashlib.sha256(place.read_bytes()).hexdigest()
    return {
        "action": "put", "version": version, "archive": str(place), "sha256": sha256, "cuda_major": "12",
        "toolkit_prefix": str(prefix), "tmp_dir": str(prefix.parent / "tmp"), **more,
    }  # fmt: skip


def tree(folder: Path) -> dict[str, str]:
    """Every path below a folder, with what it is."""
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}"
        if path.is_symlink()
        else f"{path.stat().st_mode:o} {path.read_bytes()!r}"
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_links_stay_links_and_nothing_of_another_release_is_left(answers: None, prefix: Path) -> None:
    """P69: the toolkit had a copy for each link, and headers of another release."""
    answer = cudnn.put(request(prefix), check=False)
    assert answer["changed"]
    assert answer["whole"]
    assert answer["number"] == 90100
    library = prefix / "targets/x86_64-linux/lib"
    assert str((library / "libcudnn.so").readlink()) == "libcudnn.so.9"
    assert str((library / "libcudnn.so.9").readlink()) == "libcudnn.so.9.1.0"
    assert sorted(path.name for path in library.iterdir() if "cudnn" in path.name) == sorted(
        f"{stem}.so{end}" for stem in ("libcudnn", "libcudnn_graph") for end in ("", ".9", ".9.1.0")
    )
    include = sorted(path.name for path in (prefix / "targets/x86_64-linux/include").iterdir())
    assert include == ["cudnn.h", "cudnn_frontend.h", "cudnn_version.h"]
    assert (library / "libcublas.so.12").exists()
    assert (prefix / "include/cudnn.h").stat().st_mode & 0o777 == 0o644, "every user can read it"


def test_second_run_changes_nothing_and_needs_no_archive(answers: None, prefix: Path) -> None:
    asked = request(prefix)
    cudnn.put(asked, check=False)
    Path(asked["archive"]).unlink()
    before = tree(prefix)
    assert not cudnn.put(asked, check=False)["changed"]
    assert tree(prefix) == before


def test_upgrade_removes_the_files_that_only_the_old_one_had(answers: None, prefix: Path) -> None:
    cudnn.put(request(prefix), check=False)
    (prefix / "lib64/libcudnn_gone.so.9.1.0").touch()
    answer = cudnn.put(request(prefix, "9.8.0.87"), check=False)
    assert answer["whole"]
    assert not (prefix / "lib64/libcudnn_gone.so.9.1.0").exists()
    assert cudnn.header_version(prefix / "include") == "9.8.0"


@pytest.mark.parametrize("fault", ["copy", "lost link", "dangling link", "lost library", "stray library", "header"])
def test_damage_is_noticed_and_repaired(answers: None, prefix: Path, fault: str) -> None:
    asked = request(prefix)
    cudnn.put(asked, check=False)
    library = prefix / "lib64"
    if fault in ("copy", "lost link", "dangling link"):
        (library / "libcudnn_graph.so").unlink()
    if fault == "copy":
        (library / "libcudnn_graph.so").write_bytes(b"a copy")
    if fault == "dangling link":
        (library / "libcudnn_graph.so").symlink_to("libcudnn_graph.so.8")
    if fault == "lost library":
        (library / "libcudnn.so.9.1.0").unlink()
    if fault == "stray library":
        (library / "libcudnn_ops.so.9.0.0").touch()
    if fault == "header":
        (prefix / "include/cudnn_version.h").unlink()
    assert not cudnn.look(asked)["whole"]
    assert cudnn.put(asked, check=False)["whole"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"major": "11"}, "built for CUDA 11 (wanted 12)"),
        ({"packed": "9.8.0.87"}, "version 9.8.0.87 (wanted 9.1.0.70)"),
        ({"machine": "sbsa"}, "machine sbsa (wanted x86_64)"),
        ({"spoil": "cut"}, "could not be unpacked"),
        ({"spoil": "copies"}, "is a copy and no link"),
        ({"spoil": "header"}, "its header says 9.8.7"),
        ({"spoil": "leads_out"}, "leads out of it"),
        ({"cuda_major": "13"}, "is CUDA 12, wanted CUDA 13"),
    ],
    ids=["other CUDA", "other version", "other machine", "cut", "copies", "header", "leads out", "other toolkit"],
)
def test_archive_that_does_not_fit_touches_nothing(
    answers: None, prefix: Path, more: dict[str, str], says: str
) -> None:
    asked = request(prefix, **more)
    before = tree(prefix)
    with pytest.raises(cudnn.RefusedError) as refused:
        cudnn.put(asked, check=False)
    assert says in str(refused.value)
    assert tree(prefix) == before
    assert Path(asked["archive"]).exists()
    assert list(Path(asked["tmp_dir"]).glob("*") if Path(asked["tmp_dir"]).exists() else []) == []


def test_archive_with_another_checksum_is_removed(answers: None, prefix: Path) -> None:
    asked = request(prefix)
    with Path(asked["archive"]).open("ab") as file:
        file.write(b"\0")
    before = tree(prefix)
    with pytest.raises(cudnn.RefusedError, match="found sha256 .* wanted " + asked["sha256"]):
        cudnn.put(asked, check=False)
    assert tree(prefix) == before
    assert not Path(asked["archive"]).exists()


def test_check_mode_says_what_would_be_done_and_touches_nothing(answers: None, prefix: Path, tmp_path: Path) -> None:
    asked = request(prefix)
    before = tree(tmp_path)
    answer = cudnn.put(asked, check=True)
    assert answer["changed"]
    assert "Would put cuDNN 9.1.0.70" in answer["did"]
    assert cudnn.put({**asked, "toolkit_prefix": str(tmp_path / "none")}, check=True)["changed"]
    assert tree(tmp_path) == before


def test_library_that_does_not_answer_is_not_whole(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn.platform, "machine", lambda: "x86_64")
    answer = cudnn.put(request(prefix), check=False)
    assert not answer["whole"]
    assert "does not answer" in answer["faults"][0]


@pytest.mark.parametrize(("version", "number"), [("9.1.0.70", 90100), ("9.10.2.21", 91002), ("8.9.7.29", 8907)])
def test_number_of_a_version_follows_its_release(version: str, number: int) -> None:
    assert cudnn.number_of(version) == number


def test_loader_is_told_once(tmp_path: Path) -> None:
    library = tmp_path / "targets/lib"
    library.mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("targets/lib")
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    assert not cudnn.loader_lists(library, tmp_path / "etc")
    (tmp_path / "etc/ld.so.conf.d/cuda-12-4.conf").write_text(f"# the vendor's\n{tmp_path}/lib64\n")
    assert cudnn.loader_lists(library, tmp_path / "etc")
