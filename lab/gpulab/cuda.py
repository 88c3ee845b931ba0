"""CUDA runfile stand-ins: the vendor's file name, flags and paths around a compiler that is real."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpulab import fetch, selfextract
from gpulab.base import LAB_DIR, cache_key
from gpulab.engine import Engine
from gpulab.images import BASE_NAMES, Images, reference
from gpulab.store import Artefact

SOURCES = LAB_DIR / "standins" / "cuda"
LIB = "targets/x86_64-linux/lib"
INCLUDE = "targets/x86_64-linux/include"
PROFILE = """
TOP              = $(_HERE_)/..

CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice

LD_LIBRARY_PATH += $(TOP)/lib64:
PATH            += $(CICC_PATH):$(_HERE_):

INCLUDES        +=  "-I$(TOP)/targets/x86_64-linux/include" $(_SPACE_)
{system}
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/targets/x86_64-linux/lib/stubs" "-L$(TOP)/targets/x86_64-linux/lib"

CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""


@dataclass(frozen=True)
class Release:
    """A CUDA release that the lab can stand in for."""

    version: str
    driver: str
    nvcc: str
    gcc_max: int
    wheels: tuple[str, ...]
    debian: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The vendor's file name."""
        return f"cuda_{self.version}_{self.driver}_linux.run"

    @property
    def major_minor(self) -> str:
        """The release as nvcc prints it."""
        return ".".join(self.version.split(".")[:2])


# The index has no nvcc for CUDA 12, Debian 13 has exactly 12.4.131; for CUDA 13 the index has a whole compiler.
RELEASES = {
    "12.4.1": Release(
        "12.4.1",
        "550.54.15",
        "12.4.131",
        13,
        (
            "nvidia-cuda-runtime-cu12==12.4.127",
            "nvidia-cuda-nvcc-cu12==12.4.131",
            "nvidia-cuda-cccl-cu12==12.4.127.post1",
        ),
        ("nvidia-cuda-toolkit", "libnvvm4", "libcudart12"),
    ),
    "13.2.1": Release(
        "13.2.1",
        "595.58.03",
        "13.2.78",
        15,
        (
            "nvidia-cuda-nvcc==13.2.78",
            "nvidia-nvvm==13.2.78",
            "nvidia-cuda-crt==13.2.78",
            "nvidia-cuda-runtime==13.2.75",
            "nvidia-cuda-cccl==13.2.75",
        ),
    ),
}


def artefact(version: str, engine: Engine, images: Images) -> Artefact:
    """Describe the runfile of a release."""
    release = RELEASES[version]
    return Artefact(
        url_path=f"/compute/cuda/{version}/local_installers/{release.file}",
        key=cache_key(SOURCES, Path(__file__), Path(selfextract.__file__)),
        build=lambda target: _build(release, engine, images, target),
    )


def _build(release: Release, engine: Engine, images: Images, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lab-cuda-", dir=target.parent) as scratch:
        work = Path(scratch)
        root = work / "root"
        toolkit = root / "builds" / "toolkit"
        wheels = fetch.wheels(release.wheels, work / "wheels")
        if release.debian:
            _from_debian(release, engine, images, work, toolkit)
            for name in ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"):
                part = name.removeprefix("nvidia-").removesuffix("-cu12").replace("-", "_")
                fetch.members(wheels[name], toolkit, {f"nvidia/{part}/include": INCLUDE})
        else:
            _from_wheels(list(wheels.values()), toolkit)
        _finish(release, toolkit)
        values = {
            "VERSION": release.version,
            "NVCC": release.nvcc,
            "MAJOR_MINOR": release.major_minor,
            "DASHED": release.major_minor.replace(".", "-"),
            "GCC_MAX": str(release.gcc_max),
            "DRIVER_MIN": f"{release.driver.split('.')[0]}.00",
        }
        installer = (SOURCES / "cuda-installer").read_text()
        for key, value in values.items():
            installer = installer.replace(f"@{key}@", value)
        (root / "cuda-installer").write_text(installer)
        (root / "cuda-installer").chmod(0o755)
        selfextract.build((SOURCES / "header.sh").read_text(), root, target, values)


def _from_debian(release: Release, engine: Engine, images: Images, work: Path, toolkit: Path) -> None:
    """Take the compiler out of Debian 13's packages."""
    images.ensure_base("trixie")
    packages = " ".join(release.debian)
    script = (
        "mkdir debs tree; cd debs\n"
        "apt-get update -qq\n"
        f"apt-get -qq -o APT::Sandbox::User=root download {packages}\n"
        'for deb in *.deb; do dpkg-deb -x "$deb" ../tree; done; cd ..; rm -r debs'
    )
    fetch.in_container(engine, reference(BASE_NAMES["trixie"]), script, work, timeout=600)
    usr = work / "tree" / "usr"
    private, shared = usr / "lib" / "nvidia-cuda-toolkit", usr / "lib" / "x86_64-linux-gnu"
    for folder in ("bin/crt", "nvvm/bin", "nvvm/libdevice", "nvvm/lib64", f"{LIB}/stubs", INCLUDE):
        (toolkit / folder).mkdir(parents=True)
    shutil.copy2(private / "bin" / "nvcc", toolkit / "bin" / "nvcc")
    for tool in ("ptxas", "fatbinary", "cudafe++", "nvlink", "bin2c", "cu++filt", "__nvcc_device_query"):
        shutil.copy2(usr / "bin" / tool, toolkit / "bin" / tool)
    shutil.copytree(private / "bin" / "crt", toolkit / "bin" / "crt", dirs_exist_ok=True)
    shutil.copy2(private / "bin" / "cicc", toolkit / "nvvm" / "bin" / "cicc")
    shutil.copy2(private / "libdevice" / "libdevice.10.bc", toolkit / "nvvm" / "libdevice" / "libdevice.10.bc")
    shutil.copy2(shared / "libnvvm.so.4", toolkit / "nvvm" / "lib64" / "libnvvm.so.4")
    for library in shared.glob("libcudart.so.12*"):
        shutil.copy2(library, toolkit / LIB / library.name, follow_symlinks=False)
    # No small package holds the static runtime: the linker script sends nvcc's default to the shared one.
    (toolkit / LIB / "libcudart_static.a").write_text("INPUT ( libcudart.so.12 )\n")
    (toolkit / LIB / "libcudadevrt.a").write_text("!<arch>\n")
    (toolkit / "bin" / "nvcc.profile").write_text(PROFILE.format(system=""))


def _from_wheels(wheels: list[Path], toolkit: Path) -> None:
    """Take compiler, headers and both runtimes out of the CUDA 13 wheels."""
    places = {"bin": "bin", "include": INCLUDE, "lib": LIB, "nvvm": "nvvm"}
    for wheel in wheels:
        fetch.members(wheel, toolkit, {f"nvidia/cu13/{source}": place for source, place in places.items()})
    for folder in ("nvvm/lib64", f"{LIB}/stubs"):
        (toolkit / folder).mkdir(parents=True, exist_ok=True)
    (toolkit / LIB / "libnvvm.so.4").rename(toolkit / "nvvm" / "lib64" / "libnvvm.so.4")
    for tool in [*(toolkit / "bin").glob("*"), toolkit / "nvvm" / "bin" / "cicc"]:
        if tool.is_file():
            tool.chmod(0o755)
    system = 'SYSTEM_INCLUDES +=  "-isystem" "$(TOP)/targets/x86_64-linux/include/cccl" $(_SPACE_)\n'
    (toolkit / "bin" / "nvcc.profile").write_text(PROFILE.format(system=system))


def _finish(release: Release, toolkit: Path) -> None:
    """Add the links and the version file that the vendor's tree has."""
    (toolkit / "include").symlink_to(INCLUDE)
    (toolkit / "lib64").symlink_to(LIB)
    (toolkit / "nvvm" / "lib64" / "libnvvm.so").symlink_to("libnvvm.so.4")
    runtime = next((toolkit / LIB).glob("libcudart.so.1?"))
    (toolkit / LIB / "libcudart.so").symlink_to(runtime.name)
    rows = {
        "cuda": {"name": "CUDA SDK", "version": release.version},
        "cuda_nvcc": {"name": "CUDA NVCC", "version": release.nvcc},
        "nvidia_driver": {"name": "NVIDIA Linux Driver", "version": release.driver},
        "lab": {"name": "gpu-bootstrap lab stand-in, not NVIDIA's distribution", "version": "1"},
    }
    (toolkit / "version.json").write_text(json.dumps(rows, indent=2) + "\n")
