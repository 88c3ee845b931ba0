#!/usr/bin/python
"""Fetches apt's package lists; mends the sources of one vendor first, and names every other one that is broken."""

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.apt_reports import parse_apt_offers
from ansible.module_utils.apt_sources import BACKUP, VENDOR, Entry, parse_entries, superfluous, switch_off
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

DOCUMENTATION = r"""
module: apt_lists
short_description: Fetch the package lists past broken and doubled vendor sources
version_added: "0.2.0"
author: gpu-bootstrap
description:
  - Two entries of one repository with different keys make apt read nothing at all. Of the vendor's, one is kept.
  - A source of the vendor that apt rejects is switched off, for it serves nobody and can make every other installation fail.
  - Each file is saved beside itself before it is changed. Sources of anybody else are only named.
options:
  vendor:
    description: Regular expression on the address that tells the vendor's sources; NVIDIA's where it is left out.
    type: str
    default: /compute/(cuda|machine-learning)/repos/|/nvidia-cuda/
  preferred:
    description: File whose entry is kept where two lead to the same repository.
    type: str
    default: ""
  max_age:
    description: Lists that are younger, in seconds, are not fetched again unless a source was changed.
    type: int
    default: 0
  probe:
    description: A package that the system's own archive is sure to have; without it nothing can be installed.
    type: str
    default: g++
  timeout:
    description: Limit in seconds for fetching.
    type: int
    default: 900
attributes:
  check_mode:
    description: Says which entries it would switch off, and fetches nothing.
    support: full
"""

EXAMPLES = r"""
- name: Fetch the package lists
  apt_lists:
    max_age: 3600
"""

RETURN = r"""
switched_off:
  description: Entries of the vendor that were switched off, with the reason and the backup.
  type: list
  elements: dict
  returned: always
problems:
  description: Sources of others that apt can't use, with apt's words.
  type: list
  elements: dict
  returned: always
fetched:
  description: Whether the lists were fetched now.
  type: bool
  returned: always
"""

SOURCES = Path("/etc/apt/sources.list")
PARTS = Path("/etc/apt/sources.list.d")
LISTS = Path("/var/lib/apt/lists")
# What no second try mends; a line that is slow or down for a while is none of it.
REJECTED = re.compile(
    r"NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|not signed|[Ss]ignature|sqv|SHA1|Release file|404|Malformed|Conflicting|unsupported"
)


def read_entries(sources: Path = SOURCES, parts: Path = PARTS) -> list[Entry]:
    """Every active entry that apt would read."""
    files = [sources, *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]
    return [
        entry
        for file in files
        if file.is_file()
        for entry in parse_entries(file.read_text(encoding="utf-8", errors="replace"), str(file))
    ]


def save_and_switch_off(entries: Iterable[Entry]) -> dict[str, str]:
    """Switch entries off, each file saved beside itself once: {file: backup}."""
    by_file: dict[str, list[Entry]] = {}
    for entry in entries:
        by_file.setdefault(entry.file, []).append(entry)
    backups = {}
    for name, own in by_file.items():
        file, backup = Path(name), Path(name + BACKUP)
        number = 1
        while backup.exists():
            number += 1
            backup = Path(f"{name}.{number}{BACKUP}")
        shutil.copy2(file, backup)
        made = Path(f"{name}{BACKUP}.new")
        shutil.copy2(file, made)
        made.write_text(switch_off(file.read_text(encoding="utf-8", errors="replace"), own), encoding="utf-8")
        made.replace(file)
        backups[name] = str(backup)
    return backups


def parse_update(text: str) -> dict[str, list[str]]:
    """What `apt-get update` complains of: {address: [reasons]}; the address is "" where a line names none."""
    found: dict[str, list[str]] = {}
    address = ""
    for line in text.splitlines():
        failed = re.match(r"Err:\d+ (\S+) (.*)$", line)
        if failed:
            address = failed.group(1)
            found.setdefault(address, [])
        elif address and line.startswith("  ") and line.strip():
            found[address].append(line.strip())
        else:
            address = ""
            complaint = re.match(r"[EW]: (.*)$", line)
            if complaint and not re.match(r"[EW]: Some index files failed", line):
                named = re.search(r"\b((?:https?|file|ftp|mirror|cdrom|copy):/\S*?)[',]?(?:\s|$)", line)
                found.setdefault(named.group(1) if named else "", []).append(complaint.group(1).strip())
    return found


def owner(address: str, entries: Iterable[Entry]) -> Entry | None:
    """The entry that an address of a complaint belongs to: the one with the longest common beginning."""
    matching = [
        (len(own), entry)
        for entry in entries
        for own in (a.rstrip("/") for a in entry.addresses)
        if address.rstrip("/") == own or address.startswith(own + "/")
    ]
    return max(matching, key=lambda pair: pair[0])[1] if matching else None


def by_entry(complaints: dict[str, list[str]], entries: list[Entry]) -> tuple[dict[Entry, list[str]], list[str]]:
    """Sort apt's complaints: (per entry, those that name no source)."""
    sorted_out: dict[Entry, list[str]] = {}
    loose: list[str] = []
    for address, reasons in complaints.items():
        entry = owner(address, entries) if address else None
        entry = entry or next((e for e in entries for reason in reasons if e.file in reason), None)
        if entry:
            sorted_out.setdefault(entry, []).extend(reasons)
        else:
            loose += [f"{address}: {reason}" if address else reason for reason in reasons]
    return sorted_out, loose


def run(argv: list[str], timeout: int) -> tuple[int, str]:
    """Run a program in the C locale: (exit code, both outputs)."""
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return 124, f"E: fetching took more than {timeout} s"
    return answer.returncode, answer.stdout + answer.stderr


def update(timeout: int) -> dict[str, list[str]]:
    """Fetch the lists; what apt complains of."""
    rc, out = run(
        ["apt-get", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=600", "update"],
        timeout,
    )  # fmt: skip
    complaints = parse_update(out)
    return complaints if complaints or not rc else {"": [f"apt-get update ended with {rc}: {out.strip()[-300:]}"]}


def fresh(max_age: int, lists: Path = LISTS) -> bool:
    """Whether there are lists, all fetched within this many seconds."""
    return any(lists.glob("*_Packages*")) and time.time() - lists.stat().st_mtime < max_age


def first_words(reasons: list[str]) -> str:
    """Apt's reasons, said once each."""
    return "; ".join(dict.fromkeys(reason.rstrip(".") for reason in reasons))[:500] or "apt gave no reason"


def report(entry: Entry, why: str, backups: dict[str, str]) -> dict[str, Any]:
    """An entry that was switched off."""
    return {"file": entry.file, "source": ", ".join(entry.addresses), "why": why, "backup": backups.get(entry.file, "")}


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "vendor": {"type": "str", "default": VENDOR},
            "preferred": {"type": "str", "default": ""},
            "max_age": {"type": "int", "default": 0},
            "probe": {"type": "str", "default": "g++"},
            "timeout": {"type": "int", "default": 900},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    vendor = re.compile(wanted["vendor"])

    def is_vendors(entry: Entry) -> bool:
        return all(vendor.search(address) for address in entry.addresses)

    entries = read_entries()
    own = [entry for entry in entries if is_vendors(entry)]
    rings = {entry.signed_by: Path(entry.signed_by).is_file() for entry in own if entry.signed_by.startswith("/")}
    twins = superfluous(own, wanted["preferred"], rings)
    backups = save_and_switch_off([entry for entry, _ in twins]) if not module.check_mode else {}
    off = [report(entry, f"{kept.text} leads to the same repository", backups) for entry, kept in twins]
    if module.check_mode:
        module.exit_json(changed=bool(off), switched_off=off, problems=[], fetched=False)
    if not off and fresh(wanted["max_age"]):
        module.exit_json(changed=False, switched_off=[], problems=[], fetched=False)

    entries = read_entries()
    broken, loose = by_entry(update(wanted["timeout"]), entries)
    rejected = {
        entry: why for entry, why in broken.items()
        if is_vendors(entry) and entry.file != wanted["preferred"] and REJECTED.search(" ".join(why))
    }  # fmt: skip
    if rejected:
        backups = save_and_switch_off(rejected)
        off += [report(entry, first_words(why), backups) for entry, why in rejected.items()]
        broken, loose = by_entry(update(wanted["timeout"]), read_entries())
    problems = [{"file": entry.file, "source": ", ".join(entry.addresses), "why": first_words(why)} for entry, why in broken.items()]  # fmt: skip
    problems += [{"file": "", "source": "", "why": why} for why in dict.fromkeys(loose)]
    words = [f"{p['source']} in {p['file']}: {p['why']}" if p["file"] else p["why"] for p in problems]
    _, policy = run(["apt-cache", "policy", wanted["probe"]], 120)
    if not any(row["sources"] for row in parse_apt_offers(policy).get(wanted["probe"], [])):
        module.fail_json(
            msg=f"apt has no list with {wanted['probe']} in it, so that nothing can be installed: {'; '.join(words) or 'it complains of nothing'}. "
            "Next step: mend what is named under /etc/apt, or give the host a way to its archive (proxy, mirror), and run again.",
            switched_off=off,
            problems=problems,
            fetched=True,
        )
    for text in words:
        module.warn(f"a package source is broken and was left alone: {text}")
    module.exit_json(changed=bool(off), switched_off=off, problems=problems, fetched=True)


if __name__ == "__main__":
    main()
