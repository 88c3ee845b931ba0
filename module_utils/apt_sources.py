"""Apt's sources as files hold them: entries with their place, and how one is switched off. Standard library only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A backup that apt passes over without a word (Dir::Ignore-Files-Silently).
BACKUP = ".gpu-bootstrap.save"
# What tells NVIDIA's repositories and mirrors of them, in an address.
VENDOR = r"/compute/(cuda|machine-learning)/repos/|/nvidia-cuda/"


class Entry(NamedTuple):
    """One source that apt reads: a line of a .list file, or a paragraph of a .sources file."""

    file: str
    first: int  # line numbers from 0, the last one included
    last: int
    addresses: tuple[str, ...]
    signed_by: str

    @property
    def text(self) -> str:
        """The entry in words, for messages."""
        return f"{', '.join(self.addresses)} in {self.file}"


def parse_entries(text: str, file: str = "") -> list[Entry]:
    """Every active entry of a file in either format; commented and disabled ones are left out."""
    return _lines(text, file) + _paragraphs(text, file)


def _lines(text: str, file: str) -> list[Entry]:
    found = []
    for number, line in enumerate(text.splitlines()):
        match = re.match(r"\s*deb(?:-src)?\s+(?:\[([^\]]*)\]\s+)?(\S+:/\S*)", line)
        if match:
            signed_by = re.search(r"signed-by=([^\s\]]+)", match.group(1) or "", re.IGNORECASE)
            found.append(Entry(file, number, number, (match.group(2),), signed_by.group(1) if signed_by else ""))
    return found


def _paragraphs(text: str, file: str) -> list[Entry]:
    found: list[Entry] = []
    fields: dict[str, str] = {}
    first, name = 0, ""
    lines = text.splitlines()
    for number, line in enumerate([*lines, ""]):
        if not line.strip():
            if fields.get("uris") and fields.get("enabled", "yes").lower() not in ("no", "false"):
                addresses = tuple(fields["uris"].split())
                found.append(Entry(file, first, number - 1, addresses, fields.get("signed-by", "").strip()))
            fields, first, name = {}, number + 1, ""
            continue
        match = re.match(r"([A-Za-z-]+):[ \t]*(.*)$", line)
        if line.startswith("#"):
            continue
        if match:
            name = match.group(1).lower()
            fields[name] = match.group(2)
        elif name and line[0] in " \t":
            fields[name] += " " + line.strip()
    return found


def switch_off(text: str, entries: Iterable[Entry]) -> str:
    """The file's text with these entries of it switched off: commented, or with `Enabled: no`."""
    lines = text.splitlines()
    for entry in sorted(entries, key=lambda e: e.first, reverse=True):
        if re.match(r"\s*deb", lines[entry.first]):
            lines[entry.first] = f"# {lines[entry.first]}"
            continue
        kept = [line for line in lines[entry.first : entry.last + 1] if not re.match(r"enabled:", line, re.IGNORECASE)]
        lines[entry.first : entry.last + 1] = ["Enabled: no", *kept]
    return "\n".join(lines) + "\n"


def repository(address: str) -> str:
    """What an address leads to whatever the server: two entries of one repository differ in nothing behind this."""
    match = re.search(r"((?:cuda|machine-learning)/repos/[^/\s]+/[^/\s]+)", address)
    return match.group(1) if match else re.sub(r"^\w+://", "", address).rstrip("/")


def superfluous(entries: Iterable[Entry], preferred: str, keyrings: Mapping[str, bool]) -> list[tuple[Entry, Entry]]:
    """Entries that lead where another one leads already: (the one to switch off, the one that is kept).

    Kept is the preferred file's, else one whose keyring is there, else the first; `keyrings` says which paths exist.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        for target in dict.fromkeys(repository(address) for address in entry.addresses):
            groups.setdefault(target, []).append(entry)
    found = []
    for group in groups.values():
        kept = sorted(group, key=lambda e: (e.file != preferred, not keyrings.get(e.signed_by, False)))[0]
        found += [(entry, kept) for entry in group if entry != kept and len(entry.addresses) == 1]
    return found
