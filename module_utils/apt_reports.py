"""What apt and dpkg say, for modules on the host: locks, version tables, simulated runs. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

APT_LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)


def lock_holder(file: Path, table: str) -> int | None:
    """PID that holds a POSIX lock on a file: asked of the kernel by who may open it, else read off /proc/locks."""
    try:
        with file.open("rb") as handle:
            query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(handle, fcntl.F_GETLK, query))
            return pid if kind != fcntl.F_UNLCK and pid > 0 else None
    except FileNotFoundError:
        return None
    except OSError:
        with contextlib.suppress(OSError):
            about = file.stat()
            where = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
            match = re.search(rf"POSIX\s+\S+\s+WRITE\s+(\d+)\s+{where}\s", table)
            return int(match.group(1)) if match else None
    return None


def parse_apt_policy(text: str) -> dict[str, str]:
    """{package: candidate} of `apt-cache policy a b …`; packages without a candidate are left out."""
    found = {}
    name = ""
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith(":"):
            name = line[:-1]
        match = re.match(r"\s+Candidate:\s+(\S+)", line)
        if match and name and match.group(1) != "(none)":
            found[name] = match.group(1)
    return found


def parse_apt_offers(text: str) -> dict[str, list[dict[str, Any]]]:
    """Version tables of `apt-cache policy a b …`: {package: [{version, sources}]}, newest first.

    A source is what apt prints of it: address, suite and component, of a flat repository such as NVIDIA's the address alone.
    A version that is only installed has none.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    name = ""
    table = False
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith(":"):
            name, table = line[:-1], False
        elif line.strip() == "Version table:":
            table = True
        elif table and (match := re.match(r" (?:\*\*\*|   ) (\S+)(?: -?\d+)?(?: \(.*\))?$", line)):
            found.setdefault(name, []).append({"version": match.group(1), "sources": []})
        elif (
            table and name in found and (match := re.match(r"\s+-?\d+ (\S+)(?: (\S+)(?: \S+)?)? {1,2}Packages$", line))
        ):
            found[name][-1]["sources"].append(" ".join(part for part in match.groups() if part))
    return found


def parse_simulation(text: str) -> dict[str, list[dict[str, str]]]:
    """What `apt-get -s` would do: {installs: [{name, old, new, source}], removals: [{name, old}], downgrades, held}.

    `old` is empty for a new package. Downgrades are rows of the installs; held: [{name}] that would be changed all the same.
    """
    installs = [
        {"name": m.group(1), "old": m.group(2) or "", "new": m.group(3), "source": m.group(4) or ""}
        for m in re.finditer(
            r"^Inst (\S+)(?: \[([^\]]+)\])? \(([^\s()]+)(?: ([^\[].*?))?(?: \[[^\]]+\])?\)(?: \[.*\])?$",
            text,
            re.MULTILINE,
        )
    ]
    removals = [
        {"name": m.group(1), "old": m.group(2)}
        for m in re.finditer(r"^(?:Remv|Purg) (\S+) \[([^\]]+)\]", text, re.MULTILINE)
    ]
    lower = names_below("The following packages will be DOWNGRADED:", text)
    held = names_below("The following held packages will be changed:", text)
    return {
        "installs": installs,
        "removals": removals,
        "downgrades": [row for row in installs if row["name"] in lower],
        "held": [{"name": name} for name in held],
    }


def names_below(heading: str, text: str) -> list[str]:
    """Names that apt lists below a heading, in indented lines; versions behind them are left out."""
    names: list[str] = []
    below = False
    for line in text.splitlines():
        if not line.startswith(" "):
            below = line == heading
        elif below:
            names += re.findall(r"(?<!\S)[a-z0-9][a-z0-9+.:-]*(?!\S)", line)
    return names


def upstream_version(package_version: str) -> str:
    """The version of what is packaged: "1:535.309.01-0+deb12u1" -> "535.309.01"."""
    return re.split(r"[-~+]", package_version.rpartition(":")[2])[0]
