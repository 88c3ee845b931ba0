"""The artefact store: each artefact is built once for its inputs and kept outside the checkout."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpulab.base import Home, LabError, say, sha256_of, write_text

KEPT = 2  # builds of one artefact that stay, newest first: another checkout may use the older one


@dataclass(frozen=True)
class Artefact:
    """One file that the mirror serves."""

    url_path: str
    key: str
    build: Callable[[Path], None]  # writes the file at the given path
    quick: bool = False  # built in a blink: not worth a line

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.url_path.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Stored:
    """An artefact on the disk, with what the manifest says about it."""

    url_path: str
    path: Path
    sha256: str
    size: int


def ensure(home: Home, artefact: Artefact) -> Stored:
    """Return the artefact, building it when its key is new."""
    shelf = home.cache / "artefacts"
    place = shelf / f"{artefact.file}@{artefact.key}"
    facts = place / "facts.json"
    if not facts.exists():
        shelf.mkdir(parents=True, exist_ok=True)
        if not artefact.quick:
            say(f"building {artefact.file}")
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=shelf))
        try:
            target = scratch / artefact.file
            artefact.build(target)
            if not target.is_file():
                raise LabError(f"the builder of {artefact.file} ended without writing it")
            values = {"sha256": sha256_of(target), "size": target.stat().st_size}
            write_text(scratch / "facts.json", json.dumps(values) + "\n")
            shutil.rmtree(place, ignore_errors=True)
            scratch.rename(place)
            place.chmod(0o755)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        _prune(shelf, artefact.file)
    values = json.loads(facts.read_text())
    return Stored(artefact.url_path, place / artefact.file, values["sha256"], values["size"])


def _prune(shelf: Path, file: str) -> None:
    """Drop old builds of an artefact."""
    builds = sorted(shelf.glob(f"{file}@*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in builds[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
