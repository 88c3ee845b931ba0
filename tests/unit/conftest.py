"""Lets modules import the checkout's own module_utils in tests, as Ansible does when it packs them."""

from __future__ import annotations

from pathlib import Path

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[2] / "module_utils"))
