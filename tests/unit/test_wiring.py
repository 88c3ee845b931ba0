"""The playbooks hand the plan to the roles: each input exists on both sides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from plan_world import ROOT, data, probe
from planning import COMPONENTS, STEP_ORDER, plan

WIRING = ROOT / "playbooks/stages/components"


def includes(path: Path) -> list[dict[str, Any]]:
    """Every include_role of one wiring file: {role, entry, vars}."""
    found = []
    for task in yaml.safe_load(path.read_text(encoding="utf-8")):
        included = task.get("ansible.builtin.include_role")
        if included:
            entry = str(included.get("tasks_from", "main")).removesuffix(".yml")
            found.append({"role": included["name"], "entry": entry, "vars": task.get("vars") or {}})
    return found


def spec(role: str, entry: str) -> dict[str, Any]:
    specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    return dict(specs["argument_specs"][entry].get("options") or {})


def lookup(document: dict[str, Any], dotted: str) -> Any:
    value: Any = document
    for part in dotted.split("."):
        assert part in value, f"the plan has no {dotted}"
        value = value[part]
    return value


def test_every_step_is_wired() -> None:
    assert {path.stem for path in WIRING.glob("*.yml")} == set(STEP_ORDER)
    assert set(COMPONENTS) <= set(STEP_ORDER)


@pytest.mark.parametrize("step", STEP_ORDER)
def test_inputs_exist_in_the_plan_and_in_the_spec(step: str) -> None:
    document = plan(probe(), {"stack": "cu124"}, data())
    for include in includes(WIRING / f"{step}.yml"):
        options = spec(include["role"], include["entry"])
        assert set(include["vars"]) <= set(options), "the role does not know these inputs"
        missing = {name for name, option in options.items() if option.get("required")} - set(include["vars"])
        assert not missing, f"required by the role and not handed over: {missing}"
        for value in include["vars"].values():
            for dotted in re.findall(r"plan_document\.([\w.]+)", str(value)):
                lookup(document, dotted)
    used = set(re.findall(rf"components\.{step}\.inputs\.(\w+)", (WIRING / f"{step}.yml").read_text(encoding="utf-8")))
    if step in COMPONENTS:
        assert used == set(document["components"][step]["inputs"]), "an input of the plan reaches no role"


def test_no_static_import_or_block_is_conditional() -> None:
    """A skipped task costs the controller 25 to 30 ms for each host, a skipped include costs that once."""
    for path in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]:
        for play in yaml.safe_load(path.read_text(encoding="utf-8")) or []:
            for task in [play, *(play.get("tasks") or [])]:
                static = {"ansible.builtin.import_role", "ansible.builtin.import_tasks"} & set(task)
                assert not (static and "when" in task), f"{path.relative_to(ROOT)}: {task.get('name')}"
