"""Say what an environment holds, run by its own Python; prints JSON. Imports none of the packages.

The request is the first argument: {"pins": {name: version}, "cuda_home": path, "uv": path}.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def normal(name: str) -> str:
    """Return the normalised name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def differences(pins: dict[str, str], have: dict[str, str]) -> list[str]:
    """Name each pin that is not met, with what was found; a local part (+cu124) counts only where the pin has one."""
    wrong = []
    for name, wanted in sorted(pins.items()):
        found = have.get(normal(name), "")
        if (found if "+" in wanted else found.split("+")[0]) != wanted:
            wrong.append(f"{name} {found or 'is missing'}, wanted {wanted}")
    return wrong


def torch_cuda(prefix: Path) -> str:
    """Return the CUDA that torch was built for, read from its version file; empty for a CPU build or no torch."""
    for path in sorted(prefix.glob("lib/python3*/site-packages/torch/version.py")):
        match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", path.read_text(encoding="utf-8"), re.M)
        if match:
            return match.group(1)
    return ""


def answer(command: list[str]) -> str:
    """Return what a program prints, or an empty string when it can't run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def look(request: dict[str, Any], prefix: Path) -> dict[str, Any]:
    """Collect what the role decides from."""
    have = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            have[normal(name)] = distribution.version
    mark = prefix / ".gpu-bootstrap-lock"
    return {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "differences": differences(request["pins"], have),
        "torch": have.get("torch", ""),
        "torch_cuda": torch_cuda(prefix),
        "lock_sha256": mark.read_text(encoding="ascii").strip() if mark.is_file() else "",
        "compiler": bool(shutil.which("g++", path="/usr/local/bin:/usr/bin:/bin")),
        "nvcc": answer([f"{request['cuda_home']}/bin/nvcc", "--version"]),
        "uv": answer([request["uv"], "--version"]),
    }


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]), Path(sys.prefix))))  # noqa: T201
