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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulab import fetch, selfextract
from gpulab.base import LAB_DIR, Home, LabError, cache_key
from gpulab.engine import Engine
from gpulab.images import BASE_NAMES, Images, reference
from gpulab.store import Artefact, Stored, ensure

SOURCES = LAB_DIR / "standins" / "conda"
PYTHON = "3.11.2"  # what Debian 12 has
BUILD = "0_standin"
PIP = "pip==25.3"
RATTLER = "py-rattler==0.28.0"
PACKAGE = f"python-{PYTHON}-{BUILD}.tar.bz2"
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


def index_record() -> dict[str, Any]:
    """The package's entry in repodata.json, but for its checksums."""
    return {
        "name": "python",
        "version": PYTHON,
        "build": BUILD,
        "build_number": 0,
        "depends": [],
        "arch": "x86_64",
        "platform": "linux",
        "subdir": "linux-64",
        "license": "PSF-2.0",
        "timestamp": selfextract.EPOCH * 1000,
    }


def package_artefact(engine: Engine, images: Images) -> Artefact:
    """Describe the conda package of Python."""
    return Artefact(
        url_path=f"{CHANNEL}/linux-64/{PACKAGE}",
        key=cache_key(SOURCES / "build-python.sh", PYTHON, PIP, Path(__file__)),
        build=lambda target: _build_package(engine, images, target),
    )


def installer_artefact(home: Home, engine: Engine, images: Images, file: str = DEFAULT) -> Artefact:
    """Describe the installer; it carries the package, so that it needs no network."""
    version, release = conda_version(file)
    package = package_artefact(engine, images)
    sources = [SOURCES / name for name in ("header.sh", "conda_cli.py", "conda.sh", "activate", "deactivate")]
    build: Callable[[Path], None] = functools.partial(_build_installer, home, package, version, release)
    return Artefact(
        url_path=f"/miniconda/{file}",
        key=cache_key(package.key, RATTLER, file, Path(selfextract.__file__), *sources),
        build=build,
    )


def repodata(package: Stored) -> dict[str, str]:
    """Render the channel's two repodata.json, by path below the channel."""
    record = index_record() | {
        "size": package.size,
        "sha256": package.sha256,
        "md5": hashlib.md5(package.path.read_bytes(), usedforsecurity=False).hexdigest(),
    }
    full = {"info": {"subdir": "linux-64"}, "packages": {PACKAGE: record}, "packages.conda": {}, "repodata_version": 1}
    empty = {"info": {"subdir": "noarch"}, "packages": {}, "packages.conda": {}, "repodata_version": 1}
    return {"linux-64/repodata.json": json.dumps(full), "noarch/repodata.json": json.dumps(empty)}


def _build_package(engine: Engine, images: Images, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lab-python-", dir=target.parent) as scratch:
        work = Path(scratch)
        images.ensure_base("bookworm")
        script = (SOURCES / "build-python.sh").read_text()
        fetch.in_container(engine, reference(BASE_NAMES["bookworm"]), script, work, timeout=600)
        tree = work / "python"
        pip = fetch.wheels([PIP], work / "wheels")["pip"]
        shutil.unpack_archive(pip, tree / "lib/python3.11/site-packages", "zip")
        for name in ("pip", "pip3", "pip3.11"):
            (tree / "bin" / name).write_text(PIP_SCRIPT)
            (tree / "bin" / name).chmod(0o755)
        _write_info(tree)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path in sorted(tree.rglob("*")):
                if path.is_file() or path.is_symlink():
                    tar.add(path, arcname=str(path.relative_to(tree)), recursive=False, filter=selfextract.plain)
        target.write_bytes(bz2.compress(archive.getvalue(), 1))


def _write_info(tree: Path) -> None:
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
    (info / "index.json").write_text(json.dumps(index_record()))
    (info / "paths.json").write_text(json.dumps({"paths": rows, "paths_version": 1}))
    (info / "files").write_text("".join(f"{row['_path']}\n" for row in rows))


def _build_installer(home: Home, package: Artefact, version: str, release: str, target: Path) -> None:
    stored = ensure(home, package)
    with tempfile.TemporaryDirectory(prefix="lab-conda-", dir=target.parent) as scratch:
        work = Path(scratch)
        tree = work / "tree"
        tree.mkdir()
        shutil.unpack_archive(stored.path, tree, "bztar")
        shutil.rmtree(tree / "info")
        rattler = fetch.wheels([RATTLER], work / "wheels")["py-rattler"]
        shutil.unpack_archive(rattler, tree / "lib/python3.11/site-packages", "zip")
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
        shutil.copy2(stored.path, channel / "linux-64" / PACKAGE)
        meta = tree / "conda-meta"
        meta.mkdir()
        (meta / "history").write_text("==> gpu-bootstrap lab stand-in <==\n")
        for name, number, build in (("conda", version, "py311_standin"), ("python", PYTHON, BUILD)):
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
        selfextract.build((SOURCES / "header.sh").read_text(), tree, target, {"VERSION": release, "PYTHON": PYTHON})
