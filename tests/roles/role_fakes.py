"""Stand-ins for what roles are handed: a lane in a list, weights in a variable, a task that counts."""

import contextlib
from types import SimpleNamespace

import numpy as np

from mlxe_async.algorithms.interface import Priorities
from mlxe_async.errors import CorruptRecord, EnvironmentFault, NonFiniteWeights
from mlxe_async.ipc.shared.hours import MODES
from mlxe_async.ipc.shared.words import CALLS
from mlxe_async.rows import RowLayout, Spaces, standard_columns

SPACES = Spaces(observation_shape=(2,), actions=2)
LAYOUT = RowLayout(standard_columns(SPACES))


class FakeLane:
    """Both ends of a lane: blocks wait in a list; `full` says how often `reserve` refuses."""

    def __init__(self, block_rows, slots=64, full=0):
        self.payloads = [memoryview(bytearray(LAYOUT.nbytes(block_rows))) for _ in range(slots)]
        self.slot, self.full = 0, full
        self.blocks, self.corrupt = [], set()
        self.position = 0
        self.released = []
        self.epoch = 1

    @property
    def sequence(self):
        return len(self.blocks)

    def reserve(self):
        if self.full:
            self.full -= 1
            return None
        return self.payloads[self.slot]

    def commit(self, count):
        self.blocks.append((bytes(self.payloads[self.slot]), count, self.epoch))
        self.slot += 1
        return len(self.blocks) - 1

    def backlog(self):
        return len(self.blocks) - self.position

    def free_slots(self):
        return len(self.payloads) - self.backlog()

    def read(self, into):
        data, count, epoch = self.blocks[self.position]
        if self.position in self.corrupt:
            raise CorruptRecord("checksum")
        into[: len(data)] = data
        self.position += 1
        return SimpleNamespace(sequence=self.position - 1, epoch=epoch, count=count)

    def skip(self):
        self.position += 1
        return self.position - 1

    def release(self, sequence):
        self.released.append(sequence)

    def seek(self, sequence):
        self.position = sequence

    def rows(self, block_rows):
        """All committed rows, as columns."""
        views = [
            {name: column[:count] for name, column in LAYOUT.views(data, block_rows).items()}
            for data, count, _ in self.blocks
        ]
        return {name: np.concatenate([view[name] for view in views]) for name in views[0]}


class FakeWeights:
    def __init__(self, version=1, size=3):
        self.version, self.flat = version, np.zeros(size, np.float32)

    def latest(self):
        return self.version

    def read(self, into):
        into[:] = self.flat
        return self.version

    def publish(self, vector):
        if not np.isfinite(vector).all():
            raise NonFiniteWeights("not finite")
        self.version += 1
        self.flat = vector.copy()
        return self.version


class FakePage:
    def __init__(self):
        self.calls = []

    def enter(self, limit_s, call):
        assert call in CALLS[1:]
        self.calls.append(limit_s)

    def note(self, call):
        assert call in CALLS[1:]

    def leave(self):
        self.calls.append("left")

    def spending(self, mode):
        assert mode in MODES
        return contextlib.nullcontext()


class FakeTask:
    """Observations say (episode, step); episodes of `lengths[env]` steps; faults at given (env, episode, step)."""

    spaces = SPACES
    out_of_bounds = 0
    detail = "broken"

    def __init__(self, lengths, faults=(), truncated=False):
        self.count, self.lengths = len(lengths), lengths
        self.faults, self.truncated = set(faults), truncated
        self.episode, self.steps = [-1] * self.count, [0] * self.count
        self.seeds, self.rebuilt, self.unmade = [], [], 0

    def reset(self, index, seed, finished_episodes=0):
        self.episode[index] += 1
        self.steps[index] = 0
        self.seeds.append((index, seed, finished_episodes))
        return self._obs(index)

    def _obs(self, index):
        return np.array([self.episode[index], self.steps[index]], np.float32)

    def step(self, actions):
        ok, ended = np.ones(self.count, bool), np.zeros(self.count, bool)
        faults = []
        for env in range(self.count):
            self.steps[env] += 1
            if (env, self.episode[env], self.steps[env]) in self.faults:
                ok[env] = False
                faults.append(EnvironmentFault(self.detail, phase="step", env_index=env, step=self.steps[env]))
            else:
                ended[env] = self.steps[env] >= self.lengths[env]
        obs = np.stack([self._obs(env) for env in range(self.count)])
        no = np.zeros(self.count, bool)
        return SimpleNamespace(
            next_obs=obs,
            reward=np.ones(self.count, np.float32),
            raw_reward=np.ones(self.count),
            terminated=no if self.truncated else ended,
            truncated=ended if self.truncated else no,
            ok=ok,
            faults=faults,
        )

    def take_notes(self):
        return []

    def rebuild(self, index):
        self.rebuilt.append(index)
        if len(self.rebuilt) <= self.unmade:
            raise EnvironmentFault("the port is taken", phase="make", env_index=index, trace="a trace")

    def close(self):
        pass


class FakeAlgorithm:
    """Acts at random, derives nothing, learns by adding what its batch tells."""

    extra_columns = ()
    derived_columns = ()
    window, batch_rows = 1, 4
    parameters = (("w", (3,)),)
    priorities = Priorities()

    def __init__(self, updates_due=2, step=1.0):
        self.loaded, self._due, self._step = [], updates_due, step
        self.flat = np.zeros(3, np.float32)
        self.clocks = []

    def load(self, flat):
        self.loaded.append(flat.copy())

    def act(self, obs, rng, clock):
        return {"action": rng.integers(0, 2, len(obs)), "log_prob": np.full(len(obs), -0.5, np.float32)}

    def derive(self, segment):
        return {}

    def updates_due(self, *, rows, new_rows, new_segments):
        return self._due * new_segments

    def update(self, batch, clock):
        self.clocks.append(clock)
        self.flat = self.flat + self._step
        return {"loss": float(len(batch["obs"]))}, None

    def weights(self):
        return self.flat.copy()

    def set_weights(self, flat):
        self.flat = flat.copy()
