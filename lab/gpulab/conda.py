"""The Miniconda stand-in: the vendor's file name and flags around Debian's Python and a real conda solver."""

from __future__ import annotations

import bz2
import functools
import hashlib
import io
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab import fetch, selfextract
from gpulab.base import LAB_DIR, Home, LabError, cache_key
from gpulab.engine import Engine
from gpulab.images import BASE_NAMES, Images, reference
from gpulab.store import Artefact, Stored, ensure

SOURCES = LAB_DIR / "standins" / "conda"
PYTHON_VERSION = "3.11.2"  # what Debian 12 has
BUILD = "0_standin"
PIP_VERSION = "25.3"
RATTLER = "py-rattler==0.28.0"
SITE = "lib/python3.11/site-packages"
CHANNEL = "/conda/conda-forge"
DEFAULT = "Miniconda3-py311_26.5.3-1-Linux-x86_64.sh"

# The shell finds the Python beside the script: the package needs no prefix written into it.
PIP_SCRIPT = """#!/bin/sh
'''exec' "$(dirname "$(readlink -f "$0")")/python3.11" "$0" "$@"
' '''
import sys
from pip._internal.cli.main import main
sys.exit(main())
"""


def conda_version(file: str) -> tuple[str, str]:
    """Read (`26.5.3`, `26.5.3-1`) out of an installer's name."""
    match = re.fullmatch(r"Miniconda3-py311_((\d+\.\d+\.\d+)-\d+)-Linux-x86_64\.sh", file)
    if not match:
        raise LabError(f"found installer name {file!r}, wanted one like {DEFAULT} (the stand-in has Python 3.11 only)")
    return match[2], match[1]


@dataclass(frozen=True)
class Package:
    """A conda package of the lab's channel."""

    name: str
    version: str
    depends: tuple[str, ...]
    license: str

    @property
    def file(self) -> str:
        """Name of the package file."""
        return f"{self.name}-{self.version}-{BUILD}.tar.bz2"

    def record(self) -> dict[str, Any]:
        """The entry in repodata.json, but for the checksums."""
        return {
            "name": self.name,
            "version": self.version,
            "build": BUILD,
            "build_number": 0,
            "depends": list(self.depends),
            "arch": "x86_64",
            "platform": "linux",
            "subdir": "linux-64",
            "license": self.license,
            "timestamp": selfextract.EPOCH * 1000,
        }


PYTHON = Package("python", PYTHON_VERSION, ("pip",), "PSF-2.0")  # as conda: whoever asks for Python gets pip
PIP = Package("pip", PIP_VERSION, ("python >=3.9",), "MIT")


def package_artefacts(engine: Engine, images: Images) -> list[Artefact]:
    """Describe the packages of the channel: Python and pip."""
    sources = [SOURCES / "build-python.sh", Path(__file__), Path(selfextract.__file__)]
    return [
        Artefact(
            url_path=f"{CHANNEL}/linux-64/{PYTHON.file}",
            key=cache_key(*sources),
            build=lambda target: _build_python(engine, images, target),
        ),
        Artefact(url_path=f"{CHANNEL}/linux-64/{PIP.file}", key=cache_key(*sources), build=_build_pip),
    ]


def installer_artefact(home: Home, engine: Engine, images: Images, file: str = DEFAULT) -> Artefact:
    """Describe the installer; it carries the package, so that it needs no network."""
    version, release = conda_version(file)
    packages = package_artefacts(engine, images)
    sources = [SOURCES / name for name in ("header.sh", "conda_cli.py", "conda.sh", "activate", "deactivate")]
    build: Callable[[Path], None] = functools.partial(_build_installer, home, packages, version, release)
    return Artefact(
        url_path=f"/miniconda/{file}",
        key=cache_key([package.key for package in packages], RATTLER, file, *sources),
        build=build,
    )


def repodata(packages: Iterable[Stored]) -> dict[str, str]:
    """Render the channel's two repodata.json, by path below the channel."""
    known = {package.file: package for package in (PYTHON, PIP)}
    records = {
        row.path.name: known[row.path.name].record()
        | {
            "size": row.size,
            "sha256": row.sha256,
            "md5": hashlib.md5(row.path.read_bytes(), usedforsecurity=False).hexdigest(),
        }
        for row in packages
    }
    full = {"info": {"subdir": "linux-64"}, "packages": records, "packages.conda": {}, "repodata_version": 1}
    empty = {"info": {"subdir": "noarch"}, "packages": {}, "packages.conda": {}, "repodata_version": 1}
    return {"linux-64/repodata.json": json.dumps(full), "noarch/repodata.json": json.dumps(empty)}


def _build_python(engine: Engine, images: Images, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lab-python-", dir=target.parent) as scratch:
        images.ensure_base("bookworm")
        script = (SOURCES / "build-python.sh").read_text()
        fetch.in_container(engine, reference(BASE_NAMES["bookworm"]), script, Path(scratch), timeout=600)
        _pack(PYTHON, Path(scratch) / "python", target)


def _build_pip(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lab-pip-", dir=target.parent) as scratch:
        tree = Path(scratch) / "tree"
        wheel = fetch.wheels([f"pip=={PIP_VERSION}"], Path(scratch) / "wheels")["pip"]
        shutil.unpack_archive(wheel, tree / SITE, "zip")
        (tree / "bin").mkdir()
        for name in ("pip", "pip3", "pip3.11"):
            (tree / "bin" / name).write_text(PIP_SCRIPT)
            (tree / "bin" / name).chmod(0o755)
        _pack(PIP, tree, target)


def _pack(package: Package, tree: Path, target: Path) -> None:
    """Write a conda package, the same bytes every time."""
    _write_info(package, tree)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            if path.is_file() or path.is_symlink():
                tar.add(path, arcname=str(path.relative_to(tree)), recursive=False, filter=selfextract.plain)
    target.write_bytes(bz2.compress(archive.getvalue(), 1))


def _write_info(package: Package, tree: Path) -> None:
    """Write info/ as a conda package has it."""
    rows = []
    for path in sorted(tree.rglob("*")):
        if not (path.is_file() or path.is_symlink()):
            continue
        content = path.read_bytes()
        rows.append(
            {
                "_path": str(path.relative_to(tree)),
                "path_type": "softlink" if path.is_symlink() else "hardlink",
                "sha256": hashlib.sha256(content).hexdigest(),
                "size_in_bytes": len(content),
            }
        )
    info = tree / "info"
    info.mkdir()
    (info / "index.json").write_text(json.dumps(package.record()))
    (info / "paths.json").write_text(json.dumps({"paths": rows, "paths_version": 1}))
    (info / "files").write_text("".join(f"{row['_path']}\n" for row in rows))


def _build_installer(home: Home, packages: list[Artefact], version: str, release: str, target: Path) -> None:
    stored = [ensure(home, package) for package in packages]
    with tempfile.TemporaryDirectory(prefix="lab-conda-", dir=target.parent) as scratch:
        work = Path(scratch)
        tree = work / "tree"
        tree.mkdir()
        for row in stored:
            shutil.unpack_archive(row.path, tree, "bztar")
            shutil.rmtree(tree / "info")
        rattler = fetch.wheels([RATTLER], work / "wheels")["py-rattler"]
        shutil.unpack_archive(rattler, tree / SITE, "zip")
        places = {
            "conda_cli.py": "bin/conda",
            "activate": "bin/activate",
            "deactivate": "bin/deactivate",
            "conda.sh": "etc/profile.d/conda.sh",
        }
        for source, place in places.items():
            file = tree / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text((SOURCES / source).read_text().replace("@CONDA_VERSION@", version))
            file.chmod(0o755 if place.startswith("bin/") else 0o644)
        channel = tree / "standin-channel"
        for path, text in repodata(stored).items():
            (channel / path).parent.mkdir(parents=True, exist_ok=True)
            (channel / path).write_text(text)
        for row in stored:
            shutil.copy2(row.path, channel / "linux-64" / row.path.name)
        meta = tree / "conda-meta"
        meta.mkdir()
        (meta / "history").write_text("==> gpu-bootstrap lab stand-in <==\n")
        installed = [(package.name, package.version, BUILD) for package in (PYTHON, PIP)]
        for name, number, build in [("conda", version, "py311_standin"), *installed]:
            record = {
                "name": name,
                "version": number,
                "build": build,
                "build_number": 0,
                "channel": "stand-in",
                "files": [],
            }
            (meta / f"{name}-{number}-{build}.json").write_text(json.dumps(record))
        (tree / "STAND-IN.txt").write_text(
            f"gpu-bootstrap lab: this is not Miniconda3 {release}, it stands in for it in tests.\n"
        )
        selfextract.build(
            (SOURCES / "header.sh").read_text(), tree, target, {"VERSION": release, "PYTHON": PYTHON_VERSION}
        )
