"""Say what a host has of conda: one look, no change.

Sent over stdin to the host's own Python (3.8 or newer, standard library only). Prints one JSON document:

    prefix       absent | empty | conda | other   (other: there is something, and no conda answers)
    conda        version that `conda --version` says, '' where it does not answer
    interrupted  an installation of ours was cut short here: the prefix is half filled
    condarc      none | ours | other
    python       version of the environment's Python, '' where it does not answer
    pip          whether pip answers in the environment
    installer    sha256 of the installer, '' where the file is not there (read only while conda is missing)
    bashrc       none | plain | other   (other: `conda init` of another installation stands in it)
    bashrc_mode, bashrc_owner, bashrc_group: of the file, or what a new one in this home gets
    certificates path of the host's certificate bundle, '' where it has none
"""

from __future__ import annotations

import argparse
import grp
import hashlib
import json
import pwd
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = "gpu-bootstrap"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def output(argv: Sequence[str], timeout_s: float = 60) -> str:
    """What a command prints, '' where it fails or cannot be run."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def text_of(path: Path) -> str:
    """Content of a file, '' where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def sha256_of(path: Path) -> str:
    """Checksum of a file, '' where there is none."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def owner_of(path: Path) -> tuple[str, str]:
    """User and group of a path, by name where there is one."""
    stat = path.stat()
    try:
        user = pwd.getpwuid(stat.st_uid).pw_name
    except KeyError:
        user = str(stat.st_uid)
    try:
        group = grp.getgrgid(stat.st_gid).gr_name
    except KeyError:
        group = str(stat.st_gid)
    return user, group


def other_conda(text: str, prefix: str) -> bool:
    """Whether `conda init` of another installation stands in a start file."""
    block = re.search(r"# >>> conda initialize >>>(.*?)# <<< conda initialize <<<", text, re.DOTALL)
    return bool(block) and f"{prefix}/" not in (block[1] if block else "")


def look_at_bashrc(home: Path, prefix: str) -> dict[str, str]:
    """State of the user's start file, and whom a new one would belong to."""
    path = home / ".bashrc"
    if path.exists():
        user, group = owner_of(path)
        kind = "other" if other_conda(text_of(path), prefix) else "plain"
        mode = f"{path.stat().st_mode & 0o7777:04o}"
    else:
        user, group = owner_of(home) if home.is_dir() else ("root", "root")
        kind, mode = "none", "0644"
    return {"bashrc": kind, "bashrc_mode": mode, "bashrc_owner": user, "bashrc_group": group}


def look(prefix: Path, environment: Path, installer: Path, home: Path) -> dict[str, Any]:
    """Collect the document described above."""
    interrupted = prefix.with_name(f".{prefix.name}.{OURS}-installing").exists()
    version = output([str(prefix / "bin/conda"), "--version"]).rpartition(" ")[2]
    try:
        filled = any(prefix.iterdir())
        kind = "conda" if version and not interrupted else "other" if filled else "empty"
    except OSError:
        kind = "other" if prefix.exists() else "absent"
    condarc = text_of(prefix / ".condarc")
    python = str(environment / "bin/python")
    found = output([python, "-c", "import platform; print(platform.python_version())"])
    return {
        "prefix": kind,
        "conda": version if kind == "conda" else "",
        "interrupted": interrupted,
        "condarc": "ours" if OURS in condarc else "other" if condarc.strip() else "none",
        "python": found if (environment / "conda-meta/history").exists() else "",
        "pip": bool(output([python, "-m", "pip", "--version"])) if found else False,
        "installer": "" if kind == "conda" else sha256_of(installer),
        **look_at_bashrc(home, str(prefix)),
        "certificates": str(CA_BUNDLE) if CA_BUNDLE.is_file() else "",
    }


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(description="Say what a host has of conda.")
    for name in ("prefix", "environment", "installer", "home"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    document = look(options.prefix, options.environment, options.installer, options.home)
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
