"""While one learns, numbers too small for their exponent are 0: optimisers would take a hundred times as long."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from mlxe_async.denormals import are_flushed, flushed
from mlxe_async.optimisers import Adam

SMALL = 1e-39


def halved(rows=4):
    """The bits of halves of small numbers, which are 0 where they are flushed."""
    return (torch.full((rows,), SMALL) * 0.5).view(torch.int32)


def test_they_are_0_inside_and_as_before_outside():
    assert halved().all()
    assert not are_flushed()
    with flushed():
        assert are_flushed()
        assert not halved().any()
        with flushed():
            pass
        assert are_flushed()
    assert halved().all()
    with pytest.raises(ValueError, match="inside"), flushed():
        raise ValueError("inside")
    assert not are_flushed()


def test_other_threads_go_on_as_they_are():
    found = []
    begun, ended = threading.Event(), threading.Event()

    def look():
        begun.wait(60)
        found.append(are_flushed())
        ended.set()

    other = threading.Thread(target=look)
    other.start()
    with flushed():
        begun.set()
        assert ended.wait(60)
    other.join(60)
    assert found == [False]


def test_without_torch_nothing_is_changed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with flushed():
        assert not are_flushed()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_flush_denormal=lambda _on: False))
    with flushed():
        assert not are_flushed()


LEARNER = """
import torch
from mlxe_async.algorithms import load_algorithm
from mlxe_async.denormals import flushed
from mlxe_async.rows import Spaces

kind = load_algorithm("sac")
spaces = Spaces((3,), action_shape=(1,), action_low=(-1.0,), action_high=(1.0,))
kind(kind.Settings.model_validate({"layers": [256, 256]}), spaces, seed=1, learns=True, threads=2)
small = torch.full((1 << 21,), 1e-39)
with flushed():
    bits = (small * 0.5).view(torch.int32)
print(torch.get_num_threads(), int(bits.ne(0).sum()))
"""


@pytest.mark.long
def test_the_threads_that_torch_begins_for_a_learner_do_so_too():
    told = subprocess.run([sys.executable, "-c", LEARNER], capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.split() == ["2", "0"]


def test_a_step_whose_moments_fade_ends_at_zero():
    optimiser = Adam([torch.zeros(64, requires_grad=True)], 1e-3)  # whose gradient is zero
    optimiser.first_moment.fill_(SMALL)
    optimiser.second_moment.fill_(SMALL)
    with flushed():
        optimiser.step()
    assert not optimiser.first_moment.view(torch.int32).any()
    assert not optimiser.second_moment.view(torch.int32).any()
