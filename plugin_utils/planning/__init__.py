"""The plan: what a host needs, decided from one probe before anything is touched.

`plan(probe, settings, data)` is a pure function. `probe` is the document of `library/host_probe.py`
(docs/probe.schema.json), `settings` the user's variables (roles/plan/meta/argument_specs.yml; a missing or null key
takes its default), `data` the version tables of `roles/plan/vars/main/`. The result is the document of
docs/plan.schema.json. Sizes are bytes, versions are strings. A request that makes no sense raises `ValueError` with the
value, what was expected and the nearest thing that works; a host that can't do what is asked is *refused* in the
document, with a code of `rules.yml`.
"""

from __future__ import annotations

from .document import STEP_ORDER, plan
from .settings import COMPONENTS, DEFAULTS
from .text import plan_text

__all__ = ["COMPONENTS", "DEFAULTS", "STEP_ORDER", "plan", "plan_text"]
