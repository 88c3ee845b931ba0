"""The user's variables: defaults, types, and errors that name the next step."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from .values import Json, one_of

# In the order in which they are planned and installed.
COMPONENTS = ("nvidia_driver", "miniconda", "cuda_toolkit", "cudnn", "shell_environment", "pytorch_stack")
HOST_KINDS = ("container", "vm", "metal", "wsl")
DEFAULTS: dict[str, Any] = {
    "stack": "auto",
    "components": [],
    "host_kind": "",
    "rented_as": {},
    "work_dir": "",
    "conda_prefix": "",
    "cuda_prefix": "",
    "cuda_link": "/usr/local/cuda",
    "downloads_dir": "",
    "tmp_dir": "",
    "cache_dir": "",
    "hf_home": "",
    "environment_name": "",
    "mirrors": {},
    "proxy": "",
    "conda_channels": ["conda-forge"],
    "conda_accept_tos": False,
    "artifact_overrides": {},
    "nvidia_driver_branch": "",
    "nvidia_driver_source": "",
    "nvidia_driver_flavour": "",
    "nvidia_driver_replace": False,
    "reboot_allowed": False,
    "reboot_timeout": 1800,
    "reboot_boot_time_command": "cat /proc/sys/kernel/random/boot_id",
    "install_timeout": 3600,
    "state_dir": "/var/lib/gpu-bootstrap",
}
# Stands for a variable that nobody set (roles/plan/vars/main/settings.yml).
UNSET = "__unset__"
MIRROR_KINDS = ("nvidia", "miniconda", "pytorch", "pypi", "conda", "huggingface")


def _flag(name: str, value: object) -> bool:
    """Accept what people write in INI files and after -e: true, yes, 0."""
    if isinstance(value, bool):
        return value
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
        "": False,
    }
    if str(value).strip().lower() in words:
        return words[str(value).strip().lower()]
    raise ValueError(f"{name} is {value!r}, expected true or false")


def _names(name: str, value: object) -> list[str]:
    """Accept a list, or the comma separated words of `-e components=a,b`."""
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("[] ").split(",") if part.strip().strip("'\"")]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} is {value!r}, expected a list of names such as [cuda_toolkit, cudnn]")
    return [str(item).strip("'\" ") for item in value]


def _no_floats(path: str, value: object) -> None:
    """Refuse numbers where versions belong: YAML reads 12.10 as the number 12.1."""
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        raise ValueError(f'{path} is the number {value}: a version is a string, quote it: "{value}"')
    if isinstance(value, Mapping):
        for key, item in value.items():
            _no_floats(f"{path}.{key}", item)


def read_settings(settings: Mapping[str, Any]) -> Json:
    """Return the settings with defaults filled in and types made right; ValueError names what is wrong."""
    unknown = sorted(set(settings) - set(DEFAULTS))
    if unknown:
        one_of("setting", unknown[0], DEFAULTS)
    result = {
        key: default if settings.get(key) in (None, UNSET) else settings[key] for key, default in DEFAULTS.items()
    }
    for key, default in DEFAULTS.items():
        if isinstance(default, bool):
            result[key] = _flag(key, result[key])
        elif isinstance(default, list):
            result[key] = _names(key, result[key])
        elif isinstance(default, dict):
            if not isinstance(result[key], Mapping):
                raise ValueError(f"{key} is {result[key]!r}, expected a mapping")
            result[key] = dict(result[key])
        elif isinstance(default, int):
            if not str(result[key]).isdigit():
                raise ValueError(f"{key} is {result[key]!r}, expected a number of seconds such as {default}")
            result[key] = int(result[key])
        elif key != "stack":
            result[key] = str(result[key]).strip()
    stack = result["stack"]
    if isinstance(stack, Mapping):
        _no_floats("stack", {k: v for k, v in stack.items() if k != "title"})
    elif not isinstance(stack, str):
        _no_floats("stack", stack)
        raise ValueError(f"stack is {stack!r}, expected a name, auto, or a mapping")
    for component in result["components"]:
        one_of("component", component, COMPONENTS)
    if result["host_kind"]:
        one_of("host_kind", result["host_kind"], HOST_KINDS)
    if result["nvidia_driver_branch"] and not re.fullmatch(r"\d{3}", result["nvidia_driver_branch"]):
        raise ValueError(f"nvidia_driver_branch is {result['nvidia_driver_branch']!r}, expected a branch such as '580'")
    if result["nvidia_driver_flavour"]:
        one_of("nvidia_driver_flavour", result["nvidia_driver_flavour"], ("open", "proprietary"))
    for kind, url in result["mirrors"].items():
        one_of("mirror", kind, MIRROR_KINDS)
        for one in urls(url):
            if not re.match(r"(https?|file)://", one):
                raise ValueError(f"mirrors.{kind} is {one!r}, expected a URL such as https://mirror.example.com/path")
    for key in (
        "work_dir",
        "conda_prefix",
        "cuda_prefix",
        "cuda_link",
        "downloads_dir",
        "tmp_dir",
        "cache_dir",
        "hf_home",
        "state_dir",
    ):
        path = result[key]
        if path and (not path.startswith("/") or re.search(r"\s", path)):
            raise ValueError(f"{key} is {path!r}, expected an absolute path without spaces such as /data")
        result[key] = posixpath.normpath(path) if path else ""
    if result["environment_name"] and not re.fullmatch(r"[\w.-]+", result["environment_name"]):
        raise ValueError(
            f"environment_name is {result['environment_name']!r}, expected letters, digits, '.', '_' and '-'"
        )
    for name, pins in result["artifact_overrides"].items():
        if not isinstance(pins, Mapping) or not re.fullmatch(r"[0-9a-f]{64}", str(pins.get("sha256", ""))):
            raise ValueError(f"artifact_overrides.{name} needs sha256 (64 hex digits) and size (bytes), found {pins!r}")
    return result


def urls(value: object) -> list[str]:
    """Addresses of one mirror setting, a string or a list, without the slash at the end."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return [str(item).rstrip("/") for item in items if item]
