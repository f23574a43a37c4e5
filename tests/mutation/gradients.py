"""Is what a learner learns from the gradient of what is written, whatever is changed in it?

Each mutant of a built-in algorithm, and of every function of `maths` that a loss uses, is put into a copy of the
package (in place), and the algorithm files besides into a module outside of it (as a user's copy). In a process of its
own each is built twice from equal states: one object updates as a learner does, the other one by plain autograd of the
changed file. The first moments of their optimisers, which are the gradients but for a factor, may differ by 1e-5 of
their norm; where several steps follow each other, weights by 1e-3 of the way. Both may end in the same error.

    python tests/mutation/gradients.py --files ppo dqn --sample 20 --list
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mutants import Mutant, defaults_in, mutants
from survivors import forked, is_asked

ROOT = Path(__file__).parents[2]
PACKAGE = "mlxe_async"
NEAR, NEAR_STEPS = 1e-5, 1e-3
LIMIT_S = 300.0


# -- the two ways: all that is known here of how a learner updates --


def learners_way(algorithm: Any) -> Any:
    """What a learner calls `update(batch, clock)` of."""
    return importlib.import_module(f"{PACKAGE}.fast").updates(algorithm)


def plain_way(algorithm: Any) -> Any:
    """What updates by plain autograd of the file as it is written."""
    return algorithm


# -- what is compared --

CASES: dict[str, list[dict[str, Any]]] = {
    "ppo": [
        {"epochs": 1, "minibatch": 60},
        {"epochs": 1, "minibatch": 60, "normalise": False, "entropy": 0.3, "max_gradient_norm": 0.0},
        {"epochs": 1, "minibatch": 60, "minibatches": "sequences", "entropy": 0.3, "max_gradient_norm": 0.0},
        {"epochs": 3, "minibatch": 12, "common": (5,), "max_kl": 0.5},
        {"epochs": 1, "minibatch": 60, "value_clip": 0.1, "kl_penalty_target": 0.01, "value_epochs": 1},
        {"epochs": 1, "minibatch": 60, "annealed": ("clip", "entropy"), "anneal_steps": 5000},
    ],
    "dqn": [
        {},
        {"double": False, "loss": "square", "max_gradient_norm": 0.0},
        {"value_scale": "survival", "average": 0.5, "mirror": False},
    ],
    "mlxe": [
        {},
        {"correction": "none", "value_scale": "survival", "max_gradient_norm": 1.0},
        {"correction": "vtrace", "n_step": 3, "target": "every_k"},
        {"value_scale": "categorical", "atoms": 7, "normalise": True},
    ],
    "sac": [{}, {"layers": (), "n_step": 3, "max_gradient_norm": 0.5, "temperature": 3.0}, {"normalise": True}],
    "td3": [{}, {"layers": (), "n_step": 3, "max_gradient_norm": 0.5, "policy_delay": 1}, {"critic_decay": 0.1}],
    "ddpg": [{}, {"layers": (), "n_step": 3, "max_gradient_norm": 0.5}, {"critic_decay": 0.1, "normalise": True}],
}
CLASSES = {"ppo": "PPO", "dqn": "DQN", "mlxe": "MLxE", "sac": "SAC", "td3": "TD3", "ddpg": "DDPG"}
CONTINUOUS = ("sac", "td3", "ddpg")
STILL = {"layers": (8,), "critic_learning_rate": 1e-30}
"""The actor climbs critics that have just stepped, and Adam steps as far where only rounding gave the direction."""
SMALL = {"ppo": {"policy": (6,), "value": (6,)}, "dqn": {"layers": (8,)}, "mlxe": {"policy": (6,), "value": (6,)}}
SMALL |= dict.fromkeys(CONTINUOUS, STILL)
SIZES = {"realistic": 1.0, "extreme": 1e2}
MATHS = {
    "annealing": ("ppo", "dqn", "mlxe", "td3"),
    "correction": ("mlxe", "ppo"),
    "distributional": ("mlxe",),
    "gradients": ("ppo", "dqn", "mlxe", "sac", "td3"),
    "normaliser": ("ppo", "mlxe", "sac"),
    "returns": ("ppo", "ddpg"),
    "rollouts": ("ppo",),
    "symmetry": ("dqn", "mlxe"),
    "vtrace": ("mlxe",),
}
FILES = {
    **{f"{PACKAGE}/algorithms/{name}.py": (name,) for name in CLASSES if name != "mlxe"},
    f"{PACKAGE}/algorithms/mlxe/paper.py": ("mlxe",),
    **{f"{PACKAGE}/maths/{name}.py": users for name, users in MATHS.items()},
    f"{PACKAGE}/algorithms/mlxe/critics.py": ("mlxe",),
    f"{PACKAGE}/algorithms/parts/on_policy.py": ("ppo",),
    f"{PACKAGE}/algorithms/parts/continuous.py": CONTINUOUS,
}
"""File -> the algorithms whose losses use it."""


def rows_for(name: str, settings: Any, algorithm: Any, size: float, seed: int) -> dict[str, Any]:
    """A batch of made-up rows of a space like CartPole's, or of one with two numbers for actions, as a learner's."""
    import numpy as np

    rng, length = np.random.default_rng(seed), 32
    width = 2 if name == "ppo" else 1
    obs = (size * rng.normal(size=(length + 1, width, 4))).astype(np.float32)
    rows: dict[str, Any] = {one: np.zeros((length, width), np.uint8) for one in ("terminated", "truncated", "cut")}
    rows["terminated"][9, 0] = rows["truncated"][20, -1] = rows["cut"][-1] = 1
    episode = np.zeros((length, width), np.int64)
    episode[10:, 0] += 1
    episode[21:, -1] += 1
    rows |= {"obs": obs[:-1], "next_obs": obs[1:] + np.float32(0.0), "episode": episode}
    if name in CONTINUOUS:
        rows["raw_action"] = rng.normal(size=(length, width, 2)).astype(np.float32)
        rows["action"] = np.float32(2) * np.tanh(rows["raw_action"])
    else:
        rows["action"] = rng.integers(0, 2, (length, width))
    rows["log_prob"] = np.log(rng.uniform(0.05, 0.95, (length, width))).astype(np.float32)
    rows["reward"] = (size * rng.normal(size=(length, width))).astype(np.float32)
    rows["step"] = np.broadcast_to(np.arange(length)[:, None], (length, width)).copy()
    rows["valid"] = np.ones((length, width), bool)
    if name == "ppo":
        rows["valid"][28:, 1] = False
        return rows
    flat = {one: column[:, 0] for one, column in rows.items() if one != "valid"}
    weight = {"weight": rng.uniform(0.2, 1, length).astype(np.float32)}
    if algorithm.window > 1:
        place = np.minimum(np.arange(algorithm.window)[:, None] + np.arange(length), length - 1)
        valid = np.arange(algorithm.window)[:, None] + np.arange(length) < length
        return {one: column[place] for one, column in flat.items()} | weight | {"valid": valid}
    parts, start = [], 0
    for end in (10, 21, length):  # segments are derived one by one, as a memory does
        part = {one: column[start:end] for one, column in flat.items()}
        parts.append(part | algorithm.derive(part))
        start = end
    return {one: np.concatenate([part[one] for part in parts]) for one in parts[0]} | weight


def compared(where: str, name: str) -> Iterator[tuple[str, float, float]]:
    """For each case its name, how far both ways are from each other, and how far they may be.

    Args:
        where: `module:Class`.
        name: of the built-in algorithm, whose cases these are.
    """
    import numpy as np

    algorithms = importlib.import_module(f"{PACKAGE}.algorithms")
    spaces_of = importlib.import_module(f"{PACKAGE}.rows")
    spaces = spaces_of.Spaces((4,), actions=2, symmetry=spaces_of.Symmetry((-1.0,) * 4, (1, 0)))
    if name in CONTINUOUS:
        spaces = spaces_of.Spaces((4,), action_shape=(2,), action_low=(-2.0, -2.0), action_high=(2.0, 2.0))
    cls = algorithms.load_algorithm(where)
    for number, case in enumerate(CASES[name]):
        settings = cls.Settings.model_validate(SMALL[name] | case)
        for label, size in SIZES.items():
            found = [_updated(cls, settings, spaces, way, name, size, number) for way in (learners_way, plain_way)]
            label = f"case {number}, {label}"
            (one, one_error), (other, other_error) = found
            if one_error or other_error:
                yield label, float(one_error != other_error), 0.5
                continue
            several = case.get("epochs", 1) > 1
            for key in ["weights"] if several else sorted(other.keys() - {"weights"}):
                known, other_known = np.isfinite(one[key]), np.isfinite(other[key])
                if (known != other_known).any():
                    yield f"{label}, {key}", float("inf"), NEAR
                    continue
                length = float(np.linalg.norm(other[key][known]))
                apart = float(np.linalg.norm((one[key] - other[key])[known]))
                yield f"{label}, {key}", apart / length if length else apart, NEAR_STEPS if several else NEAR


def _updated(cls: Any, settings: Any, spaces: Any, way: Any, name: str, size: float, seed: int) -> Any:
    """First moments and way of the weights after one update, or the kind of error it ended in."""
    import numpy as np

    algorithms = importlib.import_module(f"{PACKAGE}.algorithms")
    try:
        algorithm = cls(settings, spaces, seed=1, learns=True)
        fresh = algorithm.weights()
        algorithm.set_weights(fresh + np.random.default_rng(5).normal(0, 0.1, fresh.shape).astype(np.float32))
        batch, start = rows_for(name, settings, algorithm, size, seed), algorithm.weights().astype(np.float64)
        way(algorithm).update(batch, algorithms.Clock(env_steps=700, episodes=3, updates=0, version=1))
        state = {name: array.astype(np.float64) for name, array in algorithm.state().items() if "first_moment" in name}
        return {**state, "weights": algorithm.weights() - start}, ""
    except Exception as error:  # noqa: BLE001 - a mutant may break anything; both ways must break alike
        return {}, type(error).__name__


# -- one learner's process for each mutant --


class Tree:
    """A copy of the package in a temporary folder, and beside it a folder of a user's own modules."""

    def __init__(self, folder: Path) -> None:
        self.root, self.own = folder / "site", folder / "own"
        shutil.copytree(ROOT / PACKAGE, self.root / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        self.own.mkdir()
        compileall.compile_dir(self.root, quiet=1)
        for file in FILES:  # whose text changes: nothing may be left of them
            for compiled in (self.root / file).parent.glob(f"__pycache__/{Path(file).stem}.*"):
                compiled.unlink()

    def compare(self, one: Mutant, as_copy: bool) -> dict[str, Any]:
        """Put the mutant there, and compare both ways in a child."""
        path, name = self.root / one.file, Path(one.file).stem
        original, copy = path.read_text(), self.own / f"own_{name}.py"
        (copy if as_copy else path).write_text(one.source)
        where = {user: f"own_{name}:{CLASSES[user]}" if as_copy else user for user in FILES[one.file]}
        report = self.own / "report.json"
        report.unlink(missing_ok=True)

        def work(_: Callable[..., None]) -> None:
            sys.dont_write_bytecode = True
            sys.path[:0] = [str(self.root), str(self.own)]
            import warnings

            warnings.simplefilter("ignore")  # extreme rows overflow; that both do so alike is what is looked at
            try:
                lines = [(u, *line) for u in FILES[one.file] for line in compared(where[u], u)]
            except Exception as error:  # noqa: BLE001 - a mutant that cannot be imported or built is refused, not wrong
                lines = [("", f"{type(error).__name__}: {error}"[:300], 0.0, 0.5)]
            here = importlib.import_module(f"{PACKAGE}").__file__
            if Path(str(here)).parent != self.root / PACKAGE:
                raise RuntimeError(f"gradients: the package was imported from {here}, expected below {self.root}")
            report.write_text(json.dumps(lines))

        try:
            verdict = forked(work, LIMIT_S)
        finally:
            path.write_text(original)
            copy.unlink(missing_ok=True)
        if verdict.outcome == "late":
            return {"late": True, "lines": []}
        return {"late": False, "lines": json.loads(report.read_text())}


def show(one: Mutant, kind: str, lines: Sequence[Any]) -> None:
    print(f"{one.file}:{one.line} {kind} {one.kind}\n    - {one.before}\n    + {one.after}")
    for user, label, apart, near in lines:
        print(f"      {user} {label}: {apart:.1e} apart, expected at most {near:.0e}")


def main() -> int:
    """Compare, list and count."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--files", nargs="+", default=[""], metavar="PART", help="files with one of these in their path"
    )
    parser.add_argument("--sample", type=int, help="only so many mutants, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print each mutant that differs")
    options = parser.parse_args()
    defaults = defaults_in(ROOT / PACKAGE)
    asked = [
        (one, kind)
        for file in FILES
        if any(part in file for part in options.files)
        for one in mutants(ROOT / file, name=file, defaults=defaults)
        if is_asked(one)
        for kind in (("in place", "as a copy") if Path(file).stem in CLASSES else ("in place",))
    ]
    if not asked:
        parser.error(f"--files: expected a part of one of {', '.join(FILES)}; got {' '.join(options.files)}")
    if options.sample is not None and options.sample < len(asked):
        asked = random.Random(options.seed).sample(asked, options.sample)  # noqa: S311 - a sample, no secret
    began, counts, worst = time.monotonic(), dict[tuple[str, str], list[int]](), 0
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT]
    os.environ.pop("PYTHONPATH", None)
    import numpy as np  # noqa: F401 - once, for all children
    import pydantic  # noqa: F401 - once, for all children
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gradients-") as folder:
        tree = Tree(Path(folder))
        for file in [file for file, users in FILES.items() if Path(file).stem in users]:  # rounding, without a mutant
            source = (ROOT / file).read_text()
            for as_copy in (True, False):
                lines = tree.compare(Mutant(file, 0, "", "unchanged", "", "", source), as_copy=as_copy)["lines"]
                kind, most = "as a copy" if as_copy else "in place", max(line[2] / line[3] for line in lines)
                print(f"{file} unchanged, {kind}: at most {most:.2f} of what is allowed")
                if not as_copy and not most:
                    raise RuntimeError(
                        f"gradients: expected the fast twin to do {file}'s updates, and rounding to show"
                    )
        for one, kind in asked:
            found = tree.compare(one, kind == "as a copy")
            wrong = [line for line in found["lines"] if not line[2] <= line[3]]
            row = counts.setdefault((one.file, kind), [0, 0, 0])
            row[0] += 1
            row[1] += bool(wrong)
            row[2] += found["late"]
            worst += bool(wrong) or found["late"]
            if options.list and (wrong or found["late"]):
                show(one, kind, wrong)
    print(f"\n{'file':42}{'':12}{'compared':>9}{'differ':>8}{'late':>6}")
    for (file, kind), row in counts.items():
        print(f"{file:42}{kind:12}{row[0]:9}{row[1]:8}{row[2]:6}")
    print(f"\n{len(asked)} mutants compared in {time.monotonic() - began:.0f} s, {worst} differ or were late")
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
