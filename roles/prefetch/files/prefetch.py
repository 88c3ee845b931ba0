#!/usr/bin/env python3
"""Fetch everything big in one detached job: in parallel, resumable, checked.

Runs on the host under the system's Python (3.8 or newer, standard library only); curl does the fetching.

    prefetch.py start --state-dir DIR               start the job of DIR/manifest.json, return at once
    prefetch.py wait --state-dir DIR NAME ...       wait up to --timeout seconds for files, say how far they are
    prefetch.py run --state-dir DIR                 the job itself, in the foreground

Each command prints one JSON document. A file is fetched to `<dest>.part`, hashed while it arrives, compared with
the pinned size and sha256 and only then renamed: what stands under its final name is whole.
The word `wheels` in place of a file's name stands for the job that warms uv's cache.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Json = dict[str, Any]

CHUNK = 1 << 20
# Hashed between two looks at curl.
FOLLOW = 64 << 20
# A try that brought this many bytes more than any before it is no failure: a bad line still gets there.
PROGRESS = 1 << 20
# Answers that another try won't change.
PERMANENT = frozenset({400, 401, 404, 405, 406, 410, 451})
CURL_NO_RANGES = 33
CURL_TOO_BIG = 63
# An altered file may be a bad transfer, twice the same is a bad server.
MISMATCHES = 2
RESTARTS = 3
WHEELS = "wheels"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


class FetchError(Exception):
    """A file could not be fetched; the message is meant for the user."""


def redact(text: str) -> str:
    """Hide user names and passwords of URLs."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1***@", text)


def megabytes(count: float) -> str:
    """Bytes as whole MB (10^6)."""
    return f"{count / 1e6:.0f}"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old or the new text, never half of one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def read_json(path: Path) -> Json:
    """A JSON object, or {} where there is none (yet)."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def process_environment(tmp_dir: str) -> dict[str, str]:
    """The environment of curl, pip and uv: our temporary directory, and the host's certificates unless it says otherwise."""
    environment = dict(os.environ)
    if tmp_dir:
        environment["TMPDIR"] = tmp_dir
    if CA_BUNDLE.is_file():
        environment.setdefault("SSL_CERT_FILE", str(CA_BUNDLE))
        environment.setdefault("PIP_CERT", str(CA_BUNDLE))
    return environment


class Paths:
    """Files of the state directory."""

    def __init__(self, state_dir: str) -> None:
        """Name them; nothing is made."""
        self.root = Path(state_dir)
        self.manifest = self.root / "manifest.json"
        self.requirements = self.root / "requirements.lock"
        self.status = self.root / "status.json"
        self.checked = self.root / "checked.json"
        self.log = self.root / "log"
        self.lock = self.root / "lock"


class Manifest:
    """What to fetch, as the role wrote it."""

    def __init__(self, paths: Paths) -> None:
        """Read the manifest; `digest` changes with it and with the lock file of the wheels."""
        raw = paths.manifest.read_bytes()
        document = json.loads(raw)
        self.files: list[Json] = document.get("files") or []
        self.wheels: Json = document.get("wheels") or {}
        self.parallel = int(document.get("parallel", 4))
        self.retries = int(document.get("retries", 5))
        self.tmp_dir = str(document.get("tmp_dir", ""))
        self.pause_s = float(document.get("pause_s", 2))
        self.stall_bytes_s = int(document.get("stall_bytes_s", 10_000))
        self.stall_s = int(document.get("stall_s", 30))
        requirements = paths.requirements.read_bytes() if self.wheels and paths.requirements.is_file() else b""
        self.digest = hashlib.sha256(raw + requirements).hexdigest()


class Log:
    """One line per event, with the time."""

    def __init__(self, path: Path) -> None:
        """Start afresh where the last log has grown beyond a megabyte."""
        self.path = path
        if path.is_file() and path.stat().st_size > CHUNK:
            path.unlink()

    def __call__(self, text: str) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {redact(text)}\n")


class Board:
    """The status document, shared by the threads of a job."""

    def __init__(self, path: Path, manifest: Manifest, restarts: int = 0) -> None:
        """Everything is queued."""
        self.path = path
        self.guard = threading.Lock()
        self.document: Json = {
            "manifest": manifest.digest,
            "pid": os.getpid(),
            "restarts": restarts,
            "state": "running",
            "files": {
                item["name"]: {
                    "state": "queued",
                    "bytes": 0,
                    "fetched": 0,
                    "size": item.get("size"),
                    "url": "",
                    "tries": 0,
                    "speed": 0,
                    "error": "",
                }
                for item in manifest.files
            },
            WHEELS: {"state": "queued" if manifest.wheels else "none", "bytes": 0, "error": ""},
        }

    def entry(self, name: str) -> Json:
        """The entry of a file, or of the wheels."""
        found: Json = self.document[WHEELS] if name == WHEELS else self.document["files"][name]
        return found

    def set(self, name: str, **fields: Any) -> None:
        """Change fields of an entry; a change of state is written at once."""
        with self.guard:
            entry = self.entry(name)
            told = "state" in fields and fields["state"] != entry["state"]
            if "error" in fields:
                fields["error"] = redact(fields["error"])
            entry.update(fields)
        if told:
            self.save()

    def save(self, **fields: Any) -> None:
        """Write the document, with fields of its own changed."""
        with self.guard:
            self.document.update(fields, updated=int(time.time()))
            write_atomically(self.path, json.dumps(self.document, indent=1))


class Checked:
    """Files whose checksum was computed, by size and time: nobody reads 4 GB twice to learn the same."""

    def __init__(self, path: Path) -> None:
        """Read what is known."""
        self.path = path
        self.guard = threading.Lock()
        self.known = read_json(path)

    def sha256(self, path: Path) -> str:
        """The recorded checksum of a file that has not changed since, else ''."""
        try:
            stat = path.stat()
        except OSError:
            return ""
        row = self.known.get(str(path)) or {}
        same = row.get("size") == stat.st_size and row.get("mtime_ns") == stat.st_mtime_ns
        return str(row["sha256"]) if same else ""

    def record(self, path: Path, sha256: str) -> None:
        """Remember a checksum."""
        stat = path.stat()
        with self.guard:
            self.known[str(path)] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256}
            write_atomically(self.path, json.dumps(self.known, indent=1))


class Tail:
    """Hashes a file while it grows."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.path = path
        self.restart()

    def restart(self) -> None:
        """Begin again at the first byte."""
        self.digest = hashlib.sha256()
        self.offset = 0

    def follow(self, limit: int = sys.maxsize) -> int:
        """Hash what was added, `limit` bytes of it at most; returns the bytes hashed so far."""
        stop = self.offset + limit
        try:
            with self.path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size < self.offset:
                    self.restart()
                stream.seek(self.offset)
                while self.offset < stop:
                    block = stream.read(CHUNK)
                    if not block:
                        break
                    self.digest.update(block)
                    self.offset += len(block)
        except FileNotFoundError:
            self.restart()
        return self.offset


def check_file(path: Path, item: Json, checked: Checked) -> str:
    """'' when a file is what the manifest pins, else what is wrong with it."""
    size, expected = path.stat().st_size, item["sha256"].lower()
    if item.get("size") and size != item["size"]:
        return f"expected {item['size']} bytes, got {size}"
    found = checked.sha256(path)
    if not found:
        tail = Tail(path)
        tail.follow()
        found = tail.digest.hexdigest()
        checked.record(path, found)
    return "" if found == expected else f"expected sha256 {expected}, got {found}"


class Fetch:
    """One file: URL after URL, try after try, until it is whole."""

    def __init__(self, item: Json, job: Job) -> None:
        """Prepare; nothing is touched."""
        self.item, self.job = item, job
        self.manifest, self.board, self.checked, self.log = job.manifest, job.board, job.checked, job.log
        self.name: str = item["name"]
        self.size: int | None = item.get("size")
        self.dest = Path(item["dest"])
        self.part = self.dest.with_name(self.dest.name + ".part")
        self.tail = Tail(self.part)
        self.high_water = 0
        # Where the bytes of the .part came from; one that an earlier job left is of unknown origin.
        self.origins: set[str] = set()
        # Pieces of several origins did not fit together: from now on a .part has one origin.
        self.strict = False

    def run(self) -> None:
        """Fetch, check and rename the file. Raises FetchError after the last try."""
        self.dest.parent.mkdir(parents=True, exist_ok=True)
        if self.dest.exists():
            self.board.set(self.name, state="checking")
            wrong = check_file(self.dest, self.item, self.checked)
            if not wrong:
                self.board.set(self.name, state="done", bytes=self.dest.stat().st_size, size=self.dest.stat().st_size)
                self.log(f"{self.name}: is there and good, nothing to fetch")
                return
            self.log(f"{self.name}: {self.dest} is another file ({wrong}), removed")
            self.dest.unlink()
        if self.part.exists():
            self.origins = {"an earlier job"}
            self.high_water = self._part_size()
        self._tries()
        self.part.chmod(0o644)
        self.part.replace(self.dest)
        self.checked.record(self.dest, self.item["sha256"].lower())
        size = self.dest.stat().st_size
        self.board.set(self.name, state="done", bytes=size, size=size, speed=0, error="")
        self.log(f"{self.name}: done, {size} bytes")

    def _tries(self) -> None:
        """Rotate through the URLs until the .part is whole."""
        urls: list[str] = list(self.item["urls"])
        failures = dict.fromkeys(urls, 0)
        mismatches = dict.fromkeys(urls, 0)
        said: dict[str, str] = {}
        pauses = 0
        while urls:
            url = urls[0]
            if self.strict and self.origins - {url}:
                self._drop_part()
            wrong, status = self._fetch_once(url)
            hopeless = status in PERMANENT
            if not wrong:
                wrong = self._wrong_part()
                if not wrong:
                    return
                mixed = self.origins != {url}
                self._drop_part()
                if mixed:
                    self.strict = True
                    self.log(f"{self.name}: {wrong}; pieces of several origins, again from the start")
                    continue
                mismatches[url] += 1
                hopeless = mismatches[url] >= MISMATCHES
            said[url] = wrong
            grown = self._part_size() >= self.high_water + PROGRESS
            self.high_water = max(self.high_water, self._part_size())
            self.board.set(self.name, error=f"{url}: {wrong}")
            self.log(f"{self.name}: {url}: {wrong}")
            failures[url] += 0 if grown else 1
            if hopeless or failures[url] >= self.manifest.retries:
                urls.remove(url)
            elif not grown:
                urls.append(urls.pop(0))
            if urls and (grown or failures[urls[0]]):
                pauses = 0 if grown else pauses + 1
                time.sleep(min(30.0, self.manifest.pause_s * 2.0 ** (pauses - 1)))
        pins = f"expected sha256 {self.item['sha256']}" + (f" and {self.size} bytes" if self.size else "")
        raise FetchError(f"{self.name}: {pins}; " + "; ".join(f"{redact(url)}: {text}" for url, text in said.items()))

    def _part_size(self) -> int:
        """Bytes fetched so far."""
        try:
            return self.part.stat().st_size
        except FileNotFoundError:
            return 0

    def _drop_part(self) -> None:
        """Remove the .part: the next try starts at the first byte."""
        self.part.unlink()
        self.tail.restart()
        self.origins = set()

    def _wrong_part(self) -> str:
        """'' when the .part is what the manifest pins, else what is wrong with it."""
        self.board.set(self.name, state="checking")
        size = self.tail.follow()
        if self.size and size != self.size:
            return f"expected {self.size} bytes, got {size}"
        found = self.tail.digest.hexdigest()
        return "" if found == self.item["sha256"].lower() else f"expected sha256 {self.item['sha256']}, got {found}"

    def _fetch_once(self, url: str) -> tuple[str, int]:
        """One run of curl. Returns ('', status) when it brought the file, else (what went wrong, status)."""
        have = self._part_size()
        if self.size and have == self.size:
            return "", 200
        if self.size and have > self.size:
            self._drop_part()
            have = 0
        free = shutil.disk_usage(self.part.parent).free
        if self.size and free < self.size - have:
            text = f"{megabytes(self.size - have)} MB are missing, {megabytes(free)} MB are free in {self.part.parent}"
            raise FetchError(
                f"{self.name}: no space: {text}; free some, or set downloads_dir or work_dir to a larger disk"
            )
        tries = self.board.entry(self.name)["tries"] + 1
        self.board.set(self.name, state="fetching", url=redact(url), bytes=have, tries=tries)
        self.log(f"{self.name}: try {tries}, {url} from byte {have}")
        self.origins.add(url)
        code, output, errors = self._curl(url)
        self.board.set(self.name, bytes=self._part_size(), speed=0)
        status = int(output.split()[0]) if output.split() else 0
        if code == 0:
            return "", status
        if code == CURL_NO_RANGES or status == 416:
            # Nothing to resume here: either the .part is whole (its size was not pinned), or it has to go.
            if not self._wrong_part():
                return "", status
            self._drop_part()
            return "the server cannot resume, again from the start", status
        if code == CURL_TOO_BIG:
            return f"expected {self.size} bytes, the server has more", 404
        return (f"HTTP {status}" if status >= 400 else " ".join(errors.split()) or f"curl ended with {code}"), status

    def _curl(self, url: str) -> tuple[int, str, str]:
        """Run curl and hash along. The URL goes in by stdin: it may hold a password, and `ps` shows arguments."""
        argv = ["curl", "--config", "-", "--fail", "--location", "--silent", "--show-error", "--proto", "=http,https"]
        argv += ["--connect-timeout", "20", "--continue-at", "-", "--output", str(self.part)]
        # A line that stands still is given up and tried again.
        argv += ["--speed-limit", str(self.manifest.stall_bytes_s), "--speed-time", str(self.manifest.stall_s)]
        argv += ["--max-filesize", str(self.size)] if self.size else []
        argv += ["--write-out", "%{http_code}"]
        quoted = url.replace("\\", "\\\\").replace('"', '\\"')
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=process_environment(self.manifest.tmp_dir),
            pass_fds=(self.job.lock,),
            text=True,
        )
        if process.stdin:
            process.stdin.write(f'url = "{quoted}"\n')
            process.stdin.close()
            process.stdin = None
        fetched, mark, since = self.board.entry(self.name)["fetched"], self._part_size(), time.monotonic()
        start, speed = mark, 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.25)
            have, now = self._part_size(), time.monotonic()
            if now - since >= 1:
                speed = (have - mark) / (now - since)
                mark, since = have, now
            self.board.set(self.name, bytes=have, speed=int(speed), fetched=fetched + max(0, have - start))
            if process.returncode is not None:
                break
            self.tail.follow(limit=FOLLOW)
        output, errors = process.communicate()
        return process.returncode, output, errors


class Wheels:
    """Warms uv's cache beside the downloads; a failure is recorded and nothing more: the stack's role fetches what is missing."""

    def __init__(self, job: Job) -> None:
        """Prepare; nothing is touched."""
        self.job, self.row, self.board, self.log = job, job.manifest.wheels, job.board, job.log
        self.requirements = job.paths.requirements
        self.environment = process_environment(job.manifest.tmp_dir)
        self.cache = Path(self.row["cache_dir"])
        self.uv = Path(self.row["uv_prefix"]) / "bin/uv"
        self.environment.update(
            UV_CACHE_DIR=str(self.cache),
            UV_LINK_MODE="hardlink",
            UV_NO_PROGRESS="1",
            UV_PYTHON_DOWNLOADS="never",
            UV_HTTP_TIMEOUT="120",
            UV_CONCURRENT_DOWNLOADS="10",
            DS_BUILD_OPS="0",
        )

    def run(self) -> None:
        """Wait for the environment's Python, get uv, fetch the wheels."""
        self.board.set(WHEELS, state="waiting")
        deadline = time.monotonic() + float(self.row.get("wait_s", 3600))
        while not self._python_works():
            if time.monotonic() > deadline:
                raise FetchError(f"{self.row['python']} has not come; the packages are fetched later")
            time.sleep(1)
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / ".gpu-bootstrap.lock").open("w") as lock:
            # The role pytorch_stack takes the same lock: one of the two fills the cache, the other finds it filled.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.board.set(WHEELS, state="fetching")
            self._bootstrap_uv()
            self._fetch()
        self.board.set(WHEELS, state="done", bytes=self._cache_bytes())

    def _python_works(self) -> bool:
        """Whether the environment is there: its pip answers. While conda links files it may be there in part."""
        argv = [self.row["python"], "-m", "pip", "--version"]
        try:
            return subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0
        except OSError:
            return False

    def _bootstrap_uv(self) -> None:
        """Install the pinned uv into a directory of its own, unless it is there."""
        wanted = f"uv {self.row['uv_version']}"
        if self.uv.exists():
            probe = subprocess.run([str(self.uv), "--version"], capture_output=True, text=True, check=False)
            if probe.stdout.startswith(wanted):
                return
        pins = self.requirements.with_name("uv.txt")
        hashes = "".join(f" --hash=sha256:{digest}" for digest in self.row["uv_hashes"])
        write_atomically(pins, f"uv=={self.row['uv_version']}{hashes}\n")
        argv = [self.row["python"], "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        argv += ["--no-cache-dir", "--upgrade", "--target", str(self.uv.parent.parent), "--require-hashes", "--no-deps"]
        argv += ["--only-binary", ":all:", "--requirement", str(pins)]
        index = self.row.get("index_url") or ""
        if index:
            argv += ["--index-url", index]
        if index.startswith("http://"):
            argv += ["--trusted-host", urlsplit(index).netloc.rpartition("@")[2]]
        self._call(argv, "uv")

    def _fetch(self) -> None:
        """Install into a scratch directory on the cache's file system (hard links, so it costs no space) and remove it."""
        for left in self.cache.glob(".warm-*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = self.cache / f".warm-{os.getpid()}"
        argv = [str(self.uv), "pip", "install", "--python", self.row["python"], "--target", str(scratch), "--no-deps"]
        argv += [
            "--require-hashes",
            "--requirement",
            str(self.requirements),
            "--build-constraints",
            str(self.requirements),
        ]
        argv += index_arguments(self.row)
        try:
            self._call(argv, "the locked packages")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _call(self, argv: list[str], what: str) -> None:
        """Run a command, with the size of the cache on the board meanwhile."""
        self.log(f"wheels: {' '.join(argv)}")
        output = self.requirements.with_name("wheels.log")
        with output.open("w", encoding="utf-8") as stream:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self.environment,
                pass_fds=(self.job.lock,),
            )
            while process.returncode is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
                self.board.set(WHEELS, bytes=self._cache_bytes())
        if process.returncode:
            last = " ".join(output.read_text(encoding="utf-8", errors="replace").split())[-600:]
            raise FetchError(f"{what} could not be fetched ahead (code {process.returncode}): {last}")

    def _cache_bytes(self) -> int:
        """Bytes in the cache, unpacked."""

        def sizes(folder: Path) -> Iterator[int]:
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            yield from sizes(Path(entry.path))
                        else:
                            yield entry.stat(follow_symlinks=False).st_size
            except OSError:
                return

        return sum(size for folder in self.cache.glob("[!.]*") if folder.is_dir() for size in sizes(folder))


def index_arguments(row: Json) -> list[str]:
    """Arguments of uv for the indexes; none where the host's own configuration is to decide."""
    argv: list[str] = []
    if row.get("index_url"):
        argv += ["--index-url", row["index_url"]]
    if row.get("torch_index_url"):
        # Both indexes are asked for every package; the hashes, not the order, say which file is meant.
        argv += ["--extra-index-url", row["torch_index_url"], "--index-strategy", "unsafe-best-match"]
    return argv


# --- the job ---------------------------------------------------------------------------------------------------------


def take_lock(paths: Paths) -> int | None:
    """The job's lock as a file descriptor that children inherit, or None while another job holds it."""
    paths.root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(paths.lock), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Job:
    """What the threads of a job share."""

    def __init__(self, paths: Paths, lock: int, restarts: int) -> None:
        """Put everything on the board as queued."""
        self.paths, self.lock = paths, lock
        self.manifest, self.log = Manifest(paths), Log(paths.log)
        self.board, self.checked = Board(paths.status, self.manifest, restarts), Checked(paths.checked)
        self.board.save()


def run_job(paths: Paths, lock: int, restarts: int = 0) -> int:
    """Fetch everything of the manifest. Returns the exit code.

    The caller holds the lock, and curl and uv inherit it: while one of them still writes, no second job begins.
    """
    job = Job(paths, lock, restarts)
    manifest, board, log = job.manifest, job.board, job.log
    if manifest.tmp_dir:
        Path(manifest.tmp_dir).mkdir(parents=True, exist_ok=True)
    queue = list(manifest.files)
    guard = threading.Lock()

    def guarded(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except FetchError as error:
            board.set(name, state="failed", speed=0, error=str(error))
            log(f"failed: {error}")
        except Exception as error:  # a thread that dies silently would leave its file `fetching` for ever
            board.set(name, state="failed", speed=0, error=f"{name}: {type(error).__name__}: {error}")
            log(f"failed: {name}: {type(error).__name__}: {error}")

    def worker() -> None:
        while True:
            with guard:
                if not queue:
                    return
                item = queue.pop(0)
            guarded(item["name"], Fetch(item, job).run)

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(min(manifest.parallel, len(queue)))]
    if manifest.wheels:
        threads.append(threading.Thread(target=guarded, args=(WHEELS, Wheels(job).run), daemon=True))
    log(f"start: {len(queue)} files, {'wheels' if manifest.wheels else 'no wheels'}, pid {os.getpid()}")
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        if time.time() - board.document.get("updated", 0) >= 1:
            board.save()
    failed = any(entry["state"] == "failed" for entry in board.document["files"].values())
    board.save(state="failed" if failed else "done")
    log("end: " + board.document["state"])
    return 1 if failed else 0


def detach(paths: Paths, lock: int, restarts: int) -> int:
    """Run the job in a process that no terminal, ssh session or parent can take along. Returns its pid."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        os.waitpid(child, 0)
        pid = int(os.read(reader, 32) or b"0")
        os.close(reader)
        os.close(lock)
        return pid
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)  # its pid is its group's: one signal ends it with curl and uv
    code = 1
    try:
        os.close(reader)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.chdir("/")
        os.umask(0o022)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        Board(paths.status, Manifest(paths), restarts).save()
        os.write(writer, str(os.getpid()).encode())
        os.close(writer)
        code = run_job(paths, lock, restarts)
    except BaseException as error:  # nobody is left to see a traceback
        Log(paths.log)(f"the job ended: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def stop_job(paths: Paths) -> int | None:
    """End the running job of another manifest; its .part files stay. Returns the lock, or None when it could not be had."""
    pid = int(read_json(paths.status).get("pid") or 0)
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(OSError):
            if pid > 1:
                # The job leads its group, with curl and uv in it; the lock says that one of them lives.
                os.killpg(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            lock = take_lock(paths)
            if lock is not None:
                return lock
            time.sleep(0.1)
    return None


def is_complete(paths: Paths, manifest: Manifest) -> bool:
    """Whether all is there: every file under its name as pinned, and the wheels fetched by a job of this manifest."""
    status = read_json(paths.status)
    wheels = (status.get(WHEELS) or {}).get("state") if status.get("manifest") == manifest.digest else ""
    if manifest.wheels and wheels != "done":
        return False
    dests = [(Path(item["dest"]), item) for item in manifest.files]
    if not all(dest.is_file() and item.get("size") in (None, dest.stat().st_size) for dest, item in dests):
        return False
    checked = Checked(paths.checked)
    return not any(check_file(dest, item, checked) for dest, item in dests)


def start(paths: Paths) -> Json:
    """Start the job of the manifest, unless it runs or everything is there."""
    manifest = Manifest(paths)
    lock = take_lock(paths)
    if lock is None:
        status = read_json(paths.status)
        if status.get("manifest") == manifest.digest:
            return {"changed": False, "state": "running", "pid": status.get("pid")}
        lock = stop_job(paths)
        if lock is None:
            return {"changed": False, "failed": True, "msg": f"another job holds {paths.lock} and does not end"}
    if is_complete(paths, manifest):
        board = Board(paths.status, manifest)
        for item in manifest.files:
            size = Path(item["dest"]).stat().st_size
            board.entry(item["name"]).update(state="done", bytes=size, size=size)
        if manifest.wheels:
            board.entry(WHEELS).update(state="done")
        board.save(state="done", pid=0)
        os.close(lock)
        return {"changed": False, "state": "complete", "pid": 0}
    if manifest.files and not shutil.which("curl"):
        os.close(lock)
        return {
            "changed": False,
            "failed": True,
            "msg": "curl is not there; install it: apt-get install curl ca-certificates",
        }
    return {"changed": True, "state": "started", "pid": detach(paths, lock, 0)}


def progress(name: str, entry: Json) -> str:
    """How far a file is, as people say it."""
    state = entry["state"]
    if name == WHEELS:
        return (
            f"{name} {state}, {megabytes(entry['bytes'])} MB in the cache" if state == "fetching" else f"{name} {state}"
        )
    if state != "fetching":
        return f"{name} {state}"
    total = f"/{megabytes(entry['size'])}" if entry.get("size") else ""
    speed = f", {entry['speed'] / 1e6:.1f} MB/s" if entry.get("speed") else ""
    return f"{name} {megabytes(entry['bytes'])}{total} MB{speed}"


def wait(paths: Paths, names: Iterable[str], timeout_s: float) -> Json:
    """Wait until the named files are there, one has failed, or the time is up. A job that died is started again."""
    names = list(names)
    deadline = time.monotonic() + timeout_s
    restarted = False
    while True:
        status = read_json(paths.status)
        files = {
            **(status.get("files") or {}),
            WHEELS: status.get(WHEELS) or {"state": "none", "bytes": 0, "error": ""},
        }
        unknown = [name for name in names if name not in files]
        if unknown:
            known = ", ".join(sorted(set(files) - {WHEELS})) or "nothing"
            return {
                "finished": True,
                "failed": [f"{', '.join(unknown)}: not in the manifest, which has {known}"],
                "progress": "",
            }
        entries = {name: files[name] for name in names}
        # Wheels that failed are fetched by the role that installs them.
        failed = [entry["error"] for name, entry in entries.items() if entry["state"] == "failed" and name != WHEELS]
        finished = bool(failed) or all(entry["state"] in ("done", "failed", "none") for entry in entries.values())
        if not finished and not restarted:
            lock = take_lock(paths)
            if lock is not None and read_json(paths.status).get("state") != "running":
                os.close(lock)  # it ended between the two looks
            elif lock is not None and int(status.get("restarts") or 0) >= RESTARTS:
                os.close(lock)
                failed = [f"the job died {RESTARTS + 1} times; its log is {paths.log}"]
                finished = True
            elif lock is not None:
                restarted = True
                detach(paths, lock, int(status.get("restarts") or 0) + 1)
                continue
        if finished or time.monotonic() >= deadline:
            return {
                "finished": finished,
                "failed": failed,
                "progress": "; ".join(progress(name, entry) for name, entry in entries.items()),
                "restarted": restarted,
                "files": entries,
            }
        time.sleep(min(0.25, max(0.01, deadline - time.monotonic())))


def main(arguments: list[str] | None = None) -> int:
    """Run one command and print its JSON."""
    parser = argparse.ArgumentParser(description="Fetch big files in a detached job.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", "run", "wait"):
        command = commands.add_parser(name)
        command.add_argument("--state-dir", required=True, help="directory of manifest.json, status.json and log")
    command.add_argument("--timeout", type=float, default=20, help="seconds")
    command.add_argument("names", nargs="+", help="names of files, or wheels")
    options = parser.parse_args(arguments)
    paths = Paths(options.state_dir)
    if options.command == "run":
        lock = take_lock(paths)
        if lock is None:
            sys.stdout.write(json.dumps({"failed": True, "msg": "another job runs"}) + "\n")
            return 1
        code = run_job(paths, lock)
        sys.stdout.write(paths.status.read_text(encoding="utf-8") + "\n")
        return code
    answer = start(paths) if options.command == "start" else wait(paths, options.names, options.timeout)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if options.command == "start" and answer.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
