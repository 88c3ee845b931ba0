"""Small helpers for versions, names and sizes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
GIB = 1024**3


def version_tuple(version: object) -> tuple[int, ...]:
    """Return the leading numbers of a version ("550.54.15" -> (550, 54, 15)); ValueError when there are none."""
    if not isinstance(version, str):
        raise ValueError(
            f'version {version!r} is a {type(version).__name__}, a string was expected: quote it, as in "{version}"'
        )
    match = re.match(r"\d+(?:\.\d+)*", version)
    if not match:
        raise ValueError(f'version {version!r} does not start with a number, expected something like "12.4"')
    return tuple(int(part) for part in match.group().split("."))


def at_least(found: str, wanted: str) -> bool:
    """Compare two versions, the shorter one filled up with zeros."""
    width = max(len(version_tuple(found)), len(version_tuple(wanted)))
    padded = [version_tuple(v) + (0,) * (width - len(version_tuple(v))) for v in (found, wanted)]
    return padded[0] >= padded[1]


def major_minor(version: str) -> str:
    """Major.minor of a version: "12.4.1" -> "12.4"."""
    return ".".join(str(part) for part in version_tuple(version)[:2])


def one_of(what: str, value: object, known: Iterable[str]) -> str:
    """Return a name that is known; ValueError lists the known ones and the one that was probably meant."""
    names = list(known)
    if value in names:
        return str(value)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise ValueError(f"{what} '{value}' is unknown, expected one of: {', '.join(names)}{hint}")


def format_bytes(count: float) -> str:
    """A size for people, in powers of 1000."""
    for unit, size in (("GB", 1000**3), ("MB", 1000**2), ("kB", 1000)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{int(count)} B"


def nearest_version(wanted: str, known: Iterable[str]) -> str:
    """The version with the least distance in major, then minor."""
    return min(
        known,
        key=lambda v: (
            abs(version_tuple(v)[0] - version_tuple(wanted)[0]),
            abs(version_tuple(v)[1] - version_tuple(wanted)[1]),
        ),
    )


def normal_name(name: str) -> str:
    """A distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
