"""What apt says and who holds its locks: parsers on its output, and the modules that wait for it and simulate a driver.

The tests with `Archive` ask the apt of this machine about hand-written repositories in a directory of their own: their
output is apt's, and nothing of the machine's lists, preferences or packages is read or changed.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import apt_reports
import apt_turn
import driver_packages as dp
from apt_reports import lock_holder, parse_apt_offers, parse_apt_policy, parse_simulation, upstream_version

ROOT = Path(__file__).parents[2]
FAMILY: list[str] = yaml.safe_load((ROOT / "roles/plan/vars/main/driver_sources.yml").read_text())["plan_driver_family"]
OF_FAMILY = dp.belongs(FAMILY)
SOURCES = sorted([*(ROOT / "library").glob("*.py"), *(ROOT / "module_utils").glob("*.py")])


class StoppedError(Exception):
    """What a module's end is in these tests."""


@pytest.fixture
def ansible(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run a module's main() with these parameters: its settings, `result`, and `failed` when it failed."""

    def call(module: Any, **given: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        class Module:
            def __init__(self, **settings: Any) -> None:
                seen.update(settings)
                self.params = {key: value.get("default") for key, value in settings["argument_spec"].items()} | given

            def exit_json(self, **result: Any) -> None:
                seen["result"] = result
                raise StoppedError

            def fail_json(self, **result: Any) -> None:
                seen.update(result=result, failed=result["msg"])
                raise StoppedError

        monkeypatch.setattr(module, "AnsibleModule", Module)
        with pytest.raises(StoppedError):
            module.main()
        return seen

    return call


def assert_documented(module: Any, seen: dict[str, Any]) -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert {
        name: {k: v for k, v in option.items() if k != "description"} for name, option in documented.items()
    } == seen["argument_spec"]
    assert seen["supports_check_mode"] is True
    assert isinstance(yaml.safe_load(module.EXAMPLES), list)
    for task in yaml.safe_load(module.EXAMPLES):
        assert set(task[module.__name__]) <= set(documented)
    assert set(yaml.safe_load(module.RETURN)) == set(seen["result"]) - {"changed", "msg"}


# --- apt-cache policy ---------------------------------------------------------------------------------------------------

POLICY = """\
nvidia-kernel-dkms:
  Installed: 535.183.01-1~deb12u1
  Candidate: 535.261.03-1~deb12u1
  Package pin: 535.261.03-1~deb12u1
  Version table:
     580.95.05-1 500
        500 https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
     535.261.03-1~deb12u1 999
        500 http://mirror.example/debian bookworm/non-free amd64 Packages
        500 http://security.example/debian-security bookworm-security/non-free amd64 Packages
 *** 535.183.01-1~deb12u1 100
        100 /var/lib/dpkg/status
libcuda1:
  Installed: (none)
  Candidate: (none)
  Version table:
     535.261.03-1~deb12u1 -1
        -10 http://mirror.example/debian bookworm/non-free amd64 Packages
nvidia-smi:
  Installed: 535.261.03-1~deb12u1
  Candidate: 535.261.03-1~deb12u1
  Version table:
 *** 535.261.03-1~deb12u1 1001
       1001 http://mirror.example/debian bookworm/non-free amd64 Packages
        100 /var/lib/dpkg/status
"""
BOOKWORM = "http://mirror.example/debian bookworm/non-free"


def test_candidates_are_read_for_each_package_and_none_is_no_candidate() -> None:
    assert parse_apt_policy(POLICY) == {
        "nvidia-kernel-dkms": "535.261.03-1~deb12u1",
        "nvidia-smi": "535.261.03-1~deb12u1",
    }
    assert parse_apt_policy("") == {}


def test_every_version_is_offered_newest_first_with_all_its_sources() -> None:
    offers = parse_apt_offers(POLICY)
    assert offers["nvidia-kernel-dkms"] == [
        {
            "version": "580.95.05-1",
            "sources": ["https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"],
        },
        {
            "version": "535.261.03-1~deb12u1",
            "sources": [BOOKWORM, "http://security.example/debian-security bookworm-security/non-free"],
        },
        {"version": "535.183.01-1~deb12u1", "sources": []},
    ]
    assert list(offers) == ["nvidia-kernel-dkms", "libcuda1", "nvidia-smi"]


def test_a_version_of_negative_priority_is_in_the_table_though_it_is_no_candidate() -> None:
    assert parse_apt_offers(POLICY)["libcuda1"] == [{"version": "535.261.03-1~deb12u1", "sources": [BOOKWORM]}]


def test_the_installed_version_that_is_still_offered_has_its_source_alone() -> None:
    assert parse_apt_offers(POLICY)["nvidia-smi"] == [{"version": "535.261.03-1~deb12u1", "sources": [BOOKWORM]}]


def test_a_version_that_is_phased_in_is_a_version_of_its_own() -> None:
    """Ubuntu's updates come in steps; without the line its source would be the version's before."""
    text = (
        "nvidia-utils-580-server:\n  Installed: (none)\n  Candidate: 580.126.09-0ubuntu0.24.04.1\n  Version table:\n"
        "     590.44.01-0ubuntu0.24.04.1 500\n        500 http://a.example/ubuntu noble-proposed/restricted amd64 Packages\n"
        "     580.126.09-0ubuntu0.24.04.1 500 (phased 10%)\n"
        "        500 http://a.example/ubuntu noble-updates/restricted amd64 Packages\n"
    )
    assert parse_apt_offers(text)["nvidia-utils-580-server"] == [
        {
            "version": "590.44.01-0ubuntu0.24.04.1",
            "sources": ["http://a.example/ubuntu noble-proposed/restricted"],
        },
        {
            "version": "580.126.09-0ubuntu0.24.04.1",
            "sources": ["http://a.example/ubuntu noble-updates/restricted"],
        },
    ]


def test_a_flat_repository_with_a_dot_is_a_source() -> None:
    text = "nvlsm:\n  Version table:\n     1.0-1 500\n        500 file:/var/local-repo ./ Packages\n"
    assert parse_apt_offers(text) == {"nvlsm": [{"version": "1.0-1", "sources": ["file:/var/local-repo ./"]}]}


@pytest.mark.parametrize("kept", range(0, len(POLICY), 7))
def test_text_that_is_cut_off_has_no_version_that_the_whole_has_not(kept: int) -> None:
    whole = parse_apt_offers(POLICY)
    cut = POLICY[:kept]
    # Only the last word of the text can be half a word.
    sure = cut[: cut.rfind("\n") + 1]
    for name, rows in parse_apt_offers(sure).items():
        assert [row["version"] for row in rows] == [row["version"] for row in whole[name]][: len(rows)]
        for row, real in zip(rows, whole[name], strict=False):
            assert row["sources"] == real["sources"][: len(row["sources"])]
    assert set(parse_apt_policy(sure).items()) <= set(parse_apt_policy(POLICY).items())


def test_a_table_ends_where_the_next_package_begins() -> None:
    """Lines of the head are no versions, and a package without a table gets nothing of the one before."""
    text = POLICY + "absent:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"
    assert "absent" not in parse_apt_offers(text)
    assert parse_apt_offers("loose:\n     1.0 500\n        500 http://a.example x/y amd64 Packages\n") == {}
    assert parse_apt_offers("        500 http://a.example x/y amd64 Packages\n") == {}


def test_a_package_of_another_architecture_keeps_its_name_apart() -> None:
    text = POLICY.replace("libcuda1:", "libcuda1:i386:")
    assert "libcuda1:i386" in parse_apt_offers(text)
    assert "libcuda1" not in parse_apt_offers(text)


# --- apt-get -s ---------------------------------------------------------------------------------------------------------

SIMULATION = """\
Reading package lists...
Building dependency tree...
Reading state information...
The following additional packages will be installed:
  libcap2 nvidia-alternative
The following packages will be REMOVED:
  nvidia-legacy-390xx-smi
The following NEW packages will be installed:
  nvidia-alternative
The following held packages will be changed:
  libcap2 nvidia-smi
The following packages will be DOWNGRADED:
  libcuda1 libcuda1:i386
  nvidia-smi
0 upgraded, 1 newly installed, 3 downgraded, 1 to remove and 0 not upgraded.
Remv nvidia-legacy-390xx-smi [390.157-1] [nvidia-alternative:amd64 ]
Inst nvidia-alternative (535.261.03-1~deb12u1 Debian:12.11/oldstable [amd64])
Inst libcap2 [1:2.66-4+deb12u2+b2] (1:2.66-4+deb12u3+b1 Debian:12.15/oldstable, Debian-Security:12/oldstable-security [amd64]) []
Inst nvidia-smi [580.95.05-1] (535.261.03-1~deb12u1 Debian:12.11/oldstable [amd64]) [libcuda1:amd64 ]
Inst libcuda1:i386 [580.95.05-1] (535.261.03-1~deb12u1 Debian:12.11/oldstable [i386])
Inst cuda-drivers (580.95.05-1 NVIDIA CUDA:developer.download.nvidia.com [all])
Inst local-thing (1.0 [all])
Inst from-a-ppa (2.0 X Updates (stable):22.04/jammy [amd64])
Conf nvidia-alternative (535.261.03-1~deb12u1 Debian:12.11/oldstable [amd64])
Conf never-installed (535.261.03-1~deb12u1 Debian:12.11/oldstable [amd64])
"""


def install(name: str, new: str, old: str = "", source: str = "Debian:12.11/oldstable") -> dict[str, str]:
    return {"name": name, "old": old, "new": new, "source": source}


def test_simulated_installs_are_read_with_old_version_and_source() -> None:
    assert parse_simulation(SIMULATION)["installs"] == [
        install("nvidia-alternative", "535.261.03-1~deb12u1"),
        install(
            "libcap2",
            "1:2.66-4+deb12u3+b1",
            "1:2.66-4+deb12u2+b2",
            "Debian:12.15/oldstable, Debian-Security:12/oldstable-security",
        ),
        install("nvidia-smi", "535.261.03-1~deb12u1", "580.95.05-1"),
        install("libcuda1:i386", "535.261.03-1~deb12u1", "580.95.05-1"),
        install("cuda-drivers", "580.95.05-1", source="NVIDIA CUDA:developer.download.nvidia.com"),
        install("local-thing", "1.0", source=""),
        install("from-a-ppa", "2.0", source="X Updates (stable):22.04/jammy"),
    ]


def test_simulated_removals_are_read_also_when_apt_is_set_to_purge() -> None:
    gone = [{"name": "nvidia-legacy-390xx-smi", "old": "390.157-1"}]
    assert parse_simulation(SIMULATION)["removals"] == gone
    assert parse_simulation(SIMULATION.replace("\nRemv ", "\nPurg "))["removals"] == gone


def test_downgrades_and_held_packages_are_read_off_apts_lists() -> None:
    found = parse_simulation(SIMULATION)
    assert [row["name"] for row in found["downgrades"]] == ["nvidia-smi", "libcuda1:i386"]
    assert [row["name"] for row in found["held"]] == ["libcap2", "nvidia-smi"]


def test_a_list_with_versions_has_the_same_names() -> None:
    """As apt writes it where APT::Get::Show-Versions is set."""
    text = SIMULATION.replace(
        "  libcuda1 libcuda1:i386\n  nvidia-smi\n", "   nvidia-smi (580.95.05-1 => 535.261.03-1~deb12u1)\n"
    )
    assert [row["name"] for row in parse_simulation(text)["downgrades"]] == ["nvidia-smi"]


def test_a_simulation_that_is_cut_off_has_no_half_lines() -> None:
    start = SIMULATION.index("Inst nvidia-alternative")
    assert parse_simulation(SIMULATION[: start + len("Inst nvidia-alternative (535.261")])["installs"] == []
    nothing: dict[str, list[dict[str, str]]] = {"installs": [], "removals": [], "downgrades": [], "held": []}
    assert parse_simulation("") == nothing
    assert parse_simulation("Remv nvidia-smi [535") == nothing
    assert parse_simulation("E: Unable to locate package Inst\n") == nothing


@pytest.mark.parametrize(
    ("package_version", "version"),
    [
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("1:535.309.01-0+deb12u1", "535.309.01"),
        ("535.261.03-1~deb12u1", "535.261.03"),
        ("580.126.09-0ubuntu0.24.04.1", "580.126.09"),
        ("1:570.86.15-0ubuntu0~gpu22.04.1", "570.86.15"),
        ("590.44.01-1~22.04", "590.44.01"),
        ("550.163.01~22.04", "550.163.01"),
        ("470.256.02+really", "470.256.02"),
        ("610.43.02", "610.43.02"),
        ("", ""),
    ],
)
def test_upstream_version(package_version: str, version: str) -> None:
    assert upstream_version(package_version) == version


# --- locks --------------------------------------------------------------------------------------------------------------

HOLD = """
import fcntl, sys, time
files = [open(name, "w") for name in sys.argv[1:]]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
Holder = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Start a process that holds locks on files as dpkg does."""
    started: list[subprocess.Popen[str]] = []

    def start(*files: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", HOLD, *map(str, files)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with apt's lock files, and the real processes."""
    for path in apt_reports.APT_LOCKS:
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "proc").symlink_to("/proc")
    return tmp_path


class Closed(PosixPath):
    """A file that this user may see and not open, whoever runs the tests."""

    def open(self, *args: Any, **named: Any) -> Any:
        raise PermissionError(13, "Permission denied")


def lock_table(file: Path, pid: int, inode_end: str = "") -> str:
    about = file.stat()
    device = f"{about.st_dev >> 8 & 0xFFF:02x}:{about.st_dev & 0xFF:02x}"
    return (
        f"1: FLOCK  ADVISORY  WRITE 11 {device}:{about.st_ino} 0 EOF\n"
        f"2: POSIX  ADVISORY  WRITE 12 {device}:{about.st_ino}9 0 EOF\n"
        f"3: POSIX  ADVISORY  READ  13 {device}:{about.st_ino} 0 EOF\n"
        f"4: POSIX  ADVISORY  WRITE {pid} {device}:{about.st_ino}{inode_end} 0 EOF\n"
        f"4: -> POSIX  ADVISORY  WRITE 15 {device}:{about.st_ino} 0 EOF\n"
    )


def test_the_kernel_names_who_holds_a_lock(tmp_path: Path, holder: Holder) -> None:
    file = tmp_path / "lock"
    process = holder(file)
    assert lock_holder(file, "") == process.pid
    process.kill()
    process.wait()
    assert lock_holder(file, "") is None


def test_a_file_without_a_lock_and_no_file_are_held_by_nobody(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert lock_holder(file, "") is None
    file.touch()
    assert lock_holder(file, lock_table(file, 4242)) is None, "the kernel was asked, the table was not needed"


def test_looking_at_a_lock_neither_takes_nor_changes_it(tmp_path: Path, holder: Holder) -> None:
    file = tmp_path / "lock"
    file.write_text("content")
    before = file.stat()
    assert lock_holder(file, "") is None
    with file.open("r+") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert (file.stat().st_mtime_ns, file.read_text()) == (before.st_mtime_ns, "content")


def test_a_lock_that_may_not_be_opened_is_looked_up_in_the_table(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.touch()
    assert lock_holder(Closed(file), lock_table(file, 4242)) == 4242
    others = "\n".join(line for line in lock_table(file, 4242).splitlines()[:3])
    assert lock_holder(Closed(file), others) is None
    assert lock_holder(Closed(file), "") is None
    assert lock_holder(Closed(tmp_path / "absent"), lock_table(file, 4242)) is None


def test_a_real_lock_that_may_not_be_opened_is_found_in_the_kernels_table(tmp_path: Path, holder: Holder) -> None:
    file = tmp_path / "lock"
    process = holder(file)
    table = Path("/proc/locks").read_text()
    if f":{file.stat().st_ino} " not in table:
        pytest.skip("this kernel shows no locks here, or of another device")
    assert lock_holder(Closed(file), table) == process.pid


# --- apt_turn -----------------------------------------------------------------------------------------------------------


def test_nobody_is_in_the_way_of_an_idle_apt(root: Path) -> None:
    assert apt_turn.holders(root) == []


def test_each_lock_is_named_with_its_holder(root: Path, holder: Holder) -> None:
    frontend, _, lists, _ = (root / path.lstrip("/") for path in apt_reports.APT_LOCKS)
    process = holder(frontend, lists)
    found = apt_turn.holders(root)
    assert [entry.split()[0] for entry in found] == ["/var/lib/dpkg/lock-frontend", "/var/lib/apt/lists/lock"]
    for entry in found:
        assert entry.endswith(f"(process {process.pid})")
        assert f" is held by {sys.executable} -c" in entry


def test_a_host_without_apt_has_no_holder(tmp_path: Path) -> None:
    assert apt_turn.holders(tmp_path) == []


def test_a_program_is_named_by_its_command_line_else_by_its_name(tmp_path: Path) -> None:
    for pid, cmdline, comm in (
        (1, b"/usr/bin/python3\0/usr/bin/unattended-upgrade\0--download-only\0", b"unattended-upgr\n"),
        (2, b"", b"kworker/0:1\n"),
        (3, b"x" * 500, b"x\n"),
        (4, b"caf\xff\0", b"x\n"),
    ):
        place = tmp_path / f"proc/{pid}"
        place.mkdir(parents=True)
        (place / "cmdline").write_bytes(cmdline)
        (place / "comm").write_bytes(comm)
    assert apt_turn.program_of(tmp_path, 1) == "/usr/bin/python3 /usr/bin/unattended-upgrade --download-only"
    assert apt_turn.program_of(tmp_path, 2) == "kworker/0:1"
    assert apt_turn.program_of(tmp_path, 3) == "x" * 120
    assert apt_turn.program_of(tmp_path, 4).startswith("caf")
    assert apt_turn.program_of(tmp_path, 5) == "a process that this user can't see"


@pytest.fixture
def cloud_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Ask a cloud-init that is this shell script; an empty one is no program. Its limit is shortened to 0.3 s."""

    def ask(script: str, begun: bool = True) -> list[str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "cloud-init"
        program.unlink(missing_ok=True)
        if script:
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        if begun:
            (tmp_path / "run/cloud-init").mkdir(parents=True, exist_ok=True)

        def run(argv: list[str], timeout: float, **named: Any) -> subprocess.CompletedProcess[str]:
            assert timeout <= 60
            done: subprocess.CompletedProcess[str] = subprocess.run(argv, timeout=0.3, **named)  # noqa: PLW1510
            return done

        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setattr(apt_turn, "Path", lambda path: tmp_path / str(path).lstrip("/"))
        monkeypatch.setattr(
            apt_turn,
            "subprocess",
            SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired),
        )
        return apt_turn.cloud_init()

    return ask


def test_cloud_init_at_work_is_waited_for(cloud_init: Any) -> None:
    assert cloud_init('[ "$1" = status ] && echo "status: running"') == ["cloud-init says that it is still running"]
    assert cloud_init('echo "status: running"; exit 2') == ["cloud-init says that it is still running"]


@pytest.mark.parametrize("answer", ["status: done", "status: disabled", "status: error", ""])
def test_a_cloud_init_that_has_ended_is_not_waited_for(cloud_init: Any, answer: str) -> None:
    assert cloud_init(f'echo "{answer}"') == []


def test_a_host_without_cloud_init_or_on_which_it_never_ran_is_free(cloud_init: Any, tmp_path: Path) -> None:
    assert cloud_init("") == []
    shutil.rmtree(tmp_path / "run")
    assert cloud_init('echo "status: running"', begun=False) == []


def test_a_cloud_init_that_hangs_or_does_not_start_holds_nothing_up(cloud_init: Any, tmp_path: Path) -> None:
    begun = time.monotonic()
    assert cloud_init("exec sleep 30") == []
    assert time.monotonic() - begun < 10
    program = tmp_path / "bin/cloud-init"
    program.write_text("#!/nonexistent/interpreter\n")
    assert apt_turn.cloud_init() == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only `sleep` moves, and the sleeps."""
    fake = SimpleNamespace(now=100.0, slept=[])

    def sleep(seconds: float) -> None:
        assert seconds > 0
        fake.slept.append(seconds)
        fake.now += seconds

    fake.sleep = sleep
    monkeypatch.setattr(apt_turn, "time", SimpleNamespace(monotonic=lambda: fake.now, sleep=sleep))
    return fake


def test_a_free_apt_is_not_waited_for(clock: SimpleNamespace) -> None:
    assert apt_turn.wait(list, 600, 2, clock.sleep) == ([], [], 0.0)
    assert clock.slept == []


def test_the_wait_ends_as_soon_as_nobody_is_in_the_way(clock: SimpleNamespace) -> None:
    looks = iter([["cloud-init"], ["cloud-init", "dpkg"], ["dpkg"], []])
    assert apt_turn.wait(lambda: next(looks), 600, 2, clock.sleep) == ([], ["cloud-init", "dpkg"], 6.0)
    assert clock.slept == [2, 2, 2]


def test_the_wait_gives_up_at_the_limit_and_says_who_it_was(clock: SimpleNamespace) -> None:
    looks: list[float] = []

    def look() -> list[str]:
        looks.append(clock.now)
        return ["early", "dpkg"] if len(looks) == 1 else ["dpkg"]

    assert apt_turn.wait(look, 7, 2, clock.sleep) == (["dpkg"], ["early", "dpkg"], 7.0)
    assert clock.slept == [2, 2, 2, 1], "the last sleep ends at the limit"
    assert looks[-1] == 107.0, "it looks once more at the limit"


def test_a_limit_of_nothing_looks_once(clock: SimpleNamespace) -> None:
    assert apt_turn.wait(lambda: ["dpkg"], 0, 2, clock.sleep) == (["dpkg"], ["dpkg"], 0.0)
    assert apt_turn.wait(list, 0, 2, clock.sleep) == ([], [], 0.0)


def test_apt_turn_is_documented_as_it_is(ansible: Any, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(apt_turn, "holders", partial(apt_turn.holders, root))
    monkeypatch.setattr(apt_turn, "cloud_init", list)
    seen = ansible(apt_turn)
    assert_documented(apt_turn, seen)
    assert seen["result"] == {"changed": False, "waited_s": 0.0, "held_by": []}


def test_who_holds_the_lock_too_long_is_named_and_left_alone(
    ansible: Any, monkeypatch: pytest.MonkeyPatch, root: Path, holder: Holder
) -> None:
    locks = [root / path.lstrip("/") for path in apt_reports.APT_LOCKS]
    process = holder(locks[0])
    monkeypatch.setattr(apt_turn, "holders", partial(apt_turn.holders, root))
    monkeypatch.setattr(apt_turn, "cloud_init", lambda: ["cloud-init says that it is still running"])
    seen = ansible(apt_turn, timeout=1, poll=0.2)
    for told in (
        "/var/lib/dpkg/lock-frontend is held by",
        sys.executable,
        f"(process {process.pid})",
        "cloud-init says that it is still running",
        "for more than 1 s",
        "left alone",
        "wait for it to end, then run again",
    ):
        assert told in seen["failed"]
    assert seen["result"]["waited_s"] >= 1
    assert len(seen["result"]["held_by"]) == 2
    assert process.poll() is None, "nobody is ended"
    assert all(lock.is_file() for lock in locks), "no lock file is removed"
    assert lock_holder(locks[0], "") == process.pid, "nor is the lock taken away"


def test_a_lock_that_is_let_go_in_time_is_no_failure(
    ansible: Any, monkeypatch: pytest.MonkeyPatch, root: Path, holder: Holder
) -> None:
    process = holder(root / "var/lib/dpkg/lock")
    looks = iter(range(99))

    def holders() -> list[str]:
        if next(looks) == 1:
            process.kill()
            process.wait()
        found: list[str] = original(root)
        return found

    original = apt_turn.holders
    monkeypatch.setattr(apt_turn, "holders", holders)
    monkeypatch.setattr(apt_turn, "cloud_init", list)
    seen = ansible(apt_turn, timeout=30, poll=0.05)
    assert "failed" not in seen
    assert len(seen["result"]["held_by"]) == 1
    assert f"(process {process.pid})" in seen["result"]["held_by"][0]


# --- driver_packages: versions ------------------------------------------------------------------------------------------


def offered(*versions: str, source: str = BOOKWORM) -> list[dict[str, Any]]:
    return [{"version": version, "sources": [source]} for version in versions]


def only_installed(version: str) -> dict[str, Any]:
    return {"version": version, "sources": []}


def request(**changes: Any) -> dict[str, Any]:
    return {
        "lead": "nvidia-kernel-dkms", "branch": "535", "version": "", "packages": ["nvidia-smi", "libcuda1"],
        "beside": ["nvidia-modprobe"], "family": FAMILY, "may_replace": False, **changes,
    }  # fmt: skip


def offers(**changes: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    rows = offered("580.95.05-1", "535.261.03-1~deb12u1", "535.183.01-1~deb12u1")
    return {
        "nvidia-kernel-dkms": rows, "nvidia-smi": rows, "libcuda1": rows, "nvidia-modprobe": offered("570.10-1"),
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }  # fmt: skip


def test_the_newest_of_the_branch_is_taken_for_all_packages() -> None:
    version = "535.261.03-1~deb12u1"
    assert dp.exact_versions(request(), offers()) == (
        version,
        [f"nvidia-kernel-dkms={version}", f"nvidia-smi={version}", f"libcuda1={version}", "nvidia-modprobe"],
        "",
    )


def test_a_version_that_is_asked_for_is_taken_though_it_is_not_the_newest() -> None:
    version, exact, problem = dp.exact_versions(request(version="535.183.01"), offers())
    assert (version, problem) == ("535.183.01-1~deb12u1", "")
    assert exact[1] == "nvidia-smi=535.183.01-1~deb12u1"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({"branch": "550"}, "branch 550"), ({"branch": "53"}, "branch 53"), ({"version": "535.183"}, "535.183")],
)
def test_a_branch_or_version_that_nobody_offers_is_a_problem(changes: dict[str, str], wanted: str) -> None:
    version, exact, problem = dp.exact_versions(request(**changes), offers())
    assert (version, exact) == ("", [])
    assert problem == (
        "nvidia-kernel-dkms is offered as 580.95.05-1, 535.261.03-1~deb12u1, 535.183.01-1~deb12u1, wanted " + wanted
    )


def test_a_version_of_another_branch_than_was_asked_for_is_a_problem() -> None:
    assert dp.exact_versions(request(version="580.95.05"), offers())[2].endswith("wanted 580.95.05")


def test_a_lead_that_nobody_offers_or_that_is_only_installed_is_a_problem() -> None:
    told = "nvidia-kernel-dkms is offered as nothing, wanted branch 535"
    assert dp.exact_versions(request(), {}) == ("", [], told)
    assert dp.exact_versions(request(), offers(nvidia_kernel_dkms=[only_installed("535.261.03-1")]))[2] == told


def test_a_package_that_nobody_offers_is_a_problem() -> None:
    assert dp.exact_versions(request(), offers(libcuda1=[]))[2] == (
        "libcuda1 is offered as nothing, wanted 535.261.03 as nvidia-kernel-dkms"
    )
    assert dp.exact_versions(request(), offers(libcuda1=[only_installed("535.261.03-1~deb12u1")]))[2] != ""


def test_a_package_of_another_version_is_a_problem() -> None:
    problem = dp.exact_versions(request(), offers(nvidia_smi=offered("535.183.01-1~deb12u1")))[2]
    assert problem == "nvidia-smi is offered as 535.183.01-1~deb12u1, wanted 535.261.03 as nvidia-kernel-dkms"


def test_another_revision_of_the_same_upstream_version_will_do_and_the_same_one_is_preferred() -> None:
    revisions = offered("535.261.03-2", "535.261.03-1~deb12u1")
    assert "nvidia-smi=535.261.03-1~deb12u1" in dp.exact_versions(request(), offers(nvidia_smi=revisions))[1]
    other = dp.exact_versions(request(), offers(nvidia_smi=offered("1:535.261.03-3")))
    assert "nvidia-smi=1:535.261.03-3" in other[1]
    assert other[2] == ""


def test_a_package_beside_it_that_nobody_offers_is_a_problem() -> None:
    assert dp.exact_versions(request(), offers(nvidia_modprobe=[]))[2] == "nvidia-modprobe is not offered"
    without = {name: rows for name, rows in offers().items() if name != "nvidia-modprobe"}
    assert dp.exact_versions(request(), without)[2] == "nvidia-modprobe is not offered"


# --- driver_packages: the family ----------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    return text.split()


DRIVER = words("""
    nvidia-driver nvidia-driver-bin nvidia-driver-libs nvidia-driver-libs:i386 nvidia-driver-cuda nvidia-kernel-dkms
    nvidia-open-kernel-dkms nvidia-kernel-support nvidia-kernel-common nvidia-kernel-source nvidia-smi libcuda1 libcuda1:i386
    nvidia-alternative nvidia-legacy-check nvidia-installer-cleanup nvidia-modprobe nvidia-persistenced nvidia-settings
    nvidia-suspend-common nvidia-support nvidia-vdpau-driver nvidia-vulkan-icd nvidia-egl-icd nvidia-opencl-icd nvidia-powerd
    nvidia-xconfig nvidia-detect firmware-nvidia-gsp firmware-nvidia-graphics glx-alternative-nvidia glx-diversions libnvidia-ml1
    libnvidia-cfg1 libnvidia-ptxjitcompiler1 libnvidia-allocator1 libnvidia-eglcore libnvidia-glcore libnvidia-nvvm4
    libnvidia-pkcs11-openssl3 libcudadebugger1 libnvcuvid1 libnvoptix1 libnvidia-fbc1 libnvidia-opticalflow1 libglx-nvidia0
    libegl-nvidia0 libgles-nvidia2 nvidia-tesla-470-driver libnvidia-tesla-470-ml1 xserver-xorg-video-nvidia
    nvidia-headless-535-server nvidia-headless-580-server-open nvidia-headless-no-dkms-570-open nvidia-driver-550
    nvidia-driver-580-open nvidia-driver-535-server nvidia-dkms-535-server nvidia-dkms-580-open nvidia-utils-580-server
    nvidia-compute-utils-580-server nvidia-kernel-common-580-server nvidia-kernel-source-535-open nvidia-firmware-535-535.261.03
    nvidia-firmware-580-server-580.126.09 libnvidia-compute-535 libnvidia-compute-580-server libnvidia-gl-550 libnvidia-common-535
    libnvidia-decode-535-server libnvidia-encode-535-server libnvidia-extra-580 libnvidia-cfg1-580-server libnvidia-fbc1-550
    linux-modules-nvidia-535-generic linux-modules-nvidia-580-server-open-aws linux-objects-nvidia-570-6.8.0-90-generic
    linux-signatures-nvidia-6.8.0-90-generic xserver-xorg-video-nvidia-535 nvidia-fabricmanager-580 libnvidia-nscq-580
    cuda-drivers cuda-drivers-550 cuda-drivers-fabricmanager-570 nvidia-open nvidia-open-580 cuda-compat-12-4 nvidia-fabricmanager
    libnvidia-nscq nvidia-imex nvidia-imex-580 nvlsm libnvsdm libnvsdm-580 nvidia-driver-pinning-590 libnvidia-gpucomp
    libnvidia-sandboxutils
""")
OTHERS = words("""
    nvidia-container-toolkit nvidia-container-toolkit-base nvidia-container-runtime nvidia-docker2 libnvidia-container1
    libnvidia-container-tools nvidia-cuda-toolkit nvidia-cuda-toolkit-gcc nvidia-cuda-dev nvidia-cuda-gdb cuda-toolkit-12-4
    cuda-toolkit cuda-12-4 cuda-cudart-12-4 cuda-nvcc-12-4 libcudart12 libcublas12 libcublas-12-4 libnccl2 libnccl-dev
    cuda-keyring nvidia-cudnn libcudnn9-cuda-12 python3-pynvml nvtop datacenter-gpu-manager datacenter-gpu-manager-4-cuda12
    libnvidia-ml-dev nvidia-profiler nvidia-gds libglx-mesa0 libegl-mesa0 glx-alternative-mesa libgl1 linux-modules-extra-6.8.0-90-generic
    linux-headers-amd64 linux-image-6.1.0-37-amd64 firmware-linux-free xserver-xorg-video-nouveau xserver-xorg-video-intel dkms
    my-nvidia-smi
""")


@pytest.mark.parametrize("name", DRIVER)
def test_what_belongs_to_a_driver_is_of_the_family(name: str) -> None:
    assert OF_FAMILY(name)


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_goes_with_a_driver_is_not_of_the_family(name: str) -> None:
    assert not OF_FAMILY(name)


def test_a_name_is_compared_as_a_whole() -> None:
    of_family = dp.belongs(["nvidia-smi|libcuda1", "nvlsm"])
    assert [name for name in ("nvidia-smi", "libcuda1", "nvlsm:amd64", "nvidia-smi2", "xlibcuda1") if of_family(name)] == [
        "nvidia-smi",
        "libcuda1",
        "nvlsm:amd64",
    ]  # fmt: skip


def test_the_pin_is_one_record_on_the_whole_family() -> None:
    text = dp.pin_text(["nvidia-(smi|dkms).*", "libcuda1.*"], "1:535.261.03-1~deb12u1")
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "Package: /^(nvidia-(smi|dkms).*|libcuda1.*)$/",
        "Pin: version 1:535.261.03-1~deb12u1",
        "Pin-Priority: 999",
    ]
    assert text.endswith("\n")
    assert dp.pin_text(["x"], "1", may_replace=True).splitlines()[-1] == "Pin-Priority: 1001"


def test_the_family_is_written_in_extended_regular_expressions() -> None:
    """Apt and unattended-upgrades know no more; grep -E reads them as regcomp does, and finds what Python finds."""
    pattern = re.match(r"/(.*)/$", dp.pin_text(FAMILY, "1").splitlines()[1].partition(": ")[2])
    assert pattern
    assert not re.search(r"\(\?|\\[dwsbDWSB]|[*+?]\?|\s|/", pattern.group(1))
    names = [name.partition(":")[0] for name in (*DRIVER, *OTHERS)]
    told = subprocess.run(
        ["grep", "-E", "-e", pattern.group(1)], input="\n".join(names), capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [name for name in names if OF_FAMILY(name)]


def test_the_pin_is_the_file_that_the_role_writes() -> None:
    files = yaml.safe_load((ROOT / "roles/nvidia_driver/vars/main.yml").read_text())["__nvidia_driver_files"]
    assert files["pin"] == str(dp.PREFERENCES / dp.PIN_FILE)


# --- driver_packages: judgement -----------------------------------------------------------------------------------------

VERSION = "535.261.03-1~deb12u1"


def simulated(**lists: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    return {"installs": [], "removals": [], "downgrades": [], "held": [], **lists}


def judge(may_replace: bool = False, **lists: list[dict[str, str]]) -> str:
    return dp.judge(simulated(**lists), OF_FAMILY, VERSION, may_replace)


def test_a_plain_installation_may_be_done() -> None:
    fine = [
        install("nvidia-kernel-dkms", VERSION),
        install("libcuda1", "1:535.261.03-2"),
        install("dkms", "3.0.10-8+deb12u1"),
        install("nvidia-modprobe", "570.10-1"),
        install("glx-alternative-nvidia", "1.2.2"),
        install("nvidia-smi", VERSION, old="535.183.01-1"),
    ]
    assert judge(installs=fine) == ""
    assert judge(may_replace=True, installs=fine) == ""


@pytest.mark.parametrize("may_replace", [False, True])
def test_nothing_of_others_is_removed(may_replace: bool) -> None:
    gone = [{"name": "linux-image-amd64", "old": "6.1"}, {"name": "nvidia-container-toolkit", "old": "1.17"}]
    own = [{"name": "nvidia-smi", "old": "470.1"}]
    assert judge(may_replace, removals=own + gone) == (
        "apt would remove linux-image-amd64, nvidia-container-toolkit, which are not the driver's"
    )


def test_another_driver_is_removed_only_where_it_may_be_replaced() -> None:
    gone = [{"name": "nvidia-headless-470", "old": "470.256.02-0ubuntu1"}]
    assert (
        judge(removals=gone) == "apt would remove nvidia-headless-470 470.256.02-0ubuntu1: another driver is installed"
    )
    assert judge(may_replace=True, removals=gone) == ""


def test_a_newer_driver_is_taken_back_only_where_it_may_be_replaced() -> None:
    rows = [install("nvidia-smi", VERSION, old="580.95.05-1")]
    assert judge(installs=rows, downgrades=rows) == f"apt would downgrade nvidia-smi from 580.95.05-1 to {VERSION}"
    assert judge(may_replace=True, installs=rows, downgrades=rows) == ""


def test_nothing_of_others_is_downgraded() -> None:
    rows = [install("dkms", "2.8", old="3.0")]
    assert judge(may_replace=True, installs=rows, downgrades=rows) == "apt would downgrade dkms from 3.0 to 2.8"


@pytest.mark.parametrize("may_replace", [False, True])
def test_a_hold_is_overridden_on_the_family_alone(may_replace: bool) -> None:
    assert judge(may_replace, held=[{"name": "nvidia-smi"}, {"name": "libcuda1:i386"}]) == ""
    assert judge(may_replace, held=[{"name": "nvidia-smi"}, {"name": "libc6"}]) == (
        "apt would change libc6, which are on hold and are not the driver's"
    )


@pytest.mark.parametrize(
    "name",
    ["nvidia-kernel-dkms", "nvidia-dkms-580-server", "nvidia-headless-580-server", "nvidia-utils-580", "nvidia-smi", "libcuda1",
     "libnvidia-compute-580", "libnvidia-ml1"],
)  # fmt: skip
def test_two_versions_are_not_mixed(name: str) -> None:
    rows = [install("nvidia-alternative", VERSION), install(name, "580.95.05-1", source="NVIDIA CUDA:host")]
    for may_replace in (False, True):
        assert judge(may_replace, installs=rows) == (
            f"two versions would be mixed: {name} 580.95.05-1 from NVIDIA CUDA:host, wanted {VERSION}"
        )


UNMET = """\
Some packages could not be installed. This may mean that you have
requested an impossible situation or if you are using the unstable
The following packages have unmet dependencies:
 nvidia-kernel-dkms : Depends: nvidia-alternative (= 535.261.03-1~deb12u1) but 580.95.05-1 is to be installed
                      PreDepends: libc6 (>= 2.99) but 2.36-9 is to be installed
 linux-modules-nvidia-580-open-hwe   : Conflicts: nvidia-dkms-535
"""
HELD = "E: Unable to correct problems, you have held broken packages.\n"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, tuple[int, str, str]]], list[list[str]]]:
    """Answer programs by the start of their command line: the calls, as they are made."""

    def answer(answers: dict[str, tuple[int, str, str]]) -> list[list[str]]:
        calls: list[list[str]] = []

        def run(argv: list[str]) -> tuple[int, str, str]:
            calls.append(argv)
            line = " ".join(argv)
            return next(told for start, told in answers.items() if line.startswith(start))

        monkeypatch.setattr(dp, "run", run)
        return calls

    return answer


def test_an_explanation_has_apts_words_and_the_sources_of_what_it_names(programs: Any) -> None:
    policy = (
        "nvidia-alternative:\n  Version table:\n     580.95.05-1 500\n        500 https://n.example/debian12/x86_64  Packages\n"
        " *** 470.1-1 100\n        100 /var/lib/dpkg/status\n"
    )
    calls = programs({"apt-cache policy": (0, policy, "")})
    text = dp.explain(UNMET, HELD, OF_FAMILY)
    named = ["linux-modules-nvidia-580-open-hwe", "nvidia-alternative", "nvidia-dkms-535", "nvidia-kernel-dkms"]
    assert calls == [["apt-cache", "policy", *named]]
    assert text.split("; ") == [
        "nvidia-kernel-dkms : Depends: nvidia-alternative (= 535.261.03-1~deb12u1) but 580.95.05-1 is to be installed",
        "PreDepends: libc6 (>= 2.99) but 2.36-9 is to be installed",
        "linux-modules-nvidia-580-open-hwe   : Conflicts: nvidia-dkms-535",
        "E: Unable to correct problems, you have held broken packages.",
        "nvidia-alternative 580.95.05-1 from https://n.example/debian12/x86_64",
        "nvidia-alternative 470.1-1 from the installed packages alone",
    ]


def test_the_words_of_apts_newer_solver_are_kept(programs: Any) -> None:
    programs({"apt-cache policy": (0, "", "")})
    text = dp.explain(
        "",
        "Error: Unable to satisfy dependencies. Reached two conflicting decisions:\n"
        "   1. nvidia-smi:amd64=535.261.03-1 is selected for install\n   and some more words\n",
        OF_FAMILY,
    )
    assert text.split("; ") == [
        "Error: Unable to satisfy dependencies. Reached two conflicting decisions:",
        "1. nvidia-smi:amd64=535.261.03-1 is selected for install",
    ]


def test_without_a_word_of_apts_it_says_so_and_asks_nothing(programs: Any) -> None:
    calls = programs({})
    assert dp.explain("Reading package lists...\n", "", OF_FAMILY) == "apt gave no reason"
    assert dp.explain("", "E: Unable to locate package gcc-99\n", OF_FAMILY) == "E: Unable to locate package gcc-99"
    assert calls == []


DPKG = """\
nvidia-kernel-dkms\t535.261.03-1~deb12u1\tii 
libcuda1\t535.261.03-1~deb12u1\thi 
nvidia-smi\t535.261.03-1~deb12u1\tiF 
nvidia-modprobe\t570.10-1\tiU 
nvidia-persistenced\t570.10-1\tiHR
nvidia-settings\t470.1-1\trc 
nvidia-alternative\t\tun 
nvidia-container-toolkit\t1.17.0-1\tii 
bash\t5.2.15-2\tii 
cut off
"""  # noqa: W291


def test_packages_that_are_stopped_half_way_count_as_installed_and_left_configuration_does_not(programs: Any) -> None:
    programs({"dpkg-query -W -f ${Package}\t${Version}\t${db:Status-Abbrev}\n": (0, DPKG, "")})
    assert dp.installed_family(OF_FAMILY) == {
        "nvidia-kernel-dkms": "535.261.03-1~deb12u1",
        "libcuda1": "535.261.03-1~deb12u1",
        "nvidia-smi": "535.261.03-1~deb12u1",
        "nvidia-modprobe": "570.10-1",
        "nvidia-persistenced": "570.10-1",
    }


# --- driver_packages: simulate ------------------------------------------------------------------------------------------


def policy_of(table: dict[str, list[dict[str, Any]]]) -> str:
    lines = []
    for name, rows in table.items():
        lines += [f"{name}:", "  Installed: (none)", f"  Candidate: {rows[0]['version']}", "  Version table:"]
        for row in rows:
            lines += [f"     {row['version']} 500", *(f"        500 {s} amd64 Packages" for s in row["sources"])]
    return "\n".join(lines) + "\n"


def test_a_request_is_looked_up_and_simulated_with_exact_versions(
    programs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dp, "PREFERENCES", tmp_path)
    out = f"Inst dkms (3.0 Debian:12 [all])\nInst nvidia-kernel-dkms ({VERSION} Debian:12 [amd64])\n"
    calls = programs(
        {"apt-cache policy": (0, policy_of(offers()), ""), "dpkg-query": (0, "", ""), "apt-get": (0, out, "")}
    )
    result = dp.simulate(request())
    assert result == {
        "version": VERSION,
        "exact": [f"nvidia-kernel-dkms={VERSION}", f"nvidia-smi={VERSION}", f"libcuda1={VERSION}", "nvidia-modprobe"],
        "installs": [install("nvidia-kernel-dkms", VERSION, source="Debian:12")],
        "removals": [],
        "installed": {},
        "pin": dp.pin_text(FAMILY, VERSION),
        "problem": "",
    }
    assert calls[0] == ["apt-cache", "policy", "nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-modprobe"]
    assert calls[-1][:3] == ["apt-get", "-s", "-y"]
    assert calls[-1][-5:] == ["install", *result["exact"]]
    assert {argv[0] for argv in calls} == {"apt-cache", "dpkg-query", "apt-get"}


def test_a_transitional_package_that_leads_to_another_version_is_refused(
    programs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dp, "PREFERENCES", tmp_path)
    lead = "nvidia-headless-535-server"
    out = (
        f"Inst {lead} (535.309.01-0ubuntu1 Ubuntu:24.04/noble-updates [amd64])\n"
        "Inst nvidia-headless-580-server (580.173.02-0ubuntu1 Ubuntu:24.04/noble-updates [amd64])\n"
    )
    policy = policy_of({lead: offered("535.309.01-0ubuntu1")})
    programs({"apt-cache policy": (0, policy, ""), "dpkg-query": (0, "", ""), "apt-get": (0, out, "")})
    assert dp.simulate(request(lead=lead, packages=[], beside=[]))["problem"] == (
        "two versions would be mixed: nvidia-headless-580-server 580.173.02-0ubuntu1 from Ubuntu:24.04/noble-updates, "
        "wanted 535.309.01-0ubuntu1"
    )


def test_nothing_is_simulated_for_a_version_that_nobody_offers(programs: Any) -> None:
    calls = programs({"apt-cache policy": (0, policy_of(offers()), ""), "dpkg-query": (0, DPKG, "")})
    result = dp.simulate(request(branch="610"))
    assert (result["version"], result["pin"], result["exact"]) == ("", "", [])
    assert result["problem"].endswith("wanted branch 610")
    assert result["installed"]["nvidia-smi"] == VERSION
    assert not [argv for argv in calls if argv[0] == "apt-get"]


def test_what_apt_refuses_is_explained(programs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dp, "PREFERENCES", tmp_path)
    programs(
        {"apt-cache policy": (0, policy_of(offers()), ""), "dpkg-query": (0, "", ""), "apt-get": (100, UNMET, HELD)}
    )
    problem = dp.simulate(request())["problem"]
    assert problem.startswith("nvidia-kernel-dkms : Depends: nvidia-alternative (= 535.261.03-1~deb12u1)")
    assert f"nvidia-smi {VERSION} from {BOOKWORM}" in problem


def test_driver_packages_is_documented_as_it_is(ansible: Any, programs: Any) -> None:
    programs({"apt-cache policy": (0, "", ""), "dpkg-query": (0, "", "")})
    seen = ansible(dp, lead="nvidia-open", branch="590", family=FAMILY)
    assert_documented(dp, seen)
    assert seen["result"]["changed"] is False
    assert seen["result"]["problem"] == "nvidia-open is offered as nothing, wanted branch 590"


# --- driver_packages with the apt of this machine ----------------------------------------------------------------------


class Archive:
    """A suite of Debian's form and a flat one of NVIDIA's for an apt that knows only them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.parts = place / "etc/preferences.d"
        for folder in (
            "etc/preferences.d",
            "etc/apt.conf.d",
            "etc/sources.list.d",
            "lists/partial",
            "cache/archives/partial",
        ):
            (place / folder).mkdir(parents=True)
        (place / "dpkg/info").mkdir(parents=True)
        self.installed({})
        (place / "apt.conf").write_text(
            f'Dir::Etc "{place}/etc"; Dir::State "{place}"; Dir::State::lists "{place}/lists";'
            f'Dir::State::status "{place}/dpkg/status"; Dir::Cache "{place}/cache"; Dir::Log "{place}";\n'
            'APT::Architecture "amd64"; APT::Architectures { "amd64"; }; APT::Sandbox::User "root";\n'
        )

    def installed(self, versions: dict[str, str], *more: str, held: bool = False) -> None:
        state = f"Status: {'hold' if held else 'install'} ok installed"
        text = "\n".join(self.record(name, version, state, *more) for name, version in versions.items())
        (self.place / "dpkg/status").write_text(text)

    @staticmethod
    def record(name: str, version: str, *more: str) -> str:
        fields = (f"Package: {name}", f"Version: {version}", "Architecture: amd64", "Maintainer: nobody <n@x.example>")
        return "\n".join((*fields, *more, "Description: nothing", ""))

    def packages(self, folder: Path, records: list[str], *release: str, inner: str = "Packages") -> None:
        file = folder / inner
        file.parent.mkdir(parents=True)
        places = (f"{r}Filename: ./{i}.deb\nSize: 1\nSHA256: {i:064d}\n" for i, r in enumerate(records))
        file.write_text("\n".join(places))
        content = file.read_bytes()
        sums = f" {hashlib.sha256(content).hexdigest()} {len(content)} {inner}"
        (folder / "Release").write_text(
            "\n".join((*release, "Date: Tue, 01 Dec 2026 00:00:00 UTC", "SHA256:", sums, ""))
        )


def driver_records(version: str, *more: str) -> list[str]:
    """A driver of Debian's form: each package depends on exactly its own version of another."""
    needs = f"Depends: nvidia-alternative (= {version})"
    return [
        Archive.record("nvidia-kernel-dkms", version, needs, *more),
        Archive.record("nvidia-smi", version, needs),
        Archive.record("nvidia-alternative", version),
    ]


OLD, NEW = "535.261.03-1", "580.95.05-1"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    if not shutil.which("apt-get") or not shutil.which("dpkg-query"):
        pytest.skip("this machine has no apt")
    made = Archive(tmp_path)
    headless = [
        Archive.record(f"nvidia-headless-{n}", f"{n}.1-1", "Provides: nvidia-headless", "Conflicts: nvidia-headless")
        for n in (470, 535)
    ]
    tool = Archive.record("nvidia-modprobe", "570.1-1", "Conflicts: landlords-tool")
    flat, suite = tmp_path / "flat", tmp_path / "debian/dists/bookworm"
    made.packages(
        flat, [*driver_records(NEW), Archive.record("nvidia-open", NEW)], "Origin: NVIDIA", "Label: NVIDIA CUDA"
    )
    made.packages(
        suite, [*driver_records(OLD, "Phased-Update-Percentage: 10"), *headless, tool],
        "Origin: Debian", "Label: Debian", "Suite: bookworm", "Codename: bookworm", "Architectures: amd64", "Components: non-free",
        inner="non-free/binary-amd64/Packages",
    )  # fmt: skip
    (tmp_path / "etc/sources.list").write_text(
        f"deb [trusted=yes] file:{flat} /\ndeb [trusted=yes] file:{tmp_path}/debian bookworm non-free\n"
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    monkeypatch.setenv("DPKG_ADMINDIR", str(tmp_path / "dpkg"))
    monkeypatch.setattr(dp, "PREFERENCES", made.parts)
    rc, out, err = dp.run(["apt-get", "update"])
    assert rc == 0, out + err
    return made


def asked(**changes: Any) -> dict[str, Any]:
    return dp.simulate(request(packages=["nvidia-smi"], beside=[], **changes))


def test_apts_own_table_of_a_flat_source_and_of_a_phased_version_is_read(archive: Archive) -> None:
    policy = dp.run(["apt-cache", "policy", "nvidia-kernel-dkms", "nvidia-open"])[1]
    flat, suite = f"file:{archive.place}/flat", f"file:{archive.place}/debian bookworm/non-free"
    assert parse_apt_offers(policy) == {
        "nvidia-kernel-dkms": [{"version": NEW, "sources": [flat]}, {"version": OLD, "sources": [suite]}],
        "nvidia-open": [{"version": NEW, "sources": [flat]}],
    }


def test_dependencies_come_at_the_version_too_though_a_newer_one_is_offered(archive: Archive) -> None:
    result = asked()
    assert result["problem"] == ""
    assert {row["name"]: (row["new"], row["source"]) for row in result["installs"]} == dict.fromkeys(
        ("nvidia-kernel-dkms", "nvidia-smi", "nvidia-alternative"), (OLD, "Debian:bookworm")
    )
    assert list(archive.parts.iterdir()) == [], "the pin is only tried"


def test_the_driver_of_a_flat_source_is_found(archive: Archive) -> None:
    result = dp.simulate(request(lead="nvidia-open", branch="580", packages=[], beside=[]))
    assert (result["version"], result["problem"]) == (NEW, "")
    assert [row["source"] for row in result["installs"]] == ["NVIDIA CUDA:localhost"]


def test_the_pin_of_an_earlier_run_is_not_in_the_way(archive: Archive) -> None:
    for version in (OLD, NEW):
        for other in (OLD, NEW):
            (archive.parts / dp.PIN_FILE).write_text(dp.pin_text(FAMILY, other, may_replace=True))
            assert asked(branch=version[:3])["problem"] == ""
            assert f"version {other}" in (archive.parts / dp.PIN_FILE).read_text(), "it is left as it was"


@pytest.mark.parametrize("place", ["preferences", "preferences.d/landlord"])
def test_a_pin_of_others_that_wins_over_ours_is_met_in_the_simulation(archive: Archive, place: str) -> None:
    """Whatever apt reads on the host, it reads in the simulation; only our own earlier pin is left out."""
    other = archive.place / "etc" / place
    other.write_text("Package: nvidia-alternative\nPin: version 580*\nPin-Priority: 1002\n")
    assert "nvidia-alternative (= 535.261.03-1) but 580.95.05-1 is to be installed" in asked()["problem"]
    other.write_text("Package: nvidia-alternative\nPin: version 470*\nPin-Priority: 1002\n")
    assert asked()["problem"] == ""


def test_an_older_driver_is_upgraded_with_its_holds(archive: Archive) -> None:
    archive.installed(dict.fromkeys(("nvidia-kernel-dkms", "nvidia-smi", "nvidia-alternative"), OLD), held=True)
    result = asked(branch="580")
    assert result["problem"] == ""
    assert {row["old"] for row in result["installs"]} == {OLD}
    assert result["installed"] == dict.fromkeys(("nvidia-alternative", "nvidia-kernel-dkms", "nvidia-smi"), OLD)


def test_a_newer_driver_is_taken_back_with_its_dependencies_only_where_it_may(archive: Archive) -> None:
    archive.installed(dict.fromkeys(("nvidia-kernel-dkms", "nvidia-smi", "nvidia-alternative"), NEW), held=True)
    assert "nvidia-alternative (= 535.261.03-1)" in asked()["problem"]
    result = asked(may_replace=True)
    assert result["problem"] == ""
    assert {row["name"] for row in result["installs"]} == {"nvidia-kernel-dkms", "nvidia-smi", "nvidia-alternative"}
    # Where nothing depends on it, apt itself would go down without another word.
    archive.installed({"nvidia-alternative": NEW})
    lone = request(lead="nvidia-alternative", packages=[], beside=[])
    assert dp.simulate(lone)["problem"] == f"apt would downgrade nvidia-alternative from {NEW} to {OLD}"


def test_a_driver_in_the_way_is_removed_with_its_hold_only_where_it_may_be(archive: Archive) -> None:
    archive.installed({"nvidia-headless-470": "470.1-1"}, "Provides: nvidia-headless", held=True)
    wanted = request(lead="nvidia-headless-535", packages=[], beside=[])
    assert dp.simulate(wanted)["problem"] == "apt would remove nvidia-headless-470 470.1-1: another driver is installed"
    result = dp.simulate({**wanted, "may_replace": True})
    assert (result["problem"], result["removals"]) == ("", [{"name": "nvidia-headless-470", "old": "470.1-1"}])


def test_the_landlords_packages_are_neither_removed_nor_freed_of_their_hold(archive: Archive) -> None:
    archive.installed({"landlords-tool": "1.0"}, held=True)
    problem = dp.simulate(request(packages=[], beside=["nvidia-modprobe"], may_replace=True))["problem"]
    assert problem == "apt would remove landlords-tool, which are not the driver's"


def test_apt_pins_the_family_and_nobody_else(archive: Archive) -> None:
    (archive.parts / dp.PIN_FILE).write_text(dp.pin_text([p for p in FAMILY if "modprobe" not in p], "5*"))
    policy = dp.run(["apt-cache", "policy", "nvidia-modprobe", "nvidia-alternative"])[1]
    assert "     570.1-1 500" in policy
    (archive.parts / dp.PIN_FILE).write_text(dp.pin_text(FAMILY, "570.1-1"))
    policy = dp.run(["apt-cache", "policy", "nvidia-modprobe", "nvidia-alternative"])[1]
    assert "     570.1-1 999" in policy
    assert f"     {NEW} 500" in policy


# --- all modules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_a_module_is_python_3_8_and_needs_nothing_but_ansibles_basic(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    names = set()
    annotations: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
        for note in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            annotations |= {id(part) for part in ast.walk(note)} if note else set()
    assert "from __future__ import annotations" in file.read_text()
    ours = {f"ansible.module_utils.{other.stem}" for other in (ROOT / "module_utils").glob("*.py")}
    assert {name.partition(".")[0] for name in names - ours - {"ansible.module_utils.basic"}} <= sys.stdlib_module_names
    # Built-in types take no parameters before Python 3.9, except in annotations, which nobody evaluates here.
    builtin = {"dict", "list", "tuple", "set", "frozenset", "type", "Callable", "Iterable", "Iterator", "Mapping"}
    assert [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in builtin
        and id(node) not in annotations
    ] == []  # fmt: skip
    assert not re.search(
        r"\.(removeprefix|removesuffix|is_relative_to|bit_count)\(|\bzip\([^)]*strict=", file.read_text()
    )
    calls = [
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert "readlink" not in calls or "os.readlink" in file.read_text()


def test_the_modules_are_all_looked_at() -> None:
    names = {file.name for file in SOURCES}
    assert {"apt_turn.py", "driver_packages.py", "host_probe.py", "apt_reports.py"} <= names
