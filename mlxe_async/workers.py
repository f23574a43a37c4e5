"""What runs inside the forked processes: build the roles a specification names, then serve their verbs.

One process may hold one role or several: `serial` holds all of them, the learner's process often holds the memorizer.
The entry points are named as data (`"mlxe_async.workers:serve_roles"`), so that the layer that forks knows neither
torch nor reinforcement learning.
"""

from __future__ import annotations

import random
import select
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.errors import MlxeError, ResourceError, SettingsError, TaskError
from mlxe_async.gpu import PinnedMemory, refusals, use_graphs
from mlxe_async.ipc.channel import ChildChannel, ControlLost
from mlxe_async.ipc.lanes import LaneReader, LaneWriter
from mlxe_async.ipc.segments import Segment
from mlxe_async.ipc.serve import serve
from mlxe_async.ipc.weights import WeightsReader, WeightsWriter
from mlxe_async.ipc.words import PAGE_BYTES, ProgressPage, Words
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Array, RowLayout, Spaces, standard_columns
from mlxe_async.schedules.soundness import DEFAULT_MAX_POLICY_LAG
from mlxe_async.seeds import derive_seed


def serve_roles(spec: dict[str, Any], channel: ChildChannel, fds: dict[str, int]) -> None:
    """Build and serve the roles of one process until asked to stop."""
    workshop = Workshop(spec, channel, fds)
    roles = {name: workshop.build(name) for name in spec["roles"]}
    if workshop.pinned is not None:
        roles["pinned"] = workshop.pinned
    roles["keeper"] = StateFiles(dict(roles), workshop.page, workshop.settings["schedule"]["update_timeout_s"])
    serve(channel, roles, workshop.page, threaded=spec["threaded"])


class StateFiles:
    """The verbs by which the roles of a process write their state to files, and take it up from there.

    Args:
        roles: those of the process, by name.
        page: progress words.
        limit_s: a stretch without progress that counts as hanging.
    """

    def __init__(self, roles: Mapping[str, Any], page: ProgressPage, limit_s: float) -> None:
        self._roles, self._page, self._limit_s = roles, page, limit_s

    def save(self, *, name: str, path: str) -> dict[str, Any]:
        """Write the state of the role called `name` to a new file.

        Returns:
            `nbytes` and `sha256` of the file, and `facts` that the role told besides.
        """
        from mlxe_async.array_files import write_arrays

        self._tick()
        state = self._roles[name].state()
        arrays, facts = state if isinstance(state, tuple) else (state, {})
        if name.startswith("executor"):
            arrays = arrays | chance_state()
        try:
            written = write_arrays(Path(path), arrays, self._tick)
        except OSError as error:
            raise ResourceError(f"{name}: its state cannot be written: {error.strerror or error}") from error
        finally:
            self._page.leave()
        return {"nbytes": written.nbytes, "sha256": written.sha256, "facts": facts}

    def restore(self, *, name: str, path: str) -> dict[str, Any]:
        """Have the role called `name` go on from what is in a file; returns what it says to that."""
        from mlxe_async.array_files import read_arrays

        self._tick()
        # The memory and what waited in the lanes are in their segments already.
        arrays = read_arrays(Path(path), lambda array: not array.startswith(("memory.", "waiting.")))
        self._page.leave()
        said: dict[str, Any] = self._roles[name].restore(arrays)
        if name.startswith("executor"):
            take_up_chance(arrays)
        return said

    def _tick(self) -> None:
        self._page.leave()
        self._page.enter(self._limit_s)


def chance_state() -> dict[str, Array]:
    """The state of the global generators, which some environments use, as arrays."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "chance.python": np.array(words, np.uint32),
        "chance.gauss": np.array(np.nan if gauss is None else gauss),
        "chance.numpy": np.asarray(keys),
        "chance.position": np.array([position, has_gauss]),
        "chance.cached": np.array(cached),
    }


def take_up_chance(state: Mapping[str, Array]) -> None:
    """Let the global generators go on from there."""
    gauss = float(state["chance.gauss"])
    words = tuple(map(int, state["chance.python"]))
    random.setstate((3, words, None if np.isnan(gauss) else gauss))
    position, has_gauss = state["chance.position"].tolist()
    np.random.set_state(("MT19937", state["chance.numpy"], position, has_gauss, float(state["chance.cached"])))


class Workshop:
    """Maps the shared memory that a specification names and builds roles on it.

    Args:
        spec: settings and facts, as `supervisor.blueprint` writes them.
        channel: the pipe to the supervisor.
        fds: descriptors of the segments, by name.
    """

    def __init__(self, spec: Mapping[str, Any], channel: ChildChannel, fds: Mapping[str, int]) -> None:
        self.spec = spec
        self.channel = channel
        self.settings: Mapping[str, Any] = spec["settings"]
        self.spaces = Spaces.from_json(spec["spaces"])
        self.layout = RowLayout.from_json(spec["columns"])
        self.parameters = int(spec["parameters"])
        self._segments = {name: Segment.attach(name, fd) for name, fd in fds.items()}
        self.page = self._page(0)
        self._shared: dict[str, Any] = {}
        self.pinned: PinnedMemory | None = None
        "The memory that a GPU copies rollouts out of; to be closed before the segments are."

    def build(self, name: str) -> Any:
        """The role called `name`, such as `"executor-3"` or `"learner"`."""
        role, _, index = name.partition("-")
        if role == "executor":
            return self._executor(int(index))
        builders = {"memorizer": self._memorizer, "learner": self._learner, "evaluator": self._evaluator}
        return builders[role]()

    def _page(self, number: int) -> ProgressPage:
        """The process's own progress page, number 0, or that of one of its threads."""
        return ProgressPage(self._segments["control"].buffer, (self.spec["page"] + number) * PAGE_BYTES)

    def _algorithm(self, *, learns: bool, seed: int) -> Any:
        from mlxe_async.algorithms import load_algorithm

        algorithm = load_algorithm(self.settings["algorithm"]["name"])
        known = algorithm.Settings.model_fields
        fields = {key: value for key, value in self.settings["algorithm"].items() if key != "name" or key in known}
        return algorithm(
            algorithm.Settings.model_validate(fields),
            self.spaces,
            seed=seed,
            learns=learns,
            threads=self.spec["threads"],
            device=self.settings["learner"]["device"],
        )

    def _memory(self) -> Any:
        if "memory" not in self._shared:
            buffer = self._segments["memory"].buffer
            shape = self.spec["memory_shape"]
            if self.spec["memory_kind"] == "rollouts":
                self._shared["memory"] = RolloutMemory(RolloutShape(**shape), buffer)
            else:
                self._shared["memory"] = ReplayMemory(ReplayShape(**shape), buffer)
        return self._shared["memory"]

    def _executor(self, index: int) -> Any:
        from mlxe_async.roles.executor import Executor
        from mlxe_async.roles.executor_plan import ExecutorPlan
        from mlxe_async.roles.places import Places
        from mlxe_async.tasks.native import training_task

        schedule, supervision = self.settings["schedule"], self.settings["supervision"]
        plan = ExecutorPlan(
            index=index,
            seed=self.settings["run"]["seed"],
            life=0 if self.spec["redo"] else self.spec["epoch"],
            sync=schedule["sync"],
            rollout_steps=schedule["rollout_steps"],
            chunk_rows=self.spec["chunk_rows"],
            step_timeout_s=schedule["step_timeout_s"],
            reset_timeout_s=schedule["reset_timeout_s"],
            fault_limit=supervision["env_fault_limit"],
            fault_window_s=supervision["env_fault_window_s"],
            nonfinite=supervision["nonfinite"],
            records=self.spec["redo"],
            tells_memory=supervision["max_executor_rss_mb"] is not None,
        )
        name, threads = f"executor-{index}", self.spec["threaded"]
        page = self._page(1 + threads.index(name)) if name in threads else self.page
        offset, names = self.spec["asked_offset"], [f"executor-{i}" for i in range(self.spec["executors"])]
        asked = Words(self._segments["control"].buffer, offset, names)
        # Forked from one process, all would share the state of the global generators some environments use. Executors
        # that live in one process do share it: such environments repeat themselves exactly only under `is`.
        seed = derive_seed(self.settings["run"]["seed"], "executor.globals", index, plan.life)
        random.seed(seed)
        np.random.seed(seed)
        envs, action = schedule["envs_per_executor"], self.layout.columns[1]
        begin = self.spec["places_offset"] + index * self.spec["places_bytes"]
        places = Places(envs, action.dtype, action.shape, self._segments["control"].buffer, begin)
        places.clear()
        page.enter(schedule["reset_timeout_s"])
        task = training_task(self.settings["task"], envs, cursor=places.cursor)
        page.leave()
        return Executor(
            plan,
            task=task,
            algorithm=self._algorithm(learns=False, seed=0),
            layout=self.layout,
            lane=LaneWriter(self._segments[f"lane-{index}"], self.layout.schema_hash),
            weights=WeightsReader(self._segments["weights"]),
            page=page,
            notify=lambda message: self.channel.send({"notice": message}),
            wait=_waiter(self.channel, page),
            episodes=self.spec["episodes"].get(str(index)),
            asked=lambda: asked.get(name),
            places=places,
        )

    def _memorizer(self) -> Any:
        from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan

        memory = self._memory()
        if memory.kind == "rollouts":
            memory.return_taken()
        plan = MemorizerPlan(
            seed=self.settings["run"]["seed"],
            chunk_rows=self.spec["chunk_rows"],
            redo=self.spec["redo"],
            rollouts_per_update=self.spec["rollouts_per_update"],
            plan_updates=self.spec["plan_updates"],
        )
        hash_ = self.layout.schema_hash
        lanes = [LaneReader(self._segments[f"lane-{i}"], hash_) for i in range(self.spec["executors"])]
        algorithm = self._shared.get("algorithm") or self._algorithm(learns=False, seed=0)
        weights = WeightsReader(self._segments["weights"])
        return Memorizer(plan, algorithm=algorithm, memory=memory, layout=self.layout, lanes=lanes, weights=weights)

    def _learner(self) -> Any:
        from mlxe_async.roles.learner import Learner

        weights = WeightsWriter(self._segments["weights"])
        last_good: Array | None = None
        if weights.version:
            last_good = np.zeros(self.parameters, dtype=np.float32)
            if WeightsReader(self._segments["weights"]).read(last_good) is None:
                raise MlxeError(f"learner starting: expected to read its predecessor's weights {weights.version} whole")
        seed, memory = derive_seed(self.settings["run"]["seed"], "learner", weights.version), self._memory()
        if memory.kind == "rollouts" and self.settings["learner"]["device"] != "cpu":
            self.pinned = PinnedMemory(self._segments["memory"].buffer)
        use_graphs(self.settings["learner"]["graphs"])
        return Learner(
            algorithm=self._algorithm(learns=True, seed=seed),
            memory=memory,
            weights=weights,
            page=self.page,
            update_timeout_s=self.settings["schedule"]["update_timeout_s"],
            max_policy_lag=self._max_policy_lag(),
            last_good=last_good,
            promotion=self._promotion(),
            compile=self.settings["learner"]["compile"],
            notify=lambda message: self.channel.send({"notice": message}),
            remarks=refusals,
            keep_batch=self._keep_batch,
        )

    def _keep_batch(self, batch: Mapping[str, Array]) -> str | None:
        from mlxe_async.array_files import write_arrays

        if self.spec.get("crash") is None:
            return None
        path = Path(self.spec["crash"]) / f"batch.{self.spec['epoch']}.safetensors"
        try:
            write_arrays(path, {name: np.asarray(column) for name, column in batch.items()})
        except (OSError, ValueError):
            return None  # a full disk must not hide what is wrong with the numbers
        return str(path)

    def _promotion(self) -> Any:
        from mlxe_async.roles.promotion import REMARKS, Promotion

        patience = self.settings["learner"]["promote_best"]
        if not patience:
            return None
        segment, kept = self._segments["best"], np.zeros(self.parameters + REMARKS, dtype=np.float32)
        found = WeightsReader(segment).read(kept)
        return Promotion(patience, WeightsWriter(segment), kept if found else None)

    def _max_policy_lag(self) -> int | None:
        bound: int | None = self.settings["schedule"].get("max_policy_lag")
        if bound is None and self.spec["memory_kind"] == "rollouts":
            return DEFAULT_MAX_POLICY_LAG
        return bound

    def _evaluator(self) -> Any:
        from mlxe_async.roles.evaluator import Evaluator

        evaluator = Evaluator(self._algorithm(learns=False, seed=0), self.settings["task"], self.settings["evaluation"])
        return Examiner(evaluator, WeightsReader(self._segments["tested"]), self.parameters, self.page)


def _waiter(channel: ChildChannel, page: ProgressPage) -> Callable[[float], None]:
    """A bounded wait that ends early, with ControlLost, when the supervisor is gone. Waiting is no hanging."""
    poll = select.poll()
    poll.register(channel.fileno(), 0)

    def wait(seconds: float) -> None:
        if poll.poll(seconds * 1000):
            raise ControlLost("the supervisor is gone")
        page.leave()

    return wait


class Examiner:
    """The evaluator's verb: take a version out of shared memory, go on with the tests, tell what is decided.

    Args:
        evaluator: does the testing.
        weights: where the supervisor leaves the versions to be tested.
        parameters: number of weights P.
        page: progress words.
    """

    def __init__(self, evaluator: Any, weights: WeightsReader, parameters: int, page: ProgressPage) -> None:
        self._evaluator, self._weights, self._page = evaluator, weights, page
        self._parameters = parameters

    def evaluate(
        self, *, add: int | None = None, seconds: float | None = None, limit_s: float = 60.0
    ) -> dict[str, Any]:
        """Advance all tests under way.

        Args:
            add: first begin to test the weights that lie ready, known as this version.
            seconds: come back after about this time; None: when all is decided.
            limit_s: a stretch without progress that counts as hanging.

        Returns:
            `verdicts` as decided now, in the order the versions were added, and `in_flight`.
        """
        if add is not None:
            flat = np.empty(self._parameters, dtype=np.float32)
            if self._weights.read(flat) is None:
                raise MlxeError(f"evaluator: expected to read the weights of version {add} whole")
            self._evaluator.add(add, flat)

        def tick() -> None:
            self._page.leave()
            self._page.enter(limit_s)

        self._page.enter(limit_s)
        verdicts = self._evaluator.advance(seconds, tick)
        self._page.leave()
        return {"verdicts": [asdict(verdict) for verdict in verdicts], "in_flight": self._evaluator.in_flight}

    def forget(self) -> dict[str, Any]:
        """Drop all tests under way."""
        self._evaluator.clear()
        return {}


def serve_probe(spec: dict[str, Any], channel: ChildChannel, fds: dict[str, int]) -> None:  # noqa: ARG001 - an entry
    """Serve the one verb of the probe."""
    serve(channel, {"probe": Probe(spec["settings"])})


class Probe:
    """Builds environment and network once and reports spaces and sizes, or what is wrong with the settings.

    Args:
        settings: all settings in plain JSON types.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._made: list[Any] = []

    def close(self) -> None:
        """Close what was tried out. The answer is known by now: an environment may take its time, or hang."""
        for vector in self._made:
            vector.close()

    def probe(self) -> dict[str, Any]:
        """The facts; or `{"task_error"}`, one sentence; or `{"problems"}`, each with `path` and `message`."""
        try:
            return _probe(self._settings, self._made)
        except TaskError as error:
            return {"task_error": str(error)}
        except _Refused as error:
            return {"problems": [{"path": list(path), "message": message} for path, message in error.problems]}


class _Refused(Exception):
    def __init__(self, problems: list[tuple[tuple[str, ...], str]]) -> None:
        super().__init__("refused")
        self.problems = problems


def _check_compile(wanted: Any, device: str, algorithm_class: Any) -> None:
    """Refuse what is asked for in vain; what `"auto"` cannot do the learner tells in the log."""
    from mlxe_async.differentiation import cpp_compiler

    if wanted is True and device == "cpu" and cpp_compiler() is None:
        message = 'got true, but no C++ compiler was found; install g++ or set CXX, or try "auto"'
        raise _Refused([(("learner", "compile"), message)])
    if wanted is True and not getattr(algorithm_class, "compiles", False):
        message = f'got true, but {algorithm_class.__name__} has no update that can be compiled; try "auto" or false'
        raise _Refused([(("learner", "compile"), message)])


def _about_algorithm(sentence: str) -> tuple[tuple[str, ...], str]:
    """The key that a sentence begins with, such as `algorithm.name: ...`, else the table; and the rest."""
    key, colon, rest = sentence.partition(": ")
    table, dot, field = key.partition(".")
    return (("algorithm", field), rest) if colon and dot and table == "algorithm" else (("algorithm",), sentence)


def _probe(settings: Mapping[str, Any], made: list[Any]) -> dict[str, Any]:
    from mlxe_async.algorithms import load_algorithm
    from mlxe_async.roles.memorizer import check_priorities
    from mlxe_async.settings import algorithm_problems
    from mlxe_async.settings.resuming import forbidden_fields
    from mlxe_async.tasks.probe import probe as probe_task

    name = settings["algorithm"]["name"]
    try:
        algorithm_class = load_algorithm(name)
    except SettingsError as error:
        raise _Refused(
            [(("algorithm", "name"), line.removeprefix("algorithm.name: ")) for line in error.problems]
        ) from error
    table = dict(settings["algorithm"])
    if "name" not in algorithm_class.Settings.model_fields:
        del table["name"]
    problems = algorithm_problems(algorithm_class.Settings, table)
    if problems:
        raise _Refused([(tuple(map(str, problem.path)), problem.message) for problem in problems])
    algorithm_settings = algorithm_class.Settings.model_validate(table)
    device = settings["learner"]["device"]
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise _Refused([(("learner", "device"), f'got "{device}", but torch finds no usable GPU here; try "cpu"')])
    _check_compile(settings["learner"]["compile"], device, algorithm_class)
    task = probe_task(settings["task"], made)
    spaces = Spaces.from_json(task["spaces"])
    try:
        algorithm = algorithm_class(algorithm_settings, spaces, seed=0, learns=False)
    except ValueError as error:
        raise _Refused([_about_algorithm(str(error))]) from error
    except Exception as error:
        from mlxe_async.tasks.hostile import words_of

        place = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{words_of(error)} ({place.filename}:{place.lineno})"
        message = f'"{name}" cannot be made for this task, its constructor raised {raised}'
        raise _Refused([(("algorithm", "name"), message)]) from error
    try:
        check_priorities(algorithm)
    except ValueError as error:
        raise _Refused([_about_algorithm(str(error))]) from error
    capacity = settings["memory"]["capacity_rows"]
    if algorithm.memory == "replay" and "batch" in table and capacity is not None and algorithm.batch_rows > capacity:
        message = f"got {algorithm.batch_rows}, expected at most memory.capacity_rows = {capacity}"
        raise _Refused([(("algorithm", "batch"), message)])
    columns = RowLayout(standard_columns(spaces)).with_columns(algorithm.extra_columns)
    own = algorithm_settings.model_dump(mode="json")
    own.pop("name", None)
    return {
        "task": task,
        "spaces": spaces.to_json(),
        "algorithm": own,
        "defaults": getattr(algorithm_class, "defaults", {}),
        "stays": forbidden_fields(algorithm_class.Settings.model_fields),
        "memory_kind": algorithm.memory,
        "off_policy": getattr(algorithm, "off_policy", None),
        "bootstraps": getattr(algorithm, "bootstraps", True),
        "columns": columns.to_json(),
        "derived": RowLayout(tuple(algorithm.derived_columns)).to_json(),
        "window": algorithm.window,
        "batch_rows": algorithm.batch_rows,
        "prioritised": algorithm.memory == "replay" and algorithm.priorities.kind == "td",
        "parameters": [[name, list(shape)] for name, shape in algorithm.parameters],
    }
