"""Paths, locks, subprocesses and bounded waits that every part of the lab uses."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAB_DIR = Path(__file__).resolve().parent.parent
STARTED = time.monotonic()


class LabError(Exception):
    """Something the user must know: what was found, what was wanted, the next step."""


def say(text: str) -> None:
    """Print one progress line with the seconds since the start."""
    print(f"lab {time.monotonic() - STARTED:6.1f}s  {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Home:
    """Where the lab keeps its state, outside the checkout."""

    root: Path

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Home:
        """Take `GPU_BOOTSTRAP_LAB`, else the XDG cache directory."""
        if env.get("GPU_BOOTSTRAP_LAB"):
            return cls(Path(env["GPU_BOOTSTRAP_LAB"]).expanduser().resolve())
        cache = Path(env["XDG_CACHE_HOME"]) if env.get("XDG_CACHE_HOME") else Path.home() / ".cache"
        return cls((cache / "gpu-bootstrap" / "lab").resolve())

    @property
    def cache(self) -> Path:
        """Built artefacts, keyed by a hash of their inputs."""
        return self.root / "cache"

    @property
    def run(self) -> Path:
        """State of the running lab: key, known_hosts, ssh_config, lab.json, inventory."""
        return self.root / "run"

    @contextlib.contextmanager
    def lock(self, name: str, timeout: float) -> Iterator[None]:
        """Hold the lock file `name`; give up after `timeout` seconds with `LabError`."""
        self.run.mkdir(parents=True, exist_ok=True)
        path = self.run / f"{name}.lock"
        with path.open("a") as handle:
            deadline = time.monotonic() + timeout
            told = False
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise LabError(
                            f"{path} stayed locked for {timeout:.0f} s: another lab.py works on it"
                        ) from error
                    if not told:
                        say(f"waiting for another lab.py ({name})")
                        told = True
                    time.sleep(0.2)
            yield


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command with a time limit in seconds and captured text output.

    Raises:
        LabError: it is missing, ran too long or (with `check`) failed; the message ends with its last lines.

    """
    words = [str(word) for word in argv]
    shown = " ".join(words[:6]) + (" …" if len(words) > 6 else "")
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(f"the command {words[0]!r} is not installed; install it and run again") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{shown}` did not end within {timeout:.0f} s") from error
    if check and done.returncode != 0:
        tail = "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-15:])
        raise LabError(f"`{shown}` ended with {done.returncode}:\n{tail}")
    return done


def wait_for(what: str, probe: Callable[[], bool], *, timeout: float, pause: float = 0.2) -> None:
    """Call `probe` until it is true; after `timeout` seconds raise `LabError` naming `what`."""
    deadline = time.monotonic() + timeout
    while not probe():
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(pause)


def cache_key(*parts: object) -> str:
    """Hash inputs to a short stable key.

    A path contributes its content (a directory: the relative names and contents of its files); anything else its JSON.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]
            for file in files:
                if "__pycache__" in file.parts:
                    continue
                name = str(file.relative_to(part)) if part.is_dir() else file.name
                digest.update(f"file {name} {file.stat().st_size}\n".encode())
                digest.update(file.read_bytes())
        else:
            digest.update(f"value {json.dumps(part, sort_keys=True)}\n".encode())
    return digest.hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """Hash a file of any size."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_text(path: Path, text: str, mode: int = 0o644) -> bool:
    """Write a file in one move; return whether its content changed."""
    if path.exists() and path.read_text() == text:
        path.chmod(mode)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    Path(name).chmod(mode)
    Path(name).replace(path)
    return True
