"""What holds for every role: one shape, specs equal to defaults, a page of contents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import planning

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
# Variables that an inventory sets without a prefix; their defaults are in the spec alone (see roles/plan/defaults).
UNPREFIXED = {"plan"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None


def mismatches(options: dict[str, Any], defaults: dict[str, Any], prefix: str) -> list[str]:
    """Say how a spec and the defaults of a role differ, name by name."""
    found = []
    for name in sorted(set(options) | set(defaults)):
        if not name.startswith(prefix):
            found.append(f"{name} lacks the prefix {prefix}")
        elif name not in options:
            found.append(f"{name} is not in the spec")
        elif options[name].get("required"):
            if name in defaults:
                found.append(f"{name} is required and has a default")
        elif name not in defaults:
            found.append(f"{name} is not in the defaults")
        elif options[name].get("default") != defaults[name]:
            found.append(f"{name}: {options[name].get('default')!r} in the spec, {defaults[name]!r} in the defaults")
    return found


@pytest.mark.parametrize("role", ROLES, ids=lambda r: r.name)
def test_spec_and_defaults_say_the_same(role: Path) -> None:
    specs = load(role / "meta/argument_specs.yml")["argument_specs"]
    defaults = load(role / "defaults/main.yml") or {}
    options = {name: option for spec in specs.values() for name, option in (spec.get("options") or {}).items()}
    if role.name in UNPREFIXED:
        options = {name: option for name, option in options.items() if name.startswith(role.name)}
    assert mismatches(options, defaults, f"{role.name}_") == []


def test_a_spec_that_differs_from_the_defaults_is_rejected() -> None:
    options = {"x_a": {"default": "1"}, "x_b": {"required": True}, "y_c": {"default": 1}}
    defaults = {"x_a": 1, "x_b": "set", "x_d": 0}
    assert len(mismatches(options, defaults, "x_")) == 4


@pytest.mark.parametrize("role", ROLES, ids=lambda r: r.name)
def test_tasks_main_is_a_page_of_contents(role: Path) -> None:
    assert len((role / "tasks/main.yml").read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.parametrize("role", ROLES, ids=lambda r: r.name)
def test_role_says_what_it_changes(role: Path) -> None:
    readme = (role / "README.md").read_text(encoding="utf-8")
    for heading in ("## What it changes", "## Support", "## Inputs"):
        assert heading in readme, f"{role.name}/README.md has no '{heading}'"


def test_no_task_activates_a_conda_environment() -> None:
    """P34: `conda activate` is a shell function; tasks call programs of the environment by path."""
    hits = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in ROOT.glob("roles/*/tasks/**/*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bconda activate\b", line) and not line.lstrip().startswith("#")
    ]
    assert hits == []


def test_plan_settings_have_one_truth() -> None:
    options = load(ROOT / "roles/plan/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    spec = {name: option["default"] for name, option in options.items() if not name.startswith("plan_")}
    names = load(ROOT / "roles/plan/vars/main/settings.yml")["__plan_setting_names"]
    assert spec == planning.DEFAULTS
    assert set(names) == set(planning.DEFAULTS)
