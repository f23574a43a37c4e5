"""A program in the place of a run: it leaves a run folder as a run does, and its returns follow from its settings.

python imagined_run.py FILE.toml --no-progress --set key=VALUE ...
"""

import itertools
import json
import os
import signal
import sys
import tomllib
from pathlib import Path

EPISODE_STEPS = 100


def asked(words):
    """The values of `--set`."""
    sets = [word.partition("=") for before, word in itertools.pairwise(words) if before == "--set"]
    return {key: value_of(text) for key, _, text in sets}


def value_of(text):
    """A TOML value, or else a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def main():
    """Good ones play better the later they come, bad ones worse; a bad one stops half-way until it is ended."""
    told = asked(sys.argv[1:])
    seed, steps, folder = told["run.seed"], told["stop.env_steps"], Path(told["run.dir"])
    is_good = told.get("algorithm.activation", "tanh") == "tanh"
    plan = json.loads(Path("plan.json").read_text()) if Path("plan.json").exists() else {}
    what, _, who = plan.get(str(seed), "").partition(" of ")
    what = what if who in ("", told["run.name"]) else ""
    run = folder / f"20260101T000000Z-{told['run.name']}-{seed}"
    run.mkdir(parents=True)
    (run / "lock").write_text(json.dumps({"pid": os.getpid()}))
    settings = {"run": {"name": told["run.name"], "seed": seed}, "stop": {"env_steps": steps}}
    with (run / "log.jsonl").open("w", buffering=1) as log:

        def tell(event, number, **fields):
            line = {"ts": "", "mono_ns": number + 1, "seq": number, "run": "x", "event": event, "role": "supervisor"}
            log.write(json.dumps({**line, "idx": None, **fields}) + "\n")

        start = {"seed": seed, "schedule": "is", "algorithm": "ppo", "env": "CartPole-v1", "settings": settings}
        tell("run_start", 0, **start)
        if what == "interrupt" and not Path("interrupted").exists():
            Path("interrupted").touch()
            os.kill(os.getppid(), signal.SIGINT)
            signal.pause()
        if what in ("diverged", "failed", "refused"):
            sys.stderr.write(f"it {what} by plan\n")
            return {"diverged": 5, "failed": 3, "refused": 2}[what]
        value = 100.0 + seed if is_good else -float(seed)
        for number in range(1, steps // EPISODE_STEPS + 1):
            at = number * EPISODE_STEPS
            tell("episode_end", number, episodes=number, env_steps=at, episode_return=value, length=EPISODE_STEPS)
            if not is_good and what == "waits" and at > steps // 2:
                signal.pause()
        counts = {"episodes": steps // EPISODE_STEPS, "env_steps": steps, "updates": 1}
        end = {"reason": "env_steps", "solved": False, "seconds": 1.0, "cpu_seconds": 1.0, "exit_code": 0}
        tell("run_end", number + 1, **counts, **end)
    return 0


if __name__ == "__main__":
    sys.exit(main())
