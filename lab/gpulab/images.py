"""Images of the lab's hosts: Debian by mmdebstrap (or a registry image), then one Containerfile each."""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpulab import handon
from gpulab.base import LAB_DIR, Home, LabError, cache_key, run, say
from gpulab.engine import Engine

PREFIX = "localhost/gpu-bootstrap-lab"
MAX_AGE_DAYS = 14  # package lists inside an older image name packages that the mirror has dropped
KEPT = 2  # builds of one image that stay, newest first: another checkout may use the older one
IMAGES_DIR = LAB_DIR / "images"


@dataclass(frozen=True)
class Recipe:
    """How an image is made: the Debian release it starts from and its Containerfile."""

    release: str
    containerfile: str
    extra: tuple[str, ...] = ()


RECIPES = {
    "debian12-systemd": Recipe("bookworm", "systemd", ("lab-ssh-keys.service",)),
    "debian12-plain": Recipe("bookworm", "plain", ("lab-sshd",)),
    "debian12-nopython": Recipe("bookworm", "nopython", ("lab-sshd",)),
    "debian13-systemd": Recipe("trixie", "systemd", ("lab-ssh-keys.service",)),
}
BASE_NAMES = {"bookworm": "debian12-base", "trixie": "debian13-base"}


def reference(name: str) -> str:
    """Return the full name of a lab image."""
    return f"{PREFIX}/{name}:latest"


class Images:
    """Builds what is missing or old; an image of the right key and age is left alone."""

    def __init__(self, home: Home, engine: Engine) -> None:
        """Read what this machine hands on once."""
        self.home = home
        self.engine = engine
        self.files = handon.host_files()
        self.sources = handon.read_apt_sources()

    def ensure(self, names: list[str], *, rebuild: bool = False) -> None:
        """Build the named images, and the base images they need."""
        unknown = sorted(set(names) - set(RECIPES))
        if unknown:
            raise LabError(f"no lab image is called {', '.join(unknown)}; there are {', '.join(RECIPES)}")
        with self.home.lock("images", timeout=1800):
            for name in names:
                recipe = RECIPES[name]
                base, base_key = self._ensure_base(recipe.release, rebuild=rebuild)
                sources = [
                    IMAGES_DIR / f"{recipe.containerfile}.Containerfile",
                    *(IMAGES_DIR / x for x in recipe.extra),
                ]
                self.build(
                    name, cache_key(base_key, *sources), recipe.containerfile, {"BASE": base}, recipe.extra, rebuild
                )

    def build(
        self,
        name: str,
        key: str,
        containerfile: str,
        arguments: dict[str, str],
        extra: tuple[str, ...] = (),
        rebuild: bool = False,
        files: dict[str, str] | None = None,
    ) -> None:
        """Build one image from its Containerfile unless one with this key is there."""
        tagged = f"{PREFIX}/{name}:{key}"
        if not rebuild and self._fresh(tagged):
            self.engine.call("tag", tagged, reference(name))
            return
        say(f"building image {name}")
        with tempfile.TemporaryDirectory(prefix="lab-image-") as scratch:
            context = Path(scratch)
            shutil.copy(IMAGES_DIR / f"{containerfile}.Containerfile", context / "Containerfile")
            for item in extra:
                shutil.copy(IMAGES_DIR / item, context / item)
            for path, text in (files or {}).items():
                target = context / "host" / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            flags = ["--no-cache", "--file", str(context / "Containerfile")]
            if self.engine.name == "podman":
                flags += ["--pull-never"]
            for variable, value in arguments.items():
                flags += ["--build-arg", f"{variable}={value}"]
            self.engine.call("build", *flags, "--tag", tagged, "--tag", reference(name), context, timeout=900)
        self._prune(name)

    def ensure_base(self, release: str) -> tuple[str, str]:
        """Return reference and key of the base image of a release, building it when it is missing."""
        with self.home.lock("images", timeout=1800):
            return self._ensure_base(release)

    def _ensure_base(self, release: str, *, rebuild: bool = False) -> tuple[str, str]:
        lines = handon.debian_lines(self.sources, release)
        given = os.environ.get(f"LAB_BASE_IMAGE_{release.upper()}", "")
        name = BASE_NAMES[release]
        key = cache_key(release, lines, given, self.files, IMAGES_DIR / "base.Containerfile")
        tagged = f"{PREFIX}/{name}:{key}"
        if rebuild or not self._fresh(tagged):
            rootfs = given or self._bootstrap(release, lines, key)
            if given and not self.engine.image_id(given):
                say(f"pulling {given}")
                self.engine.call("pull", given, timeout=900)
            self.engine.make_runnable(rootfs)
            self.build(name, key, "base", {"ROOTFS": rootfs}, rebuild=True, files=self.files)
        self.engine.make_runnable(tagged)
        return tagged, key

    def _bootstrap(self, release: str, lines: list[str], key: str) -> str:
        """Make a Debian root file system with mmdebstrap and import it."""
        name = f"{PREFIX}/rootfs-{release}:{key}"
        if not shutil.which("mmdebstrap"):
            raise LabError(
                "mmdebstrap is not installed; install it, or name a Debian image of a registry that you reach: "
                f"LAB_BASE_IMAGE_{release.upper()}=…"
            )
        say(f"making a Debian {release} root file system with mmdebstrap (about half a minute)")
        with tempfile.TemporaryDirectory(prefix="lab-rootfs-") as scratch:
            tarball = Path(scratch) / "rootfs.tar"
            options = [f"--aptopt={line.rstrip(';')}" for line in handon.apt_options()]
            run(
                [
                    "mmdebstrap",
                    "--quiet",
                    "--variant=minbase",
                    f"--components={handon.COMPONENTS.replace(' ', ',')}",
                    "--include=ca-certificates,openssh-server,iproute2,procps",
                    *options,
                    release,
                    tarball,
                    *lines,
                ],
                timeout=900,
            )
            self.engine.call("import", tarball, name, timeout=300)
        self._prune(f"rootfs-{release}")
        return name

    def _prune(self, name: str) -> None:
        """Drop old builds of an image; one that a container uses stays."""
        listed = self.engine.call("images", "--format", "{{.Tag}}", f"{PREFIX}/{name}", check=False).stdout.split()
        for tag in [tag for tag in listed if tag not in ("latest", "<none>")][KEPT:]:
            self.engine.call("rmi", f"{PREFIX}/{name}:{tag}", check=False)

    def _fresh(self, tagged: str) -> bool:
        """Tell whether the image is there and its package lists are young enough."""
        done = self.engine.call("image", "inspect", "--format", "{{json .Created}}", tagged, check=False)
        if done.returncode != 0:
            return False
        created = datetime.datetime.fromisoformat(done.stdout.strip().strip('"')[:19] + "+00:00")
        age = datetime.datetime.now(datetime.UTC) - created
        return age < datetime.timedelta(days=MAX_AGE_DAYS)
