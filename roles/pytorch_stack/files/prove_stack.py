"""Import torch and say what it is; prints JSON. Run by the environment's Python."""

from __future__ import annotations

import json

import torch

print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda or ""}))  # noqa: T201
