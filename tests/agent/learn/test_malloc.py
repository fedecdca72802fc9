from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource
import torch
from graphs.system.performance import tune_malloc

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        first = last = torch.ones(1_000_000, requires_grad=True)
        for _ in range(8):
            last = last.sigmoid() * 2
        last.sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

tune_malloc()
for _ in range(3):
    faults()
print(sum(faults() for _ in range(4)))
"""

RESIDENT = """
import os
import torch
from graphs.system.performance import release_freed_memory, tune_malloc

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

tune_malloc()
blocks = [torch.ones(1 << 18) for _ in range(300)]
del blocks
kept = resident_mib()
release_freed_memory()
print(kept - resident_mib())
"""
on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")


@on_glibc
def test_pages_of_freed_tensors_are_not_faulted_in_again() -> None:
    # In a process of its own, as the setting lasts; without it they are 50,000 to 200,000.
    run = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 10_000


@on_glibc
def test_a_process_that_goes_on_gives_freed_memory_back() -> None:
    run = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    assert int(run.stdout) > 200, "of 300 MiB that were kept"
