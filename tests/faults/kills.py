"""A run that is killed and gone on with, again and again: `python tests/faults/kills.py [--kills 200] [--seed 0]`.

One `is` run of CartPole gets SIGKILL in its supervisor at random moments: in the middle of its work, while a checkpoint
is being written, while it is started again. Each time it must go on, with no checkpoint lost that its log told of, and
no more steps than an interval, which is longer than a round; after all that its weights must be those of a run that
nobody killed, bit for bit.
Prints how many of each kind there were, and exits with 1 where something was not so.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault_runs import Case, Row, pause

INTERVAL_STEPS = 100
LONGEST = 40
EXECUTORS = 2
TABLES = {
    "run": {"name": "kills", "seed": 5},
    "task": {"env": "CartPole-v1", "max_episode_steps": LONGEST},
    "schedule": {"kind": "is", "executors": EXECUTORS},
    "algorithm": {"name": "mlxe", "min_updates": 4, "batch": 64},
    "checkpoint": {"interval_s": 0, "interval_steps": INTERVAL_STEPS},
}
MOMENTS = ("at work", "while saving", "while starting")
MORE_STEPS = 300


def far_away(steps):
    return {**TABLES, "stop": {"env_steps": steps}}


def is_saving(run):
    """Whether a checkpoint is being written just now."""
    return any((run.runs / "latest" / "checkpoints").glob(".staged-*"))


def killed(case, run, lives, chance, moment):
    """SIGKILL at such a moment of this life of the run; the moment that it really was."""
    if moment != "while starting":
        # Only then its own work is seen, and not that of the life before.
        case.want(run.until(lambda: len(run.all("run_resume")) >= lives), f"life {lives} goes on: {run.error()[-300:]}")
        seen = run.lines()[-1]["seq"] if lives else -1
        case.want(run.until(lambda: any(line["seq"] > seen for line in run.all("checkpoint"))), "it saves")
    if moment == "while saving" and not run.until(lambda: is_saving(run), 5.0):
        moment = "at work"
    pause(chance.uniform(0, {"at work": 0.5, "while saving": 0.01, "while starting": 3.0}[moment]))
    run.signal(signal.SIGKILL)
    case.want(run.ended(30) == 137, f"life {lives} was killed")
    return moment


def told_steps(lines):
    """Steps that count at the end of these lines: what was made void does not."""
    return next((line["env_steps"] for line in reversed(lines) if line["event"] in ("episode_end", "run_resume")), 0)


def play(case, kills):
    """Kill so often, go on each time, then let it end; how often at which moment, and the most steps lost."""
    chance = random.Random(case.seed)  # noqa: S311 - chooses moments, guards no secret
    done, most_lost = Counter(), 0
    run = first = case.start_raw(far_away(10**9))
    done[killed(case, run, 0, chance, "at work")] += 1
    resumed = 0  # lives that came to tell that they go on
    for number in range(1, kills + 1):
        before = list(run.lines())
        saved = max(line["number"] for line in before if line["event"] == "checkpoint" and line["whole"])
        more = () if number < kills else ("--set", f"stop.env_steps={told_steps(before) + MORE_STEPS}")
        run.close()
        run = case.resumed(first, *more)
        case.runs.remove(run)  # closed here, for there are many
        moment = chance.choice(MOMENTS) if number < kills else None
        if moment is None:
            case.want(run.ended() == 0, f"the last life ends well: {run.error()[-300:]}")
        else:
            done[killed(case, run, resumed + 1, chance, moment)] += 1
        told = run.all("run_resume")[resumed:]
        if told:
            resumed += 1
            lost = told_steps(before) - told[0]["env_steps"]
            most_lost = max(most_lost, lost)
            case.want(told[0]["exact"], f"life {number} goes on exactly")
            case.want(told[0]["checkpoint"] >= saved, f"life {number} goes on from {saved} or later ({told[0]})")
            case.want(lost <= INTERVAL_STEPS, f"life {number} lost {lost} steps")
        if case.failures:
            break
    rejected = len(run.all("checkpoint_rejected"))
    case.saw(f"{resumed} of {sum(done.values())} lives came to go on; {rejected} checkpoints were not fit")
    ends = run.all("run_end")
    run.close()
    if case.want(ends, "it has a last word"):
        calm = case.start_raw(far_away(told_steps(before) + MORE_STEPS))
        case.want(calm.ended(600) == 0, "the calm run ends well")
        hashes = [one["weights_hash"] for one in (ends[-1], calm.all("run_end")[-1])]
        case.want(hashes[0] == hashes[1], f"the weights are those of a calm run ({hashes})")
        case.saw(f"{ends[-1]['env_steps']:,} steps, the same weights as without a kill: {hashes[0] == hashes[1]}")
    return done, most_lost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        case = Case(Row("X2", "many kills", "bit for bit"), chosen.seed, "hour", Path(folder))
        try:
            done, most_lost = play(case, chosen.kills)
        finally:
            case.close()
    print(f"{sum(done.values())} kills in {time.monotonic() - began:.0f} s: {dict(done)}")
    print(f"most steps lost {most_lost}, interval {INTERVAL_STEPS}; {'; '.join(case.seen)}")
    print("all as required" if not case.failures else "NOT: " + "; ".join(case.failures))
    return 1 if case.failures else 0


if __name__ == "__main__":
    sys.exit(main())
