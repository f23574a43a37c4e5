"""CartPole with one fault each, at the 30th step of every third episode."""

import os

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv


class Bad(CartPoleEnv):
    """Counts, and misbehaves when it is time; what it does is left to those below."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._steps = self._episodes = 0

    def reset(self, **kwargs):
        self._steps = 0
        self._episodes += 1
        return super().reset(**kwargs)

    def step(self, action):
        if self._steps == 30 and self._episodes % 3 == 0:
            return self.fault(super().step(action))
        self._steps += 1
        obs, reward, _, truncated, info = super().step(action)
        # It goes on when the pole falls, so that every third episode comes to its 30th step.
        self.steps_beyond_terminated = None
        return obs, reward, False, truncated, info


class BadRaises(Bad):
    def fault(self, answer):
        raise ValueError("broken at step 30")


class BadWrongShape(Bad):
    def fault(self, answer):
        return (answer[0][:1], *answer[1:])


class BadNotANumber(Bad):
    def fault(self, answer):
        return (np.full(4, np.nan, np.float32), *answer[1:])


class BadExits(Bad):
    def fault(self, answer):
        raise SystemExit(3)


class BadDies(Bad):
    def fault(self, answer):
        os._exit(7)


class BadForks(Bad):
    def fault(self, answer):
        """A child that comes back from here, as a second executor, and one that asks to exit."""
        for way in ("return", "exit"):
            if (pid := os.fork()) == 0:
                if way == "exit":
                    raise SystemExit(0)
                return answer
            os.waitpid(pid, 0)
        self._steps += 1
        return answer


class InOneExecutor(CartPoleEnv):
    """Misbehaves at its 30th step in the second executor alone, in each of that one's lives."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._all_steps = 0

    def step(self, action):
        self._all_steps += 1
        if self._all_steps == 30 and "mlxe-exe-1" in os.environ.get("MLXE_ROLE", "").split(":"):
            self.misbehave()
        answer = super().step(action)
        self.steps_beyond_terminated = None
        return answer

    def misbehave(self):
        """Something of numpy that others use is another thing from now on."""

        def patched(*_args, **_named):
            raise TypeError("numpy as the environment wants it")

        np.asarray = np.array = np.zeros = np.where = np.count_nonzero = np.flatnonzero = patched


class DiesInOneExecutor(InOneExecutor):
    def misbehave(self):
        os._exit(7)


gymnasium.register("PatchesNumpy-v0", entry_point=InOneExecutor)
gymnasium.register("DiesInOneExecutor-v0", entry_point=DiesInOneExecutor)

for bad in (BadRaises, BadWrongShape, BadNotANumber, BadExits, BadDies, BadForks):
    gymnasium.register(f"{bad.__name__}-v0", entry_point=bad)
