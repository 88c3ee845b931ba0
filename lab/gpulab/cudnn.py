"""cuDNN archive stand-ins: the vendor's name and layout around the real (smaller) libraries and all headers."""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpulab import fetch
from gpulab.base import LabError, cache_key
from gpulab.selfextract import EPOCH
from gpulab.store import Artefact

BIG = 20_000_000  # libraries above this are left out: 6 MB to serve instead of 560, five minutes of xz saved


@dataclass(frozen=True)
class Release:
    """A cuDNN release and the CUDA major it is built for."""

    version: str
    cuda_major: str
    needed: tuple[str, ...] = ()  # kept however big: cudnnGetVersion() aborts without them

    @property
    def folder(self) -> str:
        """Name of the archive's only top-level directory."""
        return f"cudnn-linux-x86_64-{self.version}_cuda{self.cuda_major}-archive"


RELEASES = {"9.1.0.70": Release("9.1.0.70", "12"), "9.26.0.51": Release("9.26.0.51", "13", ("libcudnn_graph",))}


def artefact(version: str) -> Artefact:
    """Describe the archive of a release."""
    release = RELEASES[version]
    return Artefact(
        url_path=f"/compute/cudnn/redist/cudnn/linux-x86_64/{release.folder}.tar.xz",
        key=cache_key(Path(__file__)),
        build=lambda target: _build(release, target),
    )


def _build(release: Release, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lab-cudnn-", dir=target.parent) as scratch:
        name = f"nvidia-cudnn-cu{release.cuda_major}"
        wheel = fetch.wheels([f"{name}=={release.version}"], Path(scratch))[name]
        repack(wheel, release, target)


def repack(wheel: Path, release: Release, target: Path) -> None:
    """Write the archive: lib/*.so -> *.so.9 -> *.so.9.x.y as links, include/*.h, LICENSE."""
    full = ".".join(release.version.split(".")[:3])
    with zipfile.ZipFile(wheel) as archive, tarfile.open(target, "w:xz", preset=1) as tar:
        names = sorted(archive.namelist())
        libraries = 0
        for name in names:
            path = PurePosixPath(name)
            if path.parent.name == "include" and path.suffix == ".h":
                _add(tar, f"{release.folder}/include/{path.name}", archive.read(name))
            elif path.name.lower().startswith("license"):
                _add(tar, f"{release.folder}/LICENSE", archive.read(name))
            elif match := re.fullmatch(r"(libcudnn\w*)\.so\.(\d+)", path.name):
                stem, major = match.groups()
                if archive.getinfo(name).file_size > BIG and stem not in release.needed:
                    continue
                libraries += 1
                _add(tar, f"{release.folder}/lib/{stem}.so.{full}", archive.read(name), 0o755)
                _link(tar, f"{release.folder}/lib/{stem}.so.{major}", f"{stem}.so.{full}")
                _link(tar, f"{release.folder}/lib/{stem}.so", f"{stem}.so.{major}")
    if not libraries:
        raise LabError(f"{wheel.name} holds no cuDNN library under {BIG} bytes: its layout has changed")


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), mode, EPOCH
    tar.addfile(member, io.BytesIO(content))


def _link(tar: tarfile.TarFile, name: str, to: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode, member.mtime = tarfile.SYMTYPE, to, 0o777, EPOCH
    tar.addfile(member)
