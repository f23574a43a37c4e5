"""The catalogue of faults: what may go wrong, what must happen then, and what was seen.

    python tests/faults/catalogue.py [--scale ci|hour|day] [--seeds N|A..B] [--rows E1,E2,S] [--list] [--write]

Each row makes real runs of the command with its fault, several times with other seeds where chance plays. A row that
asks for something the program does not have is red and says "missing"; one that this host cannot judge is counted
apart. `--write` writes the table to `TABLE.md` beside this file; rows that were not asked for keep their line.
The settings can also be given by the variables FAULTS_SCALE, FAULTS_SEEDS and FAULTS_ROWS.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fault_runs  # noqa: E402 - found by the line above
import rows_begin  # noqa: E402, F401 - fills the catalogue
import rows_environment  # noqa: E402, F401 - fills the catalogue
import rows_files  # noqa: E402, F401 - fills the catalogue
import rows_learning  # noqa: E402, F401 - fills the catalogue
import rows_resources  # noqa: E402, F401 - fills the catalogue
import rows_security  # noqa: E402, F401 - fills the catalogue
import rows_supervisor  # noqa: E402, F401 - fills the catalogue
from fault_runs import ROWS, SCALES, Case, NotRun, lacks  # noqa: E402 - see above

RESULTS, TABLE = HERE / "results.json", HERE / "TABLE.md"
MOST_TEXT = 400


def run_case(row, seed, scale, folder):
    """One row, one seed: (passed, what was seen)."""
    case = Case(row, seed, scale, Path(folder))
    try:
        row.check(case)
    except NotRun as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the other rows are still to be judged
        case.failures.append(f"the check itself failed: {error!r} at {_place(error)}")
    finally:
        case.close()
    if case.failures:
        return False, "; ".join(f"NOT {failure}" for failure in case.failures).replace(str(folder), "...")
    return True, "; ".join(case.seen) or "as required"


def _place(error):
    return " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))


def judge(row, scale, seeds):
    """The row's line of the table, as a dict."""
    line = {
        "id": row.id, "fault": row.fault, "required": row.required, "how": row.how, "scale": scale,
        "passed": 0, "total": 0, "seconds": 0.0,
    }  # fmt: skip
    if row.missing:
        return {**line, "state": "red", "seen": f"missing: {row.missing}"}
    lacking = lacks(row.needs)
    if row.check is None or lacking:
        return {**line, "state": "not run", "seen": f"not run: needs {', '.join(lacking or row.needs)}"}
    if SCALES.index(row.scale) > SCALES.index(scale):
        return {**line, "state": "not run", "seen": f"not run: needs scale {row.scale}"}
    began, seen, failed = time.monotonic(), "", ""
    for seed in seeds if seeds is not None else row.seeds(scale):
        folder = tempfile.mkdtemp(prefix=f"fault-{row.id}-")
        try:
            passed, said = run_case(row, seed, scale, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if passed is None:
            return {**line, "state": "not run", "seen": f"not run: {said}"}
        line["total"] += 1
        line["passed"] += passed
        if passed:
            seen = said
        elif not failed:
            failed = f"seed {seed}: {said}"
    line["seconds"] = round(time.monotonic() - began, 1)
    return {**line, "state": "red" if failed else "green", "seen": failed or seen}


def write_table(results):
    """`results.json` for programs and `TABLE.md` for people, in the catalogue's order."""
    lines = [results[row_id] for row_id in ROWS if row_id in results]
    RESULTS.write_text(json.dumps(lines, indent=1) + "\n")
    counts = {state: sum(line["state"] == state for line in lines) for state in ("green", "red", "not run")}
    text = [
        "# Faults: required and seen",
        "",
        "Made by `python tests/faults/catalogue.py --write`. Red rows whose text begins with *missing* ask for",
        "something that the program does not have yet; rows that the host cannot judge are counted apart.",
        "",
        f"{counts['green']} green, {counts['red']} red, {counts['not run']} not run, of {len(ROWS)} rows.",
        "",
        "| row | fault | required | seen | passed | scale |",
        "|---|---|---|---|---|---|",
    ]
    for line in lines:
        passed = f"{line['passed']}/{line['total']}" if line["total"] else "-"
        mark = {"green": "", "red": "**red** ", "not run": ""}[line["state"]]
        cells = (line["id"], line["fault"], line["required"], mark + _cut(line["seen"]), passed, line["scale"])
        text.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    TABLE.write_text("\n".join(text) + "\n")
    return counts


def _cut(text):
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def _cell(text):
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def chosen(names):
    """The rows meant by a list such as `E1,E2,S,T`: whole names, or the letters they begin with."""
    wanted = [name for name in names.split(",") if name]
    return [
        row
        for row in ROWS.values()
        if not wanted
        or any(
            row.id == name or row.id.split(".")[0] == name or row.id.rstrip("0123456789.") == name for name in wanted
        )
    ]


def _seeds(text):
    """`3` means the seeds 0, 1, 2; `5..7` means 5, 6, 7."""
    first, dots, last = text.partition("..")
    return range(int(first), int(last) + 1) if dots else range(int(first))


def main(arguments):
    """Judge rows and print a line each; the exit code says whether one that was judged is red."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", choices=SCALES, default=os.environ.get("FAULTS_SCALE", "ci"))
    parser.add_argument("--seeds", type=_seeds, default=os.environ.get("FAULTS_SEEDS") or None)
    parser.add_argument("--rows", default=os.environ.get("FAULTS_ROWS", ""))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(arguments)
    rows = chosen(asked.rows)
    if asked.list:
        for row in rows:
            print(f"{row.id:<6} {row.fault}")
        return 0
    fault_runs.leaks.warm_up()
    # A shell that started us in the background may have had us ignore what the runs are to be asked with.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    results = {line["id"]: line for line in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    reds = 0
    for row in rows:
        line = judge(row, asked.scale, asked.seeds)
        results[row.id] = line
        reds += line["state"] == "red"
        print(f"{line['state']:<8}{row.id:<6} {line['passed']}/{line['total']} {line['seconds']:6.1f} s  "
              f"{row.fault}: {line['seen'][:700]}", flush=True)  # fmt: skip
        if asked.write:
            write_table(results)
    return 1 if reds else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
