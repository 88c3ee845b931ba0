"""Self-extracting installers: a shell header, then a compressed tar, reproducible byte for byte."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

EPOCH = 1_700_000_000  # one date for every member: the same inputs give the same file


def pack(tree: Path, *, level: int = 4) -> bytes:
    """Pack a directory as tar.gz with sorted names, root as owner and a fixed date; links stay links."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=level, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(tree.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(tree)), recursive=False, filter=plain)
    return buffer.getvalue()


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Take owner and date off a tar member."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = EPOCH
    return member


def tree_bytes(tree: Path) -> int:
    """Sum the sizes of the files of a tree."""
    return sum(path.stat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink())


def build(header: str, tree: Path, target: Path, values: dict[str, str]) -> None:
    """Write header and payload.

    The header's `@KEY@` marks are replaced by `values` and by what it needs to know about its own payload:
    `@SHA256@`, `@BYTES@` (compressed), `@KIB@` (unpacked) and `@OFFSET@` (first payload byte, counted from 1).
    """
    payload = pack(tree)
    marks = {
        **values,
        "SHA256": hashlib.sha256(payload).hexdigest(),
        "BYTES": str(len(payload)),
        "KIB": str(tree_bytes(tree) // 1024 + 1),
    }
    for key, value in marks.items():
        header = header.replace(f"@{key}@", value)
    # the offset is written with a fixed width, so that writing it does not move it
    size = len(header.replace("@OFFSET@", "0" * 10).encode())
    target.write_bytes(header.replace("@OFFSET@", f"{size + 1:010}").encode() + payload)
    target.chmod(0o755)
