"""Look at a CUDA toolkit and at what its installer and its compiler need. Reads only, prints one JSON document.

Runs under the system's Python (3.8 or newer, standard library alone), handed over on standard input:
`python3 - '{"prefix": "/usr/local/cuda-12.4", "version": "12.4.1", "gcc_max": 13}'`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OLDEST_GCC = 7
LOGS = ("/var/log/cuda-installer.log", "/tmp/cuda-installer.log")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SONAME = "libxml2.so.2"
TAIL = 12  # lines of a log that are shown


def said(argv: list[str], limit: float = 20.0) -> str:
    """Return what a command prints, nothing when it fails; `limit` in seconds."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def text_of(path: Path) -> str:
    """Return a file's text, nothing when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def major(text: str) -> int | None:
    """Return the major version that `gcc -dumpversion` or a package's version (4:12.2.0-3) names."""
    found = re.match(r"(?:\d+:)?(\d+)", text.strip())
    return int(found.group(1)) if found else None


def cuda_version(prefix: Path) -> str | None:
    """Return the version that version.json names."""
    try:
        return str(json.loads(text_of(prefix / "version.json"))["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        return None


def nvcc_release(text: str) -> str | None:
    """Return `12.4` of what `nvcc --version` prints."""
    found = re.search(r"release (\d+\.\d+),", text)
    return found.group(1) if found else None


def look_at_link(path: str) -> dict[str, Any]:
    """Say what is at a path: absent, link, directory or file; `target` as written, `leads_to` followed to its end."""
    if not path:
        return {"kind": "absent", "target": "", "leads_to": ""}
    place = Path(path)
    if place.is_symlink():
        return {"kind": "link", "target": os.readlink(path), "leads_to": os.path.realpath(path)}  # noqa: PTH115, Python 3.8
    kind = "directory" if place.is_dir() else "file" if place.exists() else "absent"
    return {"kind": kind, "target": "", "leads_to": ""}


def free_name(prefix: Path, version: str | None) -> str:
    """Return where a directory that is in the way can be set aside: beside it, under its own version if that is free."""
    names = [f"cuda-{version}"] if version else []
    names += [f"{prefix.name}.set-aside"] + [f"{prefix.name}.set-aside-{number}" for number in range(2, 100)]
    return str(next(path for path in (prefix.parent / name for name in names) if not os.path.lexists(str(path))))


def parse_policy(text: str) -> dict[str, str]:
    """Read `apt-cache policy`: package -> the version that it would install."""
    candidates = {}
    name = ""
    for line in text.splitlines():
        heading = re.match(r"(\S+):$", line)
        candidate = re.match(r"\s+Candidate: (\S+)$", line)
        if heading:
            name = heading.group(1)
        elif candidate and candidate.group(1) != "(none)":
            candidates[name] = candidate.group(1)
    return candidates


def choose_packages(
    *, compiler: bool, default: int | None, gcc_max: int, soname: bool, candidates: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Choose what to install; `compiler` and `soname` say what is there already.

    Returns the packages, and for what no package helps: what was found, what was wanted, and a way out.
    """
    packages, problems = [], []
    if not compiler:
        distribution = major(candidates.get("g++", ""))
        if default is None and distribution is not None and distribution <= gcc_max:
            packages.append("g++")
        else:
            fitting = [
                number
                for number in range(gcc_max, OLDEST_GCC - 1, -1)
                if f"g++-{number}" in candidates and f"gcc-{number}" in candidates
            ]
            if fitting:
                packages += [f"gcc-{fitting[0]}", f"g++-{fitting[0]}"]
            else:
                found = (
                    f"gcc {default}" if default else f"g++ {distribution} in the packages" if distribution else "none"
                )
                problems.append(
                    f"compiler: found {found}, wanted gcc and g++ {gcc_max} or older, which no package source of this "
                    "host has. Next step: a stack with a newer CUDA, or a package source with an older g++"
                )
    if not soname:
        if "libxml2" in candidates:
            packages.append("libxml2")
        else:
            problems.append(
                f"library of the installer: found no {SONAME}, and no package libxml2 that brings it. Next step: a "
                "distribution that has it (Debian 12 or 13, Ubuntu 22.04 or 24.04)"
            )
    return packages, problems


def compilers_beside(gcc_max: int, path: str) -> list[int]:
    """Return the majors up to `gcc_max` of which gcc-N and g++-N are there, newest first."""
    return [
        number
        for number in range(gcc_max, OLDEST_GCC - 1, -1)
        if shutil.which(f"gcc-{number}", path=path) and shutil.which(f"g++-{number}", path=path)
    ]


def default_compiler(path: str) -> int | None:
    """Return the major of the compiler that nvcc takes by itself; None unless both gcc and g++ are there."""
    found = []
    for name in ("gcc", "g++"):
        program = shutil.which(name, path=path)
        version = major(said([program, "-dumpversion"])) if program else None
        if version is None:
            return None
        found.append(version)
    return max(found)


def own_compiler(prefix: Path) -> int | None:
    """Return the major of the compiler that this toolkit has for itself; None when its nvcc takes the default."""
    try:
        with (prefix / "bin" / "nvcc").open("rb") as file:
            head = file.read(4096)
    except OSError:
        return None
    if not head.startswith(b"#!") or b"/host-compiler:" not in head:
        return None
    return major(said([str(prefix / "host-compiler" / "g++"), "-dumpversion"]))


def log_lines(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the lines of logs that tell of errors, and the last lines."""
    lines = [line.rstrip() for text in texts for line in text.splitlines() if line.strip()]
    telling = re.compile(r"error|fail|fault|no space|not enough|cannot|denied", re.IGNORECASE)
    return {"errors": [line for line in lines if telling.search(line)][-TAIL:], "tail": lines[-TAIL:]}


def free_space(paths: Iterable[str]) -> dict[str, int]:
    """Return the free bytes at each path, or at the nearest directory above that is there."""
    result = {}
    for path in filter(None, paths):
        place = Path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        result[path] = shutil.disk_usage(str(place)).free
    return result


def look(request: Mapping[str, Any]) -> dict[str, Any]:
    """Look at one toolkit; keys of the request: prefix, version, nvcc_release, link, runfile, tmp_dir, gcc_max."""
    prefix = Path(request["prefix"])
    gcc_max = int(request["gcc_max"])
    path = os.environ.get("PATH") or SYSTEM_PATH
    marker = prefix.parent / f".{prefix.name}.unfinished"
    unfinished = marker.exists()
    version = cuda_version(prefix)
    release = nvcc_release(said([str(prefix / "bin" / "nvcc"), "--version"]))
    whole = not unfinished and version == request["version"] and release == request["nvcc_release"]

    default = default_compiler(path)
    beside = compilers_beside(gcc_max, path)
    default_fits = default is not None and default <= gcc_max
    own = own_compiler(prefix)
    sonames = sorted(set(re.findall(r"libxml2\.so\.\d+", said(["/sbin/ldconfig", "-p"]))))
    missing = {"compiler": default_fits or bool(beside), "soname": whole or SONAME in sonames}
    packages: list[str] = []
    problems: list[str] = []
    if not all(missing.values()):
        names = ["g++", "libxml2"]
        names += [f"{name}-{number}" for number in range(gcc_max, OLDEST_GCC - 1, -1) for name in ("gcc", "g++")]
        # Without these options root's apt-cache writes its caches, also in check mode.
        policy = ["apt-cache", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "policy", *names]
        candidates = parse_policy(said(policy, 60.0))
        packages, problems = choose_packages(**missing, default=default, gcc_max=gcc_max, candidates=candidates)

    return {
        "exists": os.path.lexists(str(prefix)),
        "empty": prefix.is_dir() and not any(prefix.iterdir()),
        "unfinished": unfinished,
        "marker": str(marker),
        "version": version,
        "nvcc_release": release,
        "whole": whole,
        "aside": free_name(prefix, version),
        "has_compat": (prefix / "compat").is_dir(),
        "link": look_at_link(request.get("link") or ""),
        "linked": os.path.realpath(request.get("link") or prefix) == os.path.realpath(str(prefix)),
        "vendor_link": look_at_link("/usr/local/cuda"),
        "loader_files": sorted(
            path.name for path in Path("/etc/ld.so.conf.d").glob("*.conf") if f"{prefix}/" in text_of(path)
        ),
        "default_gcc": default,
        # The compiler for nvcc when the default is missing or too new: 0 means that the default does.
        "host_gcc": 0 if default_fits or not beside else beside[0],
        "compiler_set": default_fits or (own is not None and own <= gcc_max),
        "sonames": sonames,
        "packages": packages,
        "problems": problems,
        "ready": all(missing.values()),
        "runfile_is_there": Path(request.get("runfile") or "/").is_file(),
        "tmp_dir_is_there": Path(request.get("tmp_dir") or "/").is_dir(),
        "parent_is_there": prefix.parent.is_dir(),
        "log": log_lines(text_of(Path(path)) for path in LOGS),
        "free": free_space([request.get("tmp_dir") or "", str(prefix.parent)]),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look(json.loads(sys.argv[1]))) + "\n")
