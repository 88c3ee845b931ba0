"""Generate docs/versions.md, the tables of stacks and components, from the version data of roles/plan.

With --check nothing is written, and a stale file ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "roles/plan/vars/main"
PAGE = ROOT / "docs/versions.md"
NAMES = ("cuda", "cudnn", "miniconda", "pytorch", "driver", "gpus", "uv", "stacks", "locks", "systems")
INTRO = """\
# Versions

Generated from roles/plan/vars/main/ by `make docs`. Newest first; where each row comes from stands in the files, as
`source` and `confidence` (seen: read in that source; inferred: follows from it; proposed: our judgement).
"""


def load(tables: Path = TABLES) -> dict[str, Any]:
    """Return the tables without their prefix: {"cuda": {...}, ...}."""
    return {name: yaml.safe_load((tables / f"{name}.yml").read_text())[f"plan_{name}"] for name in NAMES}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; None shows as a dash."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for row in rows:
        cells = ["-" if cell is None or cell == "" else str(cell).replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def gigabytes(count: int | None) -> str:
    """Show a number of bytes in GB (10^9), a dash for none."""
    return "-" if count is None else f"{count / 1e9:.1f} GB"


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def compiles_on(cuda: Mapping[str, Any], systems: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the supported systems whose C library the toolkit compiles with."""
    limit = cuda["glibc_max"]
    return [
        name
        for name, row in systems.items()
        if row["supported"] and (limit is None or numbers(row["glibc"]) <= numbers(limit))
    ]


def stacks_section(data: Mapping[str, Any]) -> str:
    """Return the tables of the stacks and of the packages in them."""
    rows, packages = [], []
    for name, stack in data["stacks"].items():
        cuda, torch, lock = data["cuda"][stack["cuda"]], data["pytorch"][stack["torch"]], data["locks"].get(name, {})
        tag = f"cu{stack['torch_cuda'].replace('.', '')}"
        systems = ", ".join(compiles_on(cuda, data["systems"]))
        rows.append((
            f"`{name}`", stack["cuda"], stack["torch"], stack["cudnn"], stack["python"], cuda["driver_floor"], stack["driver"],
            " ".join(torch["arch_list"][tag]), systems, gigabytes(lock.get("download_bytes")), gigabytes(lock.get("installed_bytes")),
        ))  # fmt: skip
        packages.append(stack["packages"])
    head = ("stack", "CUDA", "torch", "cuDNN", "Python", "least driver", "wanted driver", "GPU architectures")
    text = "\n## Stacks\n\n"
    text += table((*head, "systems", "wheels", "environment"), rows)
    text += "\nThe packages that each stack pins at the top; its lock file fixes the rest.\n\n"
    names = list(dict.fromkeys(name for pins in packages for name in pins))
    text += table(
        ("package", *(f"`{name}`" for name in data["stacks"])),
        ([name, *(pins.get(name) for pins in packages)] for name in names),
    )
    return text


def components_section(data: Mapping[str, Any]) -> str:
    """Return the tables of toolkits, cuDNN, torch, Miniconda, drivers and uv."""
    text = "\n## CUDA toolkits\n\n"
    text += table(
        (
            "version",
            "driver",
            "least driver",
            "newest gcc",
            "newest glibc",
            "compute capability",
            "runfile",
            "installed",
        ),
        (
            (
                version,
                row["driver_min"],
                row["driver_floor"],
                row["gcc_max"],
                row["glibc_max"],
                f"{row['sm_min']} to {row['sm_max']}",
                gigabytes(row["files"]["x86_64"]["size"]),
                gigabytes(row["installed_bytes"]),
            )
            for version, row in data["cuda"].items()
        ),
    )
    text += "\n## cuDNN\n\n"
    text += table(
        ("version", "for CUDA", "x86_64", "aarch64"),
        (
            (version, major.removeprefix("cuda"), *("yes" if m in files else "no" for m in ("x86_64", "aarch64")))
            for version, row in data["cudnn"].items()
            for major, files in row["files"].items()
        ),
    )
    text += "\n## PyTorch\n\n"
    text += table(
        (
            "version",
            "CUDA of the default index",
            "other indexes",
            "Python",
            "cuDNN",
            "torchvision",
            "torchaudio",
            "glibc",
        ),
        (
            (
                version,
                row["cuda"],
                " ".join(tag for tag in row["indexes"] if tag != row["cuda_tag"]),
                f"{row['python'][0]} to {row['python'][-1]}",
                row["cudnn"],
                row["torchvision"],
                row["torchaudio"],
                row["glibc_min"],
            )
            for version, row in data["pytorch"].items()
        ),
    )
    text += "\n## Miniconda, uv\n\n"
    text += table(
        ("installer", "version", "Python"),
        [
            *(("Miniconda", version, ", ".join(row["files"])) for version, row in data["miniconda"].items()),
            *(("uv", version, "any") for version in data["uv"]),
        ],
    )
    text += "\n## Driver branches\n\n"
    text += table(
        ("branch", "kind", "state", "end of life", "newest CUDA", "versions seen"),
        (
            (b, row["kind"], row["state"], row["eol"], row["max_cuda"], ", ".join(row["last_versions"]))
            for b, row in data["driver"].items()
        ),
    )
    return text


def machines_section(data: Mapping[str, Any]) -> str:
    """Return the tables of GPUs and operating systems."""
    text = "\n## GPUs\n\n"
    text += table(
        ("model", "PCI ids", "capability", "GB", "driver branches", "CUDA", "open modules", "NVSwitch"),
        (
            (
                row["model"],
                " ".join(row["pci_ids"]),
                row["compute_capability"],
                " or ".join(map(str, row["memory_gb"])),
                span(row["min_driver_branch"], row["max_driver_branch"]),
                span(row["min_cuda"], row["max_cuda"]),
                row["open_modules"],
                row["nvswitch"],
            )
            for row in data["gpus"]
        ),
    )
    text += "\n## Operating systems\n\n"
    text += table(
        ("system", "supported", "glibc", "gcc", "Python"),
        (
            (name, "yes" if row["supported"] else "no", row["glibc"], row["gcc"], row["python"])
            for name, row in data["systems"].items()
        ),
    )
    return text


def span(least: str | None, most: str | None) -> str:
    """Show a range of versions whose ends may be unknown."""
    if least and most:
        return f"{least} to {most}"
    return f"from {least}" if least else f"to {most}" if most else "-"


def render(data: Mapping[str, Any]) -> str:
    """Return the whole page."""
    return INTRO + stacks_section(data) + components_section(data) + machines_section(data)


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
