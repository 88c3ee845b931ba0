"""Collects what the plays left on each host into the documents that are written on the controller."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# user:password@ or token@ in a URL, as people write them for proxies and private mirrors.
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redact(value: Any) -> Any:
    """Return a copy without the credentials that URLs may carry."""
    if isinstance(value, str):
        return _USERINFO.sub("***", value)
    if isinstance(value, Mapping):
        return {str(key): redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return value


def plan_files(hosts: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the documents that planning leaves: "<host>/probe.json" and "<host>/plan.json"."""
    files: dict[str, Any] = {}
    for host in hosts:
        files[f"{host}/probe.json"] = redact(hostvars[host]["plan_probe_document"])
        files[f"{host}/plan.json"] = redact(hostvars[host]["plan_document"])
    return files


def report_inputs(hosts: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the role `report` takes: host -> {probe, plan, result, failure}.

    The result is this run's, else the receipt of the last proof where nothing had to be done.
    """
    inputs: dict[str, Any] = {}
    for host in hosts:
        known = hostvars[host]
        probe, plan = known["plan_probe_document"], known["plan_document"]
        result = known.get("verify_result") or (probe.get("receipt") if plan["status"] == "nothing" else None)
        inputs[host] = {
            "probe": redact(probe),
            "plan": redact(plan),
            "result": redact(result or {}),
            "failure": redact(known.get("bootstrap_failure") or {}),
        }
    return inputs


def failure_text(result: Mapping[str, Any]) -> str:
    """Return one readable message of a failed task: its sentence, and the end of what a program said."""
    parts = [str(result.get("msg") or "failed without a message")]
    said = str(result.get("stderr") or result.get("stdout") or "").strip()
    if said and said not in parts[0] and result.get("rc") not in (None, 0):
        parts.append(said[-800:])
    return str(redact(": ".join(parts)))


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"plan_files": plan_files, "report_inputs": report_inputs, "failure_text": failure_text}
