"""What a process does with memory that tensors gave back, and products in bf16."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from graphs.system.performance import bf16_matmul

PROGRAM = """
import os, resource
import torch
from graphs.system.performance import release_freed_memory, tune_malloc

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        first = last = torch.ones(1_000_000, requires_grad=True)
        for _ in range(8):
            last = last.sigmoid() * 2
        last.sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

tune_malloc()
for _ in range(3):
    faults()
n_faults = sum(faults() for _ in range(4))
blocks = [torch.ones(1 << 18) for _ in range(300)]
del blocks
before = resident_mib()
release_freed_memory()
print(n_faults, before - resident_mib())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")
def test_freed_memory_is_not_faulted_in_again_and_is_given_back_when_asked() -> None:
    # In a process of its own, as the setting lasts; without it there are 50,000 to 200,000 faults.
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    n_faults, returned_mib = map(int, run.stdout.split())
    assert n_faults < 10_000
    assert returned_mib > 200, "of 300 MiB that were kept"


def test_coarse_products_are_near_exact_ones_and_end_with_the_block() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(300, 64, generator=generator), torch.randn(64, 64, generator=generator)
    exact = left @ right
    with bf16_matmul():
        coarse = left @ right
    assert torch.equal(left @ right, exact)
    torch.testing.assert_close(coarse, exact, rtol=0, atol=0.02 * float(exact.abs().max()))
