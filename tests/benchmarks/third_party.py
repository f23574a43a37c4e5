"""Environments of other packages at the first try: `python tests/benchmarks/third_party.py --venvs FOLDER [NAME ...]`.

Each package has a virtual environment of its own in FOLDER, made by the first call, which sees what is installed
beside this program. A case is a settings file of `[task]`, `[algorithm] name` and a budget: at most 100,000 environment
steps and `--seconds`. What came of it is a line of `results/third_party.jsonl`; what is there is not run again, so the
command may be stopped at any time. `--show` only prints the table, `--again` runs the named cases anew.

| outcome | |
|---|---|
| learned | the mean return of the last tenth of the episodes is above that of the first by three standard errors |
| runs | it came to its budget, with rows that were learned from, or too few of them for an update |
| refused | exit code 2 and a line that names the key |
| traceback | one was printed |
| hang | no end within the budget and three minutes |
| failed | it ended in any other way |
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recorded import RESULTS, Record, append

HERE = Path(__file__).parent
STEPS = 100_000
SECONDS = 60.0
GRACE_S = 180.0
NICENESS = 10
LEAST_EPISODES = 20
ERRORS = 3.0

PACKAGES = {
    "anytrading": ("gym-anytrading==2.0.0",),
    "bsuite": ("bsuite==0.3.6", "shimmy==2.0.1"),
    "crafter": ("crafter==1.8.3",),
    "dm_control": ("dm-control==1.0.30", "mujoco==3.3.2", "shimmy==2.0.1", "imageio"),
    "flappy-bird": ("flappy-bird-gymnasium==0.4.0",),
    "gym-sokoban": ("gym-sokoban==0.0.6", "setuptools<80"),
    "gymnasium-robotics": ("gymnasium-robotics==1.4.2", "mujoco==3.3.0"),
    "gymnax": ("gymnax==1.0.1", "six"),
    "highway-env": ("highway-env==1.12.1",),
    "mario": ("gym-super-mario-bros==7.4.0",),
    "metaworld": ("metaworld==3.1.1",),
    "minatar": ("minatar==1.0.15",),
    "minigrid": ("minigrid==3.2.0",),
    "miniworld": ("miniworld==2.1.0",),
    "mo-gymnasium": ("mo-gymnasium==1.3.2",),
    "nle": ("nle==1.3.0",),
    "panda-gym": ("panda-gym==3.0.7",),
    "pettingzoo": ("pettingzoo==1.27.0", "pygame==2.6.1"),
    "popgym": ("popgym==1.0.7",),
    "simplegrid": ("gym-simplegrid==1.1.0",),
    "tetris": ("tetris-gymnasium==0.3.1",),
    "vizdoom": ("vizdoom==1.3.2",),
    "ours": (),
}
"""Virtual environment -> what is installed into it."""


class Case(NamedTuple):
    """A settings file.

    Args:
        package: the virtual environment.
        env: `[task] env`.
        algorithm: its name.
        task: further lines of `[task]`.
    """

    package: str
    env: str
    algorithm: str = "ppo"
    task: str = ""

    @property
    def name(self) -> str:
        """As the command line and the table have it."""
        return " ".join(filter(None, (self.env, self.algorithm, self.task)))

    def settings(self, folder: str, seconds: float) -> str:
        """The file."""
        return (
            f"[run]\ndir = '{folder}'\npython_path = ['{HERE}']\n[stop]\nenv_steps = {STEPS}\nseconds = {seconds}\n"
            f"[task]\nenv = '{self.env}'\n{self.task}\n[algorithm]\nname = '{self.algorithm}'\n"
        )


def world(name: str, /, **kwargs: str) -> tuple[str, str]:
    """`[task] env` of an adapter, and the line of its arguments."""
    given = ", ".join(f"{key} = '{value}'" for key, value in kwargs.items())
    return f"adapted_worlds:{name}", f"kwargs = {{ {given} }}" if given else ""


def adapted(package: str, algorithm: str, name: str, more: str = "", /, **kwargs: str) -> Case:
    """A case of an adapter."""
    env, line = world(name, **kwargs)
    return Case(package, env, algorithm, "\n".join(filter(None, (line, more))))


CASES = (
    Case("minigrid", "MiniGrid-Empty-5x5-v0"),
    Case("minigrid", "MiniGrid-Empty-5x5-v0", task='observe = ["image", "direction"]'),
    Case("minigrid", "MiniGrid-DoorKey-5x5-v0", "dqn", 'observe = ["image", "direction"]'),
    Case("minigrid", "BabyAI-GoToRedBallGrey-v0", task='observe = ["image", "direction"]'),
    Case("highway-env", "highway-fast-v0", "dqn"),
    Case("highway-env", "merge-v0"),
    Case("highway-env", "roundabout-v0"),
    Case("highway-env", "parking-v0", "sac"),
    Case("flappy-bird", "FlappyBird-v0"),
    Case("flappy-bird", "FlappyBird-v0", "dqn", "kwargs = { use_lidar = false }"),
    adapted("crafter", "ppo", "Crafter"),
    Case("crafter", "CrafterReward-v1"),
    Case("popgym", "popgym-RepeatPreviousEasy-v0"),
    Case("popgym", "popgym-MultiarmedBanditEasy-v0"),
    Case("popgym", "popgym-HigherLowerEasy-v0", "dqn"),
    Case("popgym", "popgym-MineSweeperEasy-v0"),
    Case("popgym", "popgym-PositionOnlyPendulumEasy-v0"),
    Case("bsuite", "bsuite/catch-v0"),
    Case("bsuite", "bsuite/bandit-v0"),
    Case("bsuite", "bsuite/deep_sea-v0", "dqn"),
    Case("bsuite", "bsuite/deep_sea-v0", "dqn", "kwargs = { size = 5 }"),
    Case("bsuite", "bsuite/discounting_chain-v0"),
    Case("gymnasium-robotics", "FetchReach-v4", "sac"),
    Case("gymnasium-robotics", "FetchPushDense-v4", "td3"),
    Case("gymnasium-robotics", "PointMaze_UMazeDense-v3"),
    Case("gymnasium-robotics", "AdroitHandDoor-v1"),
    Case("gymnasium-robotics", "FrankaKitchen-v1", "sac"),
    Case("panda-gym", "PandaReach-v3", "sac"),
    Case("panda-gym", "PandaReachDense-v3"),
    Case("panda-gym", "PandaPushDense-v3", "td3"),
    Case("anytrading", "stocks-v0"),
    Case("anytrading", "forex-v0", "dqn"),
    Case("mo-gymnasium", "deep-sea-treasure-v0"),
    adapted("mo-gymnasium", "ppo", "Scalarised", name="deep-sea-treasure-v0"),
    adapted("mo-gymnasium", "dqn", "Scalarised", name="resource-gathering-v0"),
    Case("minatar", "MinAtar/Breakout-v1", "dqn"),
    Case("minatar", "MinAtar/Freeway-v1"),
    Case("ours", "ALE/Pong-v5"),
    Case("vizdoom", "VizdoomBasic-v1"),
    Case("vizdoom", "VizdoomHealthGathering-v1", "ppo", 'observe = ["screen"]'),
    Case("nle", "NetHackScore-v0"),
    Case("nle", "NetHackStaircase-v0", "ppo", 'observe = ["blstats", "glyphs"]'),
    adapted("gymnax", "ppo", "Gymnax", name="Catch-bsuite"),
    adapted("gymnax", "dqn", "Gymnax", name="Breakout-MinAtar"),
    adapted("pettingzoo", "ppo", "AgainstChance", "action_mask = true", game="tictactoe_v3"),
    adapted("pettingzoo", "ppo", "AgainstChance", "action_mask = true", game="connect_four_v3"),
    Case("metaworld", "Meta-World/MT1", "sac", 'kwargs = { env_name = "reach-v3" }'),
    Case("metaworld", "Meta-World/goal_observable", "sac", 'kwargs = { env_name = "reach-v3" }'),
    Case("simplegrid", "SimpleGrid-8x8-v0"),
    Case("simplegrid", "SimpleGrid-4x4-v0", "q_learning"),
    Case("tetris", "tetris_gymnasium/Tetris"),
    Case("dm_control", "dm_control/cartpole-swingup-v0", "sac"),
    Case("dm_control", "dm_control/reacher-easy-v0"),
    Case("gym-sokoban", "Sokoban-v0"),
    Case("mario", "SuperMarioBros-v0"),
    Case("miniworld", "MiniWorld-Hallway-v0"),
    adapted("ours", "ppo", "Stateless"),
    adapted("ours", "dqn", "Stateless"),
)
HEAD = ("package", "settings", "outcome", "steps", "updates", "return, first and last episodes", "what was said")


# -- virtual environments ----------------------------------------------------------------------------------------------


def environment(folder: Path, name: str) -> Path:
    """The python of a package's virtual environment, made if it is not there; it sees what is installed here."""
    if not PACKAGES[name]:
        return Path(sys.executable)
    made = folder / name
    python, done = made / "bin" / "python", made / "installed.txt"
    if done.exists() and done.read_text().split("\n") == list(PACKAGES[name]):
        return python
    print(f"installing {', '.join(PACKAGES[name])} into {made} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    here = next(path for path in sys.path if path.endswith("site-packages"))
    mine = next((made / "lib").glob("python*/site-packages"))
    (mine / "shared.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True)
    done.write_text("\n".join(PACKAGES[name]))
    return python


# -- runs --------------------------------------------------------------------------------------------------------------


def done(case: Case, folder: Path, seconds: float) -> Record:
    """Run one case, and tell how it came out."""
    python = environment(folder, case.package)
    about: Record = {"case": case.name, "package": case.package, "seconds": seconds}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mlxe-third-party-") as runs:
        file = Path(runs, "case.toml")
        file.write_text(case.settings(runs, seconds))
        words = [str(python), "-m", "mlxe_async", str(file), "--no-progress"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy", "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(words, cwd=runs, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                out, _ = process.communicate(timeout=seconds + GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return about | {"outcome": "hang", "said": f"no end after {seconds + GRACE_S:g} s"}
            except BaseException:
                process.send_signal(signal.SIGINT)
                raise
        text = out.decode(errors="replace").replace(f"{file}:", "").replace(runs, "RUNS")
        log = [json.loads(line) for path in Path(runs).glob("2*/log.jsonl") for line in path.read_text().splitlines()]
    about |= _learning(log) | {"lived": round(time.monotonic() - began, 1), "code": process.returncode}
    said = text.strip().splitlines()
    about["said"] = re.sub(r"^\d+: ", "", said[-1])[:400] if said else ""
    return about | {"outcome": _outcome(text, about)}


def _learning(log: Sequence[dict[str, Any]]) -> Record:
    """Steps, updates, and whether the returns rose."""
    returns = [line["episode_return"] for line in log if line["event"] == "episode_end"]
    ended = next((line for line in reversed(log) if line["event"] == "run_end"), {})
    told: Record = {
        "episodes": len(returns),
        "steps": ended.get("env_steps", 0),
        "updates": ended.get("updates", 0),
        "warnings": [line["message"] for line in log if line["event"] == "warning"],
    }
    count = max(LEAST_EPISODES // 2, len(returns) // 10)
    if len(returns) < LEAST_EPISODES:
        return told | {"first": None, "last": None, "rose": False}
    first, last = returns[:count], returns[-count:]
    error = math.hypot(*(statistics.stdev(part) / math.sqrt(count) for part in (first, last)))
    means = statistics.fmean(first), statistics.fmean(last)
    return told | {
        "first": round(means[0], 3),
        "last": round(means[1], 3),
        "rose": means[1] - means[0] > ERRORS * error,
    }


def _outcome(text: str, about: Record) -> str:
    if "Traceback (most recent call last)" in text:
        return "traceback"
    if about["code"] == 0:
        return "learned" if about["rose"] else "runs"
    return "refused" if about["code"] == 2 and re.search(r"\b[a-z]+\.[a-z_]+: ", about["said"]) else "failed"


# -- table -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Record]:
    """The newest record of each case."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["case"]: record for record in map(json.loads, lines)}


def table(records: dict[str, Record]) -> Iterator[str]:
    """The lines of the table, and how many cases came to what."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"| {' | '.join(['---'] * len(HEAD))} |"
    found = [(case, records[case.name]) for case in CASES if case.name in records]
    for case, record in found:
        returns = "" if record.get("first") is None else f"{record['first']:g}, {record['last']:g}"
        said = record["said"].replace("|", "\\|") if record["outcome"] not in ("learned", "runs") else ""
        counts = (f"{record.get('steps') or 0:,}", f"{record.get('updates') or 0:,}")
        yield f"| {' | '.join((case.package, f'`{_line(case)}`', record['outcome'], *counts, returns, said))} |"
    counted = Counter(record["outcome"] for _, record in found)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counted.most_common())
    packages = len({case.package for case, _ in found})
    yield ""
    short = sum(record["outcome"] == "runs" and not record["updates"] for _, record in found)
    yield f"{len(found)} of {len(CASES)} cases of {packages} packages: {told}; {short} had no time for an update."


def _line(case: Case) -> str:
    return case.name.replace("\n", " ").replace("|", "\\|")


def main(words: Sequence[str]) -> int:
    """Do what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of the names of cases; left out, all")
    parser.add_argument("--venvs", type=Path, help="folder for the packages' virtual environments")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each run, at most 300")
    parser.add_argument("--results", type=Path, default=RESULTS / "third_party.jsonl", help="where is kept what came")
    parser.add_argument("--again", action="store_true", help="also what is recorded")
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    if not asked.show and asked.venvs is None:
        parser.error("expected --venvs FOLDER, or --show")
    records = read(asked.results)
    chosen = [case for case in CASES if not asked.names or any(name in case.name for name in asked.names)]
    if not asked.show:
        os.nice(NICENESS)
        for number, case in enumerate(chosen, 1):
            if case.name in records and not asked.again:
                continue
            records[case.name] = record = done(case, asked.venvs.absolute(), min(asked.seconds, 300.0))
            append(asked.results, record)
            print(f"{number} of {len(chosen)}  {case.package}: {_line(case)}: {record['outcome']}", flush=True)
            print(f"    {record['said']}", flush=True)
    told = "\n".join(table(records)) + "\n"
    asked.results.with_suffix(".md").write_text(told)
    sys.stdout.write(told)
    return int(any(record["outcome"] in ("traceback", "hang", "failed") for record in records.values()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no folder is left behind
    sys.exit(main(sys.argv[1:]))
