"""Fetching from the package index and from Debian, with the tools that already know where those are."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from gpulab.base import LabError, run
from gpulab.engine import Engine


def pip_command() -> list[str]:
    """Return a command line that works as pip: this Python's own, or one that uv brings."""
    if run([sys.executable, "-m", "pip", "--version"], timeout=60, check=False).returncode == 0:
        return [sys.executable, "-m", "pip"]
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv:
        return [uv, "run", "--no-project", "--quiet", "--with", "pip", "python", "-m", "pip"]
    raise LabError(f"found neither pip for {sys.executable} nor uv; install one of them (`make setup` does)")


def wheels(pins: Iterable[str], target: Path, *, python: str = "3.11", timeout: float = 1200) -> dict[str, Path]:
    """Download the wheels of exact pins (`name==version`), without what they depend on.

    Returns:
        Normalised project name -> file.

    """
    wanted = list(pins)
    target.mkdir(parents=True, exist_ok=True)
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17, 12)] + [
        "manylinux2014_x86_64",
        "manylinux1_x86_64",
    ]
    flags = [item for platform in [*platforms, "linux_x86_64", "any"] for item in ("--platform", platform)]
    argv = [
        *pip_command(),
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary=:all:",
        "--python-version",
        python,
    ]
    # a constraints file or a folder of the operator's own must not answer for an exact pin
    run([*argv, *flags, "--dest", target, *wanted], timeout=timeout, env={"PIP_CONSTRAINT": os.devnull})
    found = {file.name.split("-")[0].lower().replace("_", "-"): file for file in target.glob("*.whl")}
    missing = [pin for pin in wanted if pin.split("==")[0].lower().replace("_", "-") not in found]
    if missing:
        raise LabError(f"pip ended well but brought no wheel for {', '.join(missing)}")
    return found


def members(wheel: Path, target: Path, choose: dict[str, str]) -> int:
    """Unpack parts of a wheel: `choose` maps a directory inside it to one below `target`; return how many files.

    Executable bits are kept, Python marker files are left out.
    """
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = PurePosixPath(info.filename)
            if info.is_dir() or path.name == "__init__.py":
                continue
            for source, destination in choose.items():
                if path.is_relative_to(source):
                    file = target / destination / path.relative_to(source)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as reader, file.open("wb") as writer:
                        shutil.copyfileobj(reader, writer, 1 << 20)
                    file.chmod(0o755 if (info.external_attr >> 16) & 0o111 else 0o644)
                    count += 1
                    break
    return count


def in_container(engine: Engine, image: str, script: str, folder: Path, *, timeout: float) -> None:
    """Run a root shell script in a throw-away container with `folder` mounted at /out; files come back as ours."""
    mine = "true" if engine.name == "podman" else f"chown -R {os.getuid()}:{os.getgid()} /out"
    whole = f"set -eu\ncd /out\n{script}\n{mine}\n"
    engine.call("run", "--rm", "--volume", f"{folder}:/out", image, "sh", "-c", whole, timeout=timeout)
