"""Which kernels a GPU is asked for: those that repeat themselves, and what precision; for real where there is one."""

import gc
import os
import weakref

import numpy as np
import pytest
import torch
from test_gpu import CASES, FakeRuntime, learn, made, real

from mlxe_async import gpu
from mlxe_async.gpu import PinnedMemory, unrepeatable, use_kernels


def switches():
    """What torch was told of kernels."""
    return {
        "products rounded": torch.backends.cuda.matmul.allow_tf32,
        "convolutions rounded": torch.backends.cudnn.allow_tf32,
        "fastest": torch.backends.cudnn.benchmark,
        "repeatable": torch.are_deterministic_algorithms_enabled(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,
        "workspace": os.environ.get(gpu.WORKSPACE),
    }


@pytest.fixture
def kernels(monkeypatch):
    """Torch's switches are afterwards as they were."""
    monkeypatch.setenv(gpu.WORKSPACE, "")  # so that it is taken back what it becomes
    monkeypatch.delenv(gpu.WORKSPACE)
    before = switches()
    yield
    torch.backends.cuda.matmul.allow_tf32 = before["products rounded"]
    torch.backends.cudnn.allow_tf32 = before["convolutions rounded"]
    torch.backends.cudnn.benchmark = before["fastest"]
    torch.use_deterministic_algorithms(before["repeatable"])
    torch.utils.deterministic.fill_uninitialized_memory = before["filled"]


@pytest.mark.long
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("precision", "rounded"), [("float32", False), ("tf32", True), ("bfloat16", False)])
def test_factors_are_rounded_for_tf32_alone_in_products_and_convolutions(precision, rounded):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not rounded
    use_kernels("cuda:0", repeatable=False, precision=precision)
    found = switches()
    assert (found["products rounded"], found["convolutions rounded"]) == (rounded, rounded)
    assert not found["repeatable"]
    assert found["workspace"] is None


@pytest.mark.usefixtures("kernels")
def test_kernels_that_repeat_themselves_are_asked_for_with_all_that_they_need():
    torch.backends.cudnn.benchmark = True
    use_kernels("cuda", repeatable=True)
    found = switches()
    assert found["repeatable"]
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not found["fastest"]
    assert not found["filled"]
    assert found["workspace"] == ":4096:8"


@pytest.mark.usefixtures("kernels")
def test_a_workspace_that_somebody_chose_stays(monkeypatch):
    monkeypatch.setenv(gpu.WORKSPACE, ":16:8")
    use_kernels("cuda", repeatable=True)
    assert os.environ[gpu.WORKSPACE] == ":16:8"


@pytest.mark.usefixtures("kernels")
def test_on_the_cpu_nothing_is_asked_for():
    before = switches()
    use_kernels("cpu", repeatable=True, precision="tf32")
    assert switches() == before


@pytest.mark.usefixtures("kernels")
def test_the_operation_that_has_no_such_kernel_is_known_by_its_error():
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))
    assert unrepeatable(caught.value) == "put_"
    assert unrepeatable(RuntimeError("CUDA error: out of memory")) == ""
    assert unrepeatable(RuntimeError(" does not have a deterministic implementation")) == ""


def test_page_locked_memory_lives_until_it_is_given_back():
    """Else the driver would take what the next allocation puts there for page-locked, and refuse to copy from it."""
    array = np.zeros(1 << 16, np.uint8)
    alive, runtime = weakref.ref(array), FakeRuntime()
    pinned = PinnedMemory(array, runtime, wait=lambda: None)
    del array
    gc.collect()
    assert alive() is not None
    pinned.close()
    gc.collect()
    assert alive() is None
    assert [call[0] for call in runtime.calls] == ["register", "unregister"]


def test_memory_that_the_driver_refused_is_not_held():
    array = np.zeros(1 << 16, np.uint8)
    alive = weakref.ref(array)
    pinned = PinnedMemory(array, FakeRuntime(code=1), wait=pytest.fail)
    del array
    gc.collect()
    assert alive() is None
    pinned.close()
    assert len(gpu.refusals()) == 1


# -- for real ----------------------------------------------------------------------------------------------------------


@real
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_same_updates_come_to_the_same_bits_on_a_gpu(case, graphs):
    use_kernels("cuda", repeatable=True)
    gpu.use_graphs(graphs)
    try:
        first, second = made(case, "cuda"), made(case, "cuda")
        assert learn(first, 12) == learn(second, 12)
        np.testing.assert_array_equal(first.weights(), second.weights())
    finally:
        gpu.use_graphs(False)


@real
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-5), ("tf32", 1e-2)])
def test_a_gpu_computes_pictures_as_exactly_as_is_asked_for(precision, near):
    use_kernels("cuda", repeatable=True, precision=precision)
    here, there = made("ppo, pictures"), made("ppo, pictures", "cuda")
    seen = np.random.default_rng(0).integers(0, 256, (64, *here.spaces.observation_shape), dtype=np.uint8)
    found, expected = (
        [head(one.common(one.see(one.tensors({"obs": seen})["obs"]))) for head in (one.actor, one.critic)]
        for one in (there, here)
    )
    for mine, its in zip(found, expected, strict=True):
        apart = float((mine.cpu() - its).norm() / its.norm())
        assert apart <= near


@real
@pytest.mark.usefixtures("kernels")
def test_an_operation_without_such_a_kernel_is_refused_by_name_on_a_gpu():
    use_kernels("cuda", repeatable=True)
    with pytest.raises(RuntimeError) as caught:
        torch.rand(8, device="cuda").cumsum(0)
    assert "cumsum" in unrepeatable(caught.value)
