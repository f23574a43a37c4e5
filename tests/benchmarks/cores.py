"""Rows/s by number of cores: `python tests/benchmarks/cores.py [--quick] [--cores 1 2] [--seconds 8]`; `--show` draws.

Each case runs pinned to the first k cores, for k from 1 to all that may be used, with `schedule.gradients` as
`"learner"` and as `"executors"`, under `is` and `oa`, by turns. Executors follow k (`cores_model.executors_of`). Each
run is a line of `results/cores.jsonl`, with the processor's name; what is there is not run again. Told are rows that
were played and learned from in a second, CPU seconds in a second by role, and the share of the limit: all k cores doing
nothing but step, choose and learn, at what these cost one process that does all in order (`serial`).

The same costs, and those of exchanges of gradients, of pushes and of publications, go into `cores_model.py`, which says
what to expect of k cores, 64 and 128 of them too. That is a prediction, and told as one. `--quick` takes three numbers
of cores, the most first, 3 s each, and begins nothing new after eight minutes.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import contextlib
import datetime as dt
import importlib.util
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cores_model import GRADIENTS, KINDS, Costs, Work, executors_of, fitted, limit, of_two_batches, predicted
from kept import processor
from rate import ROOT, Sample, under, watched
from recorded import RESULTS, append, lines_of

from mlxe_async.cores import usable_cores
from mlxe_async.ipc.shared.meeting import Meeting, meeting_bytes
from mlxe_async.ipc.shared.segments import Segment

HERE = Path(__file__).parent
BEYOND = (16, 64, 128)
ROLES = {"mlxe-exe": "executors", "mlxe-lrn": "learner", "mlxe-mem": "memorizer", "mlxe-sup": "supervisor"}
HEAD = ("case", "schedule", "gradients", "cores", "executors", "rows/s", "predicted", "of the limit", *ROLES.values())
COMMON = {
    "run.name": '"cores"',
    "stop.solved": "false",
    "stop.env_steps": 10**12,
    "evaluation.enabled": "false",
    "checkpoint.interval_s": 0,
}
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A task and an algorithm.

    Args:
        file: settings, below `settings`.
        envs: environments of an executor.
        steps: of each, in one rollout.
        batch: rows of a step of the optimiser, see `cores_model.Work`.
        said: what else is set.
        replayed: whether rows are replayed.
        sleep: microseconds for which each row's step sleeps.
        needs: a package without which it is left out.
        times: as long as the others its runs are: its updates are few.
    """

    file: str
    envs: int
    steps: int
    batch: int
    said: Mapping[str, Any] = field(default_factory=dict)
    replayed: bool = False
    sleep: float = 0.0
    needs: str = ""
    times: float = 1.0

    def settings(self, executors: int, kind: str, gradients: str, batch: int) -> dict[str, Any]:
        """Overrides of `file`; `batch` as `Work` has it."""
        found = {
            **COMMON,
            "schedule.executors": executors,
            "schedule.envs_per_executor": self.envs,
            "schedule.rollout_steps": self.steps,
            "schedule.gradients": f'"{gradients}"',
            **self.said,
        }
        if self.replayed:
            return found | {"algorithm.batch": batch}
        if kind == "oa":  # or pushes of many executors are all too old
            found["schedule.max_policy_lag"] = max(8, 2 * executors)
        # Under `is` all rollouts are learned from together.
        return found | {"algorithm.epochs": 1, "algorithm.minibatch": batch * (executors if kind == "is" else 1)}


SLEEPS = '[{entry = "planted:Sleeps", kwargs = {seconds = 0.005}}]'
CASES = {
    "CartPole": Case("fast.toml", 512, 80, 2048, {"task.vectorize": '"single"'}),
    "CartPole, native": Case("fast.toml", 512, 80, 2048),
    "a step of 5 ms": Case(
        "fast.toml",
        4,
        16,
        64,
        {"task.vectorize": '"single"', "task.wrappers": SLEEPS, "run.python_path": json.dumps([str(HERE)])},
        sleep=5000.0,
    ),
    "Pong, pictures": Case("pong.toml", 4, 16, 64, {"memory.lane_slots": 8}, needs="ale_py", times=2.0),
    "SAC, Pendulum": Case("sac-pendulum.toml", 1, 16, 128, {"algorithm.start_rows": 200}, replayed=True),
}


def of_role(name: str) -> str:
    """`mlxe-exe-3` -> `executors`."""
    return next((role for begin, role in ROLES.items() if name.startswith(begin)), "others")


@contextlib.contextmanager
def pinned(cores: int) -> Iterator[None]:
    """This process, and what it starts, on the first cores that may be used."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(case: Case, said: Mapping[str, Any], *, kind: str, cores: int, seconds: float) -> tuple[list[Record], Record]:
    """One run of the command: the phases of its log, and what was measured between its first and its last update.

    Raises:
        SystemExit: it failed, or learned fewer than two times.
    """
    seconds *= case.times
    with tempfile.TemporaryDirectory() as folder, pinned(cores):
        file = Path(under(kind, str(ROOT / "settings" / case.file), folder))
        if kind == "serial":  # where it would have no effect
            text = file.read_text().splitlines()
            file.write_text("\n".join(line for line in text if not line.startswith("own_core")))
        lines, samples = watched(str(file), folder, seconds, {**said, "stop.seconds": seconds})
    return lines, measured(lines, samples, cores)


def measured(lines: Sequence[Record], samples: Sequence[Sample], cores: int) -> Record:
    """Rows/s between the first update and the last, CPU seconds in a second by role, and what others took."""
    updates = [line for line in lines if line.get("phase") == "learn" and line["updates"]]
    if len(updates) < 2:
        raise SystemExit(f"learned {len(updates)} times: let it run for longer")
    first, last = updates[0], updates[-1]
    since, until = first["mono_ns"] / 1e9, last["mono_ns"] / 1e9
    within = [sample for sample in samples if since <= sample[0] <= until]
    cpu: dict[str, float] = {}
    others = None
    if len(within) > 1:
        (begun, busy, before), (ended, busier, after) = within[0], within[-1]
        for name, spent in after.items():
            cpu[of_role(name)] = cpu.get(of_role(name), 0.0) + (spent - before[name]) / (ended - begun)
        others = max(0.0, (busier - busy) / (ended - begun) - sum(cpu.values())) / (os.cpu_count() or 1)
    return {
        "rate": (last["env_steps"] - first["env_steps"]) / (until - since),
        "updates": sum(line["updates"] for line in updates[1:]) / (until - since),
        "cpu": cpu,
        "others": others,
        "cores": cores,
    }


# -- costs -------------------------------------------------------------------------------------------------------------


def in_order(case: Case, batch: int, seconds: float) -> Record:
    """What one process that does all in order takes for each part, in microseconds of CPU."""
    lines, found = run(case, case.settings(1, "serial", "learner", batch), kind="serial", cores=1, seconds=seconds)
    phases = [line for line in lines if line["event"] == "phase"]
    since = next(line["mono_ns"] for line in phases if line["phase"] == "learn" and line["updates"])
    phases = [line for line in phases if line["start_ns"] >= since]
    took = {name: sum(line["seconds"] for line in phases if line["phase"] == name) for name in
            ("generate", "memorize", "learn", "publish")}  # fmt: skip
    played = sum(line["rows"] for line in phases if line["phase"] == "generate")
    updates = sum(line["updates"] for line in phases if line["phase"] == "learn")
    replays = updates * batch / played if case.replayed else 1.0
    # Where other programs took the core for a while, parts took longer than they cost.
    asleep = played * case.sleep / 1e6
    share = min(1.0, sum(found["cpu"].values()) / max(1e-9, 1 - found["rate"] * case.sleep / 1e6)) or 1.0
    start = next(line for line in lines if line["event"] == "probe_ok")
    return {
        "act": 1e6 * share * max(0.0, took["generate"] - asleep) / played,
        "learn": 1e6 * share * (took["learn"] + took["memorize"]) / (played * replays),
        "publish": 1e6 * share * took["publish"] / max(1, sum(line["phase"] == "publish" for line in phases)),
        "replays": replays,
        "nbytes": 4 * start["parameters"],
    }


def a_push(case: Case, seconds: float) -> float:
    """Microseconds of CPU that the learner takes for a push of one executor."""
    said, cores = case.settings(1, "oa", "executors", case.batch), min(2, usable_cores())
    _, found = run(case, said, kind="oa", cores=cores, seconds=seconds)
    return 1e6 * found["cpu"].get("learner", 0.0) / found["updates"]


def costs_of(case: Case, exchanges: Sequence[tuple[int, int, float]], seconds: float) -> tuple[Costs, Work]:
    """All that the model asks for."""
    large = in_order(case, case.batch, seconds)
    few = max(1, case.batch // 4)
    small = in_order(case, few, seconds)
    row, step = of_two_batches((few, small["learn"]), (case.batch, large["learn"]))
    alone, byte = fitted(exchanges)
    costs = Costs(large["act"], case.sleep, row, step, large["publish"], alone, byte, a_push(case, seconds))
    return costs, Work(case.envs * case.steps, large["replays"], case.batch, case.replayed, large["nbytes"])


def exchange(workers: int, nbytes: int, times: int = 200) -> float:
    """Median microseconds in which several processes, each on a core, exchange float32 numbers and take their mean."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    allowed = sorted(os.sched_getaffinity(0))
    with Segment.create("cores", meeting_bytes(workers, nbytes)) as segment:

        def work(index: int) -> None:
            os.sched_setaffinity(0, {allowed[index % len(allowed)]})
            meeting = Meeting(segment, index, workers, kinds=("gradient",), slot_bytes=nbytes)
            meeting.begin(1)
            numbers, mean, spent = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32), []
            for _ in range(times):
                began = time.perf_counter()
                mean[...] = 0
                for given in meeting.give("gradient", numbers)():
                    mean += given
                mean /= workers
                spent.append(time.perf_counter() - began)
            if index == 0:
                theirs.send(1e6 * statistics.median(spent))

        processes = [fork.Process(target=work, args=(index,)) for index in range(workers)]
        for process in processes:
            process.start()
        found = float(mine.recv()) if mine.poll(60) else float("nan")
        for process in processes:
            process.join(5)
            process.kill()
    if not np.isfinite(found):
        raise SystemExit(f"{workers} workers, {nbytes} bytes: expected 200 exchanges within a minute")
    return found


def exchanges() -> list[tuple[int, int, float]]:
    """Workers, bytes, and microseconds of an exchange, by powers of two up to all cores."""
    counts = [count for count in (2, 4, 8, 16, 32) if count <= max(2, usable_cores())]
    return [(count, nbytes, exchange(count, nbytes)) for count in counts for nbytes in (1 << 12, 1 << 16, 1 << 20)]


# -- what is run -------------------------------------------------------------------------------------------------------


def ladder(cores: int, *, quick: bool = False) -> list[int]:
    """Numbers of cores that are measured: 1, 2, 4, ... and all; quick: all, one, and a quarter."""
    if quick:
        return list(dict.fromkeys((cores, 1, max(1, cores // 4))))
    return [*itertools.takewhile(lambda k: k < cores, (2**n for n in range(12))), cores]


def missing(asked: argparse.Namespace, records: Sequence[Record]) -> Iterator[Record]:
    """What is to be run: costs of each case, then by turns; what is recorded is left out as it is asked for."""
    here = {"processor": asked.processor, "seconds": asked.seconds}
    jobs = [{"what": "costs", "case": name} for name in asked.cases]
    for again, cores, name, kind in itertools.product(range(asked.rounds), asked.cores, asked.cases, KINDS):
        about = {"what": "run", "case": name, "kind": kind, "cores": cores, "round": again}
        jobs += [{**about, "gradients": one} for one in (GRADIENTS if again % 2 == 0 else GRADIENTS[::-1])]
    for job in jobs:
        about = {**here, **job}
        if not any(all(record.get(key) == value for key, value in about.items()) for record in records):
            yield about


def done(job: Record, exchanged: list[tuple[int, int, float]]) -> Record:
    """One job, with what came of it."""
    case = CASES[job["case"]]
    about = {**job, "day": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"}
    if job["what"] == "costs":
        exchanged = exchanged or exchanged.extend(exchanges()) or exchanged
        costs, work = costs_of(case, exchanged, job["seconds"])
        return {**about, "costs": asdict(costs), "work": asdict(work), "exchanges": exchanged}
    executors = executors_of(job["cores"])
    said = case.settings(executors, job["kind"], job["gradients"], case.batch)
    _, found = run(case, said, kind=job["kind"], cores=job["cores"], seconds=job["seconds"])
    return {**about, "executors": executors, **found}


def complete(asked: argparse.Namespace) -> None:
    """Do what is missing, until there is no time left; a run that fails is told, and asked for again next time."""
    until, exchanged = time.monotonic() + 60 * asked.minutes, []
    jobs = list(missing(asked, lines_of(asked.results)))
    print(
        f"{len(jobs)} to be done; {asked.processor}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f}", flush=True
    )
    longest = 0.0
    for number, job in enumerate(jobs, 1):
        began = time.monotonic()
        if began + longest > until:
            print(f"{len(jobs) - number + 1} are left for the next time: {asked.minutes:g} minutes are over")
            return
        told = " ".join(str(job[key]) for key in ("what", "case", "kind", "gradients", "cores") if key in job)
        try:
            record = done(job, exchanged)
        except SystemExit as error:
            print(f"{number}/{len(jobs)} {told}: failed, {str(error)[-300:]}", flush=True)
            continue
        append(asked.results, record)
        came = f"{record['rate']:,.0f} rows/s" if "rate" in record else json.dumps(record["costs"])
        longest = max(longest, time.monotonic() - began)
        print(f"{number}/{len(jobs)} {told}: {came}, {time.monotonic() - began:.0f} s", flush=True)


# -- what is shown -----------------------------------------------------------------------------------------------------

Key = tuple[str, str, str, int]


def summary(records: Sequence[Record], name: str) -> tuple[dict[Key, Record], dict[str, tuple[Costs, Work]]]:
    """Medians of the rounds by case, kind, gradients and cores, and the newest costs of each case, of one processor."""
    mine = [record for record in records if record["processor"] == name]
    costs = {one["case"]: (Costs(**one["costs"]), Work(**one["work"])) for one in mine if one["what"] == "costs"}
    groups: dict[Key, list[Record]] = {}
    for record in mine:
        if record["what"] == "run":
            groups.setdefault((record["case"], record["kind"], record["gradients"], record["cores"]), []).append(record)
    found = {}
    for key, runs in groups.items():
        roles = {role for one in runs for role in one["cpu"]}
        cpu = {role: statistics.median(one["cpu"].get(role, 0.0) for one in runs) for role in roles}
        found[key] = {"rate": statistics.median(one["rate"] for one in runs), "cpu": cpu, "rounds": len(runs)}
    return found, costs


def expected(costs: Mapping[str, tuple[Costs, Work]], key: Key) -> tuple[float, float] | None:
    """The prediction and the limit, in rows/s; None where the costs of the case were not measured."""
    case, kind, gradients, cores = key
    if case not in costs:
        return None
    cost, work = costs[case]
    executors = executors_of(cores)
    rate = predicted(cost, work, cores=cores, executors=executors, kind=kind, gradients=gradients)
    return rate, limit(cost, work, cores=cores, executors=executors)


def table(records: Sequence[Record]) -> list[str]:
    """A table for each processor, measured beside predicted; numbers of cores without a measurement are predictions."""
    lines: list[str] = []
    for name in sorted({record["processor"] for record in records}):
        found, costs = summary(records, name)
        seen = sorted({key[3] for key in found})
        lines += [f"## {name}", "", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
        for case, kind, gradients in itertools.product(CASES, KINDS, GRADIENTS):
            for cores in sorted({*seen, *BEYOND}):
                key = (case, kind, gradients, cores)
                told = _row(key, found.get(key), expected(costs, key))
                lines += [f"| {' | '.join(told)} |"] if told else []
        lines.append("")
    return lines


def _row(key: Key, one: Record | None, prediction: tuple[float, float] | None) -> list[str]:
    if one is None and prediction is None:
        return []
    case, kind, gradients, cores = key
    rate = f"{one['rate']:,.0f}" if one else "not measured"
    before, share = "-", "-"
    if prediction:
        before = f"{prediction[0]:,.0f}"
        share = f"{100 * one['rate'] / prediction[1]:.0f} %" if one else "-"
    cpu = [f"{one['cpu'].get(role, 0.0):.2f}" if one else "-" for role in ROLES.values()]
    return [case, f"`{kind}`", f"`{gradients}`", str(cores), str(executors_of(cores)), rate, before, share, *cpu]


def draw(records: Sequence[Record], path: Path) -> None:
    """Rows/s by cores, a row of panels for each processor: points are measured, dotted lines are predictions."""
    from matplotlib.figure import Figure

    names = sorted({record["processor"] for record in records})
    figure = Figure(figsize=(3.1 * len(CASES), 3.2 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), len(CASES), squeeze=False)
    for panels, name in zip(grid, names, strict=True):
        found, costs = summary(records, name)
        for panel, case in zip(panels, CASES, strict=True):
            for number, (kind, gradients) in enumerate(itertools.product(KINDS, GRADIENTS)):
                points = sorted(
                    (key[3], one["rate"]) for key, one in found.items() if key[:3] == (case, kind, gradients)
                )
                if points:
                    panel.plot(*zip(*points, strict=True), "o-", color=f"C{number}", label=f"{kind}, {gradients}")
                if case in costs:
                    places = [2**n for n in range(8)]
                    rates = [(expected(costs, (case, kind, gradients, k)) or (0, 0))[0] for k in places]
                    panel.plot(places, rates, ":", color=f"C{number}", label=None if points else f"{kind}, {gradients}")
            panel.set(title=case, xlabel="cores")
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.grid(alpha=0.3)
        panels[0].set_ylabel(f"rows/s; dotted: predicted\n{name}", fontsize=8)
        if panels[0].lines:
            panels[0].legend(frameon=False, fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main(words: Sequence[str]) -> int:
    """Do what is missing, then print the tables and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES), help="left out, all")
    parser.add_argument("--cores", nargs="*", type=int, help="numbers of cores; left out, 1, 2, 4, ... and all")
    parser.add_argument("--seconds", type=float, help="of each run; left out, 8, and 3 if it is to be quick")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each kind, by turns; medians are told")
    parser.add_argument("--minutes", type=float, help="after which nothing is begun; left out, any time, quick: 8")
    parser.add_argument("--quick", action="store_true", help="within nine minutes, also where there are 16 cores")
    parser.add_argument("--results", type=Path, default=RESULTS / "cores.jsonl", help="where finished runs are kept")
    parser.add_argument("--show", action="store_true", help="run nothing, print the tables and draw")
    asked = parser.parse_args(words)
    cores = usable_cores()
    asked.cores = asked.cores or ladder(cores, quick=asked.quick)
    if odd := [k for k in asked.cores if not 1 <= k <= cores]:
        parser.error(f"--cores: expected 1 to {cores}, got {odd[0]}")
    asked.seconds = asked.seconds or (3.0 if asked.quick else 8.0)
    asked.minutes = asked.minutes or (8.0 if asked.quick else float("inf"))
    asked.processor = f"{processor()}, {os.cpu_count()} cores"
    for name in list(asked.cases):
        if CASES[name].needs and importlib.util.find_spec(CASES[name].needs) is None:
            print(f"{name}: left out, {CASES[name].needs} is not installed")
            asked.cases.remove(name)
    if not asked.show:
        complete(asked)
    records = lines_of(asked.results)
    lines = table(records)
    print("\n".join(lines))
    asked.results.with_suffix(".md").write_text("\n".join(lines))
    if records:
        draw(records, asked.results.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
