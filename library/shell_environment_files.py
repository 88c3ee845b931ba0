#!/usr/bin/python
"""Set variables and PATH for every kind of shell, in one remote execution."""

from __future__ import annotations

import json
import os
import pwd
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
---
module: shell_environment_files
short_description: Sets variables and PATH for every kind of shell
description:
  - Writes /etc/profile.d/gpu-bootstrap.sh (login shells), a marked block in /etc/environment (PAM, so C(ssh host command),
    cron and C(sudo -i)), a marked block in the user's ~/.bashrc (interactive shells), and, where systemd runs,
    the default environment of its units.
  - The rest of each file stays as it is. LD_LIBRARY_PATH is refused, since it hides the libraries that wheels bring.
options:
  variables:
    description: Variables and their values.
    type: dict
    required: true
  path:
    description: Directories that come first in PATH, in order.
    type: list
    elements: str
    required: true
  user:
    description: Login user whose ~/.bashrc gets a block.
    type: str
    default: root
  home:
    description: Home of that user.
    type: path
    default: /root
  state_dir:
    description: Directory in which the inputs are kept as shell_environment.json.
    type: path
    default: /var/lib/gpu-bootstrap
author: gpu-bootstrap
"""

EXAMPLES = r"""
- name: Point every shell to the toolkit
  shell_environment_files:
    variables: {CUDA_HOME: /usr/local/cuda}
    path: [/usr/local/cuda/bin]
"""

RETURN = r"""
files:
  description: Files that were changed, or would be in check mode.
  type: list
  returned: always
"""

BEGIN = "# BEGIN gpu-bootstrap (set by Ansible: changes in this block are lost)"
END = "# END gpu-bootstrap"
BLOCK = re.compile(r"^# BEGIN gpu-bootstrap\b.*?^# END gpu-bootstrap[^\n]*\n?", re.S | re.M)
# What login(1) and Debian's /etc/environment give when nobody set anything.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# None of these needs quoting, in sh, in /etc/environment or in a systemd file.
SAFE_VALUE = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")


def check(variables: dict[str, Any], path: list[str]) -> str:
    """Return why these inputs can't be set, or an empty string."""
    for name, value in variables.items():
        if name in ("LD_LIBRARY_PATH", "PATH"):
            return name + " can't be set here: it would hide the libraries and programs that others bring"
        if not SAFE_NAME.fullmatch(name):
            return f"{name!r} is no name of a variable"
        if not SAFE_VALUE.fullmatch(str(value)):
            return (
                f"the value of {name}, {value!r}, has characters that shells take apart; expected a path or an address"
            )
    for entry in path:
        if not entry.startswith("/") or ":" in entry or not SAFE_VALUE.fullmatch(entry):
            return f"{entry!r} is no absolute directory for PATH"
    return ""


def with_block(text: str, block: str) -> str:
    """Return the text with our marked block replaced, or appended; the rest stays byte by byte."""
    marked = BEGIN + "\n" + block.rstrip("\n") + "\n" + END + "\n"
    if BLOCK.search(text):
        first = [True]

        def put(_match: re.Match[str]) -> str:
            keep = marked if first[0] else ""
            first[0] = False
            return keep

        return BLOCK.sub(put, text)
    return text + ("" if not text or text.endswith("\n") else "\n") + marked


def joined_path(path: list[str], existing: str) -> str:
    """Put our directories first and keep the others once, in their order."""
    entries = list(path)
    for entry in existing.split(":"):
        if entry and entry not in entries:
            entries.append(entry)
    return ":".join(entries)


def path_of(text: str) -> str:
    """Return the PATH that a file of NAME=value lines sets outside our block, else the system's default."""
    found = re.findall(r"^\s*(?:export\s+)?PATH=(.*)$", BLOCK.sub("", text), re.M)
    value = found[-1].strip().strip("\"'") if found else ""
    return value or DEFAULT_PATH


def environment_block(variables: dict[str, str], path: list[str], text: str) -> str:
    """Return the block for /etc/environment: PAM expands nothing, so PATH is written out."""
    lines = [f"{name}={value}" for name, value in sorted(variables.items())]
    return "\n".join([*lines, "PATH=" + joined_path(path, path_of(text))]) + "\n"


def profile_script(variables: dict[str, str], path: list[str]) -> str:
    """Return a script for login shells: our directories come first, once, however often it is read."""
    lines = ["# gpu-bootstrap: set by Ansible, changes here are lost"]
    lines += [f"export {name}={value}" for name, value in sorted(variables.items())]
    for entry in reversed(path):
        lines += [
            'case ":$PATH:" in',
            f'  *":{entry}:"*) PATH=":$PATH:"; PATH="${{PATH%%:{entry}:*}}:${{PATH#*:{entry}:}}"; PATH="${{PATH#:}}"; PATH="${{PATH%:}}" ;;',
            "esac",
            f'PATH="{entry}${{PATH:+:$PATH}}"',
        ]
    return "\n".join([*lines, "export PATH"]) + "\n"


def systemd_drop_in(variables: dict[str, str], path: list[str]) -> str:
    """Return the default environment of units."""
    values = dict(variables, PATH=joined_path(path, DEFAULT_PATH))
    settings = " ".join(f'"{name}={value}"'.replace("%", "%%") for name, value in sorted(values.items()))
    return "# gpu-bootstrap: set by Ansible, changes here are lost\n[Manager]\nDefaultEnvironment=" + settings + "\n"


BASHRC_BLOCK = "if [ -r /etc/profile.d/gpu-bootstrap.sh ]; then . /etc/profile.d/gpu-bootstrap.sh; fi\n"


def wanted_files(
    params: dict[str, Any], read: Callable[[str], str], systemd: bool
) -> dict[str, tuple[str, int, str | None]]:
    """Return {path: (content, mode, owner)} for the inputs; `read` gives the present text of a file."""
    variables = {name: str(value) for name, value in params["variables"].items()}
    path, home = params["path"], params["home"]
    files = {
        "/etc/profile.d/gpu-bootstrap.sh": (profile_script(variables, path), 0o644, None),
        "/etc/environment": (
            with_block(read("/etc/environment"), environment_block(variables, path, read("/etc/environment"))),
            0o644,
            None,
        ),
        f"{home}/.bashrc": (
            with_block(read(f"{home}/.bashrc"), BASHRC_BLOCK),
            0o644,
            params["user"],
        ),
    }
    if systemd:
        files["/etc/systemd/system.conf.d/gpu-bootstrap.conf"] = (systemd_drop_in(variables, path), 0o644, None)
    state = {
        "variables": variables,
        "path": path,
        "user": params["user"],
        "user_home": home,
        "state_dir": params["state_dir"],
    }
    files[f"{params['state_dir']}/shell_environment.json"] = (
        json.dumps(state, indent=2, sort_keys=True) + "\n",
        0o644,
        None,
    )
    return files


def read_text(path: str) -> str:
    """Return the text of a file, empty when there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


def write_text(module: AnsibleModule, path: str, content: str, mode: int, owner: str | None) -> None:
    """Write a file atomically; an existing one keeps its owner and mode."""
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    exists = Path(path).exists()
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(content)
    if not exists:
        Path(temporary).chmod(mode)
        if owner:
            entry = pwd.getpwnam(owner)
            os.chown(temporary, entry.pw_uid, entry.pw_gid)
    module.atomic_move(temporary, str(Path(path).resolve()))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "variables": {"type": "dict", "required": True},
            "path": {"type": "list", "elements": "str", "required": True},
            "user": {"type": "str", "default": "root"},
            "home": {"type": "path", "default": "/root"},
            "state_dir": {"type": "path", "default": "/var/lib/gpu-bootstrap"},
        },
        supports_check_mode=True,
    )
    fault = check(module.params["variables"], module.params["path"])
    if fault:
        module.fail_json(msg=fault)
    systemd = Path("/run/systemd/system").is_dir()
    wanted = wanted_files(module.params, read_text, systemd)
    changed = [path for path in sorted(wanted) if read_text(path) != wanted[path][0]]
    diff = [
        {"before_header": path, "after_header": path, "before": read_text(path), "after": wanted[path][0]}
        for path in changed
    ]
    if not module.check_mode:
        # The state comes last: only what was written whole is remembered.
        for path in sorted(changed, key=lambda name: name.startswith(module.params["state_dir"])):
            write_text(module, path, *wanted[path])
        if any(path.startswith("/etc/systemd/") for path in changed):
            code, _, error = module.run_command(["systemctl", "daemon-reexec"])
            if code:
                module.fail_json(
                    msg="systemd did not take the new default environment: " + error.strip(), files=changed
                )
    module.exit_json(changed=bool(changed), files=changed, diff=diff)


if __name__ == "__main__":
    main()
