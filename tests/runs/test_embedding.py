"""A run inside somebody's program: any loop, any thread, several at once, cancelled at any moment, nothing left."""

import asyncio
import contextlib
import gc
import random
import threading
from pathlib import Path

import leaks
import pytest
import structlog
import uvloop
from live_runs import settings

from mlxe_async.errors import SettingsError
from mlxe_async.logs.reader import read_log
from mlxe_async.supervisor import Supervisor

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
TINY = {"stop": {"env_steps": 300}}
TIMES = pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.slow)])


def run_on(loop, coroutine):
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(coroutine)


def resident_mib():
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - a figure of the kernel's, not a file
        return int(statm.read().split()[1]) * 4096 / 2**20


@pytest.mark.parametrize("loop", [pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"])
@TIMES
def test_one_run_after_the_other_in_one_process(tmp_path, loop, times):
    async def main():
        results, before = [], None
        for _ in range(times):
            results.append(await Supervisor(settings(**TINY), run_dir=tmp_path).run())
            gc.collect()
            now = len(leaks.descriptors()), leaks.threads(), resident_mib()
            before = before or now
            assert now[:2] == before[:2]
            assert now[2] < before[2] + 5
        return results

    results = run_on(loop, main())
    assert len({result.weights_hash for result in results}) == 1
    assert len({result.run_dir for result in results}) == times


@pytest.mark.long
def test_a_supervisor_runs_or_checks_once_and_a_second_time_is_one_sentence(tmp_path):
    async def main():
        supervisor = Supervisor(settings(**TINY), run_dir=tmp_path)
        first = asyncio.create_task(supervisor.run())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=r"^Supervisor\.check\(\): expected a Supervisor that was not used yet"):
            await supervisor.check()  # while it runs, and the run goes on
        assert (await first).reason == "env_steps"
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"one whose run\(\) was called; make another one: Supervisor\("):
                await supervisor.run()
        checked = Supervisor(settings(**TINY), run_dir=tmp_path)
        await checked.check()
        with pytest.raises(RuntimeError, match=r"one whose check\(\) was called"):
            await checked.run()
        assert len(list(tmp_path.glob("*-test"))) == 1

    run_on("uvloop", main())


@pytest.mark.parametrize("loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.slow)])
def test_two_at_once_do_not_disturb_each_other(tmp_path, loop):
    async def main():
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(Supervisor(settings(run={"name": name}, **TINY), run_dir=tmp_path).run())
                for name in ("first", "second")
            ]
        return [task.result() for task in tasks]

    first, second = run_on(loop, main())
    assert first.weights_hash == second.weights_hash
    assert first.run_dir != second.run_dir


@pytest.mark.slow
@TIMES
def test_in_a_thread_that_is_not_the_main_one(tmp_path, times):
    for _ in range(times):
        results = []
        thread = threading.Thread(
            target=lambda into: into.append(run_on("uvloop", Supervisor(settings(**TINY), run_dir=tmp_path).run())),
            args=(results,),
        )
        thread.start()
        thread.join(60)
        assert results[0].reason == "env_steps"


def test_events_can_be_followed_while_it_runs(tmp_path):
    async def main():
        supervisor = Supervisor(settings(**TINY), run_dir=tmp_path)
        lines = supervisor.events()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(supervisor.run())
            events = [line["event"] async for line in lines]
        assert running.result().reason == "env_steps"
        return events

    events = run_on("uvloop", main())
    assert events[0] == "run_start"
    assert events[-1] == "run_end"
    assert "episode_end" in events


def test_a_processor_of_structlogs_has_a_part_in_every_line_of_the_log(tmp_path):
    def with_group(_logger, _method, line):
        if line["event"] == "phase":
            raise structlog.DropEvent
        return {**line, "group": "a"}

    supervisor = Supervisor(settings(**TINY), run_dir=tmp_path)
    supervisor.add_processor(with_group)
    result = run_on("uvloop", supervisor.run())
    lines = list(read_log(result.run_dir))
    assert {line["group"] for line in lines} == {"a"}
    assert {"run_start", "episode_end", "weights", "run_end"} <= {line["event"] for line in lines}
    assert "phase" not in {line["event"] for line in lines}
    assert [line["seq"] for line in lines] == list(range(len(lines)))


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        pytest.param(4, 2, marks=pytest.mark.long),
        *(pytest.param(seed, 10, marks=pytest.mark.slow) for seed in range(50, 55)),
    ],
)
def test_cancelled_at_any_moment_it_leaves_nothing(tmp_path, seed, count):
    chance = random.Random(seed)  # noqa: S311 - chooses moments, guards no secret

    async def main(seconds):
        async with asyncio.timeout(seconds):
            await Supervisor(settings(stop={"env_steps": 10**6}), run_dir=tmp_path).run()

    for number in range(count):
        with leaks.nothing_left(), pytest.raises(TimeoutError):
            run_on("uvloop" if number % 2 else "asyncio", main(chance.random() * 4))


def held_memory():
    """Shared memory of ours that this process has a descriptor of."""
    gc.collect()
    held = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            held.append(str(entry.readlink()))
    return sorted(name for name in held if "memfd:mlxe-" in name)


@pytest.mark.parametrize("kind", [pytest.param("is", marks=pytest.mark.slow), "oa"])
def test_an_error_that_is_kept_keeps_no_shared_memory(tmp_path, kind):
    async def main():
        began = asyncio.Event()
        chosen = settings(schedule={"kind": kind}, stop={"env_steps": 10**6})
        supervisor = Supervisor(chosen, run_dir=tmp_path)
        supervisor.subscribe(lambda line: began.set() if line["event"] == "episode_end" else None)
        task = asyncio.create_task(supervisor.run())
        await began.wait()
        assert held_memory() != []
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return held_memory()

    assert run_on("uvloop", main()) == []


@pytest.mark.slow
def test_a_run_can_begin_with_the_weights_of_another(tmp_path):
    async def main():
        first = await Supervisor(settings(**TINY), run_dir=tmp_path).run()
        warm = Supervisor(settings(run={"init_from": str(first.run_dir)}, stop={"env_steps": 1}), run_dir=tmp_path)
        norms = []
        warm.subscribe(lambda line: norms.append(line["norm"]) if line["event"] == "weights" else None)
        last = []
        cold = Supervisor(settings(**TINY), run_dir=tmp_path)
        cold.subscribe(lambda line: last.append(line["norm"]) if line["event"] == "weights" else None)
        await warm.run()
        await cold.run()
        return norms[0], last[-1]

    begun, ended = run_on("uvloop", main())
    assert begun == ended


@pytest.mark.slow
def test_weights_of_another_network_are_refused_by_name(tmp_path):
    async def main():
        first = await Supervisor(settings(**TINY), run_dir=tmp_path).run()
        other = settings(run={"init_from": str(first.run_dir)}, algorithm={"common": [8]})
        await Supervisor(other, run_dir=tmp_path).run()

    with pytest.raises(SettingsError, match=r"run\.init_from: got .* weights in other shapes"):
        run_on("uvloop", main())
