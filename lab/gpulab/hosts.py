"""Lab hosts: containers that are reached over real SSH, as rented hosts are."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
from dataclasses import asdict, dataclass, field

from gpulab import ssh
from gpulab import state as lab_state
from gpulab.base import Home, LabError, cache_key, say, wait_for
from gpulab.engine import Engine
from gpulab.images import RECIPES, Images, reference

NETWORK = "gpu-bootstrap-lab"
LABEL = "gpu-bootstrap.lab"
NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class Spec:
    """What a host should be."""

    name: str
    image: str
    port: int
    user: str
    data: bool = False
    mounts: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ()
    inner_port: int = 22
    in_inventory: bool = field(default=False, compare=False)

    @property
    def key(self) -> str:
        """Hash of the specification, to notice a changed one."""
        return cache_key({k: v for k, v in asdict(self).items() if k != "in_inventory"})


STANDARD = (
    Spec("lab-vm", "debian12-systemd", 22201, "deploy", data=True, in_inventory=True),
    Spec("lab-container", "debian12-plain", 22202, "root", inner_port=22202, in_inventory=True),
)


def subnet() -> ipaddress.IPv4Network:
    """Return the lab's network: `LAB_SUBNET`, else a private one."""
    text = os.environ.get("LAB_SUBNET", "10.189.24.0/24")
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise LabError(f"LAB_SUBNET={text!r} is no IPv4 network; wanted something like 10.189.24.0/24") from error


def host_range() -> str:
    """Return the upper half of the lab's network: hosts get addresses there, so the mirror's fixed one stays free."""
    return str(list(subnet().subnets(prefixlen_diff=1))[1])


def mirror_address() -> str:
    """Return the mirror's fixed address."""
    return str(subnet()[10])


def default_user(image: str) -> str:
    """Return the login of an image: the sudo user where there is one, else root."""
    return "deploy" if image.endswith("-systemd") else "root"


def port_is_free(port: int) -> bool:
    """Tell whether nothing listens on a loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def run_arguments(spec: Spec, engine: str, home: str) -> list[str]:
    """Return the engine's `run` arguments for a host."""
    args = [
        "--detach",
        "--name",
        spec.name,
        "--hostname",
        spec.name,
        "--label",
        f"{LABEL}={home}",
        "--network",
        NETWORK,
    ]
    args += ["--publish", f"127.0.0.1:{spec.port}:{spec.inner_port}"]
    if spec.image.endswith("-systemd"):
        # --restart=always is what makes a reboot come back
        args += ["--restart=always", "--shm-size=1g"]
        if engine == "podman":
            args += ["--systemd=always"]
        else:
            args += ["--env", "container=docker", "--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp"]
            args += ["--cgroupns=host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw"]
    elif spec.inner_port != 22:
        args += ["--env", f"LAB_SSH_PORT={spec.inner_port}"]
    if spec.data:
        args += ["--volume", f"{volume_name(spec.name)}:/data"]
    for mount in spec.mounts:
        args += ["--volume", mount]
    for item in spec.tmpfs:
        path, _, size = item.partition(":")
        args += ["--tmpfs", f"{path}:size={size or '64m'},mode=1777,exec"]
    return [*args, reference(spec.image)]


def volume_name(host: str) -> str:
    """Return the name of a host's data volume."""
    return f"gpu-bootstrap-{host}-data"


class Hosts:
    """Starts, registers and removes hosts; what it did not make it leaves alone."""

    def __init__(self, home: Home, engine: Engine) -> None:
        """Bind a lab home to an engine."""
        self.home = home
        self.engine = engine

    def ensure_network(self) -> None:
        """Create the lab's network unless it is there."""
        with lab_state.update(self.home) as state:
            if self.engine.call("network", "inspect", NETWORK, check=False).returncode == 0:
                return
            say(f"creating network {NETWORK} ({subnet()})")
            done = self.engine.call(
                "network",
                "create",
                "--label",
                f"{LABEL}={self.home.root}",
                "--subnet",
                str(subnet()),
                "--ip-range",
                host_range(),
                NETWORK,
            )
            state.network, state.network_id, state.subnet = NETWORK, done.stdout.strip(), str(subnet())

    def ensure(self, spec: Spec, *, replace: bool = False) -> None:
        """Start a host, wait for its SSH, register it; one that already runs is left alone."""
        if not NAME.fullmatch(spec.name):
            raise LabError(f"found host name {spec.name!r}, wanted lower-case letters, digits and dashes, as lab-vm")
        known = lab_state.load(self.home).hosts.get(spec.name)
        present = self.engine.container(spec.name)
        if present and not (known and known.id == present["id"]):
            raise LabError(f"a container {spec.name} exists that this lab did not make; remove it or take another name")
        if known and present and (replace or known.spec != spec.key):
            if not replace:
                raise LabError(
                    f"{spec.name} runs with other settings; `lab.py rm {spec.name}` first, or give --replace"
                )
            self.remove([spec.name])
            present = {}
        if known and present and self.engine.lost(present["id"]):
            say(f"the processes of {spec.name} were ended from outside: it starts anew, as a fresh host")
            self.remove([spec.name])
            present = {}
        if known and present:
            if present["status"] == "running" and ssh.answers(self.home, spec.name):
                if present["image"] != self.engine.image_id(reference(spec.image)):
                    say(f"{spec.name} runs on an older build of its image; --replace starts it anew")
                return
            say(f"starting {spec.name} again")
            if present["status"] != "running":
                self.engine.call("start", present["id"])
            identifier = present["id"]
        else:
            identifier = self._start(spec)
        self._register(spec, identifier)

    def _start(self, spec: Spec) -> str:
        Images(self.home, self.engine).ensure([spec.image])
        self.ensure_network()
        with self.home.lock("start", timeout=300):  # two of us must not choose the same free port
            return self._run(dataclasses.replace(spec, port=spec.port or self._free_port()))

    def _run(self, spec: Spec) -> str:
        if not port_is_free(spec.port):
            raise LabError(f"port {spec.port} on 127.0.0.1 is taken; give {spec.name} another with --port")
        say(f"starting {spec.name} ({spec.image}, ssh on 127.0.0.1:{spec.port})")
        done = self.engine.call("run", *run_arguments(spec, self.engine.name, str(self.home.root)))
        identifier = done.stdout.strip().splitlines()[-1]
        # recorded at once: whatever fails from here on, `down` can remove it
        with lab_state.update(self.home) as state:
            state.hosts[spec.name] = lab_state.Host(
                name=spec.name,
                id=identifier,
                image=spec.image,
                port=spec.port,
                user=spec.user,
                spec=spec.key,
                volumes=[volume_name(spec.name)] if spec.data else [],
                in_inventory=spec.in_inventory,
            )
        return identifier

    def _register(self, spec: Spec, identifier: str) -> None:
        """Authorise the lab's key, learn the host's key from the host itself, and log in."""
        public = ssh.ensure_key(self.home)
        if spec.image.endswith("-systemd"):
            wait_for(f"systemd in {spec.name}", lambda: self._booted(identifier), timeout=90)
        key_file = "/etc/ssh/ssh_host_ed25519_key.pub"
        wait_for(
            f"the host key of {spec.name}",
            lambda: self.engine.exec(identifier, "test", "-s", key_file, check=False).returncode == 0,
            timeout=60,
        )
        script = (
            'set -eu; user=$1; id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"; '
            'home=$(getent passwd "$user" | cut -d: -f6); install -d -m 700 -o "$user" -g "$user" "$home/.ssh"; '
            'install -m 600 -o "$user" -g "$user" /dev/stdin "$home/.ssh/authorized_keys"'
        )
        self.engine.exec(identifier, "sh", "-c", script, "sh", spec.user, stdin=public)
        told = self.engine.exec(identifier, "cat", key_file).stdout.split()
        with lab_state.update(self.home) as state:
            state.hosts[spec.name].host_key = " ".join(told[:2])
            ssh.write_files(self.home, state.hosts.values())
        wait_for(f"ssh to {spec.name}", lambda: ssh.answers(self.home, spec.name), timeout=60)
        say(f"{spec.name} is up: ssh -F {self.home.run / 'ssh_config'} {spec.name}")

    def _booted(self, identifier: str) -> bool:
        done = self.engine.exec(identifier, "systemctl", "is-system-running", check=False)
        return done.stdout.strip() in ("running", "degraded")

    def _free_port(self) -> int:
        """Return a loopback port that neither a registered host nor another program uses."""
        taken = {host.port for host in lab_state.load(self.home).hosts.values()}
        for port in range(22400, 22500):
            if port not in taken and port_is_free(port):
                return port
        raise LabError("no free port between 22400 and 22499 on 127.0.0.1; give one with --port")

    def remove(self, names: list[str]) -> None:
        """Remove hosts that this lab made, with their data volumes; absence is fine."""
        for name in names:
            known = lab_state.load(self.home).hosts.get(name)
            if known is None:
                if self.engine.container(name):
                    raise LabError(f"the container {name} was not made by this lab: left alone")
                continue
            self.engine.remove(known.id)
            for volume in known.volumes:
                self.engine.call("volume", "rm", "-f", volume, check=False)
            with lab_state.update(self.home) as state:
                state.hosts.pop(name, None)
                ssh.write_files(self.home, state.hosts.values())
            say(f"removed {name}")

    def down(self) -> None:
        """Remove everything this lab runs: hosts, mirror, network."""
        known = lab_state.load(self.home)
        self.remove(list(known.hosts))
        if known.mirror_id:
            self.engine.remove(known.mirror_id)
            say("removed the mirror")
        if known.network_id:
            done = self.engine.call("network", "rm", known.network, check=False)
            say(f"removed network {known.network}" if done.returncode == 0 else f"kept network: {done.stderr.strip()}")
        with lab_state.update(self.home) as state:
            state.mirror_id = state.mirror_spec = ""
            state.mirror_extras = []
            state.network = state.network_id = state.subnet = ""

    @staticmethod
    def known_images() -> list[str]:
        """Return the images a host can be started from."""
        return list(RECIPES)
