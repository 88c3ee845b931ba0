"""Import torch and say what it is; prints JSON. Run by the environment's Python."""

from __future__ import annotations

import importlib
import json
from typing import Any

torch: Any = importlib.import_module("torch")

print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda or ""}))  # noqa: T201
