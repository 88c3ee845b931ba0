"""Look at the cuDNN of a toolkit, or unpack an archive into it. Runs on the host, under its own Python (3.8 or newer).

Usage: cudnn.py look|install REQUEST, where REQUEST is JSON: {"prefix", "version", "archive", "sha256", "cuda_major"}.
Prints one JSON document. `install` leaves nothing half done: everything is checked in a directory beside the target
before the first old file is removed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOADER_FILE = "/etc/ld.so.conf.d/000-gpu-bootstrap-cudnn.conf"


class CudnnError(Exception):
    """Why nothing was installed, as a sentence for the user."""


def header_version(include: Path) -> str:
    """Return the version of the headers in a directory, such as "9.1.0"; empty when there are none."""
    header = include / "cudnn_version.h"
    if not header.is_file():
        return ""
    text = header.read_text(encoding="utf-8", errors="replace")
    parts = [re.search(rf"#define\s+CUDNN_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCHLEVEL")]
    return ".".join(match.group(1) for match in parts if match)


def spoken_version(number: int) -> str:
    """Turn what cudnnGetVersion() returns into a version: 90100 -> 9.1.0 (before 9: 8907 -> 8.9.7)."""
    if number >= 90000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def library_version(library: Path) -> str:
    """Ask the library itself; empty when it can't be loaded."""
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cudnnGetVersion())"
    # A process of its own: a library that can't be loaded must not take this program with it.
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)], capture_output=True, text=True, timeout=60, check=False
    )
    return spoken_version(int(done.stdout)) if done.returncode == 0 and done.stdout.strip().isdigit() else ""


def links_are_links(lib: Path) -> bool:
    """Whether every libX.so and libX.so.N is a link to a file that is there (copies make three files of one)."""
    names = list(lib.glob("libcudnn*.so")) + [path for path in lib.glob("libcudnn*.so.*") if path.name.count(".") == 2]
    return bool(names) and all(path.is_symlink() and path.exists() for path in names)


def loader_knows(lib: Path) -> bool:
    """Whether the loader's cache leads to the libraries of this directory first."""
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin") or "/sbin/ldconfig"
    cache = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    for line in cache.splitlines():
        match = re.match(r"\s*libcudnn\.so\.\d+ .*=> (\S+)", line)
        if match:
            return Path(match.group(1)).resolve().parent == lib.resolve()
    return False


def toolkit_major(prefix: Path) -> str:
    """Return the CUDA major version of a toolkit, from its version.json or its directory's name."""
    file = prefix / "version.json"
    if file.is_file():
        return str(json.loads(file.read_text(encoding="utf-8"))["cuda"]["version"]).split(".")[0]
    match = re.search(r"cuda-(\d+)", prefix.name)
    return match.group(1) if match else ""


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Say what is there and whether it is what was asked for."""
    prefix = Path(request["prefix"])
    include, lib = prefix / "include", prefix / "lib64"
    wanted = ".".join(request["version"].split(".")[:3])
    found = header_version(include)
    libraries = sorted(lib.glob("libcudnn.so.*.*.*"))
    spoken = library_version(libraries[0]) if len(libraries) == 1 else ""
    links = links_are_links(lib)
    known = loader_knows(lib)
    return {
        "toolkit": prefix.is_dir(),
        "header": found,
        "library": spoken,
        "libraries": [path.name for path in libraries],
        "links": links,
        "loader": known,
        "settled": found == wanted and spoken == wanted and links and known,
    }


def check_archive(request: dict[str, Any]) -> None:
    """Refuse an archive of another CUDA, a missing one, and one whose checksum differs; the last is removed."""
    archive, major = Path(request["archive"]), str(request["cuda_major"])
    named = re.search(r"_cuda(\d+)-archive", archive.name)
    if named and named.group(1) != major:
        raise CudnnError(f"{archive.name} is for CUDA {named.group(1)}, wanted one for CUDA {major}")
    found = toolkit_major(Path(request["prefix"]))
    if found != major:
        raise CudnnError(
            f"the toolkit in {request['prefix']} is CUDA {found or 'of unknown version'}, wanted CUDA {major}: install it first (component cuda_toolkit)"
        )
    if not archive.is_file():
        raise CudnnError(f"{archive} is not there: fetch it first (step prefetch), or put it there")
    digest = hashlib.sha256()
    with archive.open("rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            digest.update(chunk)
    if digest.hexdigest() != request["sha256"]:
        archive.unlink()
        raise CudnnError(
            f"{archive} has sha256 {digest.hexdigest()}, expected {request['sha256']}: it was removed, run again to fetch it anew"
        )


def unpack(archive: Path, target: Path) -> Path:
    """Unpack into a directory and return the archive's own top directory."""
    done = subprocess.run(
        ["tar", "-xf", str(archive), "-C", str(target), "--no-same-owner"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CudnnError(f"{archive} could not be unpacked: {done.stderr.strip()[-300:]}")
    tops = [path for path in target.iterdir() if path.is_dir()]
    if len(tops) != 1 or not (tops[0] / "lib").is_dir() or not (tops[0] / "include").is_dir():
        raise CudnnError(f"{archive} has another layout than NVIDIA's: expected one directory with include/ and lib/")
    return tops[0]


def install(request: dict[str, Any]) -> dict[str, Any]:
    """Check, unpack beside the target, check again, replace; then update the loader's cache."""
    check_archive(request)
    prefix = Path(request["prefix"])
    wanted = ".".join(request["version"].split(".")[:3])
    scratch = Path(tempfile.mkdtemp(prefix=".cudnn-", dir=str(prefix)))
    try:
        top = unpack(Path(request["archive"]), scratch)
        found = header_version(top / "include")
        if found != wanted:
            raise CudnnError(f"the archive holds cuDNN {found or 'of unknown version'}, wanted {wanted}")
        if not links_are_links(top / "lib"):
            raise CudnnError(
                "the archive holds copies where links belong, so that the loader would find several libraries"
            )
        include, lib = (prefix / "include").resolve(), (prefix / "lib64").resolve()
        # One release at a time: headers of one and libraries of another fail at run time.
        for old in [*include.glob("cudnn*.h"), *lib.glob("libcudnn*")]:
            old.unlink()
        for source, directory in ((top / "include", include), (top / "lib", lib)):
            for path in sorted(source.iterdir()):
                path.replace(directory / path.name)
        for path in top.iterdir():
            if path.is_file():
                path.replace(prefix / f"cudnn-{path.name}")
    finally:
        shutil.rmtree(str(scratch), ignore_errors=True)
    Path(LOADER_FILE).write_text(
        f"# gpu-bootstrap: the stack's toolkit comes first\n{(prefix / 'lib64').resolve()}\n", encoding="utf-8"
    )
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin") or "/sbin/ldconfig"
    done = subprocess.run([ldconfig], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "libcudnn" in line]
    if complaints:
        raise CudnnError(f"ldconfig complains: {'; '.join(complaints)}")
    return look(request)


def main() -> int:
    """Run one of the two commands."""
    command, request = sys.argv[1], json.loads(sys.argv[2])
    try:
        print(json.dumps(look(request) if command == "look" else install(request)))  # noqa: T201
    except CudnnError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
