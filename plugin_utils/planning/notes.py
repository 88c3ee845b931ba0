"""Collects refusals and warnings in the shape of the plan document, with the texts of the rules table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .values import Json


class Notes:
    """Collects refusals and warnings in the shape of the plan document, with the texts of the rules table."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        """Take the table of rules."""
        self._rules = rules
        self.refusals: list[Json] = []
        self.warnings: list[Json] = []

    def refuse(self, code: str, component: str, found: str, wanted: str, nearest: str = "", **words: object) -> None:
        """Add a refusal; `words` fill in what else the texts of the rule name."""
        self.refusals.append(self._entry(code, component, found, wanted, nearest, words))

    def warn(self, code: str, component: str, found: str, wanted: str, nearest: str = "", **words: object) -> None:
        """Add a warning, as `refuse`."""
        self.warnings.append(self._entry(code, component, found, wanted, nearest, words))

    def _entry(
        self, code: str, component: str, found: str, wanted: str, nearest: str, words: Mapping[str, object]
    ) -> Json:
        rule = self._rules[code]
        texts = {"found": found, "wanted": wanted, "nearest": nearest or "nothing that this release knows", **words}
        return {
            "code": code,
            "component": component,
            "found": found,
            "wanted": wanted,
            "cause": str(rule["cause"]).format(**texts),
            "remedy": str(rule["remedy"]).format(**texts),
            "whose": str(rule["whose"]),
            "nearest": nearest,
        }
