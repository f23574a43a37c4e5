"""What is done otherwise on a GPU: its parts here, with stand-ins for the driver; and, where there is one, for real."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mlxe_async import gpu
from mlxe_async.algorithms import Clock, load_algorithm
from mlxe_async.fast import updates
from mlxe_async.gpu import MOST_GRAPHS, WARM_UP, Captured, PinnedMemory, packed, unpacked, uploaded
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.logs.reader import read_log
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Spaces

ROOT = Path(__file__).parents[2]
SPACES = Spaces((4,), actions=3)
PICTURES = Spaces((2, 44, 44), "|u1", actions=3)
REAL = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU here")]


class FakeRuntime:
    """What of CUDA's runtime is called; refuses with the error code given."""

    def __init__(self, code=0):
        self.code, self.calls = code, []

    def cudaHostRegister(self, pointer, size, flags):  # noqa: N802 - the driver's name
        self.calls.append(("register", pointer, size))
        return self.code

    def cudaHostUnregister(self, pointer):  # noqa: N802 - the driver's name
        self.calls.append(("unregister", pointer))


class FakeGraphs:
    """Records by remembering what to do; where `refused`, says so as the driver does."""

    def __init__(self, refused=""):
        self.refused, self.asides, self.recorded, self.launched = refused, 0, 0, 0

    def aside(self, work):
        self.asides += 1
        return work()

    def record(self, work):
        if self.refused:
            raise RuntimeError(self.refused)
        self.recorded += 1
        results = []

        def replay():
            self.launched += 1
            found = work()
            if results:  # always into the same memory, as a graph
                for mine, new in zip(results, found, strict=True):
                    mine.copy_(new)
            else:
                results.extend(found)

        return replay, results


def test_a_ring_is_registered_whole_and_given_back_only_after_the_last_copy():
    with Segment.create("ring", 8192) as segment:
        runtime = FakeRuntime()
        pinned = PinnedMemory(segment.buffer, runtime, wait=lambda: runtime.calls.append("all copies are done"))
        address = ctypes.addressof(ctypes.c_char.from_buffer(segment.buffer))
        assert (pinned.refusal, runtime.calls) == ("", [("register", address, 8192)])
        pinned.close()
        pinned.close()
        assert runtime.calls[1:] == ["all copies are done", ("unregister", address)]
        assert gpu.refusals() == []


def test_memory_that_the_driver_will_not_have_stays_as_it_is_and_that_is_told_once():
    runtime = FakeRuntime(code=712)
    pinned = PinnedMemory(bytearray(64), runtime, wait=pytest.fail)
    pinned.close()
    assert [call[0] for call in runtime.calls] == ["register"]
    (told,) = gpu.refusals()
    assert "64 bytes: error 712" in told
    assert gpu.refusals() == []


def test_columns_travel_as_one_piece_and_come_out_as_they_were():
    rng = np.random.default_rng(0)
    columns = {
        "obs": (rng.normal(size=(5, 3)).astype(np.float32), torch.float32),
        "action": (np.arange(5, dtype=np.int32), torch.int64),
        "weight": (np.ones(5), torch.float32),
        "seen": (rng.integers(0, 256, (2, 2, 7), dtype=np.uint8), torch.uint8),
        "flags": (np.array([True, False]), torch.float32),
        "none": (np.zeros((0, 4), np.float32), torch.float32),
    }
    piece, places = packed(columns, pin=False)
    found = unpacked(piece.clone(), places)
    assert list(found) == list(columns)
    for name, (column, dtype) in columns.items():
        assert (found[name].dtype, found[name].shape) == (dtype, column.shape)
        np.testing.assert_array_equal(found[name].numpy(), column)


def test_on_the_cpu_work_is_done_as_it_is_written():
    rows = {"x": torch.ones(3)}
    captured = Captured(lambda given: (given["x"], given is rows), "cpu")
    found = captured(rows)
    assert found[0] is rows["x"]
    assert found[1]


def test_without_the_switch_nothing_is_recorded_on_a_gpu_either():
    captured = Captured(lambda rows: (rows["x"] + 1,), "cuda")
    assert [captured({"x": torch.zeros(1)})[0].item() for _ in range(WARM_UP + 2)] == [1.0] * (WARM_UP + 2)
    assert captured.recorded == 0


def test_work_is_recorded_after_a_few_calls_of_one_shape_and_its_results_are_the_callers():
    graphs, state = FakeGraphs(), torch.zeros(2)

    def work(rows):
        state.add_(rows["x"].sum())
        return rows["x"] * 2, state[0].clone()

    captured = Captured(work, "cpu", writes=(state,), recorder=graphs)
    found = [captured({"x": torch.full((2, 3), float(number))}) for number in range(WARM_UP + 3)]
    assert (graphs.asides, graphs.recorded, graphs.launched, captured.recorded) == (WARM_UP + 1, 1, 3, 1)
    for number, (doubled, _) in enumerate(found):
        assert doubled.tolist() == [[2.0 * number] * 3] * 2
    assert [total.item() for _, total in found[WARM_UP:]] == [36.0, 60.0, 90.0]
    for _ in range(WARM_UP + 1):
        captured({"x": torch.ones(4, 3)})  # another shape begins anew, and the first one stays
    captured({"x": torch.ones(2, 3)})
    assert (graphs.recorded, captured.recorded) == (2, 2)
    for rows in range(10, 12 + MOST_GRAPHS):
        for _ in range(WARM_UP + 1):
            captured({"x": torch.ones(rows, 3)})
    assert captured.recorded == MOST_GRAPHS


def test_work_that_cannot_be_recorded_is_done_as_it_is_written_and_that_is_told_once():
    captured = Captured(lambda rows: (rows["x"] + 1,), "cpu", recorder=FakeGraphs("operation not permitted"))
    found = [captured({"x": torch.tensor([float(number)])})[0].item() for number in range(WARM_UP + 3)]
    assert found == [1.0 + number for number in range(WARM_UP + 3)]
    assert captured.refusal == "operation not permitted"
    (told,) = gpu.refusals()
    assert "operation not permitted" in told


def test_a_recording_that_does_something_else_is_found_out_and_its_work_done_as_it_is_written():
    class Wrong(FakeGraphs):
        def record(self, work):
            replay, results = super().record(work)

            def wrong():
                replay()
                state.add_(0.5)

            return wrong, results

    state = torch.zeros(1)

    def work(rows):
        state.add_(1)
        return (rows["x"] * 1,)

    captured = Captured(work, "cpu", writes=(state,), recorder=Wrong())
    for number in range(WARM_UP + 3):
        assert captured({"x": torch.full((2,), float(number))})[0].tolist() == [number] * 2
        assert state.item() == number + 1
    assert captured.recorded == 0
    assert "did not do" in gpu.refusals()[0]


@pytest.mark.parametrize("kind", ["radam", "adam"])
def test_a_step_by_operations_alone_is_the_step_of_torch_at_the_rate_of_now(kind):
    torch.manual_seed(0)
    start, slopes = torch.randn(50), torch.randn(20, 50)
    here, there, gradient = start.clone(), start.clone(), torch.zeros(50)
    ours, theirs = (FlatOptimiser(kind, weights, gradient, eps=1e-7) for weights in (there, here))
    for number, slope in enumerate(slopes, 1):
        gradient.copy_(slope)
        theirs.step(0.1 / number)
        ours.set_rate(0.1 / number)
        ours.step_on_device({})
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)


def rollout(spaces=SPACES, length=16, width=4, seed=0):
    """Some episodes that end in every way, cut by the end of the rollout."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(length + 1, width, *spaces.observation_shape)).astype(np.float32)
    if spaces.observation_dtype == "|u1":
        seen = rng.integers(0, 256, seen.shape, dtype=np.uint8)
    shape = (length, width)
    rows = {name: np.zeros(shape, np.uint8) for name in ("terminated", "truncated", "cut")}
    rows["cut"][-1] = 1
    rows["terminated"][4, 0] = rows["truncated"][6, 1] = 1
    step, episode = np.broadcast_to(np.arange(length)[:, None], shape).copy(), np.zeros(shape, np.int64)
    step[5:, 0], step[7:, 1] = np.arange(length - 5), np.arange(length - 7)
    episode[5:, 0] = episode[7:, 1] = 1
    rows |= {"obs": seen[:-1], "next_obs": seen[1:].copy(), "reward": rng.normal(size=shape).astype(np.float32)}
    rows |= {"action": rng.integers(0, 3, shape), "log_prob": np.full(shape, -np.log(3), np.float32)}
    return rows | {"valid": np.ones(shape, bool), "episode": episode, "step": step}


def replayed(algorithm, length=32, seed=0):
    """Rows of one episode, with what is derived of them."""
    rows = {name: column[:, 2] for name, column in rollout(length=length, seed=seed).items() if name != "valid"}
    return rows | algorithm.derive(rows) | {"weight": np.ones(length, np.float32)}


SMALL = {"policy": (16,), "value": (16,)}
CASES = {
    "mlxe": (SPACES, {"common": (16,), "optimiser": "radam", "average": 0.1}),
    "dqn": (SPACES, {"layers": (16,), "target_every": 3, "max_gradient_norm": 1.0}),
    "ppo": (SPACES, {**SMALL, "minibatch": 16, "epochs": 2, "max_gradient_norm": 0.5}),
    "ppo, kl": (SPACES, {**SMALL, "minibatch": 16, "epochs": 2, "max_kl": 0.5}),
    "ppo, sequences": (
        SPACES,
        {**SMALL, "minibatch": 16, "minibatches": "sequences", "epochs": 1, "max_gradient_norm": 0.5},
    ),
    "ppo, pictures": (
        PICTURES,
        {"body": "nature", "common": (16,), "policy": (), "value": (), "normalise": False, "minibatch": 16},
    ),
}


def made(case, device="cpu"):
    spaces, settings = CASES[case]
    kind = load_algorithm(case.split(",")[0])
    return kind(kind.Settings.model_validate(settings), spaces, seed=1, learns=True, device=device)


def batches(algorithm, count):
    for seed in range(count):
        yield rollout(algorithm.spaces, seed=seed) if algorithm.memory == "rollouts" else replayed(algorithm, seed=seed)


def learn(way, count=6):
    """What was measured in so many updates, by an algorithm itself or in another way."""
    measured, algorithm = [], getattr(way, "algorithm", way)
    for number, batch in enumerate(batches(algorithm, count)):
        found = way.update(batch, Clock(env_steps=100 * number, episodes=number, updates=number))
        measured.append(found[0] if isinstance(found, tuple) else found)
    return measured


def on_a_pretended_gpu(monkeypatch, algorithm, recorder=None):
    """The algorithm's twin as on a GPU: by tensors, and recorded where there is a recorder."""
    name = algorithm.__class__.__name__.lower()
    monkeypatch.setattr(f"mlxe_async.fast.{name}.quick_of", lambda *_: None)
    way = updates(algorithm)
    if recorder:
        recorded = way.twin._recorded
        writes = (algorithm.optimiser.gradient,)
        recorded.captured = Captured(recorded._work, "cpu", writes=writes, recorder=recorder)
    return way


@pytest.mark.parametrize("case", ["mlxe", "dqn", "ppo", "ppo, kl", "ppo, sequences"])
def test_algorithms_learn_the_same_by_recorded_gradients(case, monkeypatch):
    graphs = FakeGraphs()
    plain, recorded = made(case), on_a_pretended_gpu(monkeypatch, made(case), graphs)
    expected, found = learn(plain), learn(recorded)
    assert graphs.recorded == 1
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(plain.weights(), recorded.algorithm.weights(), rtol=1e-4, atol=1e-5)


def test_a_gpu_is_asked_only_for_the_values_that_no_next_row_has(monkeypatch):
    algorithm, batch = made("ppo"), rollout()
    asked, values = [], algorithm.value_of
    algorithm.value_of = lambda obs: asked.append(len(obs)) or values(obs)
    expected = algorithm.with_advantages(batch)
    assert asked == [16, 4 + 1]  # the last rows, and what came after the truncated one
    del algorithm.value_of
    found = on_a_pretended_gpu(monkeypatch, algorithm).twin._tensors(batch)
    for name, column in found.items():
        torch.testing.assert_close(column, expected[name], rtol=1e-5, atol=1e-5)


# -- for real ----------------------------------------------------------------------------------------------------------


def real(test):
    for mark in REAL:
        test = mark(test)
    return test


@real
def test_a_real_ring_is_copied_out_of_directly_and_what_is_refused_harms_nobody():
    device = torch.device("cuda")
    with Segment.create("ring", 1 << 22) as segment:
        pinned = PinnedMemory(segment.buffer)
        assert pinned.refusal == ""
        ring = segment.array(0, (512, 8192), np.uint8)
        ring[:] = np.random.default_rng(0).integers(0, 256, ring.shape, dtype=np.uint8)
        assert torch.from_numpy(ring[64:192]).is_pinned()
        columns = {
            "direct": (ring[64:192], torch.uint8),
            "strided": (ring[:, :4096], torch.uint8),
            "action": (np.arange(100, dtype=np.int32), torch.int64),
        }
        for _ in range(3):
            found = uploaded(columns, device)
            for name, (column, dtype) in columns.items():
                assert found[name].dtype == dtype
                np.testing.assert_array_equal(found[name].cpu().numpy(), column)
        again = PinnedMemory(segment.buffer)  # twice is refused
        assert "error" in again.refusal
        assert torch.ones(3, device=device).add_(1).sum().item() == 6
        again.close()
        pinned.close()
        assert not torch.from_numpy(ring[64:192]).is_pinned()
        assert len(gpu.refusals()) == 1


@pytest.fixture
def graphs_wanted():
    """Graphs, of kernels that repeat themselves: two ways of one sum are not compared with chance in between."""
    rounded = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    gpu.use_graphs(True)
    gpu.use_kernels("cuda", repeatable=True)
    yield
    gpu.use_graphs(False)
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = rounded


@real
@pytest.mark.usefixtures("graphs_wanted")
@pytest.mark.parametrize("case", CASES)
def test_real_graphs_learn_what_plain_calls_and_the_cpu_learn(case):
    graphs, plain, here = updates(made(case, "cuda")), made(case, "cuda"), made(case)
    plain.optimiser._on_device = plain.optimiser.step_on_device
    found, expected, cpu = learn(graphs, 12), learn(plain, 12), learn(here, 12)
    assert gpu.refusals() == []
    assert graphs.twin._recorded.captured.recorded == 1
    assert graphs.algorithm.optimiser._on_device.recorded == 1
    np.testing.assert_allclose(graphs.algorithm.weights(), plain.weights(), rtol=1e-5, atol=1e-5)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    assert found[0] == pytest.approx(cpu[0], rel=0.02, abs=1e-3)
    np.testing.assert_allclose(graphs.algorithm.weights(), here.weights(), rtol=0.05, atol=0.01)
    for one in (graphs.algorithm, plain):  # begins anew, with graphs of its own
        one.set_weights(here.weights())
    learn(graphs), learn(plain)
    np.testing.assert_allclose(graphs.algorithm.weights(), plain.weights(), rtol=1e-5, atol=1e-5)


@real
@pytest.mark.usefixtures("graphs_wanted")
def test_work_that_reads_a_result_is_not_recorded_and_goes_on():
    state = torch.zeros(1, device="cuda")

    def work(rows):
        state.add_(rows["x"].sum().item())
        return (state.clone(),)

    captured = Captured(work, "cuda")
    found = [captured({"x": torch.ones(2, device="cuda")})[0].item() for _ in range(WARM_UP + 3)]
    assert found == [2.0 * number for number in range(1, WARM_UP + 4)]
    assert captured.refusal
    assert len(gpu.refusals()) == 1


@real
@pytest.mark.parametrize("graphs", ["false", "true"])
@pytest.mark.parametrize("file", ["ppo-cartpole.toml", "oa.toml", "dqn-cartpole.toml"])
def test_a_real_run_learns_on_the_gpu_without_a_warning(tmp_path, file, graphs):
    said = [
        "learner.device=cuda",
        f"learner.graphs={graphs}",
        f'run.dir="{tmp_path}"',
        "stop.env_steps=4000",
        "checkpoint.interval_s=0",
    ]
    command = [sys.executable, "-m", "mlxe_async", str(ROOT / "settings" / file), "--no-progress"]
    for one in said:
        command += ["--set", one]
    subprocess.run(command, check=True, timeout=240)
    events = list(read_log(tmp_path / "latest"))
    assert [line["message"] for line in events if line["event"] == "warning"] == []
    assert events[-1]["event"] == "run_end"
    assert events[-1]["updates"] > 0
    assert events[-1]["exit_code"] == 0
