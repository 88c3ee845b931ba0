"""`run/lab.json`: what this lab made and how it talks to the engine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gpulab.base import Home, write_text


@dataclass
class Host:
    """One container that stands in for a rented host."""

    name: str
    id: str
    image: str
    port: int
    user: str
    spec: str
    host_key: str = ""
    volumes: list[str] = field(default_factory=list)
    in_inventory: bool = False


@dataclass
class State:
    """Everything that `down` may remove, by id, and the probed engine settings."""

    engine: str = ""
    containers_conf: str | None = None
    engine_probe: str = ""
    network: str = ""
    network_id: str = ""
    subnet: str = ""
    mirror_id: str = ""
    mirror_spec: str = ""
    mirror_extras: list[str] = field(default_factory=list)
    hosts: dict[str, Host] = field(default_factory=dict)


def load(home: Home) -> State:
    """Read the state; a missing file is an empty lab."""
    path = home.run / "lab.json"
    if not path.exists():
        return State()
    raw = json.loads(path.read_text())
    hosts = {name: Host(**_known(Host, row)) for name, row in raw.pop("hosts", {}).items()}
    return State(**_known(State, raw), hosts=hosts)


def _known(kind: type[Host] | type[State], row: dict[str, Any]) -> dict[str, Any]:
    """Keep the fields that this version knows: another checkout may have written more."""
    names = {item.name for item in fields(kind)}
    return {key: value for key, value in row.items() if key in names}


def save(home: Home, state: State) -> None:
    """Write the state in one move."""
    write_text(home.run / "lab.json", json.dumps(asdict(state), indent=2, sort_keys=True) + "\n")


@contextlib.contextmanager
def update(home: Home) -> Iterator[State]:
    """Change the state under a lock; it is saved only when the body succeeds."""
    with home.lock("state", timeout=60):
        state = load(home)
        yield state
        save(home, state)
