"""The plan for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .values import format_bytes


def plan_text(document: Mapping[str, Any]) -> str:
    """Render a plan for a terminal."""
    kind, stack = document["host_kind"], document["stack"]
    gpus: dict[str, int] = {}
    for gpu in document["gpus"]:
        gpus[gpu["name"]] = gpus.get(gpu["name"], 0) + 1
    lines = [
        f"{document['host']}: {_status(document)}",
        f"  host   {kind['value']} ({'; '.join(kind['signs'])})",
        f"  GPUs   {', '.join(f'{count} x {name}' for name, count in gpus.items()) or 'none'}",
        f"  stack  {stack['name']} (chosen by {stack['chosen_by']}): CUDA {stack['cuda']}, cuDNN {stack['cudnn']}, torch {stack['torch']}, Python {stack['python']}",
    ]
    if document["components"]:
        rows = [
            (name, entry["action"], entry["found"], entry["wanted"], entry["why"])
            for name, entry in document["components"].items()
        ]
        widths = [max(len(str(row[i])) for row in rows) for i in range(3)]
        lines += [
            f"  {name:<{widths[0]}}  {action:<{widths[1]}}  found {found:<{widths[2]}}  wanted {wanted} ({why})"
            for name, action, found, wanted, why in rows
        ]
    if document["status"] == "apply" and document["download_bytes"]:
        lines.append(f"  fetch  {format_bytes(document['download_bytes'])}")
    lines += [
        f"  space  {row['mount']}: {format_bytes(row['needed'])} needed, {format_bytes(row['free'])} free"
        for row in document["space"]
    ]
    if document["rented"]["verdict"]:
        faults = [
            f"{row['what']} {row['found']} of {row['rented']}"
            for row in document["rented"]["rows"]
            if row["verdict"] != "keep"
        ]
        lines.append(f"  rented {document['rented']['verdict']}" + (f": {'; '.join(faults)}" if faults else ""))
    if document["reboot"]["needed"]:
        lines.append(
            f"  reboot {'last' if document['reboot']['allowed'] else 'not allowed'}: {document['reboot']['why']}"
        )
    if document["steps"]:
        lines.append(f"  steps  {' > '.join(document['steps'])}")
    for word, entries in (("warning", document["warnings"]), ("REFUSED", document["refusals"])):
        for entry in entries:
            lines.append(f"  {word} {entry['code']} ({entry['component']}): {entry['cause']}")
            lines.append(
                f"    found {entry['found']}; wanted {entry['wanted']}"
                + (f"; nearest that works: {entry['nearest']}" if entry["nearest"] else "")
            )
            lines.append(f"    {entry['remedy']} (whose: {entry['whose']})")
    return "\n".join(lines)


def _status(document: Mapping[str, Any]) -> str:
    return {"refused": "refused, nothing was changed", "nothing": "nothing to do", "apply": "can be made ready"}[
        document["status"]
    ]
