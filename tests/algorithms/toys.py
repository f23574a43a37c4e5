"""Small worlds of one-hot states, played and learned from in this process with the program's own replay memory."""

import numpy as np

from mlxe_async.algorithms import Acting, Clock, load_algorithm
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import RowLayout, Spaces, standard_columns


class Practice:
    """An algorithm, its memory, and how far it is.

    Args:
        name: of the algorithm.
        states: of the world; each is seen as a one-hot vector.
        actions: how many there are.
        keep: rows that the memory holds.
        seed: of everything that is drawn.
        settings: of the algorithm.
    """

    def __init__(self, name, states, actions, *, keep=20_000, seed=0, **settings):
        kind, self.spaces = load_algorithm(name), Spaces((states,), actions=actions)
        own = kind.Settings.model_validate(settings)
        self.learner, self.actor = (kind(own, self.spaces, seed=seed, learns=learns) for learns in (True, False))
        self.layout = RowLayout(standard_columns(self.spaces))
        self.rng, self.seen, self.acting = np.random.default_rng([seed, 7]), np.eye(states, dtype="<f4"), Acting()
        how = self.learner.priorities
        shape = ReplayShape(
            lanes=1,
            envs=1,
            stream_rows=keep,
            keep_rows=keep,
            block_rows=64,
            batch_rows=self.learner.batch_rows,
            plan_updates=4096,
            columns=self.layout.to_json(),
            derived=RowLayout(tuple(self.learner.derived_columns)).to_json(),
            prioritised=how.kind == "td",
            largest_decay=how.largest_decay,
        )
        self.memory = ReplayMemory(shape, bytearray(shape.nbytes))
        self.episodes = self.steps = self.updates = 0

    def keep(self, states, actions, rewards, following, *, terminated):
        """Store one episode, which ends the world, or is cut by a limit."""
        length = len(actions)
        rows = self.layout.empty(length)
        columns = {"obs": self.seen[states], "next_obs": self.seen[following], "action": actions, "reward": rewards}
        end = np.arange(length) == length - 1
        columns |= {"terminated": end & terminated, "truncated": end & (not terminated), "cut": False, "version": 0}
        columns |= {"log_prob": 0.0, "env": 0, "last": end, "episode": self.episodes, "step": np.arange(length)}
        for name in columns.keys() & rows.keys():
            rows[name][:] = columns[name]
        for start in range(0, length, 64):
            piece = {name: column[start : start + 64] for name, column in rows.items()}
            self.memory.ingest(0, self.memory.position(0), 1, piece, self.actor.derive, drop_open=True)
        self.episodes += 1

    def play(self, world, state, *, most):
        """One episode of a `world(state, action)` -> reward, next state or None; returns the sum of its rewards."""
        self.actor.load(self.learner.weights())
        self.acting.rollouts, told = self.episodes, []
        for _ in range(most):
            action = int(self.actor.act(self.seen[[state]], self.rng, self.acting)["action"][0])
            reward, after = world(state, action)
            told.append((state, action, reward, state if after is None else after))
            self.acting.steps += 1
            self.steps += 1
            if after is None:
                break
            state = after
        columns = (np.array(column) for column in zip(*told, strict=True))
        self.keep(*columns, terminated=after is None)
        return sum(row[2] for row in told)

    def best_return(self, world, state, *, most):
        """The sum of rewards of an episode without exploration."""
        self.actor.load(self.learner.weights())
        total = 0.0
        for _ in range(most):
            reward, state = world(state, int(self.actor.greedy(self.seen[[state]])[0]))
            total += reward
            if state is None:
                break
        return total

    def learn(self, updates=1):
        """Learn from so many minibatches, each drawn after the one before was learned from."""
        how = self.learner.priorities
        for _ in range(updates):
            drawn = {"exponent": how.exponent if how.kind == "td" else 0.0, "beta": how.correction_at(self.steps)}
            plan = self.memory.draw(3, 1, self.learner.batch_rows, **drawn)
            batch, positions = self.memory.gather(plan, 0)
            clock = Clock(env_steps=self.steps, episodes=self.episodes, updates=self.updates)
            _, priorities = self.learner.update(batch, clock)
            if priorities is not None:
                self.memory.note_priorities(plan, 0, positions, priorities)
                self.memory.settle(plan)
            self.updates += 1

    def values(self, states=None):
        """Q of states (N, A), all of them if none are named."""
        self.actor.load(self.learner.weights())
        return self.actor.scores(self.actor.network(self.seen if states is None else self.seen[states]))
