"""What the guard against leaks in tests counts, and what it leaves to CUDA."""

import os
import sys
import types

import leaks
import pytest


def descriptors_with_one_of(monkeypatch, target, initialised):
    """What is counted where descriptor 999999 leads to `target`."""
    listed, led = os.listdir, os.readlink
    monkeypatch.setattr(leaks.os, "listdir", lambda path: [*listed(path), "999999"])
    monkeypatch.setattr(leaks.os, "readlink", lambda path: target if path.endswith("/999999") else led(path))
    cuda = types.SimpleNamespace(is_initialized=lambda: initialised)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    return leaks.descriptors()


@pytest.mark.parametrize("target", ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "anon_inode:[eventfd]"])
def test_what_cuda_keeps_open_is_no_leak_where_it_is_initialised_and_one_elsewhere(monkeypatch, target):
    assert 999999 not in descriptors_with_one_of(monkeypatch, target, initialised=True)
    assert descriptors_with_one_of(monkeypatch, target, initialised=False)[999999] == target


@pytest.mark.parametrize("target", ["/home/left", "socket:[1]", "/memfd:mlxe-ring (deleted)", "anon_inode:[pidfd]"])
def test_all_else_is_a_leak_beside_cuda_too(monkeypatch, target):
    assert descriptors_with_one_of(monkeypatch, target, initialised=True)[999999] == target


def test_without_torch_nothing_is_left_to_cuda(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not leaks.cuda_is_initialised()
    read, written = os.pipe()
    before = leaks.descriptors()
    assert {read, written} <= before.keys()
    for one in (read, written):
        os.close(one)
    assert not {read, written} & leaks.descriptors().keys()
