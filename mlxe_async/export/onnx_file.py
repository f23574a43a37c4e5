"""A policy as an ONNX file: observations as the environment gives them go in, actions for `env.step` come out.

The file is evaluated beside the policy on real observations before it is kept. A recurrent policy takes and gives its
states, zero where an episode begins.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlxe_async import __version__
from mlxe_async.errors import MlxeError, RunFailed, SettingsError
from mlxe_async.export.entries import Entry, FromEnvironment, Watched, Watching, entries_of
from mlxe_async.rows import MASK, Array
from mlxe_async.storage.files import replace_file
from mlxe_async.storage.safe_text import visible
from mlxe_async.tasks.measuring import random_action
from mlxe_async.tasks.vector import VectorTask

if TYPE_CHECKING:
    from mlxe_async.policy import Policy

OBSERVATIONS = 100
CLOSE = 1e-5
"""Largest difference between an action of floats and the policy's, absolute and relative to it."""
ACTION, MEMORY, AFTER = "action", "memory", "next_memory"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Written:
    """An ONNX file that was found to be equal to the policy.

    Args:
        path: of the file.
        inputs: in words, such as `observation (batch, 4) float32`.
        outputs: in words.
        observations: number of those that it was compared on.
        difference: the largest one, of actions of floats.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    observations: int
    difference: float

    @property
    def words(self) -> str:
        """All of it in a sentence."""
        apart = f"largest difference {self.difference:.1e}" if self.difference else "no difference"
        told = f"equal to the policy on {self.observations} observations, {apart}"
        return f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}; {told}"


def write(policy: Policy, path: Path) -> Written:
    """Write a policy's best actions as an ONNX file, once it has proved equal to `policy.act`.

    What a recurrent policy remembers is forgotten by that. A file of this name is replaced in the end, or not at all.

    Args:
        policy: see `load_policy`.
        path: of the file; its folder is there.

    Raises:
        SettingsError: a package of the extra `export` is missing, or the policy has no torch module of its actions.
        TaskError: what makes its features does not take tensors, or the environment has changed.
        RunFailed: it cannot be expressed in ONNX, or the graph says something else than the policy.
        EnvironmentFault: the environment raised or broke its contract.
        OSError: the file cannot be written.
    """
    _require()
    watching = Watching()
    vector = VectorTask(policy.settings.task.model_dump(), 1, evaluation=True, wrap=watching)
    try:
        policy.expect(vector.spaces)
        entries = entries_of(watching.env.observation_space, vector.packing)
        graph = _graph_of(policy, vector, entries)
        content = _converted(policy, graph, entries)
        compared = _Compared(policy, vector, watching, entries, graph, content)
        compared.step_by_step()
        compared.at_once()
    finally:
        vector.close()
        policy.reset()
    replace_file(path, content, durable=False)
    kind = f"(batch, {', '.join(map(str, shape))})" if (shape := policy.spaces.action_shape) else "(batch)"
    memory = [f"{name} (batch, {graph.memory}) float32" for name in (MEMORY, AFTER) if graph.memory]
    return Written(
        path,
        (*(one.words for one in entries), *memory[:1]),
        (f"{ACTION} {kind} {compared.dtype}", *memory[1:]),
        OBSERVATIONS,
        compared.largest,
    )


def _require() -> None:
    """See that all packages are there, before anything is made."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # otherwise its import opens a file of events to report
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch converts by it
    except ImportError as error:
        missing = f'pip install "mlxe_async[export]" ({error})'
        raise SettingsError([f"export --to onnx: needs a package that is not installed: {missing}"]) from error
    del onnx, onnxruntime


def _graph_of(policy: Policy, vector: VectorTask, entries: Sequence[Entry]) -> FromEnvironment:
    """The torch module of the whole way from observations to actions."""
    try:
        best = policy.module(deterministic=True)
    except ValueError as error:
        raise SettingsError([f"export --to onnx: {error}"]) from error
    features = vector.aids.features_of if vector.aids.features else None
    for one in best.modules():
        if hasattr(one, "precision"):  # ONNX Runtime knows hardly any operator of bfloat16 on a CPU
            vars(one)["precision"] = "float32"
    return FromEnvironment(best, entries, policy.spaces, features).eval()


def _converted(policy: Policy, graph: FromEnvironment, entries: Sequence[Entry]) -> bytes:
    """The graph as the bytes of an ONNX file."""
    rows = 3  # torch takes 0 and 1 for sizes that stay
    examples = [torch.from_numpy(np.zeros((rows, *one.shape), one.dtype)) for one in entries]
    for one, example in zip(entries, examples, strict=True):
        if one.name == MASK and one.leaf is None:
            example.fill_(1)
        elif one.leaf is not None and hasattr(one.leaf.space, "start"):
            example += torch.as_tensor(one.leaf.space.start)
    names, outputs = [one.name for one in entries], [ACTION]
    if graph.memory:
        examples.append(torch.zeros(rows, graph.memory))
        names, outputs = [*names, MEMORY], [*outputs, AFTER]
    batch = torch.export.Dim("batch")
    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(
                graph,
                tuple(examples),
                dynamo=True,
                dynamic_shapes={"inputs": tuple({0: batch} for _ in examples)},
                input_names=names,
                output_names=outputs,
                verbose=False,
            )
        assert program is not None  # noqa: S101 - torch returns one where `dynamo` is set
        proto = program.model_proto
    except Exception as error:
        if isinstance(cause := _cause(error), MlxeError):
            raise cause from error
        said = visible(str(cause).strip().partition("\n")[0], 300)
        raise RunFailed(
            f"exporting {policy.origin} to ONNX: expected operators that torch can convert, got "
            f"{type(cause).__name__}: {said}; take policy.module() and convert that"
        ) from error
    facts = {
        "run": policy.settings.run.name,
        "task": policy.settings.task.env,
        "algorithm": policy.settings.algorithm.name,
        "policy_version": str(policy.version),
        "actions": policy.spaces.action_words,
        "observations": policy.spaces.observation_words,
        "inputs": json.dumps([one.words for one in entries]),
    }
    for name, value in facts.items():
        fact = proto.metadata_props.add()
        fact.key, fact.value = name, value
    proto.producer_name, proto.producer_version = "mlxe_async", __version__
    content: bytes = proto.SerializeToString()
    return content


def _cause(error: BaseException) -> BaseException:
    """Return what an error of torch's exporter goes back to: the first of this program's own, or else the first."""
    while not isinstance(error, MlxeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Torch's converter speaks of packages that are not needed here, and warns of its own ways."""
    told = logging.getLogger("torch.onnx")
    before = told.level
    told.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        told.setLevel(before)


class _Compared:
    """Evaluates an ONNX graph beside a policy in the policy's environment.

    Args:
        policy: whose actions are right.
        vector: one environment.
        watching: of that one.
        entries: the graph's inputs, beside states.
        graph: the same in torch.
        content: the graph.
    """

    def __init__(
        self,
        policy: Policy,
        vector: VectorTask,
        watching: Watching,
        entries: Sequence[Entry],
        graph: FromEnvironment,
        content: bytes,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            said = visible(str(error).partition("\n")[0], 300)
            raise RunFailed(f"loading the ONNX graph: expected ONNX Runtime to take it, got {said}") from error
        self._policy, self._vector, self._entries = policy, vector, entries
        self._watching, self._graph, self._memory = watching, graph, graph.memory
        self._asked: list[dict[str, Array]] = []
        self._told: list[Array] = []
        self.largest, self.dtype = 0.0, ""

    def step_by_step(self) -> None:
        """Go through `OBSERVATIONS` steps of episodes; every other action is a random one, to see more.

        Raises:
            RunFailed: an action is another one.
        """
        policy, vector = self._policy, self._vector
        rng, seed, obs = np.random.default_rng(0), 0, None
        state = np.zeros((1, self._memory), np.float32)
        for number in range(OBSERVATIONS):
            if obs is None:
                obs, seed = vector.reset(0, seed), seed + 1
                policy.reset()
                state = np.zeros_like(state)
            watched, told = self._watching.env, f"observation {number + 1} of {OBSERVATIONS}"
            given = {one.name: one.value(watched.seen, watched.info) for one in self._entries}
            given |= {MEMORY: state} if self._memory else {}
            found = self._session.run(None, given)
            if self._memory:
                with torch.no_grad():
                    _, after = self._graph(*(torch.from_numpy(one) for one in given.values()))
                self._compare(found[1], after.numpy(), f"the memory after {told}")
                state = found[1]
            expected = policy.act(watched.seen, mask=self._mask(watched))
            self._compare(found[0][0], expected, told)
            self._asked.append(given)
            self._told.append(found[0])
            first = policy.spaces.for_environment(np.zeros_like(expected))
            chosen = random_action(policy.spaces, rng, obs) if number % 2 else (expected - first)[None]
            step = vector.step(chosen)
            if step.faults:
                raise step.faults[0]
            obs = None if step.ended else step.next_obs[0]

    def at_once(self) -> None:
        """Have the graph answer for all observations in one batch.

        Raises:
            RunFailed: it cannot, or says something else than for each alone.
        """
        whole = {name: np.concatenate([one[name] for one in self._asked]) for name in self._asked[0]}
        try:
            found = self._session.run(None, whole)[0]
        except Exception as error:
            said = visible(str(error).partition("\n")[0], 300)
            raise RunFailed(f"comparing the ONNX graph: expected it to take any batch, got {said}") from error
        self._compare(found, np.concatenate(self._told), "a batch of them all")
        self.dtype = str(found.dtype)

    def _mask(self, watched: Watched) -> Any:
        """The mask as `act` takes it; None where there is none, or the observation shows it."""
        packing = self._vector.packing
        is_asked = self._policy.spaces.masked and packing is not None and not packing.shows_mask
        return watched.info[MASK] if is_asked else None

    def _compare(self, found: Array, expected: Array, where: str) -> None:
        is_same = found.shape == expected.shape and np.allclose(found, expected, rtol=CLOSE, atol=CLOSE)
        if not is_same:
            raise RunFailed(
                f"comparing the ONNX graph with {self._policy.origin}: expected {visible(str(expected), 200)} for "
                f"{where}, got {visible(str(found), 200)}; no file was written"
            )
        self.largest = max(self.largest, float(np.abs(found.astype(np.float64) - expected).max(initial=0.0)))
