#!/usr/bin/python
"""Waits until apt and dpkg are free, and first-boot jobs are done; ends nobody and deletes no lock."""

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.apt_reports import APT_LOCKS, lock_holder
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTATION = r"""
module: apt_turn
short_description: Wait for apt's locks and for cloud-init
version_added: "0.2.0"
author: gpu-bootstrap
description:
  - Waits while another process holds a lock of apt or dpkg, or cloud-init is still at work.
  - Fails after O(timeout) seconds and names who holds it. Nobody is ended, and no lock file is removed.
options:
  timeout:
    description: Seconds to wait at most.
    type: int
    default: 600
  poll:
    description: Seconds between two looks.
    type: float
    default: 2
attributes:
  check_mode:
    description: Waiting changes nothing.
    support: full
"""

EXAMPLES = r"""
- name: Wait for apt's turn
  apt_turn:
    timeout: 900
"""

RETURN = r"""
waited_s:
  description: Seconds that were waited.
  type: float
  returned: always
held_by:
  description: Everybody who was waited for.
  type: list
  elements: str
  returned: always
"""


def holders(root: Path = Path("/")) -> list[str]:
    """Who is in the way now, in words: lock, program and process id."""
    try:
        table = (root / "proc/locks").read_text(encoding="utf-8", errors="replace")
    except OSError:
        table = ""
    found = []
    for path in APT_LOCKS:
        pid = lock_holder(root / path.lstrip("/"), table)
        if pid is not None:
            found.append(f"{path} is held by {program_of(root, pid)} (process {pid})")
    return found


def program_of(root: Path, pid: int) -> str:
    """Command line of a process, else its name."""
    for name in ("cmdline", "comm"):
        try:
            text = (root / f"proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if text:
            return text[:120]
    return "a process that this user can't see"


def cloud_init() -> list[str]:
    """Whether cloud-init is still at work; its own word, with a limit."""
    program = shutil.which("cloud-init")
    if not program or not Path("/run/cloud-init").is_dir():
        return []
    try:
        answer = subprocess.run([program, "status"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return ["cloud-init says that it is still running"] if "status: running" in answer.stdout else []


def wait(
    look: Callable[[], list[str]], timeout: float, poll: float, sleep: Callable[[float], None] = time.sleep
) -> tuple[list[str], list[str], float]:
    """Look until nobody is in the way: (who still is, everybody who was, seconds waited)."""
    start = time.monotonic()
    met: list[str] = []
    while True:
        now = look()
        met += [entry for entry in now if entry not in met]
        waited = time.monotonic() - start
        if not now or waited >= timeout:
            return now, met, round(waited, 1)
        sleep(min(poll, max(timeout - waited, 0.1)))


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={"timeout": {"type": "int", "default": 600}, "poll": {"type": "float", "default": 2.0}},
        supports_check_mode=True,
    )
    limit = module.params["timeout"]
    still, met, waited = wait(lambda: [*cloud_init(), *holders()], limit, module.params["poll"])
    if still:
        module.fail_json(
            msg=f"{'; '.join(still)}, for more than {limit} s. It was left alone: wait for it to end, then run again.",
            waited_s=waited,
            held_by=met,
        )
    module.exit_json(changed=False, waited_s=waited, held_by=met)


if __name__ == "__main__":
    main()
