"""Ansible's door to the plan: the decisions themselves are in plugin_utils/planning/."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Ansible loads each filter plugin by its path and knows no shared code outside of collections.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from planning import plan, plan_text


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"plan": plan, "plan_text": plan_text}
