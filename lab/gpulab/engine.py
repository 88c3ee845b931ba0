"""The container engine: podman first, docker too, on ordinary machines and on restricted ones."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from gpulab import state as lab_state
from gpulab.base import Home, LabError, cache_key, run, say, write_text


def restricted_conf(nofile: int) -> str:
    """Render a containers.conf for machines where containers can't raise limits or crun refuses hybrid cgroups."""
    return (
        "[containers]\n"
        f'default_ulimits = ["nofile={nofile}:{nofile}", "nproc=30000:30000"]\n'
        "[engine]\n"
        'runtime = "runc"\n'
    )


class Engine:
    """Calls podman or docker with the environment that works on this machine."""

    def __init__(self, home: Home, env: Mapping[str, str] = os.environ) -> None:
        """Choose the engine: `LAB_ENGINE`, else the one this lab runs on, else podman, else docker."""
        self.home = home
        wanted = env.get("LAB_ENGINE", "")
        known = lab_state.load(home)
        busy = known.engine if known.hosts or known.mirror_id or known.network_id else ""
        if wanted and busy and wanted != busy:
            raise LabError(
                f"found LAB_ENGINE={wanted}, but this lab runs on {busy}; `LAB_ENGINE={busy} lab.py down` first"
            )
        wanted = wanted or busy
        found = wanted or next((name for name in ("podman", "docker") if shutil.which(name)), "")
        if found not in ("podman", "docker") or not shutil.which(found):
            raise LabError(
                f"found no container engine (LAB_ENGINE={wanted or 'unset'}), wanted podman or docker; "
                "on Debian: apt-get install podman runc iptables"
            )
        self.name = found
        self.conf = known.containers_conf if known.engine == found else None

    @property
    def env(self) -> dict[str, str]:
        """Variables that each engine call needs."""
        return {"CONTAINERS_CONF": self.conf} if self.conf else {}

    def call(
        self, *args: str | Path, timeout: float = 120, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the engine's command line."""
        return run([self.name, *args], timeout=timeout, stdin=stdin, env=self.env, check=check)

    def exec(
        self, container: str, *args: str, timeout: float = 60, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        flags = ["-i"] if stdin is not None else []
        return self.call("exec", *flags, container, *args, timeout=timeout, stdin=stdin, check=check)

    def image_id(self, reference: str) -> str:
        """Return the id of a local image, '' when there is none."""
        done = self.call("image", "inspect", "--format", "{{.Id}}", reference, check=False)
        return done.stdout.strip().removeprefix("sha256:") if done.returncode == 0 else ""

    def container(self, reference: str) -> dict[str, str]:
        """Return {id, status, image} of a container by name or id; {} when there is none."""
        done = self.call("container", "inspect", reference, check=False)
        if done.returncode != 0:
            return {}
        row = json.loads(done.stdout)[0]
        return {
            "id": row["Id"],
            "name": row["Name"].lstrip("/"),
            "status": row["State"]["Status"],
            "image": row["Image"].removeprefix("sha256:"),
        }

    def lost(self, reference: str, *, pause: float = 2) -> bool:
        """Tell whether the engine calls a container running whose processes are gone.

        They are when something ended them together with the engine's watcher: a closed session, a cgroup that was
        emptied, the kernel out of memory. Podman never notices and can't start such a container again. A reboot looks
        the same for a moment, so a second look must agree.
        """
        for look in range(2):
            if look:
                time.sleep(pause)
            if self.container(reference).get("status") not in ("running", "stopping"):
                return False
            if self.exec(reference, "true", check=False).returncode == 0:
                return False
        return True

    def status(self, reference: str) -> str:
        """Return a container's state for a person to read: the engine's word, `lost` or `gone`."""
        return "lost" if self.lost(reference) else self.container(reference).get("status", "gone")

    def remove(self, reference: str) -> None:
        """Remove a container and its anonymous volumes; absence is fine."""
        if self.container(reference):
            flags = ["-f", "-v"] + (["-t", "2"] if self.name == "podman" else [])
            self.call("rm", *flags, reference, timeout=90)

    def make_runnable(self, image: str) -> None:
        """See to it that a plain `run` of `image` works; change podman's settings only when it does not."""
        if self.name == "docker":
            self.call("run", "--rm", "--entrypoint", "/bin/true", image)
            self._remember("docker")
            return
        nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        boot = Path("/proc/sys/kernel/random/boot_id")
        probe = cache_key(
            self.name, nofile, boot.read_text() if boot.exists() else "", os.environ.get("CONTAINERS_CONF")
        )
        known = lab_state.load(self.home)
        if known.engine == self.name and known.engine_probe == probe:
            return
        plain = ["run", "--rm", "--entrypoint", "/bin/true", image]
        self.conf = None
        first = self.call(*plain, check=False)
        if first.returncode != 0:
            path = self.home.run / "containers.conf"
            write_text(path, restricted_conf(nofile))
            self.conf = str(path)
            second = self.call(*plain, check=False)
            if second.returncode != 0:
                hint = "; netavark needs iptables: apt-get install iptables" if "netavark" in second.stderr else ""
                raise LabError(
                    f"podman cannot start a container here{hint}\n"
                    f"  plain: {first.stderr.strip()}\n  with {path}: {second.stderr.strip()}"
                )
            say(
                f"plain `podman run` fails here ({first.stderr.strip().splitlines()[-1][:90]}): using CONTAINERS_CONF={path}"
            )
        self._remember(probe)

    def _remember(self, probe: str) -> None:
        with lab_state.update(self.home) as state:
            state.engine, state.containers_conf, state.engine_probe = self.name, self.conf, probe
