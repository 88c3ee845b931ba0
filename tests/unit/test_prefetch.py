"""The download job against a server that misbehaves in the ways that real ones do."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import prefetch

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(prefetch.__file__)
PAYLOAD = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(9_400))
SHA256 = hashlib.sha256(PAYLOAD).hexdigest()
CUT = len(PAYLOAD) * 60 // 100


class BadServer(ThreadingHTTPServer):
    """Serves PAYLOAD under /<manner>/<anything>; counts requests and bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), BadHandler)
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        self.guard = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, manner: str, name: str = "file.run") -> str:
        return f"http://127.0.0.1:{self.server_port}/{manner}/{name}"

    def count(self, manner: str = "") -> int:
        return sum(path.startswith(f"/{manner}") for path, _ in self.requests)


class BadHandler(BaseHTTPRequestHandler):
    """One manner of misbehaving per first part of the path."""

    server: BadServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        manner = self.path.split("/")[1]
        with self.server.guard:
            self.server.requests.append((self.path, self.headers.get("Range", "")))
            number = sum(path == self.path for path, _ in self.server.requests)
        if manner == "404" or (manner == "503twice" and number <= 2):
            self.send_error(int(manner[:3]))
            return
        body = PAYLOAD
        if manner == "altered":
            body = PAYLOAD[:1000] + bytes([PAYLOAD[1000] ^ 1]) + PAYLOAD[1001:]
        if manner == "longer":
            body = PAYLOAD + b"more"
        first = 0
        if self.headers.get("Range") and manner != "norange":
            first = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
            if first >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - first))
        self.end_headers()
        piece = body[first:]
        if (manner == "cuttwice" and number <= 2) or (manner == "norange" and number == 1):
            piece = piece[: len(piece) * 60 // 100]
        if manner == "stallonce" and number == 1:
            self._send(piece[:1000])
            time.sleep(4)
            return
        if manner == "slow":
            for at in range(0, len(piece), 10_000):
                self._send(piece[at : at + 10_000])
                time.sleep(0.05)
            return
        self._send(piece)

    def _send(self, piece: bytes) -> None:
        self.server.sent += len(piece)
        try:
            self.wfile.write(piece)
            self.wfile.flush()
        except OSError:
            self.close_connection = True


@pytest.fixture
def server() -> Iterator[BadServer]:
    bad = BadServer()
    yield bad
    bad.shutdown()
    bad.server_close()


class Host:
    """A state directory, and the script run on it as the role does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.state.mkdir()
        self.dest = root / "downloads" / "file.run"
        self.part = root / "downloads" / "file.run.part"

    def manifest(self, *urls: str, **changes: Any) -> None:
        item = {"name": "file.run", "urls": list(urls), "sha256": SHA256, "size": len(PAYLOAD), "dest": str(self.dest)}
        wheels = changes.pop("wheels", {})
        settings = {"parallel": 4, "retries": 3, "pause_s": 0.02, "stall_s": 1, "stall_bytes_s": 5000}
        document = {"files": [item | changes] if urls else [], "wheels": wheels, **settings}
        (self.state / "manifest.json").write_text(json.dumps(document))

    def call(self, *arguments: str) -> Any:
        argv = [sys.executable, str(SCRIPT), arguments[0], "--state-dir", str(self.state), *arguments[1:]]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def run(self) -> Any:
        return self.call("run")["files"]["file.run"]

    def status(self) -> Any:
        return json.loads((self.state / "status.json").read_text())

    def log(self) -> str:
        return (self.state / "log").read_text()

    def good(self) -> bool:
        return self.dest.read_bytes() == PAYLOAD and not self.part.exists()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    machine = Host(tmp_path)
    yield machine
    pid = prefetch.read_json(machine.state / "status.json").get("pid") or 0
    lock = prefetch.take_lock(prefetch.Paths(str(machine.state)))
    if lock is None and pid:
        os.killpg(pid, signal.SIGKILL)


def test_a_line_that_is_cut_at_60_percent_twice_is_resumed(host: Host, server: BadServer) -> None:
    host.manifest(server.url("cuttwice"))
    entry = host.run()
    assert (entry["state"], entry["tries"]) == ("done", 3)
    assert host.good()
    assert [given for _, given in server.requests][1] == f"bytes={CUT}-"
    assert server.sent == len(PAYLOAD)


def test_a_server_that_alters_a_byte_leaves_no_file_and_is_named(host: Host, server: BadServer) -> None:
    host.manifest(server.url("altered"))
    entry = host.run()
    assert entry["state"] == "failed"
    assert not host.dest.exists()
    assert not host.part.exists()
    altered = hashlib.sha256(PAYLOAD[:1000] + bytes([PAYLOAD[1000] ^ 1]) + PAYLOAD[1001:]).hexdigest()
    for said in (server.url("altered"), f"expected sha256 {SHA256}", f"got {altered}"):
        assert said in entry["error"]
    assert server.count() == prefetch.MISMATCHES


def test_a_good_file_is_not_fetched_and_nothing_has_changed(host: Host, server: BadServer) -> None:
    host.dest.parent.mkdir()
    host.dest.write_bytes(PAYLOAD)
    host.manifest(server.url("good"))
    answer = host.call("start")
    assert (answer["changed"], answer["state"]) == (False, "complete")
    assert host.call("wait", "file.run")["finished"]
    assert host.run()["fetched"] == 0
    assert server.count() == 0


@pytest.mark.parametrize("content", [b"short", PAYLOAD[:-1] + b"x", PAYLOAD + b"more"])
def test_a_wrong_file_under_the_final_name_is_replaced(host: Host, server: BadServer, content: bytes) -> None:
    host.dest.parent.mkdir()
    host.dest.write_bytes(content)
    host.manifest(server.url("good"))
    assert host.call("start")["changed"]
    assert host.call("wait", "file.run")["failed"] == []
    assert host.good()


def test_a_good_file_that_is_altered_later_is_fetched_again(host: Host, server: BadServer) -> None:
    host.manifest(server.url("good"))
    host.run()
    host.dest.write_bytes(PAYLOAD[:-1] + b"x")
    assert host.call("start")["changed"]
    host.call("wait", "file.run")
    assert host.good()


def test_busy_servers_are_asked_again(host: Host, server: BadServer) -> None:
    host.manifest(server.url("503twice"))
    assert host.run()["tries"] == 3
    assert host.good()


def test_the_next_address_is_used_when_one_does_not_have_the_file(host: Host, server: BadServer) -> None:
    host.manifest(server.url("404"), server.url("good"))
    host.run()
    assert host.good()
    assert server.count("404") == 1


def test_the_next_address_is_used_when_one_alters_the_file(host: Host, server: BadServer) -> None:
    host.manifest(server.url("altered"), server.url("good"))
    host.run()
    assert host.good()


def test_pieces_of_a_bad_and_a_good_server_end_as_a_good_file(host: Host, server: BadServer) -> None:
    host.part.parent.mkdir()
    host.part.write_bytes(b"x" * 5000)
    host.manifest(server.url("altered"), server.url("good"))
    host.run()
    assert host.good()


def test_all_addresses_are_named_when_none_works(host: Host, server: BadServer) -> None:
    host.manifest(server.url("404"), server.url("404", "other"))
    error = host.run()["error"]
    assert f"{server.url('404')}: HTTP 404" in error
    assert f"{server.url('404', 'other')}: HTTP 404" in error


def test_a_refused_connection_ends_after_the_retries(host: Host) -> None:
    host.manifest("http://127.0.0.1:9/file.run")
    entry = host.run()
    assert (entry["state"], entry["tries"]) == ("failed", 3)


def test_a_stalled_line_is_given_up_and_resumed(host: Host, server: BadServer) -> None:
    host.manifest(server.url("stallonce"))
    began = time.monotonic()
    assert host.run()["tries"] == 2
    assert time.monotonic() - began < 4
    assert server.requests[1][1] == "bytes=1000-"
    assert host.good()


def test_a_server_without_ranges_is_started_over(host: Host, server: BadServer) -> None:
    host.manifest(server.url("norange"))
    assert host.run()["state"] == "done"
    assert host.good()


def test_a_longer_file_than_pinned_is_refused(host: Host, server: BadServer) -> None:
    host.manifest(server.url("longer"))
    assert f"expected {len(PAYLOAD)} bytes" in host.run()["error"]
    assert not host.dest.exists()


def test_a_whole_part_without_a_pinned_size_is_recognised(host: Host, server: BadServer) -> None:
    host.part.parent.mkdir()
    host.part.write_bytes(PAYLOAD)
    host.manifest(server.url("good"), size=None)
    assert host.run()["state"] == "done"
    assert server.sent == 0
    assert host.good()


def test_a_full_disk_is_told_before_the_download(
    host: Host, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.manifest(server.url("good"))
    paths = prefetch.Paths(str(host.state))
    lock = prefetch.take_lock(paths)
    assert lock is not None
    monkeypatch.setattr(prefetch.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert prefetch.run_job(paths, lock) == 1
    os.close(lock)
    assert "no space" in host.status()["files"]["file.run"]["error"]
    assert server.count() == 0


def test_a_second_start_does_nothing_while_the_first_runs_and_when_it_is_done(host: Host, server: BadServer) -> None:
    host.manifest(server.url("slow"))
    began = time.monotonic()
    first = host.call("start")
    assert time.monotonic() - began < 2
    second = host.call("start")
    assert (first["changed"], second["changed"]) == (True, False)
    assert second["pid"] == first["pid"]
    assert host.call("wait", "--timeout", "30", "file.run")["finished"]
    while prefetch.read_json(host.state / "status.json")["state"] == "running":
        time.sleep(0.05)
    assert host.call("start") == {"changed": False, "state": "complete", "pid": 0}
    assert server.count() == 1


def test_another_manifest_takes_over_and_keeps_what_was_fetched(host: Host, server: BadServer) -> None:
    host.manifest(server.url("slow"))
    first = host.call("start")
    time.sleep(0.6)
    host.manifest(server.url("good"))
    second = host.call("start")
    assert second["changed"]
    assert second["pid"] != first["pid"]
    assert host.call("wait", "file.run")["failed"] == []
    assert host.good()
    assert server.requests[-1][1].startswith("bytes=")


def test_the_job_survives_the_session_that_started_it(host: Host, server: BadServer) -> None:
    host.manifest(server.url("slow"))
    argv = f"{sys.executable} {SCRIPT} start --state-dir {host.state}; sleep 60"
    session = subprocess.Popen(["/bin/sh", "-c", argv], start_new_session=True, stdout=subprocess.PIPE)
    assert session.stdout
    assert json.loads(session.stdout.readline())["changed"]
    os.killpg(session.pid, signal.SIGHUP)
    os.killpg(session.pid, signal.SIGKILL)
    session.wait()
    assert host.call("wait", "--timeout", "30", "file.run")["restarted"] is False
    assert host.good()


def test_wait_tells_how_far_a_file_is(host: Host, server: BadServer) -> None:
    host.manifest(server.url("slow"))
    host.call("start")
    answer = host.call("wait", "--timeout", "0.7", "file.run")
    assert not answer["finished"]
    assert answer["progress"].startswith("file.run 0/0 MB")
    assert prefetch.progress("a.run", {"state": "fetching", "bytes": 412e6, "size": 2.7e9, "speed": 48e6}) == (
        "a.run 412/2700 MB, 48.0 MB/s"
    )


def test_wait_starts_a_killed_job_again_and_resumes(host: Host, server: BadServer) -> None:
    host.manifest(server.url("slow"))
    pid = host.call("start")["pid"]
    time.sleep(0.6)
    os.killpg(pid, signal.SIGKILL)
    time.sleep(0.2)
    answer = host.call("wait", "--timeout", "30", "file.run")
    assert answer["restarted"]
    assert host.good()
    assert server.requests[-1][1].startswith("bytes=")


def test_wait_names_what_failed(host: Host, server: BadServer) -> None:
    host.manifest(server.url("404"))
    host.call("start")
    answer = host.call("wait", "file.run")
    assert answer["finished"]
    assert "HTTP 404" in answer["failed"][0]


def test_wait_refuses_a_name_that_nobody_fetches(host: Host, server: BadServer) -> None:
    host.manifest(server.url("good"))
    host.run()
    assert "other.run: not in the manifest, which has file.run" in host.call("wait", "other.run")["failed"][0]


def test_files_come_in_parallel(host: Host, server: BadServer) -> None:
    host.manifest(server.url("slow"))
    document = json.loads((host.state / "manifest.json").read_text())
    one = document["files"][0]
    document["files"] = [
        one | {"name": f"f{n}", "dest": f"{host.root}/downloads/f{n}", "urls": [server.url("slow", f"f{n}")]}
        for n in range(4)
    ]
    (host.state / "manifest.json").write_text(json.dumps(document))
    began = time.monotonic()
    host.call("run")
    assert time.monotonic() - began < 4.5  # each takes 1.5 s


def test_passwords_of_addresses_are_written_nowhere(host: Host, server: BadServer) -> None:
    host.manifest(server.url("404").replace("http://", "http://me:secret@"))
    host.run()
    assert "secret" not in host.log() + (host.state / "status.json").read_text()
    assert "HTTP 404" in host.log()


def fake_tools(host: Host, uv_fails: bool = False) -> dict[str, Any]:
    """A Python whose pip installs a uv that records its arguments and fills the cache."""
    python = host.root / "env/bin/python"
    python.parent.mkdir(parents=True)
    (host.root / "uv.template").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "uv 9.9.9" && exit\n'
        f'echo "$@" >>{host.root}/uv.calls\nenv | grep -E "^(UV_|TMPDIR|DS_)" >>{host.root}/uv.env\n'
        f"mkdir -p $UV_CACHE_DIR/archive\nhead -c 1000 /dev/zero >$UV_CACHE_DIR/archive/a\nexit {int(uv_fails)}\n"
    )
    python.write_text(
        f'#!/bin/sh\n[ "$3" = --version ] && exit 0\necho "$@" >>{host.root}/pip.calls\nmkdir -p {host.root}/uv/bin\n'
        f"cp {host.root}/uv.template {host.root}/uv/bin/uv\nchmod 755 {host.root}/uv/bin/uv\n"
    )
    (host.state / "requirements.lock").write_text("a==1 --hash=sha256:00\n")
    return {
        "python": str(python), "cache_dir": f"{host.root}/cache", "uv_prefix": f"{host.root}/uv", "uv_version": "9.9.9",
        "uv_hashes": ["ab", "cd"], "index_url": "", "torch_index_url": "", "wait_s": 20,
    }  # fmt: skip


def test_wheels_wait_for_the_environment_and_warm_the_cache(host: Host) -> None:
    host.manifest(wheels=fake_tools(host))
    assert host.call("start")["changed"]
    assert host.call("wait", "--timeout", "1.2", "wheels")["progress"] == "wheels waiting"
    (host.root / "env/bin/python").chmod(0o755)
    answer = host.call("wait", "--timeout", "20", "wheels")
    assert (answer["finished"], answer["progress"]) == (True, "wheels done")
    assert (host.state / "uv.txt").read_text() == "uv==9.9.9 --hash=sha256:ab --hash=sha256:cd\n"
    assert "--require-hashes --no-deps --only-binary :all:" in (host.root / "pip.calls").read_text()
    calls = (host.root / "uv.calls").read_text()
    assert "--require-hashes" in calls
    assert "index" not in calls + (host.root / "pip.calls").read_text()
    assert f"UV_CACHE_DIR={host.root}/cache" in (host.root / "uv.env").read_text()
    assert list((host.root / "cache").glob(".warm-*")) == []


def test_given_indexes_reach_uv_and_hashes_decide_between_them(host: Host) -> None:
    host.manifest(wheels=fake_tools(host) | {"index_url": "http://m/simple", "torch_index_url": "http://m/whl/cu124"})
    (host.root / "env/bin/python").chmod(0o755)
    host.call("run")
    wanted = "--index-url http://m/simple --extra-index-url http://m/whl/cu124 --index-strategy unsafe-best-match"
    assert wanted in (host.root / "uv.calls").read_text()
    assert "--index-url http://m/simple --trusted-host m" in (host.root / "pip.calls").read_text()


def test_wheels_that_fail_are_recorded_and_stop_nothing(host: Host, server: BadServer) -> None:
    host.manifest(server.url("good"), wheels=fake_tools(host, uv_fails=True))
    (host.root / "env/bin/python").chmod(0o755)
    status = host.call("run")
    assert (status["state"], status["wheels"]["state"]) == ("done", "failed")
    answer = host.call("wait", "wheels", "file.run")
    assert (answer["finished"], answer["failed"]) == (True, [])
    assert host.call("start")["changed"]  # and are tried again by the next run


def test_an_environment_that_never_comes_is_not_waited_for_without_end(host: Host) -> None:
    host.manifest(wheels=fake_tools(host) | {"wait_s": 1})
    assert "has not come" in host.call("run")["wheels"]["error"]


def test_a_changed_lock_is_another_job(host: Host) -> None:
    host.manifest(wheels=fake_tools(host))
    (host.root / "env/bin/python").chmod(0o755)
    host.call("run")
    assert host.call("start")["state"] == "complete"
    (host.state / "requirements.lock").write_text("a==2 --hash=sha256:00\n")
    assert host.call("start")["changed"]


def test_the_script_parses_under_the_oldest_supported_python() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))
