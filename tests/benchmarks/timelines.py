"""Who waits for whom, drawn from the logs of real runs: a moment of a short run under each schedule.

    python tests/benchmarks/timelines.py                                   makes the runs, draws the page's picture
    python tests/benchmarks/timelines.py --out a.svg is=RUN oa=RUN         draws runs that there are

Each bar is a phase that the log tells, from its `start_ns` on for its `seconds`: nothing is drawn that did not happen.
"""

from __future__ import annotations

import argparse
import html
import sys
import tempfile
from pathlib import Path

from mlxe_async.logs.reader import read_log

PICTURE = Path(__file__).parents[2] / "mlxe_async" / "schedules" / "timelines.svg"
KINDS = {
    "serial": "serial: one process, in order",
    "is": "is: all wait for all",
    "ia": "ia: all wait for the slowest, who is faster goes again",
    "oa": "oa: no process waits",
}
COLOURS = {
    "generate": "#4477aa",
    "memorize": "#ccbb44",
    "learn": "#ee6677",
    "publish": "#228833",
    "evaluate": "#aa3377",
}
WIDTH, LEFT, BAR, GAP, HEAD = 860, 92, 14, 5, 26
LEAST_PX = 0.6
SETTINGS = {
    "task": {"env": "CartPole-v1"},
    "algorithm": {"name": "ppo", "epochs": 2, "minibatch": 128},
    "stop": {"env_steps": 20_000},
    "evaluation": {"enabled": False},
    "checkpoint": {"interval_s": 0},
}
ROLLOUTS = {"executors": 2, "sync": "episode"}
WINDOW_S = 1.2


def bars_of(lines):
    """Lane -> phases as (begin, end, name) in seconds since the first of them; lanes in the order of the page."""
    phases = [line for line in lines if line["event"] == "phase" and line["phase"] in COLOURS]
    if not phases:
        raise ValueError("expected the log of a run that did something, got one without phases")
    zero = min(line["start_ns"] for line in phases)
    found = {}
    for line in phases:
        role = "learner" if line["role"] == "memorizer" else line["role"]  # they share a process
        begin = (line["start_ns"] - zero) / 1e9
        lane = role if line["idx"] is None else f"{role} {line['idx']}"
        found.setdefault(lane, []).append((begin, begin + line["seconds"], line["phase"]))
    order = ("executor", "learner", "evaluator")
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0].split()[0]), item[0])))


def window_of(lanes, seconds):
    """A moment in the middle of a run, from the beginning of a rollout on: the start and the end are like no other."""
    last = max(end for bars in lanes.values() for _, end, _ in bars)
    rollouts = sorted(begin for bars in lanes.values() for begin, _, name in bars if name == "generate")
    begin = next((one for one in rollouts if one >= last / 2), 0.0)
    return begin, begin + seconds


def picture(runs):
    """SVG of several runs, one below the other: title -> (lanes, window)."""
    parts, y = [], 8
    for title, (lanes, (begin, end)) in runs.items():
        parts.append(f'<text x="0" y="{y + 12}" class="title">{html.escape(title)}</text>')
        parts.append(f'<text x="{WIDTH}" y="{y + 12}" text-anchor="end">{1000 * (end - begin):.0f} ms</text>')
        y += HEAD
        scale = (WIDTH - LEFT) / (end - begin)
        for lane, bars in lanes.items():
            parts.append(f'<text x="0" y="{y + BAR - 3}">{html.escape(lane)}</text>')
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT}" height="{BAR}" class="lane"/>')
            for first, last, name in bars:
                if last > begin and first < end:
                    x, right = max(first, begin), min(last, end)
                    width = max((right - x) * scale, LEAST_PX)
                    parts.append(
                        f'<rect x="{LEFT + (x - begin) * scale:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" '
                        f'fill="{COLOURS[name]}"/>'
                    )
            y += BAR + GAP
        y += GAP
    x = LEFT
    for name, colour in COLOURS.items():
        if any(name == bar[2] for lanes, _ in runs.values() for bars in lanes.values() for bar in bars):
            parts.append(f'<rect x="{x}" y="{y}" width="{BAR}" height="{BAR}" fill="{colour}"/>')
            parts.append(f'<text x="{x + BAR + 5}" y="{y + BAR - 3}">{name}</text>')
            x += 110
    style = "text{font:12px sans-serif;fill:#666}.title{font-weight:bold}.lane{fill:#888;opacity:.15}"
    style += "@media(prefers-color-scheme:dark){text{fill:#aaa}}"
    size = f'viewBox="0 0 {WIDTH} {y + BAR + 8}" width="{WIDTH}" height="{y + BAR + 8}"'
    about = "Phases of real runs under each schedule"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{about}"><style>{style}</style>'
    return "\n".join([head, *parts, "</svg>", ""])


def made(folder):
    """A short run under each schedule; kind -> its folder."""
    from mlxe_async import Supervisor, load_settings

    found = {}
    for kind in KINDS:
        chosen = load_settings({**SETTINGS, "schedule": {"kind": kind, **ROLLOUTS}, "run": {"name": kind}})
        found[kind] = Supervisor(chosen, run_dir=folder).run_sync().run_dir
    return found


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="KIND=RUN")
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = dict(one.split("=", 1) for one in asked.runs) or made(folder)
        drawn = {}
        for kind, run in runs.items():
            lanes = bars_of(read_log(run))
            drawn[KINDS[kind]] = lanes, window_of(lanes, WINDOW_S)
    asked.out.write_text(picture(drawn))
    print(f"{asked.out}: {len(drawn)} runs")


if __name__ == "__main__":
    main(sys.argv[1:])
