"""The NVIDIA driver: what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def installed_driver(probe: Mapping[str, Any]) -> str:
    """Version of the loaded driver module, else what nvidia-smi reports, else ""."""
    driver = probe.get("driver") or {}
    return str(driver.get("loaded_version") or (driver.get("smi") or {}).get("driver_version") or "")
