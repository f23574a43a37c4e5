"""What a run consists of, drawn from the log of a real one: its processes, what they share, and how much went where.

python tests/benchmarks/architecture.py                      makes a short run under oa, draws the page's picture
python tests/benchmarks/architecture.py RUN --out a.svg      draws a run that there is
"""

from __future__ import annotations

import argparse
import html
import sys
import tempfile
from pathlib import Path

from mlxe_async.logs.reader import read_log

PICTURE = Path(__file__).parents[2] / "mlxe_async" / "schedules" / "architecture.svg"
SETTINGS = {
    "run": {"name": "architecture"},
    "task": {"env": "CartPole-v1"},
    "algorithm": {"name": "mlxe"},
    "schedule": {"kind": "oa", "executors": 2, "memorizer": "own"},
    "evaluation": {"enabled": True, "interval_steps": 1000},
    "stop": {"env_steps": 4_000},
}
WIDTH, BOX, HIGH, ROW = 860, 168, 46, 70
PROCESS, MEMORY = "#4477aa", "#228833"


def counts_of(lines):
    """How much each took part: rows of each executor, rows kept, updates, versions, tests; and seconds in all.

    Raises:
        ValueError: it is no log of a run that began.
    """
    found = {"executors": {}, "updates": 0, "versions": 0, "tests": 0, "kept": 0, "has_memorizer": False}
    last = None
    for line in lines:
        last = line["mono_ns"]
        found.setdefault("began", last)
        match line["event"]:
            case "run_start":
                found["what"] = f"{line['algorithm']} on {line['env']}, {line['schedule']}"
            case "proc_start":
                found["has_memorizer"] |= line["process"] == "mlxe-mem"
            case "phase" if line["phase"] == "generate":
                found["executors"][line["idx"]] = found["executors"].get(line["idx"], 0) + line["rows"]
            case "phase" if line["phase"] == "learn":
                found["updates"] += line["updates"]
            case "weights":
                found["versions"] = line["version"]
            case "evaluation":
                found["tests"] += 1
            case "ledger":
                found["kept"] = line["kept"]
    if last is None or "what" not in found:
        raise ValueError("expected the log of a run, got one without its first line")
    return found | {"seconds": (last - found["began"]) / 1e9}


def picture(told):
    """SVG: executors to the left, lanes, the memory, the learner, the weights and back; the supervisor above all."""
    executors = sorted(told["executors"].items())
    middle = 70 + ROW * (len(executors) - 1) / 2
    height = int(70 + ROW * max(len(executors), 2) + 60)
    x = {"executor": 0, "lane": 205, "memory": 350, "learner": 522, "weights": 692}
    parts = [
        f'<text x="0" y="16" class="title">{html.escape(told["what"])}: {told["seconds"]:.0f} s</text>',
        '<text x="0" y="34">a supervisor starts, watches and stops all processes, by short messages; it tells the log'
        "</text>",
    ]

    def box(left, top, width, title, words, colour):
        parts.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{HIGH}" rx="6" fill="none" stroke="{colour}"/>'
        )
        parts.append(f'<text x="{left + 8}" y="{top + 19}" class="title">{title}</text>')
        parts.append(f'<text x="{left + 8}" y="{top + 36}">{words}</text>')

    def arrow(x1, y1, x2, y2):
        parts.append(f'<path d="M{x1} {y1} L{x2} {y2}" marker-end="url(#tip)" class="way"/>')

    for number, (idx, rows) in enumerate(executors):
        top = 50 + ROW * number
        box(x["executor"], top, BOX, f"executor {idx}", f"{rows:,} steps", PROCESS)
        arrow(BOX, top + HIGH / 2, x["lane"] - 4, top + HIGH / 2)
        box(x["lane"], top, 100, f"lane {idx}", "blocks of rows", MEMORY)
        arrow(x["lane"] + 100, top + HIGH / 2, x["memory"] - 4, middle + HIGH / 2 - 20)
    top = middle - 20
    taker = "memorizer" if told["has_memorizer"] else "memory"
    box(x["memory"], top, 130, taker, f"{told['kept']:,} rows kept", PROCESS)
    arrow(x["memory"] + 130, top + HIGH / 2, x["learner"] - 4, top + HIGH / 2)
    box(x["learner"], top, 130, "learner", f"{told['updates']:,} updates", PROCESS)
    arrow(x["learner"] + 130, top + HIGH / 2, x["weights"] - 4, top + HIGH / 2)
    box(x["weights"], top, BOX, "weights", f"{told['versions']:,} versions", MEMORY)
    below = 50 + ROW * max(len(executors), 2)
    if told["tests"]:
        box(x["weights"], below + 14, BOX, "evaluator", f"{told['tests']:,} tests", PROCESS)
        arrow(x["weights"] + BOX / 2, top + HIGH, x["weights"] + BOX / 2, below + 10)
    back = below - 4
    parts.append(
        f'<path d="M{x["weights"] + 20} {top + HIGH} V{back} H{BOX / 2} V{below - 20}" marker-end="url(#tip)" '
        'class="way"/>'
    )
    parts.append(f'<text x="{BOX}" y="{back + 16}">each rollout begins with the newest version</text>')
    style = "text{font:12px sans-serif;fill:#666}.title{font-weight:bold}.way{fill:none;stroke:#888}"
    style += "@media(prefers-color-scheme:dark){text{fill:#aaa}}"
    tip = '<marker id="tip" markerWidth="8" markerHeight="8" refX="5" refY="4" orient="auto">'
    tip += '<path d="M0 0 L6 4 L0 8" fill="none" stroke="#888"/></marker>'
    size = f'viewBox="0 0 {WIDTH + 2} {height + 20}" width="{WIDTH + 2}" height="{height + 20}"'
    about = "Processes of a run and the memory that they share"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{about}">'
    return "\n".join([f"{head}<style>{style}</style><defs>{tip}</defs>", *parts, "</svg>", ""])


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", metavar="RUN")
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = asked.run
        if run is None:
            from mlxe_async import Supervisor, load_settings

            run = Supervisor(load_settings(SETTINGS), run_dir=folder).run_sync().run_dir
        told = counts_of(read_log(run))
    asked.out.write_text(picture(told))
    print(f"{asked.out}: {told['what']}")


if __name__ == "__main__":
    main(sys.argv[1:])
