#!/usr/bin/python
"""Finds the exact versions of a driver's packages and lets apt simulate their installation; changes nothing."""

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.apt_reports import parse_apt_offers, parse_simulation, upstream_version
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

DOCUMENTATION = r"""
module: driver_packages
short_description: Simulate the installation of a pinned driver
version_added: "0.2.0"
author: gpu-bootstrap
description:
  - Looks up the exact version of each package of a driver among what apt offers, all of one upstream version.
  - Lets apt simulate the installation with the whole family pinned to it, and reports what would come, go, or clash.
options:
  lead:
    description: The package whose version is the driver's.
    type: str
    required: true
  branch:
    description: Branch that the version must be of.
    type: str
    required: true
  version:
    description: Upstream version that is wanted; empty takes the newest of the branch.
    type: str
    default: ""
  packages:
    description: Packages that are installed with it at the same version.
    type: list
    elements: str
    default: []
  beside:
    description: Packages that are installed with it at their own version.
    type: list
    elements: str
    default: []
  family:
    description: Extended regular expressions on the names of everything that belongs to a driver.
    type: list
    elements: str
    required: true
  may_replace:
    description: Whether packages of the family may be removed or downgraded.
    type: bool
    default: false
attributes:
  check_mode:
    description: The module changes nothing in either mode.
    support: full
"""

EXAMPLES = r"""
- name: Simulate Debian's driver
  driver_packages:
    lead: nvidia-kernel-dkms
    branch: "535"
    packages: [nvidia-smi, libcuda1]
    family: ["nvidia-(kernel|smi).*", "libcuda1.*"]
"""

RETURN = r"""
version:
  description: Full version of the lead package, empty where there is none.
  type: str
  returned: always
exact:
  description: What is to be installed, each as name=version.
  type: list
  elements: str
  returned: always
installs:
  description: Packages of the family that apt would install, with old and new version and source.
  type: list
  elements: dict
  returned: always
removals:
  description: Packages that apt would remove.
  type: list
  elements: dict
  returned: always
installed:
  description: Packages of the family that are installed, with their versions.
  type: dict
  returned: always
pin:
  description: Text of a preferences file that keeps the family at this version.
  type: str
  returned: always
problem:
  description: Why it must not be installed, empty when nothing stands against it.
  type: str
  returned: always
"""


PREFERENCES = Path("/etc/apt/preferences.d")
# Our own file in there, in which the role puts the pin.
PIN_FILE = "gpu-bootstrap-nvidia-driver"


def run(argv: list[str]) -> tuple[int, str, str]:
    """Run a program in the C locale, five minutes at most."""
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C", "DEBIAN_FRONTEND": "noninteractive"}
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, env=environment)
    return answer.returncode, answer.stdout, answer.stderr


def belongs(family: Iterable[str]) -> Callable[[str], bool]:
    """A test for names of the family."""
    patterns = [re.compile(f"(?:{pattern})$") for pattern in family]
    return lambda name: any(pattern.match(name.split(":")[0]) for pattern in patterns)


def exact_versions(wanted: Mapping[str, Any], offers: Mapping[str, list[dict[str, Any]]]) -> tuple[str, list[str], str]:
    """(version of the lead, name=version of everything, problem) from apt's version tables."""
    rows = [row for row in offers.get(wanted["lead"], []) if row["sources"]]
    told = ", ".join(row["version"] for row in rows) or "nothing"
    fitting = [
        row for row in rows
        if upstream_version(row["version"]).split(".")[0] == wanted["branch"]
        and wanted["version"] in ("", upstream_version(row["version"]))
    ]  # fmt: skip
    if not fitting:
        what = wanted["version"] or f"branch {wanted['branch']}"
        return "", [], f"{wanted['lead']} is offered as {told}, wanted {what}"
    version = fitting[0]["version"]
    exact = [f"{wanted['lead']}={version}"]
    for name in wanted["packages"]:
        versions = [row["version"] for row in offers.get(name, []) if row["sources"]]
        same = [v for v in versions if v == version] or [
            v for v in versions if upstream_version(v) == upstream_version(version)
        ]
        if not same:
            return (
                version,
                exact,
                f"{name} is offered as {', '.join(versions) or 'nothing'}, wanted {upstream_version(version)} as {wanted['lead']}",
            )
        exact.append(f"{name}={same[0]}")
    for name in wanted["beside"]:
        if not any(row["sources"] for row in offers.get(name, [])):
            return version, exact, f"{name} is not offered"
        exact.append(name)
    return version, exact, ""


def pin_text(family: Iterable[str], version: str, may_replace: bool = False) -> str:
    """Preferences that let nothing of the family move away from one version; only above 1000 does apt go down to it."""
    names = "|".join(family)
    return (
        "# The driver's packages stay at one version: set by gpu-bootstrap, changes are lost.\n"
        f"Package: /^({names})$/\nPin: version {version}\nPin-Priority: {1001 if may_replace else 999}\n"
    )


def copy_preferences(scratch: Path, pin: str) -> None:
    """Apt's preferences as they will be: those of others, and this pin in the place of an earlier run's."""
    for file in PREFERENCES.glob("*"):
        if file.is_file():
            shutil.copyfile(file, scratch / file.name)
    (scratch / PIN_FILE).write_text(pin, encoding="utf-8")


def judge(
    simulated: Mapping[str, list[dict[str, str]]], of_family: Callable[[str], bool], version: str, may_replace: bool
) -> str:
    """Why what apt simulated must not be done; empty when it may."""
    strangers = [row["name"] for row in simulated["removals"] if not of_family(row["name"])]
    if strangers:
        return f"apt would remove {', '.join(strangers)}, which are not the driver's"
    own = [f"{row['name']} {row['old']}" for row in simulated["removals"]]
    if own and not may_replace:
        return f"apt would remove {', '.join(own)}: another driver is installed"
    lower = [row for row in simulated["downgrades"] if not (may_replace and of_family(row["name"]))]
    if lower:
        moves = [f"{row['name']} from {row['old']} to {row['new']}" for row in lower]
        return f"apt would downgrade {', '.join(moves)}"
    held = [row["name"] for row in simulated["held"] if not of_family(row["name"])]
    if held:
        return f"apt would change {', '.join(held)}, which are on hold and are not the driver's"
    mixed = [
        f"{row['name']} {row['new']} from {row['source']}"
        for row in simulated["installs"]
        if of_family(row["name"]) and re.match(r"(lib)?nvidia-(headless|kernel-dkms|dkms|compute|utils|smi|ml1)|libcuda1$", row["name"])
        and upstream_version(row["new"]) != upstream_version(version)
    ]  # fmt: skip
    return f"two versions would be mixed: {', '.join(mixed)}, wanted {version}" if mixed else ""


def explain(out: str, err: str, of_family: Callable[[str], bool]) -> str:
    """What apt says against it, with the sources of the packages that it names."""
    said = [
        line.strip()
        for line in (out + "\n" + err).splitlines()
        if re.match(r"(E|Error):| \S+ +: |\s+((Pre-?)?Depends|Conflicts|Breaks):|\s+\d+\. ", line)
    ]
    names = sorted({word for line in said for word in re.findall(r"[a-z0-9][a-z0-9+.-]+", line) if of_family(word)})
    _, policy, _ = run(["apt-cache", "policy", *names]) if names else (0, "", "")
    sources = [
        f"{name} {row['version']} from {' and '.join(row['sources']) or 'the installed packages alone'}"
        for name, rows in parse_apt_offers(policy).items()
        for row in rows
    ]
    return "; ".join([*said[:8], *sources[:12]]) or "apt gave no reason"


def installed_family(of_family: Callable[[str], bool]) -> dict[str, str]:
    """Packages of the family that are installed, or stopped half-way."""
    _, out, _ = run(["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Abbrev}\n"])
    rows = (line.split("\t") for line in out.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2][1:2] not in ("n", "c") and of_family(row[0])}


def simulate(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Look up, simulate, judge."""
    of_family = belongs(wanted["family"])
    names = [wanted["lead"], *wanted["packages"], *wanted["beside"]]
    _, policy, _ = run(["apt-cache", "policy", *names])
    version, exact, problem = exact_versions(wanted, parse_apt_offers(policy))
    result: dict[str, Any] = {
        "version": version, "exact": exact, "installs": [], "removals": [], "installed": installed_family(of_family),
        "pin": pin_text(wanted["family"], version, wanted["may_replace"]) if version else "", "problem": problem,
    }  # fmt: skip
    if problem:
        return result
    with tempfile.TemporaryDirectory(prefix="gpu-bootstrap-") as scratch:
        copy_preferences(Path(scratch), result["pin"])
        # Our own hold of an earlier run must not stand in the way of the next one; what of it goes too far is judged below.
        allowed = ["--allow-downgrades", "--allow-change-held-packages", "-o", "APT::Ignore-Hold=true"]
        places = ["-o", f"Dir::Etc::PreferencesParts={scratch}"]
        rc, out, err = run(["apt-get", "-s", "-y", "--no-install-recommends", *allowed, *places, "install", *exact])
    simulated = parse_simulation(out)
    result["installs"] = [row for row in simulated["installs"] if of_family(row["name"])]
    result["removals"] = simulated["removals"]
    result["problem"] = (
        explain(out, err, of_family) if rc else judge(simulated, of_family, version, bool(wanted["may_replace"]))
    )
    return result


def main() -> None:
    """Run as an Ansible module."""
    names = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "lead": {"type": "str", "required": True},
            "branch": {"type": "str", "required": True},
            "version": {"type": "str", "default": ""},
            "packages": names,
            "beside": names,
            "family": {"type": "list", "elements": "str", "required": True},
            "may_replace": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **simulate(module.params))


if __name__ == "__main__":
    main()
