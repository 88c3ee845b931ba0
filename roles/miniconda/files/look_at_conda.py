"""Say what a conda prefix holds; prints JSON. Runs on the host, under its own Python (3.8 or newer).

The request is the first argument: {"prefix", "environment", "condarc", "installer"}; nothing is changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def answer(command: list[str]) -> str:
    """Return what a program prints, or an empty string when it can't run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Collect what the role decides from."""
    prefix = Path(request["prefix"])
    environment = prefix / "envs" / request["environment"]
    condarc = prefix / ".condarc"
    python = answer([str(environment / "bin/python"), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    return {
        "prefix_exists": prefix.exists() and any(prefix.iterdir()) if prefix.is_dir() else prefix.exists(),
        "version": answer([str(prefix / "bin/conda"), "--version"]).replace("conda ", ""),
        "python": python,
        "pip": bool(answer([str(environment / "bin/python"), "-m", "pip", "--version"])) if python else False,
        "condarc": condarc.read_text(encoding="utf-8") if condarc.is_file() else "",
        "installer": Path(request["installer"]).is_file(),
    }


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))))  # noqa: T201
