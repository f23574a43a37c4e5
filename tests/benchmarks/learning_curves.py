"""Learning curves of presets, drawn from the logs of real runs: `python tests/benchmarks/learning_curves.py`.

    python tests/benchmarks/learning_curves.py                                makes the runs, draws the page's picture
    python tests/benchmarks/learning_curves.py --seeds 5 --steps 60000        more of them, and longer ones
    python tests/benchmarks/learning_curves.py --out a.svg ppo=RUN,RUN dqn=RUN    draws runs that there are

Of each preset the line is the mean over its seeds of the return of the last episodes, the band goes from the lowest
seed to the highest. Each seed is a run of the file as it is, but for the limit of steps: it goes on where tests would
have ended it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import html
import sys
import tempfile
from pathlib import Path

import numpy as np

from mlxe_async import Supervisor, load_settings, read_log

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "settings" / "curves.svg"
PRESETS = ("ppo-cartpole", "dqn-cartpole", "a2c-cartpole", "impala-cartpole")
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee")
POINTS, LAST = 80, 20  # places of a curve, and episodes of which each is a mean
WIDTH, HEIGHT, LEFT, TOP, BELOW = 860, 300, 56, 30, 40


def curve_of(lines, grid):
    """Mean return of the last episodes at each place of a grid of environment steps; NaN before the first."""
    ended = [one for one in lines if one["event"] == "episode_end" and one["episode_return"] is not None]
    if not ended:
        raise ValueError("expected the log of a run with episodes, got one without")
    steps, returns = (np.array([one[key] for one in ended], float) for key in ("env_steps", "episode_return"))
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    counts = np.searchsorted(steps, grid, side="right")
    first = np.maximum(0, counts - LAST)
    with np.errstate(invalid="ignore"):
        return (sums[counts] - sums[first]) / (counts - first)


def ticks_of(low, high):
    """Some four to eight round numbers from the one to the other."""
    step = 10 ** np.floor(np.log10(high - low))
    step = next(one for one in (step, step / 2, step / 4, step / 5) if (high - low) / one >= 4)
    return [step * number for number in range(int(np.ceil(low / step - 1e-9)), int(high / step + 1e-9) + 1)]


def picture(curves, grid, about):
    """The picture.

    Args:
        curves: name -> means (seeds, places).
        grid: environment steps (places,).
        about: a sentence below it.
    """
    known = np.concatenate([one[np.isfinite(one)] for one in curves.values()])
    low, high = min(0.0, float(known.min())), max(0.0, float(known.max()))
    low, high = low - 0.04 * (high - low) * (low < 0), high + 0.04 * (high - low)
    inner = WIDTH - LEFT - 12, HEIGHT - TOP - BELOW

    def at(step, value):
        return f"{LEFT + inner[0] * step / grid[-1]:.1f} {TOP + inner[1] * (high - value) / (high - low):.1f}"

    drawn = []
    for tick in ticks_of(low, high):
        drawn.append(f'<path d="M{at(0, tick)}L{at(grid[-1], tick)}" stroke="#ddd"/>')
        drawn.append(
            f'<text x="{LEFT - 6}" y="{float(at(0, tick).split()[1]) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in ticks_of(0.0, grid[-1]):
        x = at(tick, low).split()[0]
        drawn.append(f'<text x="{x}" y="{HEIGHT - BELOW + 16}" text-anchor="middle">{tick:,.0f}</text>')
    for number, (name, runs) in enumerate(curves.items()):
        colour, whole = COLOURS[number % len(COLOURS)], np.isfinite(runs).all(axis=0)
        there, band = grid[whole], runs[:, whole]
        above = [at(*one) for one in zip(there, band.max(axis=0), strict=True)]
        below = [at(*one) for one in zip(there, band.min(axis=0), strict=True)]
        middle = [at(*one) for one in zip(there, band.mean(axis=0), strict=True)]
        drawn.append(f'<path d="M{"L".join([*above, *below[::-1]])}Z" fill="{colour}" fill-opacity="0.18"/>')
        drawn.append(f'<path d="M{"L".join(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x = LEFT + 150 * number
        drawn.append(f'<path d="M{x} 14h18" stroke="{colour}" stroke-width="3"/>')
        drawn.append(f'<text x="{x + 24}" y="18">{html.escape(name)} ({len(runs)})</text>')
    drawn.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">environment steps; {html.escape(about)}</text>')
    style = 'font-family="sans-serif" font-size="12" fill="#333"'
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style} role="img">'
    title = "<title>Returns of training episodes by environment steps, with bands over seeds</title>"
    return "\n".join([head, title, back, *drawn, "</svg>"]) + "\n"


def made(preset, seed, steps, folder):
    """The lines of a run of a preset."""
    told = {"run.seed": seed, "stop.env_steps": steps, "stop.solved": False}
    told |= {"checkpoint.interval_s": 0, "logs.progress": False}
    settings = load_settings(str(ROOT / "settings" / f"{preset}.toml"), told)
    return [*read_log(Supervisor(settings, run_dir=folder).run_sync().run_dir)]


def main():
    parser = argparse.ArgumentParser(description="Draw learning curves with bands over seeds.")
    parser.add_argument(
        "runs", nargs="*", metavar="NAME=RUN[,RUN ...]", help="runs that there are, instead of new ones"
    )
    parser.add_argument("--presets", nargs="+", default=PRESETS, metavar="NAME", help="files of settings/")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each preset")
    parser.add_argument("--steps", type=int, default=8_000, metavar="N", help="environment steps of each run at most")
    parser.add_argument("--out", type=Path, default=PICTURE, metavar="FILE.svg", help="the picture")
    asked = parser.parse_args()
    if asked.runs:
        found = dict(one.split("=", 1) for one in asked.runs)
        logs = {name: [[*read_log(run)] for run in runs.split(",")] for name, runs in found.items()}
    else:
        logs = {}
        for preset in asked.presets:
            logs[preset] = []
            for seed in range(asked.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    logs[preset].append(made(preset, seed, asked.steps, folder))
                ends = [one for one in logs[preset][-1] if one["event"] == "run_end"]
                print(f"{preset} seed {seed}: {ends[-1]['env_steps']:,} steps, {ends[-1]['seconds']:.0f} s", flush=True)
    ended = [one["env_steps"] for runs in logs.values() for run in runs for one in run if one["event"] == "episode_end"]
    grid = np.linspace(0.0, max(ended), POINTS)
    curves = {name: np.stack([curve_of(run, grid) for run in runs]) for name, runs in logs.items()}
    day = dt.datetime.now(dt.UTC).strftime("%d %B %Y")
    about = f"mean return of the last {LAST} episodes; line: mean of the seeds, band: lowest to highest; {day}"
    asked.out.write_text(picture(curves, grid, about))
    print(f"{asked.out}: {asked.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
