"""Generate the tables that come from specs and rules: docs/variables.md, docs/failures.md, the roles' READMEs.

With --check nothing is written, and a stale file ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- inputs:begin -->", "<!-- inputs:end -->"


def cell(text: object) -> str:
    """Make a text fit into one cell of a Markdown table."""
    parts = text if isinstance(text, list) else [text]
    joined = " ".join(" ".join(str(part).split()) for part in parts)
    for mark in ("V", "C", "O"):
        joined = joined.replace(f"{mark}(", "`(")
    out, depth = "", False
    for char in joined.replace("`(", "\0"):
        if char == "\0":
            out, depth = out + "`", True
        elif char == ")" and depth:
            out, depth = out + "`", False
        else:
            out += char
    return out.replace("|", "\\|")


def default_of(option: dict[str, Any]) -> str:
    """Show the default of one option of an argument spec."""
    if option.get("required"):
        return "required"
    value = option.get("default")
    if value in ("", None):
        return "empty"
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def options_table(options: dict[str, Any]) -> str:
    """Render the options of one entry point."""
    rows = ["| variable | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, option in options.items():
        rows.append(
            f"| `{name}` | {option.get('type', 'str')} | {default_of(option)} | {cell(option.get('description', ''))} |"
        )
    return "\n".join(rows)


def role_specs(role: Path) -> dict[str, Any]:
    """Read the argument specs of a role: entry point -> spec."""
    loaded = yaml.safe_load((role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    return dict(loaded["argument_specs"])


def documents() -> dict[Path, str]:
    """Return every generated file with the content that it should have."""
    result: dict[Path, str] = {}
    plan_options = role_specs(ROOT / "roles/plan")["main"]["options"]
    settings = {name: option for name, option in plan_options.items() if not name.startswith("plan_")}
    result[ROOT / "docs/variables.md"] = (
        "# Variables of an inventory\n\n"
        "Generated from roles/plan/meta/argument_specs.yml by `make docs`. Set them for all hosts, a group or one host;\n"
        "all have defaults that work. `-e name=value` on the command line beats the inventory.\n\n"
        f"{options_table(settings)}\n"
    )
    rules = yaml.safe_load((ROOT / "roles/plan/vars/main/rules.yml").read_text(encoding="utf-8"))["plan_rules"]
    rows = ["| code | cause | what to do | whose |", "| --- | --- | --- | --- |"]
    rows += [
        f"| {code} | {cell(rule['cause'])} | {cell(rule['remedy'])} | {rule['whose']} |" for code, rule in rules.items()
    ]
    result[ROOT / "docs/failures.md"] = (
        "# Codes of refusals and warnings\n\n"
        "Generated from roles/plan/vars/main/rules.yml by `make docs`. `{found}` and `{wanted}` are filled in on the host.\n\n"
        + "\n".join(rows)
        + "\n"
    )
    for role in sorted((ROOT / "roles").iterdir()):
        readme = role / "README.md"
        if not readme.is_file() or not (role / "meta/argument_specs.yml").is_file():
            continue
        text = readme.read_text(encoding="utf-8")
        if BEGIN not in text or END not in text:
            continue
        tables = []
        for entry, spec in role_specs(role).items():
            title = f"Entry point `{entry}`:\n\n" if entry != "main" else ""
            tables.append(title + options_table(spec.get("options") or {}))
        head, rest = text.split(BEGIN, 1)
        result[readme] = head + BEGIN + "\n" + "\n\n".join(tables) + "\n" + END + rest.split(END, 1)[1]
    return result


def main() -> int:
    """Write the files, or with --check compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is stale")
    check = parser.parse_args().check
    stale = []
    for path, content in documents().items():
        if path.is_file() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(content, encoding="utf-8")
    for name in stale:
        print(f"{'stale, run make docs:' if check else 'written:'} {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
