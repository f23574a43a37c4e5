"""An environment that names shared memory, which an engine maps too; it is removed by `close`, as simulators do."""

import mmap
import subprocess
import sys
import uuid
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

PLACE = Path("/dev/shm")  # noqa: S108 - where simulators name theirs
ENGINE = """
import mmap, signal, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("ready", flush=True)
signal.pause()
"""


class Naming(CartPoleEnv):
    def __init__(self, prefix):
        super().__init__()
        self.path = PLACE / f"{prefix}{uuid.uuid4().hex}"
        self.path.write_bytes(bytes(4096))
        with self.path.open("r+b") as file:
            self.held = mmap.mmap(file.fileno(), 0)
        command = [sys.executable, "-c", ENGINE, str(self.path)]
        self.engine = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.engine.stdout.readline() == b"ready\n"

    def close(self):
        self.engine.kill()
        self.engine.communicate()
        self.held.close()
        self.path.unlink(missing_ok=True)


gymnasium.register("Naming-v0", entry_point=Naming, max_episode_steps=100)
