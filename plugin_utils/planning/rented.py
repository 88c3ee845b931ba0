"""What was rented against what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gpus import same_model
from .notes import Notes
from .values import Json


def check_rented(gpus: list[Json], rented: Mapping[str, Any], notes: Notes) -> None:
    """First form: number and model of the GPUs that are paid for."""
    if rented.get("count") is not None and str(rented["count"]).isdigit() and int(rented["count"]) != len(gpus):
        notes.warn("GB-RENT-001", "host", f"{len(gpus)} GPUs", f"{rented['count']} GPUs as rented")
    wanted = str(rented.get("gpu") or "")
    other = [
        g["name"]
        for g in gpus
        if wanted
        and not same_model(wanted, g["name"])
        and not any(same_model(wanted, n) for n in ((g["row"] or {}).get("names") or []))
    ]
    if other:
        notes.warn("GB-RENT-002", "host", ", ".join(dict.fromkeys(other)), wanted)
