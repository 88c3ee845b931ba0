#!/usr/bin/env python3
"""Measures what a host can do, and judges nothing: the controller does that (filter_plugins/proofs.py).

    measure.py <request.json >measurements.json

Runs under the system's Python (3.8 or newer, standard library alone) and needs neither root nor network. Each
measurement runs in a process of its own under a time limit of its own, so that a hang is a result and not the end of
the run; those that need the stack run `measure_environment.py` with the environment's Python. The exit code is 0
whenever a document was written, whatever it says.

Keys of the request, all optional: `environment` (prefix of the conda environment), `cuda_home`, `user` (whose shells
are looked at; default: who runs this), `components` (what was installed; default: all), `packages` (names of
distributions to import), `capabilities` (compute capabilities of the GPUs, such as "8.9"), `gpus` (number expected),
`limit` (seconds for everything), `limits` (seconds by measurement), `only` (names of measurements).

The document: `{schema_version, started_at, seconds, host, measurements: {name: {ok, seconds, limit, timed_out, rc,
data | error}}}`. `ok` says that the measurement came to an end and left data, not that the data is good.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

SCHEMA_VERSION = 1
HERE = Path(__file__).resolve().parent
if TYPE_CHECKING:
    Json = dict[str, Any]

# Seconds. Generous: a cold disk and a loaded host are slow, and only a hang should reach them.
LIMITS = {
    "host": 20,
    "simulated": 20,
    "shells": 60,
    "driver": 120,
    "libcuda": 60,
    "toolkit": 240,
    "cudnn": 60,
    "environment": 60,
    "torch": 180,
    "imports": 300,
    "lora_step": 240,
    "gpu_product": 180,
}
# Which measurement serves which component; the others are always taken. Longest first: two cores then end together.
SERVES: dict[str, tuple[str, ...]] = {
    "imports": ("pytorch_stack",),
    "lora_step": ("pytorch_stack",),
    "gpu_product": ("pytorch_stack",),
    "toolkit": ("cuda_toolkit",),
    "torch": ("pytorch_stack",),
    "cudnn": ("cudnn",),
    "environment": ("miniconda", "pytorch_stack"),
    "libcuda": (),
}
FIRST = ("driver", "shells", "host", "simulated")
IN_ENVIRONMENT = ("environment", "torch", "imports", "lora_step", "gpu_product")
# Variables that decide which CUDA a program meets; only these are written into the document.
SHOWN_VARIABLES = (
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "PYTHONHOME",
    "HF_HOME",
    "NVCC_CCBIN",
    "NVIDIA_TF32_OVERRIDE",
)
MARKER = "/etc/gpu-bootstrap-simulated-gpu"
SIMULATION_VARIABLE = "GPU_BOOTSTRAP_SIMULATED_GPU"
# A program may hang in the kernel, where not even SIGKILL ends it: then it is left behind after this many seconds.
GRACE = 5.0

PROGRAM = r"""
#include <cstdio>
#include <cuda_runtime.h>
__global__ void twice_and_one(const float *in, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2.0f * in[i] + 1.0f;
}
static float numbers[1000], results[1000];
static cudaError_t run(int device, int *correct) {
  float *in = nullptr, *out = nullptr;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) error = cudaMalloc(&in, sizeof numbers);
  if (error == cudaSuccess) error = cudaMalloc(&out, sizeof numbers);
  if (error == cudaSuccess) error = cudaMemcpy(in, numbers, sizeof numbers, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) { twice_and_one<<<8, 128>>>(in, out, 1000); error = cudaGetLastError(); }
  if (error == cudaSuccess) error = cudaMemcpy(results, out, sizeof numbers, cudaMemcpyDeviceToHost);
  if (error == cudaSuccess) for (int i = 0; i < 1000; i++) *correct += results[i] == 2.0f * numbers[i] + 1.0f;
  cudaFree(in); cudaFree(out);
  return error;
}
int main() {
  int runtime = 0, driver = 0, count = 0;
  double sum = 0;
  for (int i = 0; i < 1000; i++) { numbers[i] = (float)i; sum += numbers[i]; }
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  cudaError_t error = cudaGetDeviceCount(&count);
  printf("{\"host_sum\": %.0f, \"runtime\": %d, \"driver\": %d, \"count\": %d, \"count_error\": %d, \"count_error_name\": \"%s\", \"kernels\": [",
         sum, runtime, driver, error == cudaSuccess ? count : 0, (int)error, cudaGetErrorName(error));
  if (error == cudaSuccess)
    for (int device = 0; device < count; device++) {
      int correct = 0;
      cudaError_t done = run(device, &correct);
      printf("%s{\"index\": %d, \"error\": %d, \"error_name\": \"%s\", \"correct\": %d, \"of\": 1000}",
             device ? ", " : "", device, (int)done, cudaGetErrorName(done), correct);
    }
  printf("]}\n");
  return 0;
}
"""


# --- small helpers ---------------------------------------------------------------------------------------------------


def read(path: str, limit: int = 65536) -> str | None:
    """Return the text of a file, None when it can't be read."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return None


def command(argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None, cwd: str | None = None) -> Json:
    """Run a program; return {rc, stdout, stderr, timed_out}. rc is None when it did not start or did not end."""
    result: Json = {"rc": None, "stdout": "", "stderr": "", "timed_out": False}
    try:
        done = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, env=env, cwd=cwd, check=False
        )
        result.update(rc=done.returncode, stdout=_text(done.stdout), stderr=_text(done.stderr))
    except subprocess.TimeoutExpired as late:
        result.update(timed_out=True, stdout=_text(late.stdout), stderr=_text(late.stderr))
    except OSError as error:
        result["stderr"] = str(error)
    return result


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def mapped_files(pattern: str) -> list[str]:
    """Return the files matching a pattern that are mapped into this process."""
    found = {
        line.split(None, 5)[5].strip()
        for line in (read("/proc/self/maps", 1 << 24) or "").splitlines()
        if line.count("/")
    }
    return sorted(path for path in found if re.search(pattern, path))


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except OSError:
        return max(1, os.cpu_count() or 1)


# --- measurements of the system --------------------------------------------------------------------------------------


def host(_request: Json) -> Json:
    """Which machine, which boot."""
    memory = re.search(r"MemTotal:\s+(\d+)", read("/proc/meminfo") or "")
    return {
        "hostname": socket.gethostname(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "boot_id": (read("/proc/sys/kernel/random/boot_id") or "").strip(),
        "glibc": platform.libc_ver()[1],
        "python": platform.python_version(),
        "cpus": cores(),
        "memory_bytes": int(memory.group(1)) * 1024 if memory else None,
    }


def simulated(_request: Json) -> Json:
    """Whether the lab plays the GPU, and what the kernel knows of one."""
    vendors = [read(str(path)) or "" for path in Path("/sys/bus/pci/devices").glob("*/vendor")]
    return {
        "marker": MARKER if Path(MARKER).exists() else None,
        "marker_text": (read(MARKER, 500) or "").strip() or None,
        "variables": sorted(name for name in os.environ if name.startswith(SIMULATION_VARIABLE)),
        "preload": (read("/etc/ld.so.preload", 2000) or "").split(),
        "kernel_side": {
            "proc_driver": Path("/proc/driver/nvidia/version").exists(),
            "pci_devices": sum(text.strip() == "0x10de" for text in vendors),
            "wsl": Path("/dev/dxg").exists(),
        },
    }


def shells(request: Json) -> Json:
    """What each kind of shell gives to a program, and which files set LD_LIBRARY_PATH."""
    user = request.get("user") or pwd.getpwuid(os.getuid()).pw_name
    home = pwd.getpwnam(user).pw_dir
    environment: dict[str, str] = {}
    kinds: dict[str, Json] = {}
    clean = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM": "dumb", "LANG": "C.UTF-8"}
    me = user == pwd.getpwuid(os.getuid()).pw_name
    show = "printf '\\001'; env -0"
    ways: list[tuple[str, list[str]]] = []
    if me or os.getuid() == 0:
        # A login shell, and a command without one as cron and `ssh host command` start it (through PAM).
        if os.getuid() == 0:
            ways += [("login", ["su", "-l", user, "-c", show]), ("command", ["su", user, "-c", show])]
        else:
            ways.append(("login", ["bash", "-lc", show]))
    if shutil.which("sudo") and os.getuid() == 0:
        ways.append(("sudo_login", ["sudo", "-n", "-i", "-u", user, "sh", "-c", show]))
    if os.getuid() == 0 and Path("/run/systemd/system").is_dir():
        unit = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--uid={user}"]
        ways.append(("systemd_unit", [*unit, "/bin/sh", "-c", show]))
    for kind, argv in ways:
        done = command(argv, 15, clean, "/")
        text = done["stdout"].partition("\001")[2]
        found = dict(item.split("=", 1) for item in text.split("\0") if "=" in item)
        if done["rc"] != 0 or not found:
            kinds[kind] = {
                "rc": done["rc"],
                "timed_out": done["timed_out"],
                "error": (done["stderr"] or done["stdout"])[-300:],
            }
            continue
        kinds[kind] = _shown(found)
        if kind == "login":
            environment = found
    return {
        "user": user,
        "kinds": kinds,
        "ld_library_path_files": _files_that_set("LD_LIBRARY_PATH", home),
        "shadowing": _cuda_libraries((environment or dict(os.environ)).get("LD_LIBRARY_PATH", "")),
        "_environment": environment,
    }


def _shown(environment: Mapping[str, str]) -> Json:
    return {
        "rc": 0,
        "variables": {name: environment[name] for name in SHOWN_VARIABLES if name in environment},
        "nvcc": shutil.which("nvcc", path=environment.get("PATH", "")),
    }


def _files_that_set(variable: str, home: str) -> list[str]:
    files = ["/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/zsh/zshenv", "/root/.ssh/environment"]
    for place, pattern in (("/etc/profile.d", "*.sh"), ("/etc/environment.d", "*.conf")):
        files += sorted(map(str, Path(place).glob(pattern)))
    files += [f"{home}/{name}" for name in (".profile", ".bash_profile", ".bashrc", ".zshenv", ".zshrc")]
    setting = re.compile(rf"^(?!\s*#).*\b{variable}\s*=", re.MULTILINE)
    return [path for path in dict.fromkeys(files) if setting.search(read(path) or "")]


def _cuda_libraries(search_path: str) -> list[Json]:
    """Return the directories of a search path that hold libraries which torch brings itself."""
    found = []
    for directory in filter(None, dict.fromkeys(search_path.split(":"))):
        files = [path.name for path in Path(directory).glob("lib*.so*")]
        names = sorted(
            {file.split(".so")[0] for file in files if re.match(r"lib(cudnn|cublas|cudart|nccl|cufft|cusparse)", file)}
        )
        if names:
            found.append({"directory": directory, "libraries": names})
    return found


def driver(_request: Json) -> Json:
    """The kernel's modules and device nodes, and what nvidia-smi answers."""
    text = read("/proc/driver/nvidia/version") or ""
    loaded = (read("/sys/module/nvidia/version") or "").strip() or next(
        iter(re.findall(r"Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text)), None
    )
    return {
        "loaded_version": loaded or None,
        "proc_version": text.splitlines()[0] if text else None,
        "modules": {
            name: Path(f"/sys/module/{name}").is_dir() for name in ("nvidia", "nvidia_uvm", "nvidia_modeset", "nouveau")
        },
        "device_nodes": sorted(str(path) for path in Path("/dev").glob("nvidia*") if not path.is_dir()),
        "smi": ask_smi(),
    }


def ask_smi() -> Json | None:
    """Ask nvidia-smi for its GPUs; None where there is none. The cells stay as they were printed ("[Unknown Error]")."""
    path = shutil.which("nvidia-smi") or next(
        (p for p in ("/usr/lib/wsl/lib/nvidia-smi", "/opt/bin/nvidia-smi") if os.access(p, os.X_OK)), None
    )
    if not path:
        return None
    fields = ["index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "compute_cap"]

    def ask() -> Json:
        return command([path or "", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], 50)

    done = ask()
    if done["rc"] not in (0, None) and "compute_cap" in done["stdout"] + done["stderr"]:
        # Drivers before 510 don't know this field and then answer nothing at all.
        fields.remove("compute_cap")
        done = ask()
    gpus, other = [], []
    for line in done["stdout"].splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(fields) and cells[0].isdigit():
            gpus.append({name.replace(".", "_"): cell for name, cell in zip(fields, cells)})  # noqa: B905 - 3.8
        elif line.strip():
            other.append(line.strip())
    said = "\n".join([*other, done["stderr"].strip()]).strip()
    return {"path": path, "rc": done["rc"], "timed_out": done["timed_out"], "said": said[-600:], "gpus": gpus}


def libcuda(_request: Json) -> Json:
    """The driver's own library, asked without torch: its CUDA version (12040 is 12.4), its error, its device count."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"loaded": False, "error": str(error), "path": None}
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    data: Json = {"loaded": True, "path": next(iter(mapped_files(r"libcuda\.so")), None)}
    data["version_error"] = library.cuDriverGetVersion(ctypes.byref(version))
    data["version"] = version.value
    data["init_error"] = library.cuInit(0)
    data["count_error"] = library.cuDeviceGetCount(ctypes.byref(count)) if data["init_error"] == 0 else None
    data["count"] = count.value
    return data


def toolkit(request: Json) -> Json:
    """What nvcc says, whether it compiles, whether the program runs: its host part, and a kernel on each GPU."""
    home = request.get("cuda_home") or "/usr/local/cuda"
    nvcc = f"{home}/bin/nvcc"
    said = command([nvcc, "--version"], 30)
    found = re.search(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)", said["stdout"])
    data: Json = {
        "home": home,
        "real_path": os.path.realpath(home),
        "nvcc": nvcc,
        "nvcc_rc": said["rc"],
        "nvcc_error": (said["stderr"] or "").strip()[-300:],
        "release": found.group(1) if found else None,
        "build": found.group(2) if found else None,
        "version_json": _version_json(f"{home}/version.json"),
        "host_compiler": os.environ.get("NVCC_CCBIN"),
        "compile": None,
        "run": None,
    }
    if said["rc"] != 0:
        return data
    with Path("sample.cu").open("w", encoding="utf-8") as file:
        file.write(PROGRAM)
    # Machine code for the cards that are there: PTX would need a driver as new as the toolkit.
    codes = [
        f"-gencode=arch=compute_{c},code=sm_{c}"
        for c in dict.fromkeys(cap.replace(".", "") for cap in request.get("capabilities") or [])
    ]
    started = time.monotonic()
    done = command([nvcc, *codes, "-o", "sample", "sample.cu"], 180)
    data["compile"] = {
        "rc": done["rc"],
        "timed_out": done["timed_out"],
        "seconds": round(time.monotonic() - started, 2),
        "said": (done["stdout"] + done["stderr"]).strip()[-600:],
    }
    if done["rc"] == 0:
        done = command([str(Path("sample").resolve())], 60)
        data["run"] = {
            "rc": done["rc"],
            "timed_out": done["timed_out"],
            "said": done["stderr"].strip()[-300:],
            "output": _json(done["stdout"]),
        }
    return data


def _version_json(path: str) -> str | None:
    version = ((_json(read(path) or "") or {}).get("cuda") or {}).get("version")
    return str(version) if version else None


def _json(text: str) -> Json | None:
    try:
        loaded = json.loads(text)
    except ValueError:
        return None
    return loaded if isinstance(loaded, dict) else None


def cudnn(request: Json) -> Json:
    """The toolkit's cuDNN: what its header says, what its library says when asked, what the loader knows."""
    home = request.get("cuda_home") or "/usr/local/cuda"
    header = next((p for p in (f"{home}/include/cudnn_version.h", f"{home}/include/cudnn.h") if Path(p).exists()), None)
    numbers = dict(re.findall(r"#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)", read(header) or "" if header else ""))
    paths = [p for p in (f"{home}/lib64/libcudnn.so", f"{home}/lib/libcudnn.so") if Path(p).exists()]
    cache = command([shutil.which("ldconfig", path="/sbin:/usr/sbin") or "ldconfig", "-p"], 20)["stdout"]
    data: Json = {
        "header": header,
        "header_version": ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCHLEVEL"))
        if numbers
        else None,
        "library": paths[0] if paths else None,
        "real_path": os.path.realpath(paths[0]) if paths else None,
        "is_link": Path(paths[0]).is_symlink() if paths else None,
        "number": None,
        "error": None,
        "loader_cache": sorted(set(re.findall(r"libcudnn\.so\S* .*=> (\S+)", cache))),
    }
    if paths:
        try:
            library = ctypes.CDLL(paths[0])
            library.cudnnGetVersion.restype = ctypes.c_size_t
            data["number"] = int(library.cudnnGetVersion())
        except (OSError, AttributeError) as error:
            data["error"] = str(error)
    return data


SYSTEM: dict[str, Callable[[Json], Json]] = {
    "host": host,
    "simulated": simulated,
    "shells": shells,
    "driver": driver,
    "libcuda": libcuda,
    "toolkit": toolkit,
    "cudnn": cudnn,
}


# --- the conductor ---------------------------------------------------------------------------------------------------


class Conductor:
    """Starts the measurements, each in its own process group, and collects what they leave."""

    def __init__(self, request: Json, workspace: str) -> None:
        """Take a request; everything is written below the workspace."""
        self.request = request
        self.workspace = workspace
        self.deadline = time.monotonic() + float(request.get("limit") or 600)
        self.environment: dict[str, str] = dict(os.environ)
        self.measurements: dict[str, Json] = {}
        self._running: set[int] = set()
        self._lock = threading.Lock()

    def wanted(self) -> list[str]:
        """Return the measurements after the first ones, in the order of their start."""
        components = self.request.get("components")
        only = self.request.get("only")
        names = [
            name for name, serves in SERVES.items() if not serves or components is None or set(serves) & set(components)
        ]
        if not self.request.get("environment"):
            names = [name for name in names if name not in IN_ENVIRONMENT]
        if not self.gpus():
            names = [name for name in names if name != "gpu_product"]
        return [name for name in names if not only or name in only]

    def gpus(self) -> int:
        """Return how many GPUs are expected or seen, whichever is more."""
        smi = ((self.measurements.get("driver") or {}).get("data") or {}).get("smi") or {}
        return max(int(self.request.get("gpus") or 0), len(smi.get("gpus") or []))

    def run(self) -> dict[str, Json]:
        """Take all measurements."""
        only = self.request.get("only")
        self._together([name for name in FIRST if not only or name in only], len(FIRST))
        self._take_over_environment()
        smi = ((self.measurements.get("driver") or {}).get("data") or {}).get("smi") or {}
        seen = [gpu.get("compute_cap", "") for gpu in smi.get("gpus") or []]
        self.request["capabilities"] = [
            c
            for c in dict.fromkeys([*(self.request.get("capabilities") or []), *seen])
            if re.fullmatch(r"\d+\.\d+", c or "")
        ]
        self.request["gpus"] = self.gpus()
        self._together(self.wanted(), min(4, max(2, cores())))
        return self.measurements

    def stop(self) -> None:
        """End what still runs."""
        with self._lock:
            groups = list(self._running)
        for group in groups:
            _kill(group)

    def _together(self, names: Sequence[str], at_once: int) -> None:
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            self.measurements.update(zip(names, pool.map(self._measure, names)))  # noqa: B905 - 3.8

    def _take_over_environment(self) -> None:
        """Let the measurements meet what a user's login shell gives, and keep it out of the document."""
        data = (self.measurements.get("shells") or {}).get("data") or {}
        login = data.pop("_environment", None) or {}
        if login:
            kept = {
                name: value
                for name, value in os.environ.items()
                if name.startswith(SIMULATION_VARIABLE) or name in ("LD_PRELOAD", "TMPDIR")
            }
            self.environment = {**kept, **login}
        # Without the component that sets it, tools such as DeepSpeed still need to find the toolkit.
        if self.request.get("cuda_home"):
            self.environment.setdefault("CUDA_HOME", self.request["cuda_home"])
        self.environment.update(
            HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1"
        )
        self.environment.setdefault("OMP_NUM_THREADS", str(min(4, cores())))

    def _measure(self, name: str) -> Json:
        limit = float((self.request.get("limits") or {}).get(name) or LIMITS[name])
        if name == "gpu_product":
            limit += 60 * self.gpus()
        limit = min(limit, self.deadline - time.monotonic())
        entry: Json = {"ok": False, "seconds": 0.0, "limit": round(max(limit, 0), 1), "timed_out": False, "rc": None}
        if limit <= 0:
            return {**entry, "timed_out": True, "error": "no time was left to start it"}
        folder = Path(self.workspace, name)
        folder.mkdir()
        request, result, log = (str(folder / file) for file in ("request.json", "result.json", "log"))
        with Path(request).open("w", encoding="utf-8") as file:
            json.dump({**self.request, "limit": limit}, file)
        started = time.monotonic()
        try:
            entry["rc"], entry["timed_out"] = self._start(
                [*self._program(name), "--one", name, request, result], str(folder), log, limit
            )
        except OSError as error:
            return {**entry, "error": str(error)}
        entry["seconds"] = round(time.monotonic() - started, 2)
        data = _json(read(result, 1 << 22) or "")
        if data is not None:
            return {**entry, "ok": not entry["timed_out"], "data": data}
        tail = (read(log, 1 << 22) or "").strip()[-1500:]
        return {
            **entry,
            "error": f"did not end within {limit:.0f} s" if entry["timed_out"] else tail or "left no result",
            "log": tail,
        }

    def _program(self, name: str) -> tuple[str, str]:
        if name in IN_ENVIRONMENT:
            return f"{self.request['environment']}/bin/python", str(HERE / "measure_environment.py")
        return sys.executable, str(HERE / "measure.py")

    def _start(self, argv: Sequence[str], folder: str, log: str, limit: float) -> tuple[int | None, bool]:
        """Run a program in its own process group; return (exit code, whether it ran into its limit)."""
        with Path(log).open("wb") as output:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=self.environment,
                start_new_session=True,
            )
        with self._lock:
            self._running.add(process.pid)
        try:
            return process.wait(limit), False
        except subprocess.TimeoutExpired:
            _kill(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            return process.returncode, True
        finally:
            # Children that the program left behind end with it.
            _kill(process.pid)
            with self._lock:
                self._running.discard(process.pid)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def make_workspace() -> str:
    """Return a fresh directory beside this script, else in the place for temporary files.

    /tmp may be mounted noexec on rented hosts, and the compiled sample has to run.
    """
    return tempfile.mkdtemp(prefix="run-", dir=HERE if os.access(HERE, os.W_OK) else None)


def conduct(request: Json) -> Json:
    """Take the measurements that the request asks for and return the document."""
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    started = time.monotonic()
    workspace = make_workspace()
    conductor = Conductor(request, workspace)

    def end(_signal: int, _frame: object) -> None:
        conductor.deadline = 0.0
        conductor.stop()
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        measurements = conductor.run()
    finally:
        conductor.stop()
        shutil.rmtree(workspace, ignore_errors=True)
    return {
        "schema_version": SCHEMA_VERSION,
        "started_at": started_at,
        "seconds": round(time.monotonic() - started, 1),
        "host": socket.gethostname(),
        "measurements": measurements,
    }


def main(arguments: Sequence[str]) -> int:
    """Conduct, or with `--one NAME REQUEST RESULT` take one measurement."""
    if arguments[:1] == ["--one"]:
        name, request_file, result_file = arguments[1:4]
        request = _json(read(request_file, 1 << 22) or "") or {}
        data = SYSTEM[name](request)
        with Path(result_file).open("w", encoding="utf-8") as file:
            json.dump(data, file)
        return 0
    text = sys.stdin.read().strip()
    request = json.loads(text) if text else {}
    json.dump(conduct(request), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
