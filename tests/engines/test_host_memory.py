"""Keeping freed memory: large blocks come again without page faults."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

CODE = """
import resource, sys, torch
from rlvlm.engines.host_memory import keep_freed_memory
if sys.argv[1] == "keep": print(keep_freed_memory(), file=sys.stderr)
def work():
    for _ in range(20): torch.ones(8 << 20)
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", CODE, mode], capture_output=True, text=True, check=True)
    return int(done.stdout), done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator is glibc's")
def test_large_blocks_are_not_faulted_in_again():
    assert resource.getpagesize() > 0
    kept, said = faults("keep")
    if "True" not in said:
        pytest.skip("this C library has no mallopt")
    assert kept * 10 < faults("plain")[0]
