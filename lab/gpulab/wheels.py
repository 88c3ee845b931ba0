"""Wheels: tiny ones made here, real ones given a local version, and index pages for both."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import urllib.parse
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FIXED_DATE = (2025, 1, 29, 0, 0, 0)


@dataclass(frozen=True)
class Tiny:
    """A pure-Python wheel that only says what it stands in for."""

    name: str
    version: str
    index: str
    requires: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """Name of the wheel."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def url_path(self) -> str:
        """Where the mirror serves it."""
        return f"/whl-tiny/{self.index}/{self.name}/{self.file}"


def tiny_torch(version: str, index: str, cuda: str | None) -> Tiny:
    """Make a torch that answers what roles ask: version, CUDA build, no GPU."""
    label = "tiny stand-in of the gpu-bootstrap lab: this is not torch"
    files = (
        (
            "torch/__init__.py",
            f'"""{label}."""\n\nfrom torch import backends, cuda, version\nfrom torch.version import __version__\n',
        ),
        ("torch/version.py", f"__version__ = {version!r}\ncuda = {cuda!r}\nhip = None\ngit_version = {label!r}\n"),
        (
            "torch/cuda.py",
            "def is_available():\n    return False\n\n\ndef device_count():\n    return 0\n\n\ndef get_arch_list():\n    return []\n",
        ),
        ("torch/backends/__init__.py", "from torch.backends import cudnn\n"),
        (
            "torch/backends/cudnn.py",
            f"def version():\n    return {90100 if cuda else None}\n\n\ndef is_available():\n    return False\n",
        ),
    )
    return Tiny("torch", version, index, files=files)


def tiny_set() -> list[Tiny]:
    """List the tiny wheels: cuXXX indexes as download.pytorch.org has them, `simple` as the default index."""
    cu124 = [
        tiny_torch("2.6.0+cu124", "cu124", "12.4"),
        tiny_torch("2.5.1+cu124", "cu124", "12.4"),
        Tiny("torchvision", "0.21.0+cu124", "cu124", ("torch==2.6.0",)),
        Tiny("torchaudio", "2.6.0+cu124", "cu124", ("torch==2.6.0",)),
    ]
    plain = [
        # the default index's builds, here CPU ones: what must not replace the CUDA build unseen
        tiny_torch("2.6.0", "simple", None),
        tiny_torch("2.5.1", "simple", None),
        Tiny("torchvision", "0.21.0", "simple", ("torch==2.6.0",)),
        Tiny("torchaudio", "2.6.0", "simple", ("torch==2.6.0",)),
        Tiny("xform", "0.1", "simple", ("torch==2.6.0",)),
        Tiny("xform", "0.2", "simple", ("torch>=2.5",)),
        Tiny("accelerate", "1.6.0", "simple", ("torch>=2.0",)),
        Tiny("transformers", "4.51.3", "simple"),
        Tiny("datasets", "3.5.1", "simple"),
        Tiny("peft", "0.15.2", "simple", ("torch>=1.13", "transformers", "accelerate")),
        Tiny("bitsandbytes", "0.45.5", "simple", ("torch>=2.0",)),
        Tiny("deepspeed", "0.16.7", "simple", ("torch",)),
    ]
    return [*cu124, tiny_torch("2.5.1+cu121", "cu121", "12.1"), *plain]


def make(tiny: Tiny, target: Path) -> None:
    """Write a tiny wheel, the same bytes every time."""
    package = tiny.name.replace("-", "_")
    summary = f"gpu-bootstrap lab: tiny stand-in, holds nothing of {tiny.name}"
    files = dict(tiny.files) or {f"{package}/__init__.py": f'"""{summary}."""\n\n__version__ = {tiny.version!r}\n'}
    info = f"{package}-{tiny.version}.dist-info"
    requires = "".join(f"Requires-Dist: {item}\n" for item in tiny.requires)
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {tiny.name}\nVersion: {tiny.version}\nSummary: {summary}\nRequires-Python: >=3.8\n{requires}"
    )
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: gpu-bootstrap-lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    contents = {name: text.encode() for name, text in files.items()}
    contents[f"{info}/RECORD"] = record(contents, f"{info}/RECORD")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(_entry(name), content, zipfile.ZIP_DEFLATED)


def record(contents: Mapping[str, bytes], own: str, kept: Iterable[str] = ()) -> bytes:
    """Render RECORD for `contents`, after the lines in `kept`."""
    rows = list(kept)
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(content)}")
    return ("\n".join([*rows, f"{own},,"]) + "\n").encode()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, FIXED_DATE)
    entry.external_attr = 0o100644 << 16
    return entry


def repacked_name(file: str, local: str, platform: str = "linux_x86_64") -> str:
    """Name a wheel as the cuXXX index does: torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl -> torch-2.6.0+cu124-….whl."""
    name, version, python, abi, _ = file.removesuffix(".whl").split("-")
    return f"{name}-{version}+{local}-{python}-{abi}-{platform}.whl"


def repack(source: Path, target: Path, local: str) -> None:
    """Give a real wheel a local version without recompressing it.

    All members but dist-info are copied as the bytes they are, so 767 MB take about a second. The archive is strictly
    valid: uv refuses one with local headers that the central directory lacks.
    """
    name, version = source.name.split("-")[:2]
    old, new = f"{name}-{version}.dist-info/", f"{name}-{version}+{local}.dist-info/"
    with zipfile.ZipFile(source) as reader, source.open("rb") as raw, zipfile.ZipFile(target, "w") as writer:
        infos = sorted(reader.infolist(), key=lambda info: info.header_offset)
        ends = [info.header_offset for info in infos[1:]] + [reader.start_dir]
        moved: dict[str, bytes] = {}
        stream = writer.fp
        if stream is None:
            raise ValueError(f"{target} is not open")
        for info, end in zip(infos, ends, strict=True):
            if info.filename.startswith(old):
                if not info.is_dir():
                    moved[new + info.filename.removeprefix(old)] = reader.read(info)
                continue
            raw.seek(info.header_offset)
            left = end - info.header_offset
            info.header_offset = stream.tell()
            while left:
                block = raw.read(min(left, 1 << 20))
                stream.write(block)
                left -= len(block)
            writer.filelist.append(info)
            writer.NameToInfo[info.filename] = info
        writer.start_dir = stream.tell()
        writer._didModify = True  # type: ignore[attr-defined]
        kept = [row for row in moved.pop(f"{new}RECORD").decode().splitlines() if row and not row.startswith(old)]
        metadata = moved[f"{new}METADATA"]
        moved[f"{new}METADATA"] = re.sub(
            rb"(?m)^Version: .*$", f"Version: {version}+{local}".encode(), metadata, count=1
        )
        moved[f"{new}RECORD"] = record(moved, f"{new}RECORD", kept)
        for member, content in moved.items():
            writer.writestr(_entry(member), content, zipfile.ZIP_DEFLATED)


def metadata(wheel: Path) -> bytes:
    """Read METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(
            item for item in archive.namelist() if item.count("/") == 1 and item.endswith(".dist-info/METADATA")
        )
        return archive.read(name)


def write_index(root: Path, hashes: Mapping[str, str]) -> None:
    """Write PEP 503 pages with PEP 658 metadata for each `root/<project>/*.whl`; `hashes` is file name -> sha256."""
    projects = sorted(path for path in root.iterdir() if path.is_dir())
    for project in projects:
        rows = []
        for wheel in sorted(project.glob("*.whl")):
            described = metadata(wheel)
            (project / f"{wheel.name}.metadata").write_bytes(described)
            digest = hashlib.sha256(described).hexdigest()
            rows.append(
                f'<a href="{urllib.parse.quote(wheel.name)}#sha256={hashes[wheel.name]}" '
                f'data-dist-info-metadata="sha256={digest}" data-core-metadata="sha256={digest}">{html.escape(wheel.name)}</a><br/>'
            )
        _page(project / "index.html", f"Links for {project.name}", rows)
    _page(root / "index.html", "Simple index", [f'<a href="{path.name}/">{path.name}</a><br/>' for path in projects])


def _page(file: Path, title: str, rows: list[str]) -> None:
    body = "\n".join(rows)
    meta = '<meta name="pypi:repository-version" content="1.0">'
    file.write_text(f"<!DOCTYPE html>\n<html><head>{meta}<title>{title}</title></head><body>\n{body}\n</body></html>\n")
