"""Each attack on a built-in algorithm in whole runs: is what it changes learned, or told?

    python tests/fast/attacked_runs.py --out attacked.jsonl     all of them; goes on where it stopped
    python tests/fast/attacked_runs.py --only a_loss_is_wrapped

Four runs for each: under `is` as written, under `is` and `serial` with twins, audited and not, and under `oa`.
Processes are forked from one that has imported torch already; `--cold` starts each by exec, as users do.
The weights of the first three must be the same, or the run must say what was changed. An attack that the audit alone
notices counts as missed.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from attacks import ATTACKS

sys.path.insert(0, str(Path(__file__).parents[1]))
import warm

CLASSES = {"ppo": "PPO", "dqn": "DQN", "mlxe": "MLxE", "sac": "SAC", "td3": "TD3", "ddpg": "DDPG"}
ROLLOUTS = {"schedule.sync": "rollout", "schedule.rollout_steps": 32, "schedule.envs_per_executor": 2}
KEYS = {
    "ppo": {"algorithm.epochs": 2, "algorithm.minibatch": 64, **ROLLOUTS},
    "dqn": {"algorithm.start_rows": 64, "algorithm.batch": 32},
    "mlxe": {"algorithm.min_updates": 4, "algorithm.batch": 64},
}
OF_VALUES = {"algorithm.start_rows": 64, "algorithm.batch": 32}
WAYS = {
    "written": {"schedule.kind": "is", "learner.fast": "false"},
    "is": {"schedule.kind": "is", "learner.audit_every": 16},
    "serial": {"schedule.kind": "serial", "learner.fast": "true", "learner.audit_every": 0},
    "oa": {"schedule.kind": "oa", "learner.audit_every": 16},
}
HERE = Path(__file__).parent


def run(name, attack, way, folder):
    """Weights' hash, whether a twin was used, and what the learner said of it."""
    env, cap = ("Pendulum-v1", 200) if name in ("sac", "td3", "ddpg") else ("CartPole-v1", 200)
    lines = [
        f'[run]\nname = "{way}"\nseed = 3\ndir = "{folder}"\npython_path = ["{HERE.parent / "runs"}", "{HERE}"]',
        f'[stop]\nenv_steps = 400\n[task]\nenv = "{env}"\nmax_episode_steps = {cap}',
        f'[algorithm]\nname = "attacked:{CLASSES[name]}"\n[evaluation]\nenabled = false\n[schedule]\nexecutors = 1\n',
    ]
    file = folder / f"{way}.toml"
    file.write_text("\n".join(lines))
    keys = KEYS.get(name, OF_VALUES) | WAYS[way]
    chosen = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "mlxe_async", str(file), *chosen],
        env=os.environ | {"ATTACK": attack},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    log = sorted(folder.glob(f"*-{way}/log.jsonl"))
    events = [json.loads(line) for line in log[0].read_text().splitlines()] if log else []
    how = next((one for one in events if one["event"] == "updates"), {"fast": None, "reason": ""})
    end = next((one for one in events if one["event"] == "run_end"), {})
    words = (done.stderr.strip().splitlines() or [""])[-1]
    return {
        "code": done.returncode,
        "hash": end.get("weights_hash"),
        "fast": how["fast"],
        "said": how["reason"] or words,
    }


def verdict(found):
    """What the runs of one attack say."""
    if any(one["fast"] for one in found.values()):
        return "MISSED: the twin was kept"
    if any("audit of update" in one["said"] for one in found.values()):
        return "MISSED: the audit alone noticed it"
    bits = {found[way]["hash"] for way in ("written", "is", "serial")}
    if any(one["code"] for one in found.values()):
        return f"refused: {found['written']['said'][:80]}" if found["written"]["code"] else "DIFFERS: exit codes"
    return "learned" if len(bits) == 1 else "DIFFERS: weights"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, help="a file of results, one line each; those that are there are not run again"
    )
    parser.add_argument("--only", help="one attack")
    parser.add_argument("--cold", action="store_true", help="start each command and nursery by exec")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for what runs in the background
    server = warm.Server(lambda _pid, _fd: None)
    with contextlib.nullcontext() if given.cold else warm.starts(server, pytest.MonkeyPatch()):
        wrong = all_of(given)
    server.close()
    return wrong


def all_of(given):
    """Run them; whether any is wrong."""
    known = {}
    if given.out and given.out.exists():
        known = {one["attack"]: one for one in map(json.loads, given.out.read_text().splitlines())}
    for attack, (name, _) in ATTACKS.items():
        if attack in known or given.only not in (None, attack):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = {way: run(name, attack, way, Path(folder)) for way in WAYS}
        known[attack] = {"attack": attack, "algorithm": name, "verdict": verdict(found), **found}
        if given.out:
            with given.out.open("a") as file:
                print(json.dumps(known[attack]), file=file)
        print(f"{name:5} {attack:60} {known[attack]['verdict']}", flush=True)
    wrong = [one for one in known.values() if one["verdict"].startswith(("MISSED", "DIFFERS"))]
    print(f"{len(known)} attacks, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
