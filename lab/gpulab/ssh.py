"""The SSH side of the lab: one key, the hosts' real host keys, a configuration that stays strict."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpulab.base import Home, LabError, run, write_text
from gpulab.state import Host

HEADER = "# Written by lab/lab.py: changes here are lost.\n"


def render_config(hosts: Iterable[Host], run_dir: Path) -> str:
    """Render an ssh_config: each host by name, and 127.0.0.1 for pasted `ssh -p PORT user@127.0.0.1` lines."""
    rows = sorted(hosts, key=lambda host: host.name)
    text = HEADER
    for host in rows:
        text += f"Host {host.name}\n  HostName 127.0.0.1\n  Port {host.port}\n  User {host.user}\n"
    names = " ".join(["127.0.0.1", *(host.name for host in rows)])
    return text + (
        f"Host {names}\n"
        f'  IdentityFile "{run_dir / "id_ed25519"}"\n'
        "  IdentitiesOnly yes\n"
        f'  UserKnownHostsFile "{run_dir / "known_hosts"}"\n'
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  ConnectTimeout 10\n"
    )


def render_known_hosts(hosts: Iterable[Host]) -> str:
    """Render known_hosts: one `[127.0.0.1]:PORT` entry a host, with the key that the container itself told."""
    return "".join(
        f"[127.0.0.1]:{host.port} {host.host_key}\n"
        for host in sorted(hosts, key=lambda host: host.name)
        if host.host_key
    )


def ensure_key(home: Home) -> str:
    """Make the lab's key pair once; return the public key."""
    path = home.run / "id_ed25519"
    if not path.exists():
        home.run.mkdir(parents=True, exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpu-bootstrap-lab", "-f", path], timeout=30)
    return path.with_suffix(".pub").read_text()


def write_files(home: Home, hosts: Iterable[Host]) -> None:
    """Write ssh_config and known_hosts for the hosts that are registered."""
    rows = list(hosts)
    write_text(home.run / "ssh_config", render_config(rows, home.run), 0o600)
    write_text(home.run / "known_hosts", render_known_hosts(rows), 0o600)


def answers(home: Home, name: str) -> bool:
    """Tell whether a strict login to the host works."""
    try:
        argv: list[str | Path] = [
            "ssh",
            "-F",
            home.run / "ssh_config",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=5",
            name,
            "true",
        ]
        return run(argv, timeout=20, check=False).returncode == 0
    except LabError:
        return False
