"""Measurements that need the stack: `measure.py` starts this with the environment's Python, one at a time.

    <environment>/bin/python measure_environment.py --one NAME request.json result.json

Measures and judges nothing. Work that may hang or crash by itself (the import of one package, the product on one GPU)
is done in a child with a time limit of its own, so that the others still leave their figures.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import json
import math
import os
import re
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Json = dict[str, Any]

# Edge of the square matrices: large enough for tensor cores and every tile size, small enough for a CPU reference.
EDGE = 1024


# --- children --------------------------------------------------------------------------------------------------------


class Child:
    """One piece of work in a forked process: what was imported before it starts is shared with it."""

    def __init__(self, work: Callable[[], Json], seconds: float) -> None:
        """Start the work; it has this many seconds."""
        self._seconds = seconds
        self._started = time.monotonic()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open until the child ended
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._work(work)

    def _work(self, work: Callable[[], Json]) -> None:
        code = 1
        try:
            result: Json = {"data": work()}
            code = 0
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"[:1500], "trace": traceback.format_exc()[-1500:]}
        try:
            self._file.write(json.dumps(result).encode())
            self._file.flush()
        finally:
            os._exit(code)

    def poll(self) -> Json | None:
        """Return {ok, seconds, timed_out, rc, data | error} when it ended or its time is up, else None."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        seconds = time.monotonic() - self._started
        if not pid and seconds < self._seconds:
            return None
        entry: Json = {"ok": False, "seconds": round(seconds, 2), "timed_out": not pid, "rc": None}
        if not pid:
            # It may sit in the kernel where SIGKILL doesn't reach it: it is left to the end of the process group.
            os.kill(self._pid, signal.SIGKILL)
            return {**entry, "error": f"did not end within {self._seconds:.0f} s"}
        entry["rc"] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        self._file.seek(0)
        try:
            result = json.loads(self._file.read().decode())
        except ValueError:
            result = {"error": f"ended with {entry['rc']} and left no result"}
        return {**entry, **result, "ok": "data" in result}


def in_children(pieces: Sequence[tuple[str, Callable[[], Json]]], seconds: float, at_once: int) -> dict[str, Json]:
    """Do each piece in a child of its own, some side by side; return name -> outcome in the given order."""
    waiting = list(pieces)
    running: dict[str, Child] = {}
    done: dict[str, Json] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name, work = waiting.pop(0)
            running[name] = Child(work, seconds)
        for name, child in list(running.items()):
            outcome = child.poll()
            if outcome is not None:
                done[name] = outcome
                del running[name]
        time.sleep(0.01)
    return {name: done[name] for name, _ in pieces}


def _cores() -> int:
    return max(1, len(os.sched_getaffinity(0)))


def _torch() -> Any:
    return importlib.import_module("torch")


# --- measurements ----------------------------------------------------------------------------------------------------


def environment(_request: Json) -> Json:
    """Which Python this is, the version of every distribution in it, and requirements that aren't met."""
    packages: dict[str, str] = {}
    requirements: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        # The first on the path is the one that is imported.
        if name and _normal(name) not in packages:
            packages[_normal(name)] = distribution.version
            requirements[_normal(name)] = distribution.requires or []
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "prefix": str(Path(sys.prefix).resolve()),
        "executable": sys.executable,
        "packages": dict(sorted(packages.items())),
        **_unmet(packages, requirements),
    }


def _unmet(packages: dict[str, str], requirements: dict[str, list[str]]) -> Json:
    """Return the requirements between packages that aren't met, as `pip check` would, whether pip is there or not."""
    try:
        parse = importlib.import_module("packaging.requirements").Requirement
    except ImportError as error:
        return {"unmet": None, "unmet_error": str(error)}
    unmet = []
    for name, lines in sorted(requirements.items()):
        for line in lines:
            wanted = parse(line)
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            have = packages.get(_normal(wanted.name))
            if have is None or not wanted.specifier.contains(have, prereleases=True):
                unmet.append(f"{name} {packages[name]} wants {wanted.name}{wanted.specifier}, found {have or 'none'}")
    return {"unmet": unmet, "unmet_error": None}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def torch(_request: Json) -> Json:
    """What torch was built for, what it sees, and which libraries it really mapped."""
    module = _torch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(module.cuda.is_available())
        count = int(module.cuda.device_count())
        data: Json = {
            "version": str(module.__version__),
            "cuda": module.version.cuda,
            "hip": getattr(module.version, "hip", None),
            "file": module.__file__,
            "available": available,
            "device_count": count,
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "init_error": None,
            "devices": [],
            **_architectures(module),
            **_cudnn(module),
        }
        if module.version.cuda:
            # Asked even where it says that there is nothing: the error names the cause.
            try:
                module.cuda.init()
                data["devices"] = [
                    {
                        "name": module.cuda.get_device_name(i),
                        "capability": ".".join(map(str, module.cuda.get_device_capability(i))),
                    }
                    for i in range(count)
                ]
            except Exception as error:
                data["init_error"] = f"{type(error).__name__}: {error}"[:600]
        data["warnings"] = [str(one.message)[:600] for one in caught][:5]
    data["cudnn_parts"] = _load_cudnn_parts()
    data["libraries"] = mapped_libraries()
    data["own_cudnn"] = sorted({*own_places("nvidia/cudnn/lib/libcudnn*"), *own_places("torch/lib/libcudnn*")})
    data["prefix"] = str(Path(sys.prefix).resolve())
    return data


def _architectures(module: Any) -> Json:
    """Return the list of architectures in the build; get_arch_list() is empty where there is no GPU."""
    try:
        flags = module._C._cuda_getArchFlags()
    except AttributeError:
        flags = None
    return {"architectures": flags.split() if flags else list(module.cuda.get_arch_list())}


def _cudnn(module: Any) -> Json:
    try:
        return {"cudnn": module.backends.cudnn.version(), "cudnn_error": None}
    except Exception as error:
        return {"cudnn": None, "cudnn_error": f"{type(error).__name__}: {error}"[:600]}


def _load_cudnn_parts() -> dict[str, int]:
    """Let torch's cuDNN load its parts, which it otherwise does at the first convolution; status 0 is success.

    Since cuDNN 9 libcudnn.so is a shell around them, and LD_LIBRARY_PATH is searched for them first.
    """
    shell = next(
        (path for path in mapped_libraries().get("libcudnn", []) if Path(path).name.startswith("libcudnn.so")), None
    )
    if not shell:
        return {}
    try:
        library = ctypes.CDLL(shell)
    except OSError:
        return {}
    checks = [f"cudnn{part}VersionCheck" for part in ("Graph", "Ops", "Cnn", "Adv")]
    return {check: int(getattr(library, check)()) for check in checks if hasattr(library, check)}


def mapped_libraries() -> dict[str, list[str]]:
    """Return the CUDA libraries in this process's memory: name -> files."""
    found: dict[str, list[str]] = {}
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "/lib" in line and line.count(" ") >= 5}
    for path in sorted(paths):
        match = re.match(r"(lib(?:cudnn|cudart|cublas|nccl|cuda))(?:[_\w]*)?[.-]", Path(path).name)
        if match:
            found.setdefault(match.group(1), []).append(path)
    return found


def own_places(pattern: str) -> list[str]:
    """Return the real directories of the environment's files (an installer may have put links into a cache)."""
    roots = dict.fromkeys([sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]])
    return sorted({str(path.resolve().parent) for root in roots for path in Path(root).glob(pattern)})


def imports(request: Json) -> Json:
    """Import every top-level package, each in a child of its own."""
    # Shared by most children; what goes wrong with it is measured in the child that imports it.
    with contextlib.suppress(Exception):
        _torch()
    names = list(request.get("packages") or [])
    pieces = [(name, _importer(name)) for name in names]
    return {"packages": in_children(pieces, 150, min(4, max(2, _cores())))}


def _importer(distribution: str) -> Callable[[], Json]:
    def work() -> Json:
        module_name = module_of(distribution)
        started = time.monotonic()
        module = importlib.import_module(module_name)
        return {
            "module": module_name,
            "seconds": round(time.monotonic() - started, 2),
            "version": str(getattr(module, "__version__", "") or ""),
            "file": getattr(module, "__file__", None),
        }

    return work


def module_of(distribution: str) -> str:
    """Return the name to import for a distribution: huggingface-hub -> huggingface_hub, pillow -> PIL."""
    found = importlib.metadata.distribution(distribution)
    listed = (found.read_text("top_level.txt") or "").split()
    names = listed or sorted(
        {str(path).split("/")[0] for path in found.files or [] if re.match(r"[A-Za-z]\w*/__init__\.py$", str(path))}
    )
    same = [name for name in names if _normal(name) == _normal(distribution)]
    public = [name for name in names if not name.startswith("_")]
    return (same or public or [distribution.replace("-", "_")])[0]


def lora_step(_request: Json) -> Json:
    """One optimizer step of LoRA adapters on a small randomly initialised transformer, on the CPU."""
    module = _torch()
    transformers, peft = importlib.import_module("transformers"), importlib.import_module("peft")
    module.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    base = transformers.LlamaForCausalLM(config)
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = module.optim.AdamW(trainable, lr=1e-2)
    tokens = module.randint(0, 256, (2, 32))
    started = time.monotonic()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    seconds = time.monotonic() - started
    after = float(model(input_ids=tokens, labels=tokens).loss.detach())
    changed = {
        name for name, parameter in model.named_parameters() if not module.equal(parameter.detach(), before[name])
    }
    adapters = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {
        "device": "cpu",
        "loss": _number(float(loss.detach())),
        "loss_after": _number(after),
        "adapters": len(adapters),
        "adapters_changed": len(changed & adapters),
        "frozen_changed": len(changed - adapters),
        "step_seconds": round(seconds, 3),
    }


def _number(value: float) -> float | None:
    """JSON has no NaN and no infinity: such a number is null."""
    return value if math.isfinite(value) else None


def gpu_product(request: Json) -> Json:
    """Matrix products on each GPU, compared with the CPU; each card in a child of its own."""
    module = _torch()
    # CUDA can't be used after a fork once it was started here, so that the counting has a child of its own, too.
    counted = in_children([("count", lambda: {"count": int(module.cuda.device_count())})], 60, 1)["count"]
    count = (counted.get("data") or {}).get("count", 0)
    pieces = [(str(index), _product_on(index)) for index in range(count)]
    limit = max(30.0, float(request.get("limit") or 180) - 70)
    return {"count": counted, "edge": EDGE, "gpus": in_children(pieces, limit, max(1, count))}


def _product_on(index: int) -> Callable[[], Json]:
    def work() -> Json:
        module = _torch()
        device = f"cuda:{index}"
        capability = module.cuda.get_device_capability(index)
        half = "bfloat16" if capability[0] >= 8 else "float16"
        return {
            "name": module.cuda.get_device_name(index),
            "uuid": str(getattr(module.cuda.get_device_properties(index), "uuid", "")),
            "capability": ".".join(map(str, capability)),
            "products": products(module, device, ["float32", half]),
        }

    return work


def products(module: Any, device: str, types: Sequence[str], edge: int = EDGE) -> dict[str, Json]:
    """Multiply the same two matrices on a device and, in double precision, on the CPU.

    `error` is the largest difference divided by the largest element of the reference; null when the result holds NaN
    or infinity.
    """
    generator = module.Generator().manual_seed(7)
    result = {}
    for name in types:
        kind = getattr(module, name)
        left, right = (module.randn(edge, edge, generator=generator).to(kind) for _ in range(2))
        reference = left.double() @ right.double()
        product = (left.to(device) @ right.to(device)).to("cpu").double()
        finite = bool(module.isfinite(product).all())
        error = float((product - reference).abs().max() / reference.abs().max()) if finite else None
        result[name] = {"finite": finite, "error": error, "shape": list(product.shape)}
    return result


MEASUREMENTS: dict[str, Callable[[Json], Json]] = {
    "environment": environment,
    "torch": torch,
    "imports": imports,
    "lora_step": lora_step,
    "gpu_product": gpu_product,
}


def main(arguments: Sequence[str]) -> int:
    """Take one measurement: `--one NAME REQUEST RESULT`."""
    name, request_file, result_file = arguments[1:4]
    with Path(request_file).open(encoding="utf-8") as file:
        request = json.load(file)
    data = MEASUREMENTS[name](request)
    with Path(result_file).open("w", encoding="utf-8") as file:
        json.dump(data, file)
    sys.stdout.flush()
    # Interpreter shutdown may hang on threads of CUDA libraries; the result is written.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
