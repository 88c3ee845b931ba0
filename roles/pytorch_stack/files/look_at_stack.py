"""Say what an environment holds, run by its own Python; prints JSON. Imports none of the packages.

The request is the first argument: {"pins": {name: version}, "cuda": "12.4", "cuda_home": path, "uv": path}.
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

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def normal(name: str) -> str:
    """Return the normalised name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def build_of(version: str) -> str:
    """Return the build that a local part names (`cpu`, `cu124`, `rocm6.2`); empty where it names none."""
    match = re.fullmatch(r"[^+]+\+(cpu|xpu|cu\d+|rocm[\d.]+)", version)
    return match.group(1) if match else ""


def meets(found: str, wanted: str, build: str) -> bool:
    """Whether a version is the wanted one. A local part counts where the pin has one, and where it names another build."""
    if "+" in wanted:
        return found == wanted
    return found.split("+", maxsplit=1)[0] == wanted and build_of(found) in ("", build)


def differences(pins: dict[str, str], have: dict[str, str], build: str) -> list[str]:
    """Name each pin that is not met, with what was found."""
    return [
        f"{name} {have.get(normal(name)) or 'is missing'}, wanted {wanted}"
        for name, wanted in sorted(pins.items())
        if not meets(have.get(normal(name), ""), wanted, build)
    ]


def other_builds(pins: dict[str, str], have: dict[str, str], build: str) -> list[str]:
    """Name packages of the right version and another build: an installer takes them for what is wanted and leaves them."""
    rows = [(name, have.get(normal(name), ""), wanted) for name, wanted in sorted(pins.items())]
    return [
        name
        for name, found, wanted in rows
        if found.split("+")[0] == wanted.split("+")[0] and not meets(found, wanted, build)
    ]


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
    pins, build = request["pins"], "cu" + request["cuda"].replace(".", "")
    built_for = torch_cuda(prefix)
    again = other_builds(pins, have, build)
    wrong = differences(pins, have, build)
    if "torch" in have and built_for != request["cuda"] and "torch" not in again:
        again.append("torch")
        wrong.append(
            f"torch is built for {'CUDA ' + built_for if built_for else 'the CPU'}, wanted CUDA {request['cuda']}"
        )
    return {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "differences": wrong,
        "other_builds": again,
        "torch": have.get("torch", ""),
        "torch_cuda": built_for,
        "lock_sha256": mark.read_text(encoding="ascii").strip() if mark.is_file() else "",
        "compiler": bool(shutil.which("g++", path="/usr/local/bin:/usr/bin:/bin")),
        "nvcc": answer([f"{request['cuda_home']}/bin/nvcc", "--version"]),
        "uv": answer([request["uv"], "--version"]),
        "certificates": str(CA_BUNDLE) if CA_BUNDLE.is_file() else "",
    }


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]), Path(sys.prefix))))  # noqa: T201
