"""Debian 13 gets a stack that compiles there."""

from __future__ import annotations

ENVIRONMENT = "/data/miniconda3/envs/cu132"


def test_auto_took_the_newest_toolkit_and_it_compiles_on_this_glibc(host) -> None:
    assert "release 13.2" in host.check_output("/usr/local/cuda/bin/nvcc --version")
    host.check_output(
        r"""cd /tmp && printf '#include <cmath>\n#include <cstdio>\n__global__ void k() {}\nint main() { std::puts("host part ran"); }\n' >t13.cu"""
    )
    assert host.check_output("cd /tmp && /usr/local/cuda/bin/nvcc t13.cu -o t13 && ./t13") == "host part ran"


def test_torch_is_built_for_the_stacks_cuda(host) -> None:
    out = host.check_output(
        f"{ENVIRONMENT}/bin/python -c 'import torch, deepspeed, transformers, peft; print(torch.version.cuda)'"
    )
    assert out.splitlines()[-1] == "13.2"
