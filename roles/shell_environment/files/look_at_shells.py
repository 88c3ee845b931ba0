"""Look at the files that shells start with. Reads only, prints one JSON document.

Runs under the system's Python (3.8 or newer, standard library alone), handed over on standard input:
`python3 - '{"user": "deploy", "state_dir": "/var/lib/gpu-bootstrap"}'`.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def text_of(path: str) -> str:
    """Return a file's text, nothing when it can't be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sudo() -> str:
    """Return the program, if it is there with a directory for drop-ins and with the program that checks them."""
    there = Path("/etc/sudoers.d").is_dir() and Path("/usr/sbin/visudo").exists()
    return (shutil.which("sudo", path=SYSTEM_PATH) or "") if there else ""


def secure_path(program: str) -> str:
    """Return the PATH that sudo gives instead of the user's; empty without sudo, or where it keeps the user's."""
    if not program:
        return ""
    try:
        done = subprocess.run(
            [program, "-V"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
            env={"LC_ALL": "C", "PATH": SYSTEM_PATH},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    # Only root is told.
    found = re.search(
        r"^Value to override user's \$PATH with: (.*)$", done.stdout.decode("utf-8", "replace"), re.MULTILINE
    )
    return found.group(1).strip() if found else ""


def applied(state_dir: str) -> dict[str, Any]:
    """Return what the last run applied."""
    try:
        document = json.loads(text_of(f"{state_dir}/shell_environment.json"))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def owner_of(user: str) -> dict[str, Any]:
    """Return the home and the group of a user."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return {"exists": False, "home": "", "group": ""}
    try:
        group = grp.getgrgid(entry.pw_gid).gr_name
    except KeyError:
        group = str(entry.pw_gid)
    return {"exists": True, "home": entry.pw_dir, "group": group}


def look(request: Mapping[str, Any]) -> dict[str, Any]:
    """Look at one host; keys of the request: user, user_home, state_dir."""
    user = owner_of(request["user"]) if request.get("user") else {"exists": False, "home": "", "group": ""}
    program = sudo()
    home = str(request.get("user_home") or user["home"])
    return {
        "environment": text_of("/etc/environment"),
        "systemd": Path("/run/systemd/system").is_dir(),
        "systemd_dir": Path("/etc/systemd/system.conf.d").is_dir(),
        "systemd_text": text_of("/etc/systemd/system.conf.d/gpu-bootstrap.conf"),
        "sudo": bool(program),
        "secure_path": secure_path(program),
        "earlier": [str(directory) for directory in applied(request["state_dir"]).get("path") or []],
        "state_dir": Path(request["state_dir"]).is_dir(),
        "user": user["exists"] and Path(home).is_dir(),
        "group": user["group"],
        "bashrc": os.path.realpath(f"{home}/.bashrc"),
        "has_bashrc": Path(f"{home}/.bashrc").exists(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look(json.loads(sys.argv[1]))) + "\n")
