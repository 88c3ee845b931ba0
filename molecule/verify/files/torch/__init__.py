"""A stub in the place of torch: answers what the proofs ask, and loads a libcudnn as torch does. Computes nothing."""

import ctypes
from pathlib import Path

from torch import version
from torch.backends import cudnn as _cudnn

__version__ = "2.6.0+" + ("cpu" if version.cuda is None else "cu" + version.cuda.replace(".", ""))
# RUNPATH semantics, as the parts of cuDNN 9 have them: LD_LIBRARY_PATH first, then the environment.
_own = Path(__file__).resolve().parents[1] / "nvidia/cudnn/lib/libcudnn.so.9"
try:
    ctypes.CDLL("libcudnn.so.9")
except OSError:
    ctypes.CDLL(str(_own))


class _Cuda:
    @staticmethod
    def is_available():
        return False

    @staticmethod
    def device_count():
        return 0

    @staticmethod
    def get_arch_list():
        return ["sm_80", "sm_90"]

    @staticmethod
    def init():
        raise RuntimeError("Found no NVIDIA driver on your system.")


class backends:  # noqa: N801 - a module in the real one
    cudnn = _cudnn


cuda = _Cuda()
_C = None
