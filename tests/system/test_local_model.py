"""What the model server needs of a machine; the server itself is tested by `make real`."""

from __future__ import annotations

import pytest

from scripts.model_server import lacks_avx2


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "lacks"),
    [
        ("x86_64", "processor : 0\nflags\t\t: fpu sse4_2 avx avx2 fma\n", False),
        ("AMD64", "processor : 0\nflags\t\t: fpu sse4_2 avx\n", True),
        ("x86_64", "", False),
        ("aarch64", "processor : 0\nFeatures : fp asimd\n", False),
    ],
    ids=["avx2", "older", "unknown", "arm"],
)
def test_a_machine_without_avx2_gets_a_sentence(machine: str, cpuinfo: str, lacks: bool) -> None:
    reason = lacks_avx2(machine, cpuinfo)

    assert (bool(reason), "has no AVX2" in reason) == (lacks, lacks)
