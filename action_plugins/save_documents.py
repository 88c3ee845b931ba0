"""Writes documents on the controller, many in one task, without a process or a connection."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

DOCUMENTATION = r"""
name: save_documents
short_description: Write documents on the controller
description:
  - Writes text and JSON documents below one directory, each as a whole or not at all.
  - Starts no process and needs no connection. V(changed) says that the content of a document differs from before.
options:
  root:
    description: Directory below which the documents are written. It is made when it is missing.
    type: path
    required: true
  documents:
    description:
      - Relative path of each document, and its content. A string is written as it is, anything else as JSON.
      - A path that leads out of O(root) is refused.
    type: dict
    required: true
  show:
    description: Name of a document that is not written but returned as RV(text), for a task that prints it.
    type: str
  always:
    description: Write in check mode, too.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Save what was planned
  save_documents:
    root: "{{ playbook_dir }}/reports"
    documents: {trainer-1/plan.json: "{{ plan_document }}"}
"""

RETURN = r"""
written:
  description: Paths of the documents that differ from before.
  type: list
  returned: always
text:
  description: Content of the document that O(show) names.
  type: str
  returned: when O(show) is given
"""


def place(root: Path, name: str) -> Path:
    """Return where a document goes; ValueError for a path that leads out of the root."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or path.name in ("", "."):
        raise ValueError(
            f"document path {name!r} leads out of {root}, expected a relative path such as host/report.json"
        )
    target = root / path
    # A link inside the root must not lead out of it either.
    if not target.parent.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"document path {name!r} leads out of {root} over a link, expected a directory below it")
    return target


def text_of(content: Any) -> str:
    """Return what is written for a content: text as it is, anything else as JSON."""
    if isinstance(content, str):
        return str(content)
    return json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return built-in types: the templating engine hands over its own kinds of dict, list and str."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return str(value)


def differs(path: Path, text: str) -> bool:
    """Tell whether a file lacks this content."""
    try:
        return path.read_text(encoding="utf-8") != text
    except (OSError, UnicodeDecodeError):
        return True


def write(path: Path, text: str) -> None:
    """Put a file in place as a whole: readers see the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible has no types
    """The action `save_documents`."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS = frozenset(("root", "documents", "show", "always"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write the documents that differ."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        root, documents = self._task.args.get("root"), self._task.args.get("documents")
        if not isinstance(root, str) or not root:
            raise AnsibleActionFail(f"root is {root!r}, expected the path of a directory")
        if not isinstance(documents, Mapping):
            raise AnsibleActionFail(
                f"documents is a {type(documents).__name__}, expected a mapping of paths to contents"
            )
        shown = str(self._task.args.get("show") or "")
        if shown:
            result["text"] = text_of(documents.get(shown, ""))
        always = str(self._task.args.get("always", False)).lower() in ("true", "yes", "1", "on")
        top = Path(root).expanduser()
        try:
            todo = [
                (place(top, str(name)), text_of(content)) for name, content in documents.items() if str(name) != shown
            ]
            todo = [(path, text) for path, text in todo if differs(path, text)]
            if always or not self._task.check_mode:
                for path, text in todo:
                    write(path, text)
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {**result, "changed": bool(todo), "written": [str(path) for path, _ in todo]}
