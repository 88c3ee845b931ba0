"""Files that give every kind of shell the same variables, each in the language of its reader.

Pure functions. What is no name, or needs quoting that one of the readers lacks, raises ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# What a system's shells search when no file says otherwise.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BEGIN, END = "# BEGIN gpu-bootstrap", "# END gpu-bootstrap"
HEADER = "# Made by gpu-bootstrap; changes here are lost."
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VALUE = re.compile(r"[A-Za-z0-9_./:@%+,=~-]*")
DIRECTORY = re.compile(r"/[A-Za-z0-9_./@%+,=~-]*")
# The shells' start files understand more than pam_env: it expands nothing and knows no quoting worth the name.
PROFILE = """{header}
# For login shells; ~/.bashrc sources it for interactive ones. No LD_LIBRARY_PATH: it would shadow the libraries that
# PyTorch brings. Sourced again it changes nothing: each directory is once in PATH, and first.
{exports}gpu_bootstrap_first() {{
    gpu_bootstrap_path=":${{PATH:-{system}}}:"
    while :; do
        case $gpu_bootstrap_path in
        *":$1:"*) gpu_bootstrap_path="${{gpu_bootstrap_path%%":$1:"*}}:${{gpu_bootstrap_path#*":$1:"}}" ;;
        *) break ;;
        esac
    done
    gpu_bootstrap_path=${{gpu_bootstrap_path#:}}
    gpu_bootstrap_path=${{gpu_bootstrap_path%:}}
    PATH="$1${{gpu_bootstrap_path:+:$gpu_bootstrap_path}}"
}}
{calls}export PATH
unset -f gpu_bootstrap_first
unset gpu_bootstrap_path
"""


def _checked(variables: Mapping[str, Any], path: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return variables and directories, or say which one no file could carry."""
    checked = {}
    for name, value in sorted(variables.items()):
        text = str(value)
        if not NAME.fullmatch(str(name)):
            raise ValueError(f"{name!r} is no name of a variable, expected one such as CUDA_HOME")
        if name == "PATH":
            raise ValueError("PATH can't be set as a variable; name the directories in shell_environment_path")
        if name == "LD_LIBRARY_PATH":
            raise ValueError(
                "LD_LIBRARY_PATH can't be set: it shadows the libraries that PyTorch brings; a file in "
                "/etc/ld.so.conf.d makes the loader find a directory"
            )
        if not VALUE.fullmatch(text):
            raise ValueError(f"{name} is {text!r}, expected letters, digits and _./:@%+,=~- alone")
        checked[str(name)] = text
    directories = [str(directory).rstrip("/") for directory in path]
    for directory in directories:
        if not DIRECTORY.fullmatch(directory):
            raise ValueError(f"{directory!r} is no absolute directory, expected one such as /usr/local/cuda/bin")
    return checked, list(dict.fromkeys(directories))


def search_path(first: Iterable[str], rest: str) -> str:
    """Put directories in front of a search path, each once; what would need expanding is left out."""
    parts = [part for part in rest.split(":") if part and "$" not in part]
    return ":".join(dict.fromkeys([*first, *parts]))


def shells_profile(variables: Mapping[str, Any], path: Iterable[str]) -> str:
    """Return the script for /etc/profile.d."""
    values, directories = _checked(variables, path)
    return PROFILE.format(
        header=HEADER,
        system=SYSTEM_PATH,
        exports="".join(f'export {name}="{value}"\n' for name, value in values.items()),
        calls="".join(f'gpu_bootstrap_first "{directory}"\n' for directory in reversed(directories)),
    )


def own_path(text: str) -> str:
    """Return the PATH that a file like /etc/environment sets outside our block, else the system's."""
    outside = re.sub(rf"^{BEGIN}$.*?^{END}$\n?", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\s*(?:export\s+)?PATH\s*=\s*(.*?)\s*$", outside, re.MULTILINE)
    return found[-1].strip("\"'") if found else SYSTEM_PATH


def shells_pam(text: str, variables: Mapping[str, Any], path: Iterable[str]) -> str:
    """Return our block of /etc/environment, whose text is given: pam_env expands nothing, so PATH is written out."""
    values, directories = _checked(variables, path)
    if directories:
        values["PATH"] = search_path(directories, own_path(text))
    return "\n".join(f"{name}={value}" for name, value in values.items())


def shells_systemd(variables: Mapping[str, Any], path: Iterable[str]) -> str:
    """Return the drop-in for systemd's manager: what every unit gets."""
    values, directories = _checked(variables, path)
    if directories:
        values["PATH"] = search_path(directories, SYSTEM_PATH)
    # A percent sign starts one of systemd's specifiers.
    pairs = " ".join(f'"{name}={value}"'.replace("%", "%%") for name, value in values.items())
    return f"{HEADER}\n[Manager]\nDefaultEnvironment={pairs}\n"


def shells_sudo(
    secure_path: str, variables: Mapping[str, Any], path: Iterable[str], earlier: Iterable[str] = ()
) -> str:
    """Return the drop-in for sudo: it keeps our variables, and its secure_path has our directories first.

    `earlier` are those that a run before put there. Without a secure_path sudo keeps the user's PATH anyhow.
    """
    values, directories = _checked(variables, path)
    gone = {str(directory).rstrip("/") for directory in earlier}
    kept = ":".join(part for part in secure_path.split(":") if part not in gone)
    lines = [HEADER]
    if values:
        lines.append(f'Defaults env_keep += "{" ".join(values)}"')
    if kept and directories:
        lines.append(f'Defaults secure_path="{search_path(directories, kept)}"')
    return "\n".join(lines) + "\n"


def shells_faults(environment: str, variables: Mapping[str, Any], path: Iterable[str]) -> list[str]:
    """Compare what `env` prints in a shell with what was asked for; returns what differs: found, and wanted."""
    values, directories = _checked(variables, path)
    found = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
    faults = [
        f"{name}={found[name]} (wanted {value})" if name in found else f"no {name} (wanted {value})"
        for name, value in values.items()
        if found.get(name) != value
    ]
    parts = found.get("PATH", "").split(":")
    if parts[: len(directories)] != directories:
        faults.append(f"PATH={':'.join(parts)} (wanted {':'.join(directories)} first)")
    faults += [f"{directory} more than once in PATH" for directory in directories if parts.count(directory) > 1]
    return faults


class FilterModule:
    """Filters for Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "shells_faults": shells_faults,
            "shells_pam": shells_pam,
            "shells_profile": shells_profile,
            "shells_sudo": shells_sudo,
            "shells_systemd": shells_systemd,
        }
