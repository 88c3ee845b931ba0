"""Put cuDNN's archive into a CUDA toolkit, or look at what is there. Prints one JSON document.

Runs under the system's Python (3.8 or newer, standard library alone), handed over on standard input:
`python3 - '{"action": "look", "toolkit_prefix": "/usr/local/cuda-12.4", "version": "9.1.0.70"}'`.
The action `check` says what `put` would do and changes nothing. Exit code 3: refused, `error` says why.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOP = re.compile(r"cudnn-linux-(?P<machine>\w+?)-(?P<version>\d[\d.]*)_cuda(?P<major>\d+)[\d.]*-archive$")
SHARED = re.compile(r"libcudnn\w*\.so(?P<version>(?:\.\d+)*)$")
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.cudnnGetVersion.restype = ctypes.c_size_t
print(library.cudnnGetVersion())
"""


class RefusedError(Exception):
    """What was found, what was wanted, and the next step."""


def short(version: str) -> str:
    """Return `9.1.0` of `9.1.0.70`: what header and file names say."""
    return ".".join(version.split(".")[:3])


def number_of(version: str) -> int:
    """Return what cudnnGetVersion() answers for a version; the factor changed with cuDNN 9."""
    major, minor, patch = (int(part) for part in short(version).split("."))
    return major * (10000 if major >= 9 else 1000) + minor * 100 + patch


def header_version(folder: Path) -> str | None:
    """Return the version that a folder's header defines."""
    for name in ("cudnn_version.h", "cudnn.h"):
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        numbers = dict(re.findall(r"#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)", text))
        if len(numbers) == 3:
            return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCHLEVEL"))
    return None


def is_ours(name: str) -> bool:
    """Tell whether a file of a toolkit's include or library folder belongs to cuDNN (its frontend does not)."""
    return bool(re.match(r"libcudnn[\w.]*$|cudnn\w*\.h$", name)) and not name.startswith("cudnn_frontend")


def faults_of(folder: Path, version: str) -> list[str]:
    """Say what is wrong with the libraries of a folder: copies for links, links that lead nowhere, other versions."""
    wanted = short(version)
    names = sorted(path.name for path in folder.iterdir() if SHARED.match(path.name)) if folder.is_dir() else []
    faults = [] if f"libcudnn.so.{wanted}" in names else [f"libcudnn.so.{wanted} is missing"]
    for name in names:
        path, found = folder / name, SHARED.match(name)
        told = found.group("version").strip(".") if found else ""
        if told.count(".") >= 2:
            if told != wanted:
                faults.append(f"{name} is of another version")
            for link in (f"{name.split('.so')[0]}.so", f"{name.split('.so')[0]}.so.{told.split('.')[0]}"):
                if link not in names:
                    faults.append(f"{link} is missing")
        elif not path.is_symlink():
            faults.append(f"{name} is a copy and no link")
        elif not path.exists():
            faults.append(f"{name} leads nowhere")
    return faults


def answer_of(library: Path) -> tuple[int | None, str]:
    """Let a library say its version, in a process of its own: one that lacks parts ends it by a signal."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(library)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode != 0 or not done.stdout.strip().isdigit():
        return None, said[-1] if said else f"ended with {done.returncode}"
    return int(done.stdout), ""


def toolkit_major(prefix: Path) -> str | None:
    """Return the CUDA major that the toolkit's version.json names."""
    try:
        about = json.loads((prefix / "version.json").read_text(encoding="utf-8"))
        return str(about["cuda"]["version"]).split(".")[0]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def folders_of(prefix: Path) -> tuple[Path, Path] | None:
    """Return the toolkit's folders for headers and libraries, links followed; None without a toolkit."""
    include, library = prefix / "include", prefix / "lib64"
    if not include.is_dir() or not library.is_dir():
        return None
    return include.resolve(), library.resolve()


def loader_lists(library: Path, root: Path = Path("/etc")) -> bool:
    """Tell whether the loader's configuration names a folder already: naming it twice makes ldconfig warn."""
    for file in [root / "ld.so.conf", *sorted((root / "ld.so.conf.d").glob("*.conf"))]:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            place = line.split("#")[0].strip()
            if place.startswith("/") and os.path.realpath(place) == str(library):
                return True
    return False


def loader_knows(library: Path) -> bool:
    """Tell whether the loader's cache has libcudnn from this folder."""
    try:
        done = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    places = re.findall(r"libcudnn\.so\S* .*=> (\S+)/libcudnn", done.stdout.decode("utf-8", "replace"))
    return any(os.path.realpath(place) == str(library) for place in places)


def look(request: Mapping[str, Any]) -> dict[str, Any]:
    """Say which cuDNN a toolkit has, and whether it is whole and the one that is wanted."""
    folders = folders_of(Path(request["toolkit_prefix"]))
    if not folders:
        nothing: dict[str, Any] = {"header": None, "number": None, "faults": [], "library_dir": ""}
        return {**nothing, "present": False, "whole": False, "listed": True, "cached": True}
    include, library = folders
    header, version = header_version(include), request["version"]
    faults = faults_of(library, version)
    number, error = answer_of(library / "libcudnn.so") if not faults else (None, "")
    if error:
        faults.append(f"libcudnn.so does not answer: {error}")
    return {
        "present": header is not None or any(is_ours(path.name) for path in library.iterdir()),
        "whole": not faults and header == short(version) and number == number_of(version),
        "header": header,
        "number": number,
        "faults": faults,
        "library_dir": str(library),
        "listed": loader_lists(library),
        "cached": loader_knows(library),
    }


def check_archive(archive: Path, sha256: str) -> None:
    """Compare the archive with its checksum; a wrong one is removed, or every later run would meet it again."""
    if not archive.is_file():
        raise RefusedError(
            f"{archive} is not on the host. Next step: fetch it (role prefetch does), or put it there by hand; "
            f"wanted sha256 {sha256}"
        )
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != sha256.lower():
        size = archive.stat().st_size
        archive.unlink()
        raise RefusedError(
            f"{archive} was cut off or altered: found sha256 {digest.hexdigest()} ({size} bytes), wanted {sha256}. "
            "Nothing was unpacked, and the file is removed. Next step: run again, it is fetched anew"
        )


def check_name(top: str, request: Mapping[str, Any], machine: str) -> None:
    """Compare what the archive's folder says of itself with what is wanted: version, CUDA major, machine."""
    found = TOP.match(top)
    if not found:
        raise RefusedError(f"the archive holds {top!r}, wanted cudnn-linux-MACHINE-VERSION_cudaMAJOR-archive")
    wanted = {
        "machine": {"aarch64": "sbsa"}.get(machine, machine),
        "version": str(request["version"]),
        "major": str(request["cuda_major"]),
    }
    wrong = [f"{key} {found.group(key)} (wanted {value})" for key, value in wanted.items() if found.group(key) != value]
    if wrong:
        wrong = [text.replace("major ", "built for CUDA ") for text in wrong]
        raise RefusedError(
            f"the archive {top} is another one: {', '.join(wrong)}. Nothing was unpacked. Next step: the archive for "
            f"CUDA {request['cuda_major']}, cuDNN {request['version']}"
        )


def unpack(archive: Path, request: Mapping[str, Any], stage: Path, machine: str) -> None:
    """Unpack the archive's include/ and lib/ into a folder; links stay links, and nothing can lead out of it."""
    with tarfile.open(str(archive), "r|*") as tar:
        checked = False
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if not checked:
                check_name(parts[0] if parts else "", request, machine)
                checked = True
            if len(parts) != 3 or parts[1] not in ("include", "lib") or not is_ours(parts[2]):
                continue
            target = stage / parts[1] / parts[2]
            target.parent.mkdir(exist_ok=True)
            if member.issym():
                if "/" in member.linkname:
                    raise RefusedError(f"the archive's link {member.name} leads out of it, to {member.linkname}")
                target.symlink_to(member.linkname)
            elif member.isfile():
                source = tar.extractfile(member)
                if source:
                    with source, target.open("wb") as file:
                        shutil.copyfileobj(source, file, 1 << 20)
                target.chmod(0o755 if member.mode & 0o111 else 0o644)


def check_stage(stage: Path, version: str) -> None:
    """Make sure that what was unpacked is whole and of one version."""
    header = header_version(stage / "include")
    faults = faults_of(stage / "lib", version)
    if header != short(version):
        faults.insert(0, f"its header says {header}")
    if faults:
        raise RefusedError(f"the archive of cuDNN {version} is not whole: {', '.join(faults[:4])}")


def move(source: Path, target: Path) -> None:
    """Move a file or a link over what is there."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if target.is_symlink() or target.exists():
            target.unlink()
        shutil.move(str(source), str(target))


def place(stage: Path, include: Path, library: Path) -> dict[str, int]:
    """Move libraries, then remove those of other versions, then move the headers: they name the version last."""
    moved, removed = 0, 0
    for source, target in ((stage / "lib", library), (stage / "include", include)):
        new = {path.name for path in source.iterdir()}
        # Files before links, so that no link leads nowhere in between.
        for path in sorted(source.iterdir(), key=lambda path: (path.is_symlink(), path.name == "cudnn_version.h")):
            move(path, target / path.name)
            moved += 1
        for old in [path for path in target.iterdir() if is_ours(path.name) and path.name not in new]:
            old.unlink()
            removed += 1
    return {"moved": moved, "removed": removed}


def stage_beside(tmp_dir: str, library: Path) -> Path:
    """Return a new folder to unpack into, on the toolkit's file system: moving from there is one rename a file."""
    folder = Path(tmp_dir) if tmp_dir else library
    if tmp_dir and not folder.is_dir():
        folder.mkdir(parents=True, mode=0o755)
    if folder.stat().st_dev != library.stat().st_dev:
        folder = library
    return Path(tempfile.mkdtemp(prefix=".cudnn-", dir=str(folder)))


def put(request: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
    """Put cuDNN into the toolkit unless it is there; with `check` only say so."""
    prefix, version = Path(request["toolkit_prefix"]), str(request["version"])
    major = toolkit_major(prefix)
    folders = folders_of(prefix)
    if major and major != str(request["cuda_major"]):
        raise RefusedError(
            f"the toolkit in {prefix} is CUDA {major}, wanted CUDA {request['cuda_major']} for this archive of cuDNN {version}. "
            "Their libraries have the same names, so they are not mixed. Next step: the archive for "
            f"CUDA {major}, or another toolkit_prefix"
        )
    found = look(request)
    there = f"cuDNN {found['header'] or 'of an unknown version'}" if found["present"] else "no cuDNN"
    if found["whole"]:
        return {**found, "changed": False, "did": ""}
    if check:
        return {**found, "changed": True, "did": f"Would put cuDNN {version} into {prefix}, which has {there}."}
    if not folders:
        raise RefusedError(
            f"there is no toolkit in {prefix} (no include and lib64). Next step: the role cuda_toolkit first"
        )
    archive = Path(request["archive"])
    check_archive(archive, request["sha256"])
    stage = stage_beside(request.get("tmp_dir") or "", folders[1])
    try:
        unpack(archive, request, stage, platform.machine())
        check_stage(stage, version)
        counts = place(stage, *folders)
    except (tarfile.TarError, EOFError, OSError) as error:
        free = shutil.disk_usage(str(stage)).free
        raise RefusedError(
            f"{archive} could not be unpacked: {error} ({free} bytes are free beside {stage}). Next step: more room, or "
            "remove the file and run again"
        ) from error
    finally:
        shutil.rmtree(str(stage), ignore_errors=True)
    did = (
        f"put {counts['moved']} files of cuDNN {version} into {prefix}, which had {there}; removed {counts['removed']}"
    )
    return {**look(request), "changed": True, "did": did}


def main(arguments: Iterable[str]) -> int:
    """Do what the request says; 3 when it is refused."""
    request = json.loads(next(iter(arguments)))
    try:
        if request["action"] == "look":
            answer = {**look(request), "changed": False, "did": ""}
        else:
            answer = put(request, check=request["action"] == "check")
    except RefusedError as error:
        sys.stdout.write(json.dumps({"error": f"{error}."}) + "\n")
        return 3
    sys.stdout.write(json.dumps({**answer, "error": ""}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
