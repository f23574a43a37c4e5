"""What a learner frees it gets back without asking the kernel."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from mlxe_async.ipc.processes.linux import keep_freed_memory

kept = "keep" not in sys.argv or keep_freed_memory()


def update():
    arrays = [np.full((256, 256), number, np.float32) for number in range(8)]
    return sum(array[0, 0] for array in arrays)


for _ in range(20):
    update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    assert update() == 28
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*words):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept == "True", int(count)


def test_arrays_that_come_again_are_not_made_anew():
    kept, few = faults("keep")
    if not kept:
        pytest.skip("this C library has no mallopt")
    _, many = faults()
    print(f"page faults of 1,600 arrays of 256 KiB: {few}, {many} without")
    assert few * 20 < many
