"""The look at an environment: what counts as a difference from the lock."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "roles/pytorch_stack/files/look_at_stack.py"
spec = importlib.util.spec_from_file_location("look_at_stack", FILE)
assert spec and spec.loader
stack = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stack)


@pytest.mark.parametrize(
    ("pins", "have", "wrong"),
    [
        ({"torch": "2.6.0"}, {"torch": "2.6.0"}, 0),
        ({"torch": "2.6.0"}, {"torch": "2.6.0+cu124"}, 0),
        ({"torch": "2.6.0+cu124"}, {"torch": "2.6.0+cu124"}, 0),
        ({"torch": "2.6.0+cu124"}, {"torch": "2.6.0"}, 1),
        ({"torch": "2.6.0"}, {"torch": "2.7.1"}, 1),
        ({"torch": "2.6.0"}, {"torch": "2.6.0+cpu"}, 1),
        ({"torch": "2.6.0"}, {"torch": "2.6.0+cu121"}, 1),
        ({"torch": "2.6.0"}, {}, 1),
        ({"Jinja2": "3.1.6"}, {"jinja2": "3.1.6"}, 0),
    ],
)
def test_a_cpu_build_or_another_version_is_a_difference(pins: dict[str, str], have: dict[str, str], wrong: int) -> None:
    assert len(stack.differences(pins, have, "cu124")) == wrong


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '12.4'\n", "12.4"),
        ("cuda = '13.2'\n", "13.2"),
        ("cuda: Optional[str] = None\n", ""),
        ("hip = '6.0'\n", ""),
    ],
)
def test_the_cuda_of_torch_is_read_without_importing_it(tmp_path: Path, text: str, cuda: str) -> None:
    version = tmp_path / "lib/python3.11/site-packages/torch/version.py"
    version.parent.mkdir(parents=True)
    version.write_text(text, encoding="utf-8")
    assert stack.torch_cuda(tmp_path) == cuda
