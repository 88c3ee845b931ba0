"""Generate docs/compatibility.md: what the plan answers for every GPU of the catalogue, every system and every stack.

Nothing is decided here: each cell is the answer of `planning.plan` to a probe that stands for a usual host.
With --check nothing is written, and a stale file ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "roles/plan/vars/main"
PAGE = ROOT / "docs/compatibility.md"
sys.path.insert(0, str(ROOT / "plugin_utils"))

from docs_versions import table  # noqa: E402
from planning import plan  # noqa: E402

Json = dict[str, Any]
# Kernels as the systems' own images bring them; the plan asks them for headers, and for drivers that don't build with them.
KERNELS = {
    "debian-13": "6.12.117+deb13-amd64",
    "debian-12": "6.1.0-50-amd64",
    "ubuntu-24.04": "6.8.0-112-generic",
    "ubuntu-22.04": "5.15.0-171-generic",
}
ARCHITECTURES = {
    "7.0": "Volta", "7.5": "Turing", "8.0": "Ampere", "8.6": "Ampere", "8.9": "Ada", "9.0": "Hopper",
    "10.0": "Blackwell", "10.3": "Blackwell", "12.0": "Blackwell", "12.1": "Blackwell",
}  # fmt: skip
# Models with NVIDIA's own Arm processor: Grace Hopper, Grace Blackwell.
GRACE = re.compile(r"G[HB]\d")
# Columns of a gpus row that only describe: two models that differ in nothing else get the same answers.
DESCRIPTIVE = ("model", "names", "pci_ids", "memory_gb", "min_driver_confidence", "source", "confidence")
# The shortest words for the codes that a cell can hold; docs/failures.md has the long ones.
REASONS = {
    "GB-DRV-001": "driver too old",
    "GB-DRV-005": "no driver that fits",
    "GB-GPU-001": "toolkit older than the GPU",
    "GB-GPU-002": "torch has no kernels",
    "GB-GPU-003": "toolkit dropped the GPU",
    "GB-KMOD-001": "no kernel module for all GPUs",
    "GB-OS-001": "system not supported",
    "GB-OS-002": "glibc too new for the toolkit",
    "GB-OS-004": "glibc too old for torch",
    "GB-OS-005": "nothing for this processor",
}
NO_JIT = "GB-DRV-002"
# Branches that landlords run; every later one of the table follows.
OLD_BRANCHES = ("470", "525", "535", "550", "560", "570", "580")
INTRO = """\
# Compatibility

What the plan answers, before anything is touched, for every GPU of the catalogue, every supported system and every
shipped stack. Generated from roles/plan/vars/main/ by `make docs`: each cell is the answer of the plan itself to the
probe of a usual host, never written by hand, so it changes with the tables and with nothing else (no dates, no
network). It is computed, not tried out on the hardware.

How to read it: `works: 580 open (ubuntu)` means that the stack is taken and that branch 580 with the open kernel modules
from the source `ubuntu` is installed. `refused: GB-...` names the code, with the reason of the first in short; the
legend at the end leads to the remedies. Models whose answers are all alike share a row. For a host that exists, ask it:
`ansible-playbook plan.yml`.
"""


# --- hosts that stand for others --------------------------------------------------------------------------------------


def load() -> Json:
    """Return the tables as the role hands them to the plan; which ones, stands in settings.yml."""
    merged: Json = {}
    for path in sorted(TABLES.glob("*.yml")):
        merged.update(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    named = {key: re.fullmatch(r"\{\{ (\w+) \}\}", value) for key, value in merged["__plan_data"].items()}
    data: Json = {key: merged[match.group(1)] for key, match in named.items() if match}
    return {**data, "lock_dir": "roles/pytorch_stack/files/locks"}


def machine_of(row: Mapping[str, Any]) -> str:
    """The processor of the hosts that a GPU is sold in."""
    return "aarch64" if GRACE.match(str(row["model"])) else "x86_64"


def virtual_machine(
    row: Mapping[str, Any], system: str, data: Mapping[str, Any], nvswitches: Iterable[str] = ()
) -> Json:
    """The probe of a fresh virtual machine with one GPU, no driver, and apt's sources as the image brings them."""
    distribution, _, version = system.partition("-")
    facts, machine = data["systems"][system], machine_of(row)
    kernel = KERNELS[system].replace("amd64", "amd64" if machine == "x86_64" else "arm64")
    compiler = f"gcc-{facts['gcc']}"
    return {
        "schema_version": 1, "collected_at": "2000-01-01T00:00:00Z", "hostname": "usual", "machine": machine, "boot_id": "boot", "uptime_s": 60,
        "os": {"id": distribution, "version_id": version, "codename": "", "pretty_name": system},
        "kernel": {
            "release": kernel, "will_boot": kernel, "version_line": f"Linux version {kernel}", "compiler": f"{compiler} {facts['gcc']}.0",
            "installed": [kernel], "headers": [],
        },
        "user": {"name": "root", "uid": 0, "home": "/root", "shell": "/bin/bash", "sudo": "root"},
        "signs": {
            "container_env": "", "dockerenv": False, "containerenv": False, "pid1": "systemd", "systemd_running": True, "cgroup_hint": "", "wsl": False,
            "dmi": {"sys_vendor": "QEMU", "product_name": "usual"}, "hypervisor_flag": True, "xen": False, "kubernetes": False, "can_load_modules": True,
            "overlay_root": False, "provider": "", "provider_signs": [],
        },
        "init": "systemd", "secure_boot": "disabled",
        "gpus": [{"pci_address": "0000:01:00.0", "device_id": row["pci_ids"][0], "class": "0302", "driver": None}],
        "nvswitches": [{"pci_address": f"0000:{i + 2:02x}:00.0", "device_id": device} for i, device in enumerate(nvswitches)],
        "driver": {
            "loaded_version": None, "flavour": None, "nouveau_loaded": False, "modules_installed": [], "device_nodes": [], "libcuda": None, "smi": None,
            "packages": [], "compat": [], "runfile": None, "dkms": [],
        },
        "toolkits": [], "cuda_link": None, "cudnn": [], "conda": [], "environments": [], "disks": [], "downloads": [], "listening_ports": [], "unreadable": [],
        "mounts": [{
            "mount": "/", "device": "/dev/vda1", "fstype": "ext4", "size_bytes": 2 * 10**12, "free_bytes": 2 * 10**12, "free_inodes": 10**8, "options": ["rw"],
        }],
        "memory": {"total_bytes": 2 * 10**12, "cgroup_limit_bytes": None}, "cpus": {"visible": 64, "cgroup_quota": None, "model": "usual"},
        "shm_bytes": 10**12, "pids_max": None, "glibc": facts["glibc"], "libxml2_sonames": [],
        "gcc": {"default": f"{facts['gcc']}.0.0", "available": [str(facts["gcc"])], "cxx": [str(facts["gcc"])], "cxx_default": True},
        "python": {"version": f"{facts['python']}.0", "path": "/usr/bin/python3", "has_apt_module": True},
        "apt": {
            "available": True, "locks": [], "holds": [], "half_installed": [], "candidates_asked": True, "offers": {}, "nvidia_sources": [], "driver_barred": False,
            "candidates": {f"linux-headers-{kernel}": "1", compiler: "1"},
        },
        "shells": {"etc_environment": {}, "marked_blocks": [], "ld_library_path_files": [], "stale_cuda_home": []},
        "receipt": None, "shell_environment": None, "nvidia_driver": None, "prefetch": None, "gpu_processes": None,
    }  # fmt: skip


def container(row: Mapping[str, Any], system: str, driver: str, data: Mapping[str, Any]) -> Json:
    """The probe of a rented container with one GPU, on a landlord's machine with this driver."""
    host = virtual_machine(row, system, data)
    # nvidia-smi answers the question for the compute capability from branch 510 on.
    capability = row["compute_capability"] if int(driver.split(".", maxsplit=1)[0]) >= 510 else None
    smi = {
        "path": "/usr/bin/nvidia-smi", "rc": 0, "stderr": "", "driver_version": driver,
        "gpus": [{"index": 0, "name": f"NVIDIA {row['model']}", "uuid": "GPU-0", "memory_mib": None, "compute_capability": capability}],
    }  # fmt: skip
    return {
        **host,
        "signs": {**host["signs"], "dockerenv": True, "pid1": "sshd", "can_load_modules": False, "systemd_running": False},
        "init": "none",
        "driver": {**host["driver"], "loaded_version": driver, "smi": smi, "device_nodes": ["/dev/nvidia0"]},
        "apt": {**host["apt"], "candidates_asked": False, "candidates": {}},
    }  # fmt: skip


def just_below(version: str) -> str:
    """The next older driver: "525.60.13" -> "525.60.12"."""
    head, _, last = version.rpartition(".")
    return f"{head}.{int(last) - 1:0{len(last)}d}"


# --- cells ------------------------------------------------------------------------------------------------------------


def codes(notes: Iterable[Mapping[str, Any]]) -> list[str]:
    """The codes of refusals or warnings, each once, in their order."""
    return list(dict.fromkeys(str(note["code"]) for note in notes))


def refusal(document: Mapping[str, Any]) -> str:
    """The codes that refuse, the first with its reason in short."""
    first, *others = codes(document["refusals"])
    reason = f" ({REASONS[first]})" if first in REASONS else ""
    return "refused: " + ", ".join([first + reason, *others])


def driver_cell(document: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """What a machine without a driver gets; `sources` are the keys of the sources by title."""
    if document["status"] == "refused":
        return refusal(document)
    inputs = document["components"]["nvidia_driver"]["inputs"]
    limits = f", {NO_JIT}" if NO_JIT in codes(document["warnings"]) else ""
    return f"works: {inputs['branch']} {inputs['flavour']} ({sources[inputs['source']['title']]}){limits}"


def container_cell(document: Mapping[str, Any]) -> str:
    """Whether a container can be used with the driver that it has."""
    if document["status"] == "refused":
        return refusal(document)
    return f"works, {NO_JIT}" if NO_JIT in codes(document["warnings"]) else "works"


def stack_cell(document: Mapping[str, Any]) -> str:
    """The stack that was chosen."""
    if document["status"] == "refused":
        return refusal(document)
    limits = f", {NO_JIT}" if NO_JIT in codes(document["warnings"]) else ""
    return f"`{document['stack']['name']}`{limits}"


class Rows:
    """Rows of one table: models of the same compute capability whose cells are all alike share one."""

    def __init__(self) -> None:
        """Start without a row."""
        self._models: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}

    def add(self, row: Mapping[str, Any], cells: Sequence[str], suffix: str = "") -> None:
        """Add one model; `suffix` tells apart what differs although the model is the same."""
        key = (str(row["compute_capability"]), suffix, tuple(cells))
        self._models.setdefault(key, []).append(str(row["model"]))

    def render(self, head: Sequence[str]) -> str:
        """The table, in the order of the catalogue."""
        return table(
            ("GPUs", "architecture", *head),
            (
                (", ".join(models) + suffix, f"{ARCHITECTURES.get(capability, '')} {capability}".strip(), *cells)
                for (capability, suffix, cells), models in self._models.items()
            ),
        )


class Page:
    """The page from one set of tables."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        """Take the tables."""
        self.data = data
        self.gpus: list[Json] = data["gpus"]
        self.stacks = list(data["stacks"])
        self.systems = [name for name, row in data["systems"].items() if row["supported"]]
        self.sources = {str(row["title"]): key for key, row in data["driver_sources"].items()}
        self.switches = list(data.get("nvswitch_ids") or ["22a3"])[:1]
        self._answers: dict[str, Json] = {}

    def ask(self, probe: Mapping[str, Any], stack: str, row: Mapping[str, Any]) -> Json:
        """The plan for one host. Models that differ in descriptive columns alone are asked once."""
        facts = {key: value for key, value in row.items() if key not in DESCRIPTIVE}
        host = [probe[key] for key in ("machine", "os", "nvswitches", "signs")]
        key = json.dumps([facts, host, probe["driver"]["loaded_version"], stack], sort_keys=True)
        if key not in self._answers:
            self._answers[key] = plan(probe, {"stack": stack}, self.data)
        return self._answers[key]

    def on_machine(self, row: Mapping[str, Any], system: str, nvswitches: Iterable[str] = ()) -> list[str]:
        """The cells of one GPU on one system, a stack each."""
        probe = virtual_machine(row, system, self.data, nvswitches)
        return [driver_cell(self.ask(probe, stack, row), self.sources) for stack in self.stacks]

    def in_container(self, row: Mapping[str, Any], system: str, driver: str, stack: str) -> Json:
        """The plan for one GPU in a container."""
        return self.ask(container(row, system, driver, self.data), stack, row)

    def machines(self) -> str:
        """A table for each system: GPUs against stacks, on a fresh virtual machine."""
        text = "\n## Fresh virtual machines\n\n"
        text += (
            "One GPU, no driver, apt's sources as the image brings them, space and memory enough, secure boot off. GPUs with a\n"
            "Grace processor are asked as aarch64 hosts. Where a board with NVSwitches gets another driver (it needs the fabric\n"
            "manager of that version), it has a row of its own. Driver sources, as `nvidia_driver_source` names them: "
        )
        text += "; ".join(f"`{key}` {title}" for title, key in self.sources.items()) + ". The branches that a source\n"
        text += "offers are those of driver_sources.yml; on a host, what its apt offers decides.\n"
        for system in self.systems:
            rows = Rows()
            boards = Rows()
            for row in self.gpus:
                cells = self.on_machine(row, system)
                rows.add(row, cells)
                if row["nvswitch"] == "board":
                    switched = self.on_machine(row, system, self.switches)
                    if switched != cells:
                        boards.add(row, switched, " (board with NVSwitches)")
            text += f"\n### {system}\n\n" + rows.render([f"`{name}`" for name in self.stacks])
            if boards._models:
                text += "\n" + boards.render([f"`{name}`" for name in self.stacks])
        return text

    def alike(self, render: Callable[[str], str]) -> str:
        """Render a part for each system; systems for which it comes out the same share it."""
        texts: dict[str, list[str]] = {}
        for system in self.systems:
            texts.setdefault(render(system), []).append(system)
        return "".join(f"\n### Images of {', '.join(systems)}\n\n{text}" for text, systems in texts.items())

    def containers(self) -> str:
        """The drivers that stacks ask of a landlord, and the architectures that each stack serves."""
        text = "\n## Containers: drivers\n\n"
        text += (
            "A container can't change its driver. From the floor on, minor-version compatibility carries prebuilt code; from the\n"
            f"full version on, code that is compiled at run time (PTX, JIT) works, too ({NO_JIT} is warned about until then).\n\n"
        )
        rows = []
        for name in self.stacks:
            cuda = self.data["cuda"][self.data["stacks"][name]["cuda"]]
            versions = (just_below(cuda["driver_floor"]), cuda["driver_floor"], cuda["driver_min"])
            gpu, system = self.served_by(name)
            answers = [container_cell(self.in_container(gpu, system, version, name)) for version in versions]
            rows.append(
                (
                    f"`{name}`",
                    cuda["release"],
                    cuda["driver_floor"],
                    cuda["driver_min"],
                    *reversed(answers),
                    gpu["model"],
                )
            )
        head = ("stack", "CUDA", "floor", "full version", "at the full version", "at the floor", "just below the floor")
        text += table((*head, "asked with"), rows)
        text += "\n## Containers: architectures\n\nAsked with a driver of the stack's full version; a GPU's own first driver is in docs/versions.md.\n"
        return text + self.alike(self.architectures)

    def served_by(self, stack: str) -> tuple[Json, str]:
        """The oldest GPU and a system on which a stack works with the driver of its full version."""
        full = self.data["cuda"][self.data["stacks"][stack]["cuda"]]["driver_min"]
        for row in reversed(self.gpus):
            for system in reversed(self.systems):
                if self.in_container(row, system, full, stack)["status"] != "refused":
                    return row, system
        raise SystemExit(f"stack {stack} works on no GPU of the catalogue and no supported system")

    def architectures(self, system: str) -> str:
        """GPUs against stacks, in a container whose driver stands in nobody's way."""
        rows = Rows()
        for row in self.gpus:
            fulls = {name: self.data["cuda"][self.data["stacks"][name]["cuda"]]["driver_min"] for name in self.stacks}
            rows.add(row, [container_cell(self.in_container(row, system, full, name)) for name, full in fulls.items()])
        return rows.render([f"`{name}`" for name in self.stacks])

    def auto(self) -> str:
        """What `stack: auto` takes."""
        text = "\n## `stack: auto` on fresh virtual machines\n\nThe newest stack that the host allows.\n\n"
        rows = Rows()
        for row in self.gpus:
            probes = [virtual_machine(row, system, self.data) for system in self.systems]
            rows.add(row, [stack_cell(self.ask(probe, "auto", row)) for probe in probes])
        text += rows.render(self.systems)
        text += "\n## `stack: auto` in containers\n\n"
        text += (
            "By the branch of the landlord's driver, in its newest version. A stack whose full version the driver reaches comes\n"
            "before a newer one that only minor-version compatibility would carry.\n"
        )
        return text + self.alike(self.auto_in_container)

    def auto_in_container(self, system: str) -> str:
        """GPUs against branches; neighbouring branches with the same answers for all GPUs share a column."""
        later = sorted(b for b in self.data["driver"] if int(b) > int(OLD_BRANCHES[-1]))
        branches = [*OLD_BRANCHES, *later]
        columns = [
            [stack_cell(self.in_container(row, system, f"{branch}.999", "auto")) for row in self.gpus]
            for branch in branches
        ]
        kept = [i for i in range(len(branches)) if i == 0 or columns[i] != columns[i - 1]]
        rows = Rows()
        for number, row in enumerate(self.gpus):
            rows.add(row, [columns[i][number] for i in kept])
        ends = [*(following - 1 for following in kept[1:]), len(branches) - 1]
        heads = [
            f"{branches[first]} and newer" if last == len(branches) - 1 else f"{branches[first]} to {branches[last]}" if last > first else branches[first]
            for first, last in zip(kept, ends, strict=True)
        ]  # fmt: skip
        return rows.render(heads)

    def pins(self) -> str:
        """What the names of the stacks stand for."""
        text = "\n## Stacks\n\nAll pins are in [versions.md](versions.md).\n\n"
        return text + table(
            ("stack", "CUDA", "torch", "driver branch", "what it is"),
            (
                (f"`{name}`", row["cuda"], row["torch"], row["driver_branch"], row["title"])
                for name, row in self.data["stacks"].items()
            ),
        )

    def legend(self, text: str) -> str:
        """The codes that this page uses, with a link to what to do about them."""
        used = sorted(set(re.findall(r"GB-[A-Z]+-\d{3}", text)))
        rows = [
            (
                f"[{code}](failures.md)",
                REASONS.get(code, ""),
                "refusal" if f"refused: {code}" in text or code != NO_JIT else "warning",
            )
            for code in used
        ]
        causes = {code: str(self.data["rules"][code]["cause"]).split(":")[0].split(";")[0].strip() for code in used}
        return "\n## Codes\n\n" + table(
            ("code", "kind", "in short", "cause"),
            ((code, kind, short, causes[name]) for name, (code, short, kind) in zip(used, rows, strict=True)),
        )

    def render(self) -> str:
        """The whole page."""
        text = self.pins() + self.machines() + self.containers() + self.auto()
        return INTRO + text + self.legend(text)


def render(data: Mapping[str, Any]) -> str:
    """Return the whole page."""
    return Page(data).render()


def main() -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when the page is stale")
    check = parser.parse_args().check
    wanted = render(load())
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    name = PAGE.relative_to(ROOT)
    if check:
        print(f"stale, run make docs: {name}")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    print(f"written: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
