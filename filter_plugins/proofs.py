"""The proofs: what the measurements of a host are worth, judged on the controller.

`judge(measurements, expected)` is a pure function. `measurements` is the document of roles/verify/files/measure.py
(docs/measurements.schema.json), `expected` what was asked of the host (`plan_document.verify.expected`). The result is
the document of docs/proofs.schema.json: a verdict and one proof per check. What can't be known counts as failed; a
skipped check says why, and none can make a host `ready`. A proof that passed with a remark carries a code and makes
`ready` into `ready, degraded`. Raises `ValueError` when `expected` lacks what a chosen component is judged by.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

SCHEMA_VERSION = 1
READY, DEGRADED, SOFTWARE_ONLY, NOT_READY = "ready", "ready, degraded", "software only", "not ready"
PASS, FAIL, SKIP, UNKNOWN = "pass", "fail", "skip", "unknown"
NOT_CHOSEN = "not chosen"

# The sum that the host part of the compiled sample prints: 0 + 1 + … + 999.
HOST_SUM = 499500
# Largest accepted difference, relative to the largest element. float32 leaves room for TF32 (10 bits of mantissa).
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2, "float16": 1e-2}

Json = dict[str, Any]

# code -> cause, remedy, whose fault. `host` is the landlord's in a container and yours on a machine of your own.
# Numbers from 101 on: those below belong to the plan (roles/plan/vars/main/rules.yml). Codes are stable.
FAILURES: dict[str, dict[str, str]] = {
    "GB-DRV-101": {
        "cause": "there is no nvidia-smi, so that the driver can't be asked: {found}",
        "remedy": "Container: start it with the driver's utilities (NVIDIA_DRIVER_CAPABILITIES=compute,utility). Machine: install the driver.",
        "whose": "host",
    },
    "GB-DRV-102": {
        "cause": "the driver isn't active: {found}",
        "remedy": "Container: ask the landlord for another host. Machine: install or load the driver, see `dmesg | grep -i nvrm`.",
        "whose": "host",
    },
    "GB-DRV-103": {
        "cause": "the driver is older than this stack can live with: {found}",
        "remedy": "Container: take an older stack or another host. Machine: install driver {wanted}.",
        "whose": "host",
    },
    "GB-DRV-104": {
        "cause": "the loaded kernel module and the driver's libraries are of different versions: {found}",
        "remedy": "Machine: reboot after the update of the driver. Container: the landlord must restart it.",
        "whose": "host",
    },
    "GB-DRV-105": {
        "cause": "nvidia-smi hangs: {found}",
        "remedy": "A card or its driver is wedged: reboot the machine, or ask the landlord for another host.",
        "whose": "landlord's",
    },
    "GB-DRV-106": {
        "cause": "nouveau holds the cards, and NVIDIA's module is not loaded",
        "remedy": "Block nouveau, rebuild the initramfs and reboot.",
        "whose": "host",
    },
    "GB-GPU-101": {
        "cause": "there are fewer GPUs than when the host was probed: {found}",
        "remedy": "Compare with what you rent; a card that dropped out needs the landlord.",
        "whose": "landlord's",
    },
    "GB-GPU-102": {
        "cause": "a card has failed: {found}",
        "remedy": "Send the bus id to the landlord and ask for another host; `dmesg | grep -i xid` names the fault.",
        "whose": "landlord's",
    },
    "GB-GPU-104": {
        "cause": "a matrix product on the GPU never ended: {found}",
        "remedy": "The card hangs: ask the landlord for another host.",
        "whose": "landlord's",
    },
    "GB-GPU-105": {
        "cause": "a matrix product could not be made on the GPU: {found}",
        "remedy": "Read the message; `no kernel image` means that torch has no code for this card, anything else points at the card.",
        "whose": "landlord's",
    },
    "GB-GPU-106": {
        "cause": "the GPU computes NaN or infinity from ordinary numbers: {found}",
        "remedy": "The card computes wrongly: ask the landlord for another host.",
        "whose": "landlord's",
    },
    "GB-GPU-107": {
        "cause": "the GPU's product differs from the CPU's: {found}",
        "remedy": "The card computes wrongly: ask the landlord for another host.",
        "whose": "landlord's",
    },
    "GB-GPU-108": {
        "cause": "no work was done on some GPU: {found}",
        "remedy": "Every card has to be seen by torch: look at CUDA_VISIBLE_DEVICES and at the proofs of the driver.",
        "whose": "host",
    },
    "GB-CUDA-101": {
        "cause": "torch can't use CUDA: {found}",
        "remedy": "Look at the proofs of the driver first; without one that failed, the message names the cause.",
        "whose": "host",
    },
    "GB-CUDA-102": {
        "cause": "nvidia_uvm or its device node is missing; nvidia-smi works without it, CUDA doesn't: {found}",
        "remedy": "Machine: `nvidia-modprobe -c0 -u`, and load nvidia_uvm at boot. Container: the landlord must pass /dev/nvidia-uvm.",
        "whose": "host",
    },
    "GB-CUDA-103": {
        "cause": "CUDA_VISIBLE_DEVICES is set and empty, which hides every GPU",
        "remedy": "Remove the variable from the shell's files.",
        "whose": "yours",
    },
    "GB-CUDA-104": {
        "cause": "CUDA_VISIBLE_DEVICES hides GPUs: {found}",
        "remedy": "Remove the variable from the shell's files, or name cards that exist.",
        "whose": "yours",
    },
    "GB-CUDA-105": {
        "cause": "CUDA error 802: the fabric manager of the NVSwitch board does not run, or is of another version than the driver",
        "remedy": "Machine: install and start nvidia-fabricmanager in the driver's version. Container: the landlord must.",
        "whose": "host",
    },
    "GB-CUDA-106": {
        "cause": "CUDA error 803: libcuda and the kernel's driver don't belong together: {found}",
        "remedy": "Machine: reboot after the update. Container: remove libcuda or cuda-compat packages that were installed inside.",
        "whose": "host",
    },
    "GB-CUDA-107": {
        "cause": "CUDA error 804: a cuda-compat library is in use on a card that doesn't support it: {found}",
        "remedy": "Remove the cuda-compat package and its directory from LD_LIBRARY_PATH.",
        "whose": "yours",
    },
    "GB-CUDA-108": {
        "cause": "CUDA error 999 (unknown): mostly a half-loaded driver: {found}",
        "remedy": "Machine: reload nvidia_uvm or reboot. Container: ask the landlord for another host.",
        "whose": "host",
    },
    "GB-CUDA-109": {
        "cause": "the driver is too old for this build of torch: {found}",
        "remedy": "Take an older stack, or a host with a newer driver.",
        "whose": "host",
    },
    "GB-CUDA-110": {
        "cause": "torch sees another number of GPUs than there are: {found}",
        "remedy": "Look at the proofs of the driver and at the device nodes /dev/nvidia*.",
        "whose": "host",
    },
    "GB-NVCC-101": {
        "cause": "nvcc is missing or doesn't run: {found}",
        "remedy": "Run bootstrap again with component cuda_toolkit.",
        "whose": "ours",
    },
    "GB-NVCC-102": {
        "cause": "the toolkit is of another release: {found}",
        "remedy": "Something replaced the toolkit or the link; run bootstrap again.",
        "whose": "yours",
    },
    "GB-NVCC-103": {
        "cause": "nvcc doesn't compile a small program: {found}",
        "remedy": "Read the message: mostly the system's compiler or C library is newer than the toolkit allows.",
        "whose": "ours",
    },
    "GB-NVCC-104": {
        "cause": "the compiled program doesn't run: {found}",
        "remedy": "Read the message; a library that isn't found means that the loader's cache lacks the toolkit.",
        "whose": "ours",
    },
    "GB-NVCC-105": {
        "cause": "a kernel that nvcc compiled fails or computes wrongly on a GPU: {found}",
        "remedy": "Look at the proofs of the driver; `unsupported PTX` means that the driver is older than the toolkit.",
        "whose": "host",
    },
    "GB-CUDNN-101": {
        "cause": "cuDNN is missing from the toolkit: {found}",
        "remedy": "Run bootstrap again with component cudnn.",
        "whose": "ours",
    },
    "GB-CUDNN-102": {
        "cause": "the toolkit's cuDNN is of another version: {found}",
        "remedy": "Something replaced it; run bootstrap again.",
        "whose": "yours",
    },
    "GB-CUDNN-103": {
        "cause": "torch uses a cuDNN from outside its environment: {found}",
        "remedy": "Remove that directory from LD_LIBRARY_PATH ({files}); the loader's cache serves the toolkit without it.",
        "whose": "yours",
    },
    "GB-CUDNN-104": {
        "cause": "the toolkit's cuDNN can't be loaded: {found}",
        "remedy": "Run bootstrap again with component cudnn.",
        "whose": "ours",
    },
    "GB-CUDNN-105": {
        "cause": "torch refuses the cuDNN that it found: {found}",
        "remedy": "Another cuDNN shadows the one that torch brings: look at LD_LIBRARY_PATH and at the environment's packages.",
        "whose": "yours",
    },
    "GB-CUDNN-106": {
        "cause": "torch's cuDNN is not the stack's: {found}",
        "remedy": "A package was replaced in the environment; run bootstrap again.",
        "whose": "yours",
    },
    "GB-ENV-101": {
        "cause": "CUDA_HOME is not what was set up, so that DeepSpeed and other builders find no toolkit or another one: {found}",
        "remedy": "Remove the other setting, or run bootstrap again with component shell_environment.",
        "whose": "yours",
    },
    "GB-ENV-102": {
        "cause": "another nvcc comes first in PATH: {found}",
        "remedy": "Remove the other directory from PATH, or run bootstrap again with component shell_environment.",
        "whose": "yours",
    },
    "GB-ENV-103": {
        "cause": "LD_LIBRARY_PATH offers libraries that torch brings itself: {found}",
        "remedy": "Remove the setting: the loader's cache serves the toolkit, and torch finds its own.",
        "whose": "yours",
    },
    "GB-PY-101": {
        "cause": "the environment has another Python: {found}",
        "remedy": "Remove the environment and run bootstrap again.",
        "whose": "yours",
    },
    "GB-TORCH-101": {
        "cause": "torch is of another version: {found}",
        "remedy": "A later install replaced it; run bootstrap again, and install more packages together with the stack's lock file.",
        "whose": "yours",
    },
    "GB-TORCH-102": {
        "cause": "torch is a build without CUDA: {found}",
        "remedy": "A later install replaced it; run bootstrap again, and install more packages together with the stack's lock file.",
        "whose": "yours",
    },
    "GB-TORCH-103": {
        "cause": "torch is built for another CUDA: {found}",
        "remedy": "A later install replaced it; run bootstrap again, and install more packages together with the stack's lock file.",
        "whose": "yours",
    },
    "GB-TORCH-104": {
        "cause": "torch has no code for this GPU, although torch.cuda.is_available() may say True: {found}",
        "remedy": "Take a stack whose torch covers it (docs/versions.md), or `stack: auto`.",
        "whose": "yours",
    },
    "GB-PKG-101": {
        "cause": "packages of the stack can't be imported: {found}",
        "remedy": "Read the message; run bootstrap again if a package is missing or was replaced.",
        "whose": "yours",
    },
    "GB-PKG-102": {
        "cause": "packages have drifted from the stack: {found}",
        "remedy": "Run bootstrap again, or use another environment for other versions.",
        "whose": "yours",
    },
    "GB-PKG-103": {
        "cause": "requirements between packages are not met: {found}",
        "remedy": "Packages were added or replaced; put them into an environment of their own, or into a stack with a lock file.",
        "whose": "yours",
    },
    "GB-WORK-101": {
        "cause": "the training step gives no number: {found}",
        "remedy": "torch computes wrongly on this CPU: report it with reports/<host>/measurements.json.",
        "whose": "ours",
    },
    "GB-WORK-102": {
        "cause": "the training step changed nothing, or what it must not change: {found}",
        "remedy": "torch, transformers and peft don't fit together: run bootstrap again, or report it with the measurements.",
        "whose": "ours",
    },
    "GB-VER-101": {
        "cause": "this could not be measured, and what isn't known counts as failed: {found}",
        "remedy": "Run verify.yml again; if it stays, report it with reports/<host>/measurements.json.",
        "whose": "ours",
    },
    "GB-VER-102": {
        "cause": "the measurement never ended: {found}",
        "remedy": "Look at the load of the host and at the proofs of the driver, then run verify.yml again (verify_timeout sets the limit).",
        "whose": "host",
    },
}


class Outcome(NamedTuple):
    """What a check found."""

    status: str
    wanted: str
    found: str
    code: str = ""
    words: Mapping[str, str] = {}


class UnmeasuredError(Exception):
    """A measurement that a check needs is missing, crashed or never ended."""

    def __init__(self, outcome: Outcome) -> None:
        """Carry what the check ends with."""
        super().__init__(outcome.found)
        self.outcome = outcome


def _passed(wanted: str, found: str) -> Outcome:
    return Outcome(PASS, wanted, found)


def _failed(code: str, wanted: str, found: str, **words: str) -> Outcome:
    return Outcome(FAIL, wanted, found, code, words)


def _remark(code: str, wanted: str, found: str) -> Outcome:
    return Outcome(PASS, wanted, found, code)


class Facts:
    """What the checks read: the measurements, what was expected, and what follows from both."""

    def __init__(self, document: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Take the document of measure.py and the plan's expectations."""
        self._measurements = document.get("measurements") or {}
        self._error = str(document.get("error") or "")
        self._expected = expected

    def data(self, name: str) -> Json:
        """Return the data of a measurement; raises UnmeasuredError when there are none."""
        entry = self._measurements.get(name)
        wanted = f"measurement {name}"
        if not isinstance(entry, Mapping):
            raise UnmeasuredError(Outcome(UNKNOWN, wanted, self._error or f"{name} was not measured", "GB-VER-101"))
        if entry.get("timed_out"):
            found = f"{name} did not end within {entry.get('limit')} s"
            raise UnmeasuredError(Outcome(FAIL, wanted, found, "GB-VER-102"))
        if not entry.get("ok") or not isinstance(entry.get("data"), Mapping):
            found = f"{name}: {_last_line(entry.get('error')) or 'no data'}"
            raise UnmeasuredError(Outcome(UNKNOWN, wanted, found, "GB-VER-101"))
        return dict(entry["data"])

    def maybe(self, name: str) -> Json:
        """Return the data of a measurement, empty when there are none: for reasons, never for a pass."""
        entry = self._measurements.get(name)
        data = entry.get("data") if isinstance(entry, Mapping) else None
        return dict(data) if isinstance(data, Mapping) else {}

    def expect(self, key: str) -> Any:
        """Return an expectation; raises ValueError when the caller did not give it."""
        if not self._expected.get(key):
            raise ValueError(
                f"expected.{key} is {self._expected.get(key)!r}, but a chosen component is judged by it: hand over plan_document.verify.expected"
            )
        return self._expected[key]

    @property
    def components(self) -> list[str]:
        """Return the chosen components."""
        return list(self._expected.get("components") or [])

    @property
    def host_kind(self) -> str:
        """Return container, vm, metal or wsl."""
        return str(self._expected.get("host_kind") or "")

    @property
    def smi_gpus(self) -> list[Json]:
        """Return the GPUs that nvidia-smi lists."""
        smi = self.maybe("driver").get("smi")
        listed = smi.get("gpus") if isinstance(smi, Mapping) else None
        return [dict(gpu) for gpu in listed or [] if isinstance(gpu, Mapping)]

    @property
    def gpu_count(self) -> int:
        """Return how many GPUs there must be: those of the probe, or more when more are seen now."""
        return max(len(self._expected.get("gpus") or []), len(self.smi_gpus))

    @property
    def capabilities(self) -> list[str]:
        """Return the compute capability of each GPU, as nvidia-smi tells it, else as the probe did."""
        seen = [str(gpu.get("compute_cap") or "") for gpu in self.smi_gpus]
        told = [str(gpu.get("compute_capability") or "") for gpu in self._expected.get("gpus") or []]
        return [one for one in (seen if any(seen) else told) if re.fullmatch(r"\d+\.\d+", one)]

    @property
    def simulation(self) -> str:
        """Return what says that the GPU is simulated, "" when nothing does."""
        data = self.maybe("simulated")
        return ", ".join(str(sign) for sign in [data.get("marker"), *(data.get("variables") or [])] if sign)


# --- small helpers ---------------------------------------------------------------------------------------------------


def _last_line(text: object) -> str:
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _error_line(text: object) -> str:
    """Return the line that names the error: a compiler's first one says more than its last."""
    lines = [line.strip() for line in str(text or "").splitlines()]
    named = [line for line in lines if re.search(r"error|fatal|not found|No such file|cannot", line, re.IGNORECASE)]
    return named[0][:300] if named else _last_line(text)


def _numbers(version: object) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", str(version or ""))
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _older(found: object, least: object) -> bool:
    width = max(len(_numbers(found)), len(_numbers(least)))
    padded = [_numbers(version) + (0,) * (width - len(_numbers(version))) for version in (found, least)]
    return padded[0] < padded[1]


def _release(version: object) -> str:
    return ".".join(str(part) for part in _numbers(version)[:2])


def _public(version: object) -> str:
    """Version without its local part: 2.6.0+cu124 -> 2.6.0."""
    return str(version or "").split("+")[0]


def cudnn_number(version: str) -> int:
    """Return the number by which a cuDNN library names its version: "9.1.0.70" -> 90100, "8.9.7.29" -> 8907."""
    parts = (*_numbers(version), 0, 0, 0)
    major, minor, patch = parts[0], parts[1], parts[2]
    return major * 10000 + minor * 100 + patch if major >= 9 else major * 1000 + minor * 100 + patch


def runs_on(architectures: Iterable[str], capability: str) -> bool:
    """Tell whether a build with this list (`sm_86`, `compute_90`) has code for a compute capability.

    Machine code runs on the same major version with an equal or higher minor one; PTX on everything newer.
    """
    card = _numbers(capability)
    for entry in architectures:
        match = re.match(r"(sm|compute)_(\d+)(\d)([a-z]?)$", entry)
        if not match:
            continue
        built = (int(match.group(2)), int(match.group(3)))
        if match.group(4) and built != card:
            continue
        if match.group(1) == "sm" and built[0] == card[0] and built[1] <= card[1]:
            return True
        if match.group(1) == "compute" and built <= card:
            return True
    return False


def _short(items: Iterable[str], most: int = 4) -> str:
    listed = list(items)
    return "; ".join(listed[:most]) + (f"; and {len(listed) - most} more" if len(listed) > most else "")


# --- driver and GPUs -------------------------------------------------------------------------------------------------


def driver(facts: Facts) -> Outcome:
    """The driver answers, its module and libraries are of one version, and it is new enough."""
    least = str(facts.expect("driver_min"))
    wanted = f"an active driver, {least} or newer"
    data = facts.data("driver")
    smi, loaded = data.get("smi"), data.get("loaded_version")
    modules = data.get("modules") or {}
    if modules.get("nouveau") and not modules.get("nvidia"):
        return _failed("GB-DRV-106", wanted, "nouveau is loaded, nvidia is not")
    if not smi:
        return _failed("GB-DRV-101", wanted, f"no nvidia-smi, loaded module: {loaded or 'none'}")
    if smi.get("timed_out"):
        return _failed("GB-DRV-105", wanted, "nvidia-smi did not answer")
    said = _last_line(smi.get("said"))
    if smi.get("rc") != 0:
        mismatch = re.search(r"[Dd]river/library version mismatch|NVML/RM version mismatch", str(smi.get("said")))
        found = f"nvidia-smi ended with {smi.get('rc')}: {said or 'no message'}"
        return _failed("GB-DRV-104" if mismatch else "GB-DRV-102", wanted, found)
    version = next(
        (gpu["driver_version"] for gpu in smi.get("gpus") or [] if _numbers(gpu.get("driver_version"))), loaded
    )
    if not _numbers(version):
        return Outcome(UNKNOWN, wanted, "no version of the driver", "GB-VER-101")
    if loaded and version != loaded:
        return _failed("GB-DRV-104", wanted, f"module {loaded}, libraries {version}")
    if _older(version, least):
        return _failed("GB-DRV-103", wanted, str(version))
    return _passed(wanted, str(version))


def gpus(facts: Facts) -> Outcome:
    """As many cards answer as the probe found, and none reports an error."""
    wanted = f"{facts.gpu_count} GPUs without an error"
    smi = facts.data("driver").get("smi") or {}
    if smi.get("rc") != 0:
        return Outcome(UNKNOWN, wanted, "nvidia-smi did not answer", "GB-VER-101")
    text = str(smi.get("said") or "")
    lost = re.findall(
        r"(?:device handle for (?:GPU)?\s*\d*:?\s*|GPU )([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)", text
    )
    bad = [f"{address}: {_last_line(text)}" for address in dict.fromkeys(lost)]
    for gpu in smi.get("gpus") or []:
        signs = [
            str(cell)
            for cell in gpu.values()
            if re.search(r"ERR!|Unknown Error|GPU is lost|[Rr]equires reset", str(cell))
        ]
        if signs:
            bad.append(f"{gpu.get('pci_bus_id')}: {signs[0]}")
    if bad:
        return _failed("GB-GPU-102", wanted, _short(bad))
    found = len(smi.get("gpus") or [])
    if found < facts.gpu_count:
        return _failed(
            "GB-GPU-101", wanted, f"{found} of {facts.gpu_count}" + (f": {_last_line(text)}" if text else "")
        )
    return _passed(wanted, f"{found}: " + ", ".join(dict.fromkeys(str(gpu.get("name")) for gpu in smi["gpus"])))


def real_gpu(facts: Facts) -> Outcome:
    """The GPU is a real one, not one that the lab plays."""
    facts.data("simulated")
    if facts.simulation:
        return Outcome(SKIP, "a real GPU", f"simulated GPU ({facts.simulation})")
    return _passed("a real GPU", "no sign of a simulation")


def cuda(facts: Facts) -> Outcome:
    """Torch can use CUDA and sees every card; otherwise the cause is named (P21)."""
    wanted = f"torch sees {facts.gpu_count} GPUs"
    data = facts.data("torch")
    count, visible = int(data.get("device_count") or 0), data.get("cuda_visible_devices")
    if data.get("available") is True and count == facts.gpu_count and not data.get("init_error"):
        return _passed(wanted, f"{count}")
    error = " ".join([str(data.get("init_error") or ""), *map(str, data.get("warnings") or [])]).strip()
    found = f"available: {data.get('available')}, {count} GPUs" + (f", {error}" if error else "")
    if visible is not None and count < facts.gpu_count:
        if not visible.strip():
            return _failed("GB-CUDA-103", wanted, "CUDA_VISIBLE_DEVICES is empty")
        return _failed(
            "GB-CUDA-104", wanted, f"CUDA_VISIBLE_DEVICES={visible}, torch sees {count} of {facts.gpu_count}"
        )
    state = facts.maybe("driver")
    nodes, modules = state.get("device_nodes") or [], state.get("modules") or {}
    # Only where the driver is active: without it everything is missing, and its own proof says so.
    active = (state.get("smi") or {}).get("rc") == 0
    if active and facts.host_kind != "wsl" and ("/dev/nvidia-uvm" not in nodes or not modules.get("nvidia_uvm")):
        missing = [
            text
            for text, here in (
                ("module nvidia_uvm", modules.get("nvidia_uvm")),
                ("/dev/nvidia-uvm", "/dev/nvidia-uvm" in nodes),
            )
            if not here
        ]
        return _failed("GB-CUDA-102", wanted, f"{' and '.join(missing)} missing")
    number = facts.maybe("libcuda").get("init_error")
    for code, numbers, pattern in (
        ("GB-CUDA-105", (802,), r"Error 802|system not yet initialized"),
        ("GB-CUDA-106", (803,), r"Error 803|unsupported display driver / cuda driver combination"),
        ("GB-CUDA-107", (804,), r"Error 804|forward compatibility was attempted"),
        ("GB-CUDA-109", (35,), r"driver on your system is too old|driver version is insufficient"),
        ("GB-CUDA-108", (999,), r"Error 999|CUDA unknown error"),
    ):
        if number in numbers or re.search(pattern, error):
            return _failed(code, wanted, found)
    return _failed("GB-CUDA-110" if data.get("available") is True else "GB-CUDA-101", wanted, found)


def gpu_product(facts: Facts) -> Outcome:
    """Matrix products on each card agree with the CPU."""
    wanted = f"products on {facts.gpu_count} GPUs as on the CPU"
    data = facts.data("gpu_product")
    cards = data.get("gpus") or {}
    figures = []
    for index, entry in sorted(cards.items(), key=lambda item: int(item[0])):
        if entry.get("timed_out"):
            return _failed("GB-GPU-104", wanted, f"GPU {index}: {_last_line(entry.get('error'))}")
        if not entry.get("ok"):
            return _failed("GB-GPU-105", wanted, f"GPU {index}: {_last_line(entry.get('error')) or 'no result'}")
        products = entry["data"]["products"]
        if "float32" not in products or not {"bfloat16", "float16"} & set(products):
            return Outcome(
                UNKNOWN, wanted, f"GPU {index}: only {', '.join(products) or 'nothing'} was multiplied", "GB-VER-101"
            )
        for kind, product in products.items():
            if product.get("finite") is not True or product.get("error") is None:
                return _failed("GB-GPU-106", wanted, f"GPU {index}: {kind} is not finite")
            if not 0 <= product["error"] <= TOLERANCE[kind]:
                return _failed(
                    "GB-GPU-107",
                    wanted,
                    f"GPU {index}: {kind} differs by {product['error']:.1e}, {TOLERANCE[kind]:.0e} is allowed",
                )
            figures.append(product["error"])
    if len(cards) < facts.gpu_count or not figures:
        return _failed("GB-GPU-108", wanted, f"{len(cards)} of {facts.gpu_count} GPUs")
    return _passed(wanted, f"{len(cards)} GPUs, largest difference {max(figures):.1e}")


# --- toolkit, cuDNN, shells ------------------------------------------------------------------------------------------


def cuda_toolkit(facts: Facts) -> Outcome:
    """The compiler is the stack's, compiles a program, and the program's host part runs."""
    release = _release(facts.expect("cuda"))
    wanted = f"nvcc {release}, a compiled program that runs"
    data = facts.data("toolkit")
    if data.get("nvcc_rc") != 0 or not data.get("release"):
        return _failed(
            "GB-NVCC-101", wanted, f"{data.get('nvcc')}: {_last_line(data.get('nvcc_error')) or 'no version'}"
        )
    if data["release"] != release:
        return _failed("GB-NVCC-102", wanted, f"nvcc {data['release']} in {data.get('real_path')}")
    compiled, run = data.get("compile") or {}, data.get("run") or {}
    if compiled.get("rc") != 0:
        return _failed(
            "GB-NVCC-103",
            wanted,
            "no answer" if compiled.get("timed_out") else _error_line(compiled.get("said")) or "no message",
        )
    if run.get("rc") != 0 or (run.get("output") or {}).get("host_sum") != HOST_SUM:
        return _failed(
            "GB-NVCC-104",
            wanted,
            _error_line(run.get("said")) or f"exit code {run.get('rc')}, output {run.get('output')}",
        )
    return _passed(wanted, f"nvcc {data.get('build') or release}")


def toolkit_kernel(facts: Facts) -> Outcome:
    """A kernel that nvcc compiled runs on each card and computes right."""
    wanted = f"a kernel on {facts.gpu_count} GPUs"
    output = (facts.data("toolkit").get("run") or {}).get("output")
    if not output:
        return Outcome(UNKNOWN, wanted, "the program did not run", "GB-VER-101")
    kernels = output.get("kernels") or []
    bad = [
        f"GPU {kernel.get('index')}: {kernel.get('error_name')}, {kernel.get('correct')} of {kernel.get('of')} right"
        for kernel in kernels
        if kernel.get("error") != 0 or not kernel.get("of") or kernel.get("correct") != kernel.get("of")
    ]
    if output.get("count_error") != 0:
        bad.append(f"{output.get('count_error_name')} ({output.get('count_error')})")
    if bad or len(kernels) < facts.gpu_count:
        return _failed("GB-NVCC-105", wanted, _short(bad) or f"{len(kernels)} of {facts.gpu_count} GPUs")
    return _passed(wanted, f"{len(kernels)} GPUs")


def cudnn(facts: Facts) -> Outcome:
    """The toolkit's header and library name the stack's cuDNN."""
    version = str(facts.expect("cudnn"))
    wanted = ".".join(map(str, _numbers(version)[:3]))
    data = facts.data("cudnn")
    if data.get("error"):
        return _failed("GB-CUDNN-104", wanted, _last_line(data["error"]))
    if not data.get("header_version") or data.get("number") is None:
        missing = [
            name for name, here in (("header", data.get("header_version")), ("library", data.get("number"))) if not here
        ]
        return _failed("GB-CUDNN-101", wanted, f"no {' and no '.join(missing)}")
    found = f"header {data['header_version']}, library {data['number']}"
    if data["header_version"] != wanted or data["number"] != cudnn_number(version):
        return _failed("GB-CUDNN-102", wanted, found)
    return _passed(wanted, found)


def shells(facts: Facts) -> Outcome:
    """Every kind of shell gives CUDA_HOME and the toolkit's nvcc; LD_LIBRARY_PATH offers nothing that shadows torch's."""
    home = str(facts.expect("cuda_home"))
    wanted = f"CUDA_HOME={home} in every kind of shell"
    data = facts.data("shells")
    kinds = {kind: entry for kind, entry in (data.get("kinds") or {}).items() if entry.get("rc") == 0}
    if "login" not in kinds:
        error = _last_line(((data.get("kinds") or {}).get("login") or {}).get("error"))
        return Outcome(
            UNKNOWN, wanted, f"no login shell of {data.get('user')}: {error or 'not measured'}", "GB-VER-101"
        )
    wrong = [
        f"{kind}: {(entry.get('variables') or {}).get('CUDA_HOME') or 'not set'}"
        for kind, entry in kinds.items()
        if (entry.get("variables") or {}).get("CUDA_HOME") != home
    ]
    if wrong:
        return _failed("GB-ENV-101", wanted, _short(wrong))
    if "cuda_toolkit" in facts.components:
        wrong = [
            f"{kind}: {entry.get('nvcc') or 'no nvcc'}"
            for kind, entry in kinds.items()
            if kind != "systemd_unit" and entry.get("nvcc") != f"{home}/bin/nvcc"
        ]
        if wrong:
            return _failed("GB-ENV-102", wanted, _short(wrong))
    shadows = [f"{one['directory']} ({', '.join(one['libraries'])})" for one in data.get("shadowing") or []]
    if shadows:
        files = ", ".join(data.get("ld_library_path_files") or []) or "no file that is known"
        return _remark("GB-ENV-103", wanted, f"{_short(shadows)}, set in {files}")
    return _passed(wanted, ", ".join(kinds))


# --- Python and the stack --------------------------------------------------------------------------------------------


def python(facts: Facts) -> Outcome:
    """The environment has the stack's Python."""
    wanted = _release(facts.expect("python"))
    found = str(facts.data("environment").get("python") or "")
    if _release(found) != wanted:
        return _failed("GB-PY-101", wanted, found or "none")
    return _passed(wanted, found)


def torch_build(facts: Facts) -> Outcome:
    """Torch is the stack's version, built for the stack's CUDA (P02)."""
    version, release = str(facts.expect("torch")), str(facts.expect("torch_cuda"))
    wanted = f"torch {version} for CUDA {release}"
    data = facts.data("torch")
    found = f"torch {data.get('version')} for {'CUDA ' + str(data['cuda']) if data.get('cuda') else 'ROCm' if data.get('hip') else 'the CPU'}"
    if not data.get("cuda"):
        return _failed("GB-TORCH-102", wanted, found)
    if str(data["cuda"]) != release:
        return _failed("GB-TORCH-103", wanted, found)
    if _public(data.get("version")) != _public(version):
        return _failed("GB-TORCH-101", wanted, found)
    return _passed(wanted, found)


def torch_kernels(facts: Facts) -> Outcome:
    """Torch has code for each card (P03)."""
    wanted = "code for each GPU"
    listed = facts.data("torch").get("architectures") or []
    if len(facts.capabilities) < facts.gpu_count:
        return Outcome(UNKNOWN, wanted, "the compute capability of a GPU is not known", "GB-VER-101")
    bad = [one for one in dict.fromkeys(facts.capabilities) if not runs_on(listed, one)]
    if bad:
        return _failed(
            "GB-TORCH-104", wanted, f"compute capability {', '.join(bad)}, built for {' '.join(listed) or 'nothing'}"
        )
    return _passed(wanted, f"compute capability {', '.join(dict.fromkeys(facts.capabilities))} in {' '.join(listed)}")


def cudnn_mapped(facts: Facts) -> Outcome:
    """The cuDNN in torch's memory is the stack's and comes from the environment (P27)."""
    version = str(facts.expect("cudnn"))
    wanted = f"cuDNN {'.'.join(map(str, _numbers(version)[:3]))} out of the environment"
    data = facts.data("torch")
    paths = [str(path) for path in (data.get("libraries") or {}).get("libcudnn") or []]
    parts = [f"{check} {status}" for check, status in (data.get("cudnn_parts") or {}).items() if status != 0]
    inside = [str(place).rstrip("/") + "/" for place in [data.get("prefix"), *(data.get("own_cudnn") or [])] if place]
    outside = [path for path in paths if not any(path.startswith(place) for place in inside)]
    if outside:
        files = ", ".join(facts.maybe("shells").get("ld_library_path_files") or []) or "set in no file that is known"
        return _failed("GB-CUDNN-103", wanted, _short(outside), files=files)
    if data.get("cudnn_error"):
        return _failed("GB-CUDNN-105", wanted, _last_line(data["cudnn_error"]))
    if parts:
        return _failed("GB-CUDNN-105", wanted, f"parts of cuDNN don't fit together: {_short(parts)}")
    if not paths or data.get("cudnn") is None:
        return Outcome(UNKNOWN, wanted, "torch mapped no libcudnn", "GB-VER-101")
    if data["cudnn"] != cudnn_number(version):
        return _failed("GB-CUDNN-106", wanted, f"{data['cudnn']} in {paths[0]}")
    return _passed(wanted, f"{data['cudnn']} in {paths[0]}")


def imports(facts: Facts) -> Outcome:
    """Every top-level package of the stack is imported, each in a process of its own."""
    names = list(facts.expect("packages"))
    wanted = f"{len(names)} packages imported"
    entries = facts.data("imports").get("packages") or {}
    bad = []
    for name in names:
        entry = entries.get(name)
        if not entry or not entry.get("ok"):
            bad.append(f"{name}: {_last_line((entry or {}).get('error')) or 'not measured'}")
    if bad:
        return _failed("GB-PKG-101", wanted, _short(bad))
    return _passed(wanted, f"{len(names)}")


def versions(facts: Facts) -> Outcome:
    """The environment's packages have the stack's versions."""
    packages = dict(facts.expect("packages"))
    wanted = f"{len(packages)} packages at the stack's versions"
    have = {_normal(name): version for name, version in (facts.data("environment").get("packages") or {}).items()}
    drifted = [
        f"{name} {have.get(_normal(name), 'missing')} (stack: {version})"
        for name, version in packages.items()
        if _public(have.get(_normal(name))) != _public(version)
    ]
    if drifted:
        return _failed("GB-PKG-102", wanted, _short(drifted))
    return _passed(wanted, f"{len(packages)}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(facts: Facts) -> Outcome:
    """Requirements between the environment's packages are met."""
    wanted = "requirements between packages met"
    data = facts.data("environment")
    unmet = data.get("unmet")
    if unmet is None:
        return Outcome(UNKNOWN, wanted, _last_line(data.get("unmet_error")) or "not measured", "GB-VER-101")
    if unmet:
        return _remark("GB-PKG-103", wanted, _short(unmet))
    return _passed(wanted, f"{len(data.get('packages') or {})} packages agree")


def lora_step(facts: Facts) -> Outcome:
    """One step trains the LoRA adapters of a small transformer, and nothing else."""
    wanted = "a finite loss, changed adapters, unchanged base"
    data = facts.data("lora_step")
    losses = [data.get("loss"), data.get("loss_after")]
    if not all(isinstance(loss, (int, float)) and math.isfinite(loss) for loss in losses):
        return _failed("GB-WORK-101", wanted, f"loss {losses[0]}, then {losses[1]}")
    changed, frozen = data.get("adapters_changed"), data.get("frozen_changed")
    if not changed or frozen != 0:
        return _failed(
            "GB-WORK-102",
            wanted,
            f"{changed} of {data.get('adapters')} adapters changed, {frozen} tensors of the base changed",
        )
    return _passed(
        wanted, f"loss {losses[0]:.3f}, then {losses[1]:.3f}; {changed} of {data.get('adapters')} adapters changed"
    )


# --- the judgement ---------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """One proof: which component it belongs to ("" = the host), and what of a GPU it needs."""

    run: Callable[[Facts], Outcome]
    component: str
    gpu: bool = False  # there must be a GPU
    kernel: bool = False  # a kernel runs: impossible on a simulated GPU, and what `ready` is made of

    @property
    def name(self) -> str:
        """Return the proof's name."""
        return self.run.__name__


CHECKS: tuple[Check, ...] = (
    Check(driver, "nvidia_driver", gpu=True),
    Check(gpus, "", gpu=True),
    Check(real_gpu, "", gpu=True),
    Check(cuda_toolkit, "cuda_toolkit"),
    Check(toolkit_kernel, "cuda_toolkit", gpu=True, kernel=True),
    Check(cudnn, "cudnn"),
    Check(shells, "shell_environment"),
    Check(python, "miniconda"),
    Check(torch_build, "pytorch_stack"),
    Check(torch_kernels, "pytorch_stack", gpu=True),
    Check(cudnn_mapped, "pytorch_stack"),
    Check(cuda, "pytorch_stack", gpu=True, kernel=True),
    Check(gpu_product, "pytorch_stack", gpu=True, kernel=True),
    Check(versions, "pytorch_stack"),
    Check(requirements, "pytorch_stack"),
    Check(imports, "pytorch_stack"),
    Check(lora_step, "pytorch_stack"),
)
# A host is `ready` when work was done on every card: torch that only says it can is not enough.
WORK = ("toolkit_kernel", "gpu_product")


def judge(measurements: Mapping[str, Any], expected: Mapping[str, Any]) -> Json:
    """Return {schema_version, verdict, simulated, proofs} (docs/proofs.schema.json).

    Raises ValueError when `measurements` isn't a document of measure.py or `expected` lacks what a chosen component is
    judged by.
    """
    if not isinstance(measurements, Mapping) or measurements.get("schema_version") != SCHEMA_VERSION:
        found = measurements.get("schema_version") if isinstance(measurements, Mapping) else type(measurements).__name__
        raise ValueError(
            f"measurements of schema_version {found!r}, expected {SCHEMA_VERSION}: measure the host again with this release"
        )
    facts = Facts(measurements, expected)
    if not facts.components:
        raise ValueError(
            "expected.components is empty, expected the names of the components to judge: hand over plan_document.verify.expected"
        )
    proofs = [_prove(check, facts) for check in CHECKS]
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict_of(proofs),
        "simulated": bool(facts.simulation),
        "proofs": proofs,
    }


def _prove(check: Check, facts: Facts) -> Json:
    reason = _reason_to_skip(check, facts)
    outcome = Outcome(SKIP, "", reason) if reason else _run(check, facts)
    failure = FAILURES.get(outcome.code)
    words = {"found": outcome.found, "wanted": outcome.wanted, **outcome.words}
    whose = failure["whose"] if failure else ""
    if whose == "host":
        whose = "landlord's" if facts.host_kind in ("container", "wsl") else "yours"
    return {
        "name": check.name,
        "component": check.component,
        "status": outcome.status,
        "wanted": outcome.wanted,
        "found": "" if outcome.status == SKIP else outcome.found,
        "why": outcome.found if outcome.status == SKIP else failure["cause"].format(**words) if failure else "",
        "code": outcome.code,
        "whose": whose,
        "next_step": failure["remedy"].format(**words) if failure else "",
    }


def _reason_to_skip(check: Check, facts: Facts) -> str:
    if check.component and check.component not in facts.components:
        return NOT_CHOSEN
    if check.gpu and not facts.gpu_count:
        return "this host has no GPU"
    if check.kernel and facts.simulation:
        return f"simulated GPU ({facts.simulation}): no kernel runs on it"
    return ""


def _run(check: Check, facts: Facts) -> Outcome:
    try:
        return check.run(facts)
    except UnmeasuredError as missing:
        return missing.outcome
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        # A measurement of another shape than this release writes proves nothing.
        return Outcome(UNKNOWN, "", f"a measurement that can't be read: {type(error).__name__}: {error}", "GB-VER-101")


def verdict_of(proofs: Iterable[Mapping[str, Any]]) -> str:
    """Return the verdict that follows from proofs.

    A component that wasn't chosen is no obstacle to `ready`; any other skipped proof is, and so is the lack of work
    done on the GPUs.
    """
    listed = list(proofs)
    if not listed or any(proof["status"] not in (PASS, SKIP) for proof in listed):
        return NOT_READY
    worked = any(proof["name"] in WORK and proof["status"] == PASS for proof in listed)
    unproved = [proof for proof in listed if proof["status"] == SKIP and proof["why"] != NOT_CHOSEN]
    if unproved or not worked:
        return SOFTWARE_ONLY
    return DEGRADED if any(proof["code"] for proof in listed) else READY


def receipt(result: Mapping[str, Any], measurements: Mapping[str, Any], expected: Mapping[str, Any]) -> Json:
    """Return what is left on the host after a passed proof; {} when the host is not ready.

    While it fits the live state, bootstrap doesn't prove again.
    """
    if result["verdict"] == NOT_READY:
        return {}
    facts = Facts(measurements, expected)
    state = facts.maybe("driver")
    told = next((gpu.get("driver_version") for gpu in facts.smi_gpus if gpu.get("driver_version")), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": result["verdict"],
        "simulated": result["simulated"],
        "stack": expected.get("stack") or "",
        "lock_sha256": expected.get("lock_sha256") or "",
        "boot_id": facts.maybe("host").get("boot_id") or "",
        "driver_version": state.get("loaded_version") or told or "",
        "gpu_uuids": sorted(str(gpu.get("uuid")) for gpu in facts.smi_gpus),
        "components": sorted(facts.components),
        "proved_at": measurements.get("started_at") or "",
        "proofs": [{"name": proof["name"], "status": proof["status"]} for proof in result["proofs"]],
    }


def same_receipt(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two receipts prove the same, whenever they did."""
    return bool(one) and {**one, "proved_at": ""} == {**other, "proved_at": ""}


def read_measurements(answer: Mapping[str, Any]) -> Json:
    """Return the document that measure.py printed, from the result of the task that ran it.

    Where it printed none, the document holds no measurement and the reason: nothing is proved then.
    """
    document = _object(answer.get("stdout"))
    if "measurements" in document:
        return document
    said = _last_line(answer.get("stderr")) or _last_line(answer.get("msg")) or _last_line(answer.get("stdout"))
    return {
        "schema_version": SCHEMA_VERSION,
        "started_at": "",
        "seconds": 0,
        "host": "",
        "error": f"measure.py ended with {answer.get('rc')}: {said or 'no message'}",
        "measurements": {},
    }


def conclude(answer: Mapping[str, Any], expected: Mapping[str, Any], old_receipt: object = "") -> Json:
    """Return the proofs with their measurements, the receipt that belongs on the host, and whether that is news.

    `answer` is the result of the task that ran measure.py, `old_receipt` the text of the receipt on the host. A
    receipt that proves the same stays as it is, with the time of its first proof.
    """
    measurements = read_measurements(answer)
    result = judge(measurements, expected)
    new, old = receipt(result, measurements, expected), _object(old_receipt)
    kept = same_receipt(new, old)
    return {
        **result,
        "measurements": measurements,
        "receipt": old if kept else new,
        "receipt_is_new": bool(new) and not kept,
    }


def _object(text: object) -> Json:
    try:
        loaded = json.loads(str(text or "{}"))
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}


def verdict_text(result: Mapping[str, Any], host: str = "") -> str:
    """Say the verdict to a person: what failed, what was found and wanted, what to do next."""
    proofs = list(result["proofs"])
    simulated = " (simulated GPU)" if result.get("simulated") else ""
    count = {status: sum(proof["status"] == status for proof in proofs) for status in (PASS, FAIL, UNKNOWN, SKIP)}
    lines = [
        f"{host or 'this host'}: {result['verdict']}{simulated}; "
        + ", ".join(f"{number} {status}" for status, number in count.items() if number)
    ]
    for proof in proofs:
        if proof["code"]:
            word = {FAIL: "FAILED", UNKNOWN: "UNKNOWN", PASS: "remark"}[proof["status"]]
            lines.append(f"  {proof['name']} {word} ({proof['code']}, {proof['whose']}): {proof['why']}")
            lines.append(f"    wanted: {proof['wanted']}")
            lines.append(f"    next: {proof['next_step']}")
    return "\n".join(lines)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "judge": judge,
            "conclude_proofs": conclude,
            "verdict_text": verdict_text,
        }
