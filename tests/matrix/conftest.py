"""One virtual environment for each supported ansible-core, and a bare lab host for check mode."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/matrix"
HOST = f"matrix-bare-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
# ansible-core, oldest first, and the controller's Python that it accepts (from each release's own metadata and notes).
CORES = {
    "2.16": ">=3.11,<3.13",
    "2.17": ">=3.11,<3.13",
    "2.18": ">=3.11,<3.14",
    "2.19": ">=3.11,<3.14",
    "2.20": ">=3.12,<3.15",
    "2.21": ">=3.12,<3.15",
}
NEWEST = list(CORES)[-1]
UNSUPPORTED = {"2.15": ">=3.11,<3.12"}
PACKAGES = ("jsonschema", "paramiko")


@dataclass(frozen=True)
class Core:
    """An installed ansible-core."""

    version: str
    bin: Path

    def run(self, *command: str, env: dict[str, str] | None = None, timeout: float = 300) -> tuple[int, str]:
        """Run one of its programs from the root of the checkout: exit code and everything that it printed."""
        path = f"{self.bin}:{os.environ['PATH']}"
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=ROOT,
            # Broken conditionals are errors everywhere, deprecated features are seen.
            env={
                **os.environ,
                "PATH": path,
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_DEPRECATION_WARNINGS": "1",
                "ANSIBLE_ALLOW_BROKEN_CONDITIONALS": "0",
                "ANSIBLE_CONDITIONAL_BARE_VARS": "0",
                **(env or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.returncode, done.stdout


def interpreter(wanted: str) -> str:
    """Find a Python that `wanted` (a version specifier) admits: on PATH, or one of pyenv's; else let uv fetch one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    names = [f"python3.{minor}" for minor in range(11, 15)]
    found = [path for name in names if (path := shutil.which(name))] + sorted(
        map(str, pyenv.glob("versions/*/bin/python3"))
    )
    for path in [sys.executable, *found]:
        done = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and SpecifierSet(wanted).contains(done.stdout.strip()):
            return path
    return wanted


def install(version: str, python: str) -> Core:
    """Make the virtual environment of one ansible-core, or take the one that is there; the newest has the locked tools."""
    directory = BUILD / version
    made, lock = directory / ".installed", ROOT / "requirements.txt"
    packages = ["--require-hashes", "-r", str(lock)] if version == NEWEST else [f"ansible-core=={version}.*", *PACKAGES]
    uv = [sys.executable, "-m", "uv"]
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{version}.lock").open("w") as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        if not made.exists() or made.stat().st_mtime < lock.stat().st_mtime:
            for command in (
                [*uv, "venv", "--quiet", "--clear", "--python", interpreter(python), str(directory)],
                [*uv, "pip", "install", "--quiet", "--python", str(directory / "bin/python"), *packages],
            ):
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
                if done.returncode:
                    wanted = f"ansible-core {version} needs Python {python}: install one, or let uv reach its downloads"
                    pytest.fail(f"{wanted}\n{done.stderr}", pytrace=False)
            made.touch()
    return Core(version, directory / "bin")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one ansible-core on one worker, so that its lab host is started once."""
    for item in items:
        call = getattr(item, "callspec", None)
        version = call.params.get("core", call.params.get("old_core")) if call else item.name
        item.add_marker(pytest.mark.xdist_group(version))


@pytest.fixture(scope="session", params=CORES)
def core(request: pytest.FixtureRequest) -> Core:
    """Each supported ansible-core in turn."""
    return install(request.param, CORES[request.param])


@pytest.fixture(scope="session")
def newest() -> Core:
    """The newest supported ansible-core, on a newer Python, with the linters and test tools of the lock."""
    return install(NEWEST, CORES[NEWEST])


@pytest.fixture(scope="session", params=UNSUPPORTED)
def old_core(request: pytest.FixtureRequest) -> Core:
    """An ansible-core before the supported ones."""
    return install(request.param, UNSUPPORTED[request.param])


@pytest.fixture(scope="session")
def bare_host() -> Iterator[str]:
    """A lab host on which nothing was installed yet: the path of an inventory that names it."""
    lab = [sys.executable, "lab/lab.py"]
    subprocess.run([*lab, "host", HOST, "--image", "debian12-plain", "--replace"], cwd=ROOT, check=True, timeout=900)
    inventory = BUILD / f"{HOST}.yml"
    hosts = {"all": {"vars": {"stack": "cu124"}, "hosts": {HOST: {}}}}
    inventory.write_text(json.dumps(hosts), encoding="utf-8")
    yield str(inventory)
    subprocess.run([*lab, "rm", HOST], cwd=ROOT, check=True, timeout=120)


@pytest.fixture
def reports(core: Core) -> Iterator[Path]:
    """Where the playbooks write; what a test leaves there under its version's name is removed."""
    yield ROOT / "reports"
    for path in (ROOT / "reports").glob(f"matrix-{core.version}-*"):
        shutil.rmtree(path)


def complaints(output: str) -> list[str]:
    """Return the lines in which Ansible warns or deprecates."""
    return re.findall(r"^\[(?:DEPRECATION )?WARNING\].*$", output, flags=re.MULTILINE)
