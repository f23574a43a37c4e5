"""Peers beside us, in one sitting: `python tests/benchmarks/peers/compare.py --venvs FOLDER [--quick]`.

Every peer has a virtual environment of its own in FOLDER, made by the first call (some minutes, and 2 to 3 GB: they
share one torch); a second call finds them there. The contestants of a table run one after the other, A B C A B C, each
time in a fresh process, and the table shows the median of each and our ratio to it. Where a peer has several
configurations that may be its fastest, the full form first tries each for a few seconds and takes the best.

`--quick` runs every peer's first configuration once, briefly; without it each table is run three times. Tables:
one-pass (ordinary environments, each sample learned from once), native (gymnasium's natively vectorised CartPole, and
PPO in PureJaxRL's manner on one in JAX), ppo (the passes and minibatches of stable-baselines3), solve (time to a mean
of 475), memory (replay memories), breakout-dqn (agent steps from pictures, one update of 32 rows per 4 steps; not among
the default tables, for it needs ale-py here),
ppo-lstm (CartPole without velocities, as `scripts/hidden_cartpole.py` says; another seed in each round, and the mean
return of each one's last episodes with its 95 % bootstrap interval; not among the default tables either), a3c
(gradients that two executors push, beside the nearest that rllib has, IMPALA; not among the default tables).

What was seen is printed as Markdown and kept as JSON (`--out`). CPU time per step is less disturbed by other programs
than the rates are; "others" is the share of the machine that they took meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kept import processor

from mlxe_async.analysis.statistics import bootstrap, means

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SETTINGS = ROOT / "settings"
OURS = "mlxe_async"
TICKS = os.sysconf("SC_CLK_TCK")
TORCH = "torch==2.13.0"
# The environment's name -> what is installed into it beside torch.
PACKAGES = {
    "sb3": ["stable-baselines3==2.9.2", "gymnasium==1.4.0"],
    "sample-factory": ["sample-factory==2.1.1"],
    "tianshou": ["tianshou==2.0.1"],
    "torchrl": ["torchrl==0.14.1", "gymnasium==1.4.0"],
    "rllib": ["ray[rllib]==2.60.0"],
    "cpprb": ["cpprb==11.0.0"],
    "sb3-contrib": ["sb3-contrib==2.9.2", "stable-baselines3==2.9.2", "gymnasium==1.4.0"],
    "continuous": ["stable-baselines3==2.9.2", "gymnasium[box2d,mujoco]==1.4.0"],
    "sbx": ["sbx-rl==0.28.0", "stable-baselines3==2.9.2", "gymnasium[mujoco]==1.4.0"],
    "atari": [
        "stable-baselines3==2.9.2",
        "gymnasium==1.4.0",
        "ale-py==0.12.1",
        "opencv-python-headless==5.0.0.93",
    ],
}
LABELS = {
    "one-pass": "CartPole-v1, `gymnasium.make`, each sample learned from once",
    "native": "CartPole-v1, native vector environment, each sample learned from once",
    "ppo-defaults": "PPO, stable-baselines3's defaults: 2048 steps, minibatches of 64, 10 epochs",
    "ppo-zoo": "PPO, rl-baselines3-zoo's: 256 steps, minibatches of 256, 20 epochs",
    "solve": "Seconds of learning until a mean of 475 over 20 greedy episodes",
    "memory-prioritised": "Replay memory, prioritised: sample 256 and give new priorities",
    "memory-uniform": "Replay memory, uniform: sample 256",
    "breakout-dqn": "Breakout from pictures, DQN, one update of 32 rows per 4 agent steps",
    "a3c": "CartPole-v1, gradients of two executors, 32 environments each, 2,048 rows an update",
    "ppo-lstm": "CartPole-v1 without velocities, PPO with LSTMs of 64: 8 envs x 128 steps, 4 epochs of 4 minibatches",
}
TABLES = {
    "one-pass": ["one-pass"],
    "native": ["native"],
    "ppo": ["ppo-defaults", "ppo-zoo"],
    "solve": ["solve"],
    "memory": ["memory-prioritised", "memory-uniform"],
    "breakout-dqn": ["breakout-dqn"],
    "ppo-lstm": ["ppo-lstm"],
    "a3c": ["a3c"],
}
UNITS = {
    "solve": ("learning_seconds", "seconds", 2),
    "memory-prioritised": ("rows_per_second", "rows/s", 0),
    "memory-uniform": ("rows_per_second", "rows/s", 0),
}


@dataclass
class Contestant:
    """Who runs in a table: a script, the environment it runs in, and what it is given."""

    name: str
    venv: str | None
    script: str
    arguments: list[str] = field(default_factory=list)
    several: bool = False  # has more configurations than one to choose from


def ours(row: str, file: Path, overrides: list[str]) -> Contestant:
    """Our contestant: the command with a settings file, and overrides as `--set` takes them."""
    words = ["--row", row, "--file", str(file)]
    for pair in overrides:
        words += ["--set", pair]
    return Contestant("mlxe_async", None, "run_ours.py", words)


def contestants(row: str, given: argparse.Namespace) -> list[Contestant]:
    """All who run for one row of figures, ourselves first."""
    sb3 = Contestant("stable-baselines3", "sb3", "run_sb3.py", ["--row", row], several=True)
    if row == "one-pass":
        return [
            ours(row, given.fast, ["task.vectorize=single", *given.set]),
            sb3,
            Contestant("sample-factory", "sample-factory", "run_sample_factory.py", several=True),
            Contestant("tianshou", "tianshou", "run_tianshou.py", several=True),
            Contestant("torchrl", "torchrl", "run_torchrl.py", several=True),
            Contestant("rllib", "rllib", "run_rllib.py", several=True),
        ]
    if row == "native":
        mine = ours(row, given.fast, ["task.vectorize=native", *given.native_set, *given.set])
        return [mine, sb3, Contestant("purejaxrl", "sbx", "run_purejaxrl.py", several=True)]
    if row == "ppo-defaults":
        # One environment of 2048 steps is two of 1024 here, one for each executor: the same rows to an update.
        same = ["schedule.kind=is", "schedule.executors=2", "schedule.envs_per_executor=1", "schedule.sync=rollout",
                "schedule.rollout_steps=1024", "algorithm.epochs=10", "algorithm.minibatch=64"]  # fmt: skip
        return [ours(row, given.ppo, [*same, *given.ppo_set]), sb3]
    if row == "ppo-zoo":
        same = ["schedule.kind=is", "schedule.executors=2", "schedule.envs_per_executor=4", "schedule.sync=rollout",
                "schedule.rollout_steps=32", "algorithm.epochs=20", "algorithm.minibatch=256"]  # fmt: skip
        return [ours(row, given.ppo, [*same, *given.ppo_set]), sb3]
    if row == "solve":
        return [ours(row, given.solve, given.solve_set), sb3]
    if row == "breakout-dqn":
        # As little is gathered before learning as by the peers, and as few pictures are kept.
        same = ["algorithm.start_rows=1000", "memory.capacity_rows=10_000"]
        mine = ours(row, SETTINGS / "breakout-dqn.toml", [*same, *given.set])
        mine.arguments += ["--start", "30"]  # games take a while to load, and rows to gather
        return [
            mine,
            Contestant("stable-baselines3", "atari", "run_dqn_atari.py", ["--peer", "sb3"], several=True),
            Contestant("cleanrl-loop", "atari", "run_dqn_atari.py", ["--peer", "cleanrl"], several=True),
        ]
    if row == "a3c":
        same = ["schedule.envs_per_executor=32", "schedule.rollout_steps=64"]
        of_rllib = Contestant("rllib", "rllib", "run_rllib.py", ["--row", row], several=True)
        return [ours(row, SETTINGS / "a3c-cartpole.toml", [*same, *given.set]), of_rllib]
    if row == "ppo-lstm":
        return [
            Contestant("mlxe_async", None, "lstm_ours.py"),
            Contestant("sb3-contrib", "sb3-contrib", "lstm_sb3.py"),
            Contestant("cleanrl-loop", "sb3-contrib", "lstm_loop.py"),
        ]
    memories = [
        Contestant("mlxe_async", None, "memory_ours.py"),
        Contestant("tianshou", "tianshou", "memory_peers.py", ["--peer", "tianshou"]),
        Contestant("cpprb", "cpprb", "memory_peers.py", ["--peer", "cpprb"]),
    ]
    return memories if row.startswith("memory") else []


# -- environments ------------------------------------------------------------------------------------------------------


def environment(folder: Path, name: str) -> Path:
    """The python of the peer's virtual environment, made if it is not there.

    torch lies in one environment that the others look into, so that it is installed once.
    """
    made = folder / name
    python, done = made / "bin" / "python", made / "installed.txt"
    packages = [TORCH] if name == "torch" else PACKAGES[name]
    if done.exists() and done.read_text().split("\n") == packages:
        return python
    print(f"installing {', '.join(packages)} into {made} ...", file=sys.stderr, flush=True)
    pip = [] if name == "torch" else ["--without-pip"]  # the others see that one's
    subprocess.run([sys.executable, "-m", "venv", *pip, str(made)], check=True)
    if name != "torch":
        shared = next((environment(folder, "torch").parents[1] / "lib").glob("python*/site-packages"))
        mine = next((made / "lib").glob("python*/site-packages"))
        (mine / "shared_torch.pth").write_text(f"{shared}\n")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    listed = subprocess.run([str(python), "-m", "pip", "list"], check=True, capture_output=True, text=True).stdout
    if any(line.startswith(("nvidia-", "triton")) for line in listed.splitlines()):
        raise SystemExit(f"installing {packages}: expected torch for CPUs only, got CUDA packages too; remove {made}")
    done.write_text("\n".join(packages))
    return python


# -- running -----------------------------------------------------------------------------------------------------------


def busy_seconds() -> float:
    """CPU seconds that all programs of the machine have used, those of other guests on it included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS


def run(one: Contestant, folder: Path, more: list[str], limit: float) -> list[dict[str, Any]]:
    """Run a contestant once. Returns the lines it printed; a failure is one line with `error`."""
    python = Path(sys.executable) if one.venv is None else environment(folder, one.venv)
    words = [str(python), str(HERE / "scripts" / one.script), *one.arguments, *more]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    env.pop("OMP_NUM_THREADS", None)  # each script sets its number of threads itself
    if one.venv is None:
        env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    else:
        env.pop("PYTHONPATH", None)
    busy, mine, began = busy_seconds(), os.times(), time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=limit)
    except subprocess.TimeoutExpired:
        return [{"peer": one.name, "error": f"no end within {limit:.0f} s"}]
    took, now = time.monotonic() - began, os.times()
    own = (now.children_user + now.children_system) - (mine.children_user + mine.children_system)
    others = max(0.0, busy_seconds() - busy - own) / took / (os.cpu_count() or 1)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if not lines:
        said = (done.stderr or done.stdout).strip().splitlines()
        return [{"peer": one.name, "error": f"exit code {done.returncode}: {' / '.join(said[-3:])[:600]}"}]
    return [{**line, "others": others, "took_seconds": took} for line in lines]


def best_configuration(one: Contestant, folder: Path, given: argparse.Namespace) -> tuple[list[str], dict[str, float]]:
    """The arguments that choose the fastest of a peer's configurations, and the rates that all of them reached."""
    python = environment(folder, one.venv or "")
    words = [str(python), str(HERE / "scripts" / one.script), *one.arguments, "--list"]
    listed = subprocess.run(words, capture_output=True, text=True)
    seen: dict[str, float] = {}
    for name in listed.stdout.split():
        short = ["--config", name, "--seconds", str(given.try_seconds), "--warm-up", "2"]
        line = run(one, folder, short, given.limit)[-1]
        seen[name] = line.get("steps_per_second", 0.0)
        said = f"{seen[name]:,.0f} steps/s" if seen[name] else line.get("error", "")
        print(f"  {one.name} {name}: {said}", file=sys.stderr, flush=True)
    best = max(seen, key=lambda name: seen[name]) if seen else ""
    return (["--config", best] if best and seen[best] else []), seen


def measured(table: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run one table, A B C A B C. Returns for each row of figures the lines of each contestant."""
    folder, found = given.venvs, {}
    for row in TABLES[table][: 1 if table == "memory" else None]:
        running = [one for one in contestants(row, given) if not given.peers or one.name in given.peers]
        chosen: dict[str, list[str]] = {}
        tried: dict[str, dict[str, float]] = {}
        for one in running:
            if one.several and not given.quick and row != "solve":
                chosen[one.name], tried[one.name] = best_configuration(one, folder, given)
        lines: dict[str, list[dict[str, Any]]] = {one.name: [] for one in running}
        for again in range(given.seeds if row == "solve" else given.repeats):
            for one in running:
                more = [] if row == "solve" else ["--seconds", str(given.seconds)]
                if row == "solve":
                    more = ["--seed", str(again)]
                elif row == "ppo-lstm":
                    more = ["--seed", str(again), "--warm-up", str(given.warm_up)]
                    more += ["--steps", "10240"] if given.quick else []
                elif table != "memory":
                    more += ["--warm-up", str(given.warm_up)]
                for line in run(one, folder, [*more, *chosen.get(one.name, [])], given.limit):
                    lines[one.name].append(line)
                    key = UNITS.get(line.get("row", row), ("steps_per_second", "", 0))[0]
                    said = line.get("error") or f"{line.get(key, float('nan')):,.2f}"
                    print(f"{line.get('row', row)} {one.name}: {said}", file=sys.stderr, flush=True)
        for each in TABLES["memory"] if table == "memory" else [row]:
            found[each] = {
                "tried": tried,
                "lines": {
                    name: [line for line in all_lines if line.get("row", each) == each]
                    for name, all_lines in lines.items()
                },
            }
    return found


# -- telling -----------------------------------------------------------------------------------------------------------


def summary(row: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and what was said of one contestant. A seed that was not solved counts as slower than all others."""
    key = UNITS.get(row, ("steps_per_second", "", 0))[0]
    good = [line for line in lines if "error" not in line]
    values = [line.get(key, float("inf")) for line in good]
    if not values:
        return {"error": lines[-1]["error"] if lines else "not run"}
    result = {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "runs": len(values),
        "version": good[-1]["version"],
        "configuration": good[-1]["configuration"],
        "others": max(line["others"] for line in good),
    }
    for extra in (
        "cpu_us_per_step",
        "cpu_us_per_row",
        "lag_mean",
        "lag_max",
        "cpu_seconds",
        "command_to_solved_seconds",
    ):
        seen = [line[extra] for line in good if extra in line]
        if seen:
            result[extra] = statistics.median(seen)
    if row == "ppo-lstm":
        returns = [line["mean_return"] for line in good]
        low, high = bootstrap(returns, means)
        result |= {"mean_return": statistics.fmean(returns), "return_low": low, "return_high": high}
    return result


def markdown(row: str, lines: dict[str, list[dict[str, Any]]]) -> str:
    """One row of figures as a table: who, how fast, our ratio to it, and how it was configured."""
    _, unit, digits = UNITS.get(row, ("", "env steps/s", 0))
    all_of = {name: summary(row, of_one) for name, of_one in lines.items()}
    mine = all_of.get("mlxe_async", {}).get("median")
    text = [
        f"### {LABELS[row]}",
        "",
        f"| who | {unit} (least to most) | ours / theirs | CPU | lag | others | configuration |",
    ]
    text.append("|---|---:|---:|---:|---:|---:|---|")
    for name, one in all_of.items():
        if "error" in one:
            text.append(f"| {name} | - | - | - | - | - | {one['error']} |")
            continue
        ratio = f"{mine / one['median']:.2f}" if mine else "-"
        cpu = one.get("cpu_us_per_step", one.get("cpu_us_per_row"))
        if cpu is not None:
            own = all_of.get("mlxe_async", {})
            by_cpu = cpu / own.get("cpu_us_per_step", own.get("cpu_us_per_row", float("nan")))
            cost = f"{cpu:.2f} us" + f", ours / theirs {by_cpu:.2f}" * (name != OURS and by_cpu == by_cpu)
        else:
            cost = f"{one.get('cpu_seconds', float('nan')):.1f} s"
        lag = f"{one['lag_mean']:.2f}, at most {one['lag_max']:.0f}" if "lag_mean" in one else ""
        span = f"{one['median']:,.{digits}f} ({one['least']:,.{digits}f} to {one['most']:,.{digits}f})"
        more = ""
        if "command_to_solved_seconds" in one:
            more = f"; {one['command_to_solved_seconds']:.1f} s from the command to solved"
        if "mean_return" in one:
            more = f"; return {one['mean_return']:.1f} ({one['return_low']:.1f} to {one['return_high']:.1f})"
        text.append(
            f"| {name} {one['version']} | {span} | {ratio} | {cost} | {lag} | {100 * one['others']:.0f} % |"
            f" {one['configuration']}{more} |"
        )
    peers = [one["median"] for name, one in all_of.items() if name != OURS and "median" in one]
    if mine and peers:
        best = min(peers) if row == "solve" else max(peers)
        text += ["", f"Ours is {mine / best:.2f} times the best peer's."]
    others = max((one["others"] for one in all_of.values() if "others" in one), default=0.0)
    if others > 0.1:
        text += ["", f"Other programs took up to {100 * others:.0f} % of the machine meanwhile: these rates are noise."]
    return "\n".join(text)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--venvs", type=Path, default=ROOT / ".tox" / "peers-venvs", help="folder of the virtual environments"
    )
    parser.add_argument("--quick", action="store_true", help="each once, briefly")
    parser.add_argument("--install", action="store_true", help="only make the virtual environments")
    parser.add_argument(
        "--tables", default="one-pass,native,ppo,solve,memory", help="which tables, with commas between"
    )
    parser.add_argument("--peers", default="", help="only these contestants, with commas between (mlxe_async is ours)")
    parser.add_argument("--without", default="", help="leave out these peers, with commas between")
    parser.add_argument("--repeats", type=int, help="rounds of a table: 3, or 1 with --quick")
    parser.add_argument("--seeds", type=int, help="seeds of the table solve: 5, or 2 with --quick")
    parser.add_argument("--seconds", type=float, help="measured in each run: 15, or 4 with --quick")
    parser.add_argument("--warm-up", type=float, help="seconds not counted before: 5, or 1 with --quick")
    parser.add_argument("--try-seconds", type=float, default=4.0, help="for each configuration to choose from")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds after which a run is given up")
    parser.add_argument("--fast", type=Path, default=SETTINGS / "fast.toml", help="our settings for each sample once")
    parser.add_argument("--ppo", type=Path, default=SETTINGS / "ppo-cartpole.toml", help="our settings for PPO")
    parser.add_argument("--solve", type=Path, default=SETTINGS / "fast.toml", help="our settings for solving")
    again = {"action": "append", "default": [], "metavar": "KEY=VALUE"}
    parser.add_argument("--set", **again, help="for our one-pass and native runs")
    parser.add_argument("--native-set", **again, help="for our native run besides")
    parser.add_argument("--ppo-set", **again, help="for our ppo runs")
    parser.add_argument("--solve-set", **again, help="for our solve runs")
    parser.add_argument("--out", type=Path, help="where the JSON goes: results.json beside this file")
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    given.seeds = given.seeds or (2 if given.quick else 5)
    given.seconds = given.seconds or (4.0 if given.quick else 15.0)
    given.warm_up = (1.0 if given.quick else 5.0) if given.warm_up is None else given.warm_up
    given.venvs = given.venvs.resolve()
    given.out = given.out or HERE / "results.json"
    known = {OURS, "stable-baselines3", "cleanrl-loop", "purejaxrl", *PACKAGES} - {"sb3", "atari", "continuous", "sbx"}
    given.peers = {name for name in given.peers.split(",") if name} or known
    given.peers -= set(given.without.split(","))
    if given.peers - known:
        parser.error(
            f"--peers: expected some of {', '.join(sorted(known))}, got {', '.join(sorted(given.peers - known))}"
        )
    given.tables = given.tables.split(",")
    if unknown := set(given.tables) - set(TABLES):
        parser.error(f"--tables: expected some of {', '.join(TABLES)}, got {', '.join(sorted(unknown))}")
    return given


def main() -> None:
    given = arguments()
    names = {one.venv for table in given.tables for row in TABLES[table] for one in contestants(row, given)
             if one.venv and one.name in given.peers}  # fmt: skip
    for name in sorted(names):
        environment(given.venvs, name)
    if given.install:
        return
    began = time.monotonic()
    machine = f"{os.cpu_count()} cores, {processor()}, Linux {platform.release()}, Python {platform.python_version()}"
    all_found: dict[str, Any] = {}
    print(f"{machine}; {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {'quick, ' * given.quick}medians of {given.repeats}\n")
    for table in given.tables:
        found = measured(table, given)
        all_found |= found
        for row, of_row in found.items():
            print(markdown(row, of_row["lines"]) + "\n", flush=True)
        kept = {
            row: {
                "tried": of_row["tried"],
                "summary": {name: summary(row, lines) for name, lines in of_row["lines"].items()},
                "runs": of_row["lines"],
            }
            for row, of_row in all_found.items()
        }
        whole = {
            "machine": machine,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "quick": given.quick,
            "rows": kept,
        }
        given.out.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"{time.monotonic() - began:.0f} s in all; kept in {given.out}")


if __name__ == "__main__":
    main()
