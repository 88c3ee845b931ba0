"""The mirror: vendors' files and indexes under the vendors' paths, served by nginx at a fixed address."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpulab import conda, cuda, cudnn, fetch, wheels
from gpulab import state as lab_state
from gpulab.base import LAB_DIR, Home, LabError, cache_key, say, wait_for, write_text
from gpulab.engine import Engine
from gpulab.hosts import LABEL, NETWORK, Hosts, mirror_address, port_is_free
from gpulab.images import PREFIX, Images, reference
from gpulab.store import Artefact, Stored, ensure

NAME = "gpu-bootstrap-lab-mirror"
TORCH_INDEX, CUDA13 = "torch-index", "cuda13"
EXTRAS = (TORCH_INDEX, CUDA13)
TORCH_PINS = ("torch==2.6.0", "torchvision==0.21.0", "torchaudio==2.6.0")
TORCH_LOCAL = "cu124"
# Names of the wheels on the default index; asked for by name, so that an unexpected file is noticed.
TORCH_FILES = {
    "torch==2.6.0": "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl",
    "torchvision==0.21.0": "torchvision-0.21.0-cp311-cp311-manylinux1_x86_64.whl",
    "torchaudio==2.6.0": "torchaudio-2.6.0-cp311-cp311-manylinux1_x86_64.whl",
}


def port() -> int:
    """Return the loopback port that also reaches the mirror: `LAB_MIRROR_PORT`, else 22280."""
    return int(os.environ.get("LAB_MIRROR_PORT", "22280"))


def torch_artefact(pin: str) -> Artefact:
    """Describe a real wheel of torch's family under the name that the cuXXX index gives it."""
    source = TORCH_FILES[pin]

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="lab-torch-", dir=target.parent) as scratch:
            file = next(iter(fetch.wheels([pin], Path(scratch)).values()))
            if file.name != source:
                raise LabError(f"the index gave {file.name} for {pin}, wanted {source}")
            wheels.repack(file, target, TORCH_LOCAL)

    return Artefact(
        url_path=f"/whl/{TORCH_LOCAL}/{pin.split('==', maxsplit=1)[0]}/{wheels.repacked_name(source, TORCH_LOCAL)}",
        key=cache_key(pin, source, Path(wheels.__file__)),
        build=build,
    )


def tiny_artefact(tiny: wheels.Tiny) -> Artefact:
    """Describe a tiny wheel."""
    return Artefact(tiny.url_path, cache_key(Path(wheels.__file__)), functools.partial(wheels.make, tiny), quick=True)


def overrides(stored: Iterable[Stored]) -> dict[str, dict[str, Any]]:
    """Return `artifact_overrides`: the pins of the files that stand in for the vendors'."""
    return {
        row.path.name: {"sha256": row.sha256, "size": row.size}
        for row in sorted(stored, key=lambda item: item.url_path)
        if row.url_path.startswith(("/compute/", "/miniconda/"))
    }


def mirrors(extras: Iterable[str]) -> dict[str, str]:
    """Return `mirrors` as the inventory wants it."""
    base = f"http://{mirror_address()}"
    found = {"nvidia": base, "miniconda": f"{base}/miniconda", "conda": f"{base}/conda"}
    if TORCH_INDEX in extras:
        found["pytorch"] = f"{base}/whl"
    return found


class Mirror:
    """Builds the files, lays them out and keeps nginx running."""

    def __init__(self, home: Home, engine: Engine) -> None:
        """Bind a lab home to an engine."""
        self.home = home
        self.engine = engine

    def ensure(self, extras: Iterable[str] = ()) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Build what is missing and start the mirror; extras stay until `down`.

        Returns:
            `mirrors` and `artifact_overrides` for the inventory.

        """
        with self.home.lock("mirror", timeout=1800):
            with lab_state.update(self.home) as state:
                state.mirror_extras = wanted = sorted({*state.mirror_extras, *extras})
            images = Images(self.home, self.engine)
            stored = [ensure(self.home, artefact) for artefact in self._artefacts(images, wanted)]
            self._lay_out(stored)
            self._serve(images)
        return mirrors(wanted), overrides(stored)

    def _artefacts(self, images: Images, extras: Iterable[str]) -> list[Artefact]:
        found = [
            cuda.artefact("12.4.1", self.engine, images),
            cudnn.artefact("9.1.0.70"),
            *conda.package_artefacts(self.engine, images),
            conda.installer_artefact(self.home, self.engine, images),
            *(tiny_artefact(tiny) for tiny in wheels.tiny_set()),
        ]
        if CUDA13 in extras:
            found += [cuda.artefact("13.2.1", self.engine, images), cudnn.artefact("9.26.0.51")]
        if TORCH_INDEX in extras:
            found += [torch_artefact(pin) for pin in TORCH_PINS]
        return found

    def _lay_out(self, stored: list[Stored]) -> None:
        """Link the files into a new tree and switch to it in one move."""
        shelf = self.home.run / "mirror"
        key = cache_key([(row.url_path, row.sha256) for row in stored], Path(__file__), Path(wheels.__file__))
        tree = shelf / f"tree-{key}"
        current = shelf / "current"
        if current.is_symlink() and current.resolve() == tree and tree.is_dir():
            return
        shutil.rmtree(tree, ignore_errors=True)
        for row in stored:
            place = tree / row.url_path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                place.hardlink_to(row.path)
            except OSError:
                shutil.copy2(row.path, place)
        channel = [row for row in stored if row.url_path.startswith(conda.CHANNEL)]
        for name, text in conda.repodata(channel).items():
            write_text(tree / conda.CHANNEL.lstrip("/") / name, text)
        hashes = {row.path.name: row.sha256 for row in stored}
        for index in [*(tree / "whl-tiny").iterdir(), *(tree / "whl").glob("*")]:
            wheels.write_index(index, hashes)
        fresh = shelf / ".current"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(tree.name)
        fresh.replace(current)
        for old in shelf.glob("tree-*"):
            if old != tree:
                shutil.rmtree(old, ignore_errors=True)
        say(f"the mirror has {len(stored)} files")

    def _serve(self, images: Images) -> None:
        """Keep one nginx container of the right image running."""
        base, base_key = images.ensure_base("bookworm")
        folder = LAB_DIR / "images"
        key = cache_key(base_key, folder / "mirror.Containerfile", folder / "mirror.conf")
        with self.home.lock("images", timeout=1800):
            images.build("mirror", key, "mirror", {"BASE": base}, ("mirror.conf",))
        hosts = Hosts(self.home, self.engine)
        hosts.ensure_network()
        spec = cache_key(self.engine.image_id(reference("mirror")), mirror_address(), port(), str(self.home.root))
        known = lab_state.load(self.home)
        present = self.engine.container(NAME)
        if present and present["id"] != known.mirror_id:
            raise LabError(
                f"a container {NAME} exists that this lab did not make; another lab's? `down` it there first"
            )
        if present and self.engine.lost(present["id"]):
            say("the mirror's processes were ended from outside: it starts anew")
            self.engine.remove(NAME)
            present = {}
        if present and known.mirror_spec == spec:
            if present["status"] != "running":
                self.engine.call("start", present["id"])
        else:
            self.engine.remove(NAME)
            if not port_is_free(port()):
                raise LabError(f"port {port()} on 127.0.0.1 is taken; choose another with LAB_MIRROR_PORT")
            say(f"starting the mirror at http://{mirror_address()} (http://127.0.0.1:{port()} from here)")
            args = ["--detach", "--name", NAME, "--label", f"{LABEL}={self.home.root}", "--network", NETWORK]
            args += ["--ip", mirror_address(), "--publish", f"127.0.0.1:{port()}:80"]
            args += ["--volume", f"{self.home.run / 'mirror'}:/srv/mirror:ro", f"{PREFIX}/mirror:latest"]
            identifier = self.engine.call("run", *args).stdout.strip().splitlines()[-1]
            with lab_state.update(self.home) as state:
                state.mirror_id, state.mirror_spec = identifier, spec
        wait_for(f"the mirror to answer (its log: {self.engine.name} logs {NAME})", answers, timeout=30)


def answers() -> bool:
    """Tell whether the mirror serves."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port()}/miniconda/", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
