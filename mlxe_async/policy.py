"""A trained policy on its own: load it from a run, act with it, play and test it. No executor, no supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.algorithms import Acting, Algorithm
from mlxe_async.analysis.behaviour import Switching, switching
from mlxe_async.elsewhere import Answering, answering
from mlxe_async.errors import EnvironmentFault, NotFound, ResourceError, RunFailed, TaskError
from mlxe_async.foreseen import ODD_VALUES, Foreseen, algorithm_of
from mlxe_async.ipc.shared.segments import available_memory
from mlxe_async.roles.evaluator import Evaluator, GreedyPolicy, Rules, Sampled, Starts, Verdict, joined
from mlxe_async.rows import MASK, Array, Spaces
from mlxe_async.seeds import generator
from mlxe_async.settings import Settings
from mlxe_async.settings.model import UNLIMITED_TEST_STEPS
from mlxe_async.settings.trust import Trusted, settings_of_run
from mlxe_async.storage import checkpoints
from mlxe_async.storage.run_folder import find_run
from mlxe_async.storage.safe_text import visible
from mlxe_async.tasks.checks import Broken
from mlxe_async.tasks.given import Maker, offer
from mlxe_async.tasks.help import TaskAids
from mlxe_async.tasks.recording import EXTRA, Recording
from mlxe_async.tasks.states import states_in
from mlxe_async.tasks.vector import VectorTask

if TYPE_CHECKING:
    from torch import nn

ADVERSE_RESTARTS = 20
VIDEO_STEPS = 500
MOST_AT_ONCE = 20  # episodes of a test, unless the settings have more
_REMEMBERS = "a policy with memory carries its state itself until reset(); module() takes states and returns them"


@dataclass(frozen=True)
class Episode:
    """One played episode: its steps, the sum of the environment's own rewards, and how it ended."""

    steps: int
    episode_return: float
    terminated: bool


class Policy(Answering):
    """Frozen weights of a run.

    Args:
        settings: the run's settings.
        spaces: what its environment shows and takes.
        flat: the weights (P,).
        version: which version they are.
        counters: how far the run was, by the names of its counters; what exploration is annealed by, if it is sampled.
        checkpoint: number of the checkpoint that it was loaded from, None if it was not.
        path: folder of that checkpoint.
        wrappers: what stateful wrappers knew by this version, as text; None: what they know when they are made.

    Raises:
        RunFailed: the algorithm no longer knows the settings that the run was made with.
    """

    elsewhere = {  # noqa: RUF012 - see `Answering`
        **dict.fromkeys(
            ("predict", "get_action", "compute_single_action", "select_action", "forward"),
            "act(obs), which returns the action alone: the best one, or with rng= a drawn one",
        ),
        **dict.fromkeys(("evaluate", "evaluate_policy", "score"), "test()"),
        **dict.fromkeys(("learn", "train", "fit"), "Supervisor(load_settings(FILE), resume=RUN).run_sync()"),
        **dict.fromkeys(("enjoy", "rollout", "render"), "play(episodes), with render_mode if you like"),
        "save": "nothing: the run's folder has it, and load_policy(RUN) loads it",
        "load": "load_policy(RUN)",
        "policy": "module(), the network, or act(obs)",
        **dict.fromkeys(("state", "states", "rnn_states", "get_rnn_states", "hidden"), _REMEMBERS),
        "step": "act(obs)",
        "state_dict": "module().state_dict()",
        "parameters": "module().parameters()",
        "to_onnx": "python -m mlxe_async export RUN --to onnx FILE",
        "get_env": "gymnasium.make(policy.settings.task.env)",
    }

    def __init__(
        self,
        settings: Settings,
        spaces: Spaces,
        flat: Array,
        version: int,
        counters: Mapping[str, int] | None = None,
        *,
        checkpoint: int | None = None,
        path: Path | None = None,
        wrappers: str | None = None,
    ) -> None:
        self.settings, self.spaces, self.version = settings, spaces, version
        self.checkpoint, self.path, self.wrappers = checkpoint, path, wrappers
        self.flat = np.ascontiguousarray(flat, dtype=np.float32)
        self.algorithm = self._built()
        self.counters = counters = dict(counters or {})
        each = settings.schedule.executors
        self._acting = Acting(
            steps=counters.get("env_steps", 0) // each,
            episodes=counters.get("episodes", 0),
            rollouts=counters.get("rollouts", 0) // each,
        )

    @property
    def wrapper_states(self) -> dict[str, Any]:
        """The states that wrappers had by this version, by the name of their class: for `set_state` of your own ones.

        Empty where there are none, and where the version is older than what they first told.
        """
        return {} if self.wrappers is None else states_in(self.wrappers)

    @property
    def origin(self) -> str:
        """`checkpoint 3, version 40: runs/x/checkpoints/3`: where it comes from."""
        if self.checkpoint is None:
            return f"version {self.version}"
        return f"checkpoint {self.checkpoint}, version {self.version}: {self.path}"

    def _built(self, **fields: Any) -> Algorithm:
        """The algorithm with these weights, and with some of its settings' fields changed, as far as it has them."""
        kind, settings = algorithm_of(self.settings, fields)
        try:
            built: Algorithm = kind(settings, self.spaces, seed=0, learns=False)
            built.load(self.flat)
        except ODD_VALUES as error:
            raise RunFailed(
                f"building {visible(self.settings.algorithm.name)} for {self.origin}: expected settings, spaces and "
                f"weights of one run, got others: {visible(str(error), 500)}"
            ) from error
        return built

    @functools.cached_property
    def sampled(self) -> Algorithm:
        """The algorithm to draw actions from: as it explores in training, without mixtures that come on top of it."""
        return self._built(behaviour="softmax")

    @answering(
        f"it takes obs alone; {_REMEMBERS}",
        deterministic="actions are the best ones unless rng= is given, a numpy generator to draw from",
        **dict.fromkeys(("state", "states", "rnn_states", "episode_start", "done"), _REMEMBERS),
        **dict.fromkeys(("action_masks", "action_mask"), "write mask="),
    )
    def act(self, obs: Any, *, mask: Any = None, rng: np.random.Generator | None = None) -> Array:
        """The greedy action for one observation (O,) or for each of several (B, O); sampled if `rng` is given.

        A recurrent policy goes on from observation to observation until `reset`, as many at a time as before.

        Sampled is: drawn from the policy's probabilities, or, where an algorithm has none, as it explores in training.
        Actions are those that the environment takes: choices are counted from its `start`.

        Observations are those of the environment itself; entries that `[task] hide` names are left out here, if they
        are there. Features that the run's `[task]` adds are added, by what the environment declares, for which it is
        made once. Observations that have them already are taken as they are. So are those of another space than a Box:
        one of the environment's own, such as a dict, a tuple or an integer, or one or several as they are stored.

        Args:
            obs: the observation, or several.
            mask: the environment's `info["action_mask"]`, where the run's `[task]` has `action_mask`.
            rng: what to draw from.

        Raises:
            ValueError: the observation or the mask has another shape, or there is a mask too many or too few.
            TaskError: what the environment declares for its features is no longer what it was, or raised.
            EnvironmentFault: the environment, made for its features or its space, raised.
        """
        if mask is not None and not self.spaces.masked:
            raise ValueError("policy acting: got a mask, but the run's task.action_mask is false; leave it out")
        obs, shape = self._shown(obs), self.spaces.observation_shape
        if mask is None and self._is_stored(obs):
            batch = np.asarray(obs, dtype=self.spaces.observation_dtype)
            single = batch.ndim == len(shape)
        else:
            batch, single = self._packed(obs, mask), True
        action: Array = self.spaces.for_environment(self.chosen(batch[None] if single else batch, rng))
        return action[0] if single else action

    def chosen(self, batch: Array, rng: np.random.Generator | None = None) -> Array:
        """The same for several observations (B, O) as they are stored; choices are counted from 0.

        Raises:
            ValueError: the observations have another shape.
        """
        batch, shape = self._featured(batch), self.spaces.observation_shape
        if batch.shape[1:] != shape:
            raise ValueError(f"policy acting: expected observations of shape {shape}, got {batch.shape[1:]}")
        return self._chosen(batch, rng)

    def module(self, *, deterministic: bool = False) -> nn.Module:
        """The policy's network as a plain torch module of its own, with these weights.

        Of an algorithm of one's own it is what `build` made; several modules are attributes of one. Of a built-in one
        it takes observations (B, *O) as they are stored, or their parts by name, and returns outputs by head, `actor`,
        `critic` and `log_std`, for numbers before bounds; of one that acts by values, these.

        Args:
            deterministic: of a built-in one: from observations to the best actions (B, ...) that `env.step` takes. A
                recurrent one takes states (B, S), too, zero if they are left out, and returns actions and states.

        Raises:
            ValueError: there is no network, or nothing is known of how actions follow from it.
        """
        return self.algorithm.deterministic_module() if deterministic else self.algorithm.module()

    def reset(self, done: Any = None) -> None:
        """Episodes begin with the next observations: what a recurrent policy carries is forgotten.

        Args:
            done: which of the environments that acted last begin one (B,), truth values, such as `terminated |
                truncated` of a vector of environments; all, if left out.

        Raises:
            ValueError: it is of another kind or length, or none has acted yet.
        """
        if done is None:
            self._acting.began = None
            self._acting.rollouts += 1
            return
        began, found = self._acting.began, np.asarray(done)
        if began is None or found.dtype != np.bool_ or found.shape != began.shape:
            expected = "act first" if began is None else f"{len(began)} truth values, one for each environment"
            raise ValueError(f"Policy.reset: got done of {found.dtype} {found.shape}, expected {expected}")
        began |= found
        self._acting.begin(found)

    def _is_stored(self, obs: Any) -> bool:
        """Return whether these are observations (..., *O) as rows have them, or those that only lack the features."""
        shape, task = self.spaces.observation_shape, self.settings.task
        if not isinstance(obs, np.ndarray) and (self.spaces.parts or isinstance(obs, Mapping)):
            return False
        array = np.asarray(obs)
        if array.shape[-len(shape) :] == shape:
            return not self.spaces.parts or array.dtype == self.spaces.observation_dtype
        lacks_features = (task.features or task.squared_position) and array.ndim >= len(shape)
        return lacks_features and self._vector.packing is None

    def _packed(self, obs: Any, mask: Any) -> Array:
        """One observation of the environment's own (O,) as it is stored."""
        packing, shape = self._vector.packing, self.spaces.observation_shape
        if packing is None:
            got = f"a {type(obs).__name__}" if isinstance(obs, Mapping | str) else np.shape(obs)
            raise ValueError(f"policy acting: expected observations of shape {shape}, got {got}")
        if self.spaces.masked and mask is None and not packing.shows_mask:
            raise ValueError('policy acting: expected mask = info["action_mask"] of the environment, got none')
        try:
            return packing.take(obs, {MASK: mask}, over=False)[0].copy()
        except Broken as broken:
            raise ValueError(f"policy acting: {broken}") from None

    def _chosen(self, obs: Array, rng: np.random.Generator | None) -> Array:
        acting, carried = self._acting, getattr(self.algorithm, "carry", ())
        if acting.began is None or len(acting.began) != len(obs):
            acting.start(carried, len(obs))
        if rng is not None:
            chosen = self.sampled.act(obs, rng, acting)["action"]
            acting.steps += len(obs)  # by which noise in weights is drawn anew, as in training
        else:
            chosen = self.algorithm.greedy(obs, acting) if carried else self.algorithm.greedy(obs)
        acting.began = np.zeros(len(obs), bool)
        return np.asarray(chosen)

    def play(
        self,
        episodes: int = 1,
        *,
        seed: int = 0,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        video: str | os.PathLike[str] | None = None,
        sampled: bool = False,
        on_step: Callable[[], None] = lambda: None,
    ) -> Generator[Episode, None, None]:
        """Play in the run's environment, without adverse starts and shaped rewards.

        Args:
            episodes: how many.
            seed: of the first episode; the next ones count up.
            max_episode_steps: instead of the evaluation's; with `video`, instead of 500 or the evaluation's.
            render_mode: as gymnasium takes it, `"human"` for a window.
            video: a file ending in `.mp4` for all episodes, or a folder for a file each. They are there, replacing
                what was there under their names, when the last episode has been taken from the iterator.
            sampled: draw actions, see `act`, instead of taking the best ones.
            on_step: called after each step.

        Raises:
            TaskError: a package for rendering is missing, or the environment cannot be rendered that way.
            ResourceError: the video needs more memory than there is, or cannot be written.
            EnvironmentFault: the environment raised or broke its contract.
        """
        limit = self.settings.evaluation.max_episode_steps or UNLIMITED_TEST_STEPS
        if video is not None:
            render_mode, limit = "rgb_array", min(limit, VIDEO_STEPS)
        limit = max_episode_steps or limit
        task = self.settings.task.model_dump()
        if render_mode:
            task["kwargs"] = {**task["kwargs"], "render_mode": render_mode}
        rng = generator(seed, "play") if sampled else None
        with contextlib.ExitStack() as stack:
            recording = None
            wrap: dict[str, Any] = {}
            if video is not None:
                name = f"{self.settings.run.name}-version-{self.version}"
                recording = stack.enter_context(Recording(Path(video), name))
                wrap = {"wrap": recording.wrap}
            with _rendering(task["env"], render_mode):
                vector = VectorTask(task, 1, evaluation=True, max_episode_steps=limit, state=self.wrappers, **wrap)
            stack.callback(vector.close)
            self.expect(vector.spaces)
            for number in range(episodes):
                with _rendering(task["env"], render_mode):
                    obs, steps, total = vector.reset(0, seed + number)[None], 0, 0.0
                self.reset()
                if recording is not None:
                    at_once = episodes - number if recording.is_file else 1
                    _check_memory(recording.frame_bytes * limit * at_once)
                while True:
                    step = vector.step(self._chosen(obs, rng))
                    if step.faults:
                        raise step.faults[0]
                    steps, total, obs = steps + 1, total + float(step.raw_reward[0]), step.next_obs
                    on_step()
                    if step.terminated[0] or step.truncated[0]:
                        break
                if recording is not None:
                    recording.end_episode(is_last=number == episodes - 1)
                yield Episode(steps, total, bool(step.terminated[0]))

    def test(
        self, *, starts: Starts = "standard", sampled: bool = False, episodes: int | None = None, in_full: bool = False
    ) -> Verdict:
        """The run's own test of `[evaluation]`, or a harder one.

        Args:
            starts: `"adverse"`, for CartPole: instead of the `episodes` restarts of the settings 20, which are the
                standard ones moved to a hard place: 5 each with the cart at -1.5 and +1.5, the pole at -0.15 and +0.15.
            sampled: draw actions, see `act`, instead of taking the best ones; by fixed seeds, so that the test is the
                same each time.
            episodes: number of restarts instead, the first of which are those of the test of fewer.
            in_full: play all episodes to their end, also where one has failed, and give all their returns.

        Raises:
            ValueError: there are to be less than one episode.
            TaskError: the environment has no adverse starts.
        """
        if episodes is not None and episodes < 1:
            raise ValueError(f"testing a policy: expected at least 1 episode, got {episodes}")
        rules = self.settings.evaluation.model_dump()
        if starts != "standard":
            rules |= {"starts": starts, "episodes": ADVERSE_RESTARTS}
        rules |= {"in_full": in_full}
        policy = Sampled(self.sampled, rules["seed"], self._acting) if sampled else self.algorithm
        if episodes is None:
            return self._tested(policy, rules)
        # Not all at once: each episode has an environment of its own.
        parts, each = [], max(rules["episodes"], MOST_AT_ONCE)
        for first in range(0, episodes, each):
            parts.append(self._tested(policy, {**rules, "first": first, "episodes": min(each, episodes - first)}))
            if parts[-1].passed is False and rules["rule"] == "cap" and not in_full:
                break
        return joined(parts, Rules.from_mapping(rules))

    def switching(self, *, episodes: int | None = None, sampled: bool = False) -> Switching:
        """Return how often the policy changes its action, in episodes from the starts of the run's own test.

        They are played apart from `test`, which keeps no actions; rewards do not matter here.

        Args:
            episodes: how many; those of the settings when left out.
            sampled: draw actions, see `act`, instead of taking the best ones.

        Raises:
            ValueError: there are to be less than one episode.
            EnvironmentFault: the environment raised or broke its contract.
        """
        if episodes is not None and episodes < 1:
            raise ValueError(f"watching a policy: expected at least 1 episode, got {episodes}")
        rules = Rules.from_mapping(self.settings.evaluation.model_dump())
        rules = dataclasses.replace(rules, episodes=episodes or rules.episodes)
        rng = generator(rules.seed, "evaluation.actions") if sampled else None
        each = min(rules.episodes, MOST_AT_ONCE)
        task = VectorTask(
            self.settings.task.model_dump(),
            each,
            evaluation=True,
            max_episode_steps=rules.max_episode_steps,
            state=self.wrappers,
        )
        try:
            self.expect(task.spaces)
            seeds = rules.resets(of_test_set=task.episodes is not None)
            groups = (seeds[first : first + each] for first in range(0, len(seeds), each))
            played = [actions for group in groups for actions in self._played(task, group, rng)]
        finally:
            task.close()
        return switching(played, continuous=self.spaces.action_kind == "box")

    def _played(self, task: VectorTask, seeds: Sequence[int], rng: np.random.Generator | None) -> list[Array]:
        """The actions (T, ...) that the environment was given in an episode from each of these starts."""
        taken: list[list[Array]] = [[] for _ in seeds]
        obs = np.zeros((task.count, *self.spaces.observation_shape), self.spaces.observation_dtype)
        for index, seed in enumerate(seeds):
            obs[index] = task.reset(index, seed)
        self.reset()
        is_box, shape = self.spaces.action_kind == "box", self.spaces.action_shape
        low, high = (np.reshape(b, shape if is_box else -1) for b in (self.spaces.action_low, self.spaces.action_high))
        running = list(range(len(seeds)))
        while running:
            chosen = self._chosen(obs, rng)
            if is_box:  # as the environment is given them
                chosen = np.clip(chosen, low, high)
            step = task.step(chosen, running)
            if step.faults:
                raise step.faults[0]
            for index in running:
                taken[index].append(chosen[index])
            obs[running] = step.next_obs[running]
            ended = set(step.ended)
            running = [index for index in running if index not in ended]
        return [np.array(actions) for actions in taken]

    def _tested(self, policy: GreedyPolicy, rules: Mapping[str, Any]) -> Verdict:
        self.expect(self._vector.spaces)
        evaluator = Evaluator(policy, self.settings.task.model_dump(), rules)
        try:
            evaluator.add(self.version, self.flat, self.wrappers)
            (verdict,) = evaluator.advance()
        finally:
            evaluator.close()
        return verdict

    def expect(self, found: Spaces) -> None:
        """See that the environment is still the one that the weights are for.

        Raises:
            TaskError: it shows or takes something else.
        """
        looked_at = {
            "observation_words": ("observation_shape", "observation_dtype"),
            "action_words": ("action_kind", "action_shape", "action_sizes"),
        }
        for words, names in looked_at.items():
            if any(getattr(self.spaces, name) != getattr(found, name) for name in names):
                what = "shows" if words == "observation_words" else "takes"
                expected, got = getattr(self.spaces, words), getattr(found, words)
                env = visible(self.settings.task.env, 200)
                raise TaskError(
                    f"{env} {what} {got}, expected {expected}, which the weights are for: it has changed since the run"
                )

    def _shown(self, obs: Any) -> Any:
        """Observations without the entries that `[task] hide` names; others than such vectors as they are."""
        hidden = sorted(set(self.settings.task.hide))
        if not hidden or isinstance(obs, Mapping | str):
            return obs
        array = np.asarray(obs)
        whole = self.spaces.observation_shape[-1] + len(hidden)
        return np.delete(array, hidden, axis=-1) if array.shape[-1:] == (whole,) else obs

    def _featured(self, batch: Array) -> Array:
        """Observations (B, O), with the features behind them that are still missing."""
        task, shape = self.settings.task, self.spaces.observation_shape
        if batch.shape[1:] == shape or not (task.features or task.squared_position):
            return batch
        own = self._aids.own
        if batch.shape[1:] != (own,) or own + self._aids.features != shape[0]:
            return batch
        more = np.zeros((len(batch), self._aids.features), batch.dtype)
        featured = np.concatenate([batch, more], axis=1)
        self._aids.add_features(featured)
        return featured

    @property
    def _aids(self) -> TaskAids:
        """What the run's environment declares for its features."""
        return self._vector.aids

    @functools.cached_property
    def _vector(self) -> VectorTask:
        """The run's environment, made once to ask it, and closed."""
        vector = VectorTask(self.settings.task.model_dump(), 1, evaluation=True)
        vector.close()
        return vector


@contextlib.contextmanager
def _rendering(env: str, render_mode: str | None) -> Iterator[None]:
    """What rendering lacks is the user's to change, and no fault of the environment."""
    try:
        yield
    except EnvironmentFault as fault:
        if render_mode and "DependencyNotInstalled" in fault.detail:
            said = fault.detail.rpartition("DependencyNotInstalled: ")[2]
            raise TaskError(f"rendering {env} needs a package that is not installed: {EXTRA} ({said})") from fault
        if render_mode and fault.phase == "make" and "render" in fault.detail:
            raise TaskError(f'{env} has no render_mode "{render_mode}": {fault.detail}') from fault
        raise


def _check_memory(needed: int) -> None:
    """The pictures of one file are kept in memory until it is written."""
    left = available_memory()
    if needed > left // 2:
        sizes = f"{needed / 2**30:.1f} GiB, half of the {left / 2**30:.1f} GiB that are left is the most"
        raise ResourceError(f"the pictures of the video may take {sizes}: play fewer steps, or record into a folder")


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=3)


def load_policy(
    run: str | os.PathLike[str],
    checkpoint: str | int = "auto",
    *,
    trust: Trusted = (),
    tell: Callable[[str], None] = _warn,
    env: Maker | None = None,
) -> Policy:
    """The policy that a run saved; its `checkpoint`, `version` and `path` say which one that is.

    Args:
        run: path of the run's folder, its name below `runs/`, or `latest`.
        checkpoint: `"solved"`: the first of the versions that solved the task; `"best"`: of all that were tested the
            one with the highest mean return, the newest of several; `"last"`: the newest; the number of a folder in
            `checkpoints`; or `"auto"`: solved if there is one, else last.
        trust: modules by name and folders by path whose code may run. Runs that this user made here need none, nor do
            runs of built-in algorithms in environments that are named by an id alone.
        tell: is told, in a sentence, of checkpoints that are damaged, and which one is taken then; by default it
            becomes a warning of Python's.
        env: the class or function that the run's environment was given by, as `Supervisor(env=...)`; needed only where
            the environment is made, as in `play` and `test`.

    Raises:
        NotFound: there is no such run, or no checkpoint of that kind.
        RunFailed: no checkpoint of that kind is fit, or it was made by an algorithm with other settings.
        SettingsError: the run's settings cannot be read.
        Untrusted: the run was made elsewhere, and names code that is neither built in nor trusted.
        ResourceError: the weights take more memory than there is.
        TaskError: `env` is no such thing, or has another name than that of the run.
    """
    folder = find_run(run)
    settings = settings_of_run(folder, trust=trust)
    if env is not None and (name := offer(env)) != settings.task.env:
        raise TaskError(f'env: got {name}, expected that of the run: task.env = "{visible(settings.task.env)}"')
    # The run's own modules; at the end, so that they hide nothing from the program that loads a policy.
    sys.path += [str(path) for path in settings.run.python_path if str(path) not in sys.path]
    tensors, facts = _loaded(folder / "checkpoints", checkpoint, tell, Foreseen(settings, available_memory()))
    flat = np.concatenate([tensors[name].ravel() for name, _ in facts["parameters"]])
    number = int(facts["number"])
    return Policy(
        settings,
        Spaces.from_json(facts["spaces"]),
        flat,
        int(facts["version"]),
        facts.get("counters"),
        checkpoint=number,
        path=folder / "checkpoints" / str(number),
        wrappers=facts.get("wrappers"),
    )


def _loaded(
    folder: Path, which: str | int, tell: Callable[[str], None], foreseen: checkpoints.Foresee = checkpoints.check_facts
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Tensors and facts of a checkpoint; whatever is damaged and passed over for it is told."""
    unfit: dict[int, str] = {}
    found = None
    if which == "auto":
        # A failure is told below, unless the run simply did not solve its task.
        with contextlib.suppress(NotFound, RunFailed):
            found = checkpoints.load(folder, "solved", unfit.__setitem__, checkpoints.check_weights, foreseen)
    wanted = "last" if which == "auto" else which
    found = found or checkpoints.load(folder, wanted, unfit.__setitem__, checkpoints.check_weights, foreseen)
    if unfit:
        causes = "; ".join(f"checkpoint {number} is damaged: {cause}" for number, cause in unfit.items())
        tell(f"{causes}; checkpoint {found[1]['number']}, version {found[1]['version']}, is used instead")
    return found
