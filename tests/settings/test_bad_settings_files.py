"""Five hundred bad settings files, each given to the command: refused in words, at once, and nothing was started.

    python tests/settings/test_bad_settings_files.py

prints the table. What is not acceptable about an algorithm's own keys takes longer to find out, because the algorithm
must be imported for it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from settings_keys import kinds_of, known_keys  # noqa: E402 - found by the line above

from mlxe_async.algorithms.mlxe.paper import MLxESettings  # noqa: E402 - see above

ROOT = str(TESTS.parent)
FILES = 500
MOST_MB = 100
# CPU, in refusals of a file with one unknown table: two processes work side by side to judge an algorithm.
MOST_REFUSALS = 2.0
MOST_OF_KIND = {"algorithm": 8.0}
SHARES = {"typos": 0.32, "wrong types": 0.25, "out of range": 0.25, "algorithm": 0.06, "huge": 0.05, "hostile": 0.07}
# Tells its own peak of memory, not that of the processes it started.
PROGRAM = """
import resource, sys
from mlxe_async.cli import main
code = main([sys.argv[1], "--no-progress"])
own, below = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
with open(sys.argv[2], "w") as file:
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak, own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime, file=file)
sys.exit(code)
"""


def value_text(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return value if isinstance(value, Raw) else json.dumps(value)


class Raw(str):
    """TOML as it stands."""


def text_of(tables):
    tables = {"task": {"env": "CartPole-v1"}, **tables}
    if "env" not in tables["task"]:
        tables["task"] = {"env": "CartPole-v1", **tables["task"]}
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {value_text(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def mistyped(word, chance):
    """A letter left out, doubled, exchanged or swapped with its neighbour."""
    at = chance.randrange(len(word))
    return chance.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + chance.choice("qxzj") + word[at + 1 :],
            word[: at // 2] + word[at // 2 : at // 2 + 2][::-1] + word[at // 2 + 2 :],
        ]
    )


def files(chance):
    """(kind, bytes of the file) without end in each kind's own order."""
    known = known_keys()
    names = {(table, key) for table, key, _, _ in known}
    tables = {table for table, _ in names} | {"algorithm"}
    own = list(MLxESettings.model_fields)

    def typos():
        while True:
            table, key, _, more = chance.choice(known)
            if chance.random() < 0.15:
                wrong = mistyped(table, chance)
                if wrong and wrong not in tables:
                    yield text_of({wrong: {key: 1}})
                continue
            wrong = mistyped(key, chance)
            if wrong and (table, wrong) not in names:
                yield text_of({table: {**more, wrong: 1}})

    def wrong_types():
        bad = {
            "integer": [True, 1.5, "text", [1], {"a": 1}, Raw("1979-05-27"), Raw("nan")],
            "number": [True, "text", [1.0], {"a": 1}, Raw("1979-05-27"), Raw("07:32:00")],
            "string": [True, 1, 1.5, ["text"], {"a": 1}, Raw("1979-05-27")],
            "boolean": [1, 0, 1.5, "true", [True], {"a": True}],
            "array": [True, 1, "text", {"a": 1}, [[1]], [{"a": 1}]],
            "object": [True, 1, "text", [1]],
        }
        while True:
            table, key, about, more = chance.choice(known)
            kinds = kinds_of(about)
            if len(kinds) == 1 and key != "kind":
                yield text_of({table: {**more, key: chance.choice(bad[kinds.pop()])}})

    def ranges():
        numbers = [Raw(word) for word in ("-1", "9223372036854775808", "1" + "0" * 30, "-9223372036854775808")]
        floats = [Raw(word) for word in ("nan", "inf", "-inf", "-1e301", "1e308")]
        while True:
            table, key, about, more = chance.choice(known)
            if "integer" in kinds_of(about):
                yield text_of({table: {**more, key: chance.choice(numbers)}})
            elif "number" in kinds_of(about):
                yield text_of({table: {**more, key: chance.choice(floats)}})

    def algorithm():
        while True:
            key = chance.choice(own)
            match chance.randrange(4):
                case 0 if mistyped(key, chance) not in own:
                    yield text_of({"algorithm": {key + "x": 1}})
                case 1:
                    yield text_of({"algorithm": {key: Raw("1979-05-27")}})
                case 2:
                    yield text_of({"algorithm": {key: {"a": {"b": 1}}}})
                case _:
                    yield text_of({"algorithm": {key: -(2**40)}})

    def huge():
        depth = chance.randrange(2_000, 20_000)
        yield f"[run]\nseed = {'9' * depth}\n" + text_of({})
        yield "a = " + "[" * depth + "]" * depth + "\n" + text_of({})
        yield ".".join("a" * depth) + " = 1\n" + text_of({})
        yield text_of({}) + "".join(f"k{number} = 1\n" for number in range(10 * depth))
        yield text_of({"memory": {"capacity_rows": Raw("1" + "0" * chance.randrange(13, 400))}})
        yield text_of({"task": {"kwargs": {"a": "x" * (2**20 + depth)}}})
        yield text_of({"run": {"name": "x" * depth}})
        yield text_of({"task": {"env": "x" * depth + ":Y-v0"}})
        yield text_of({"schedule": {"executors": 1024}, "memory": {"capacity_rows": 10**12}})
        yield "#" + "x" * 2**21 + "\n" + text_of({})
        yield from huge()

    def hostile():
        names = ["../../etc/x", "/etc/x", "~", "$HOME", "a\nb", "a\u001bb", "", ".", "..", ".x", "-x", "a/b", "a\\b"]
        entries = ["os:system", "builtins:eval", "os.path:join('a')", "a;b:C-v0", "../x:C-v0", "subprocess:run", "a b"]
        name, entry = chance.choice(names), chance.choice(entries)
        yield text_of({"run": {"name": name}})
        yield text_of({"task": {"env": entry}})
        yield text_of({"task": {"wrappers": [entry]}})
        yield text_of({"algorithm": {"name": entry}})
        yield text_of({"run": {"dir": chance.choice(["~/x", "$HOME", "a\u0000b", "a\nb", ""])}})
        yield text_of({"run": {"python_path": [chance.choice(["/nowhere", "~", "$X", "\u001b[2J"])]}})
        yield text_of({"run": {"allow_modules": ["numpy"]}, "task": {"env": "json.tool:X-v0"}})
        yield text_of({"run": {"allow_modules": []}, "task": {"env": "mlxe_async.testing:Counting-v0"}})
        yield text_of({"learner": {"device": chance.choice(["cuda; rm -rf /", "tpu", "cuda:9999", ""])}})
        yield b"[task]\nenv = '\xff\xfe'\n"
        yield b"[task]\nenv = 'a\0b'\n"
        yield text_of({}) + 'env = "Again-v0"\n[task]\n'
        yield chance.randbytes(chance.randrange(1, 4096))
        yield text_of({"schedule": {"min_executors": 9, "executors": 2}})
        yield "{" + text_of({})
        yield from hostile()

    return {
        "typos": typos(),
        "wrong types": wrong_types(),
        "out of range": ranges(),
        "algorithm": algorithm(),
        "huge": huge(),
        "hostile": hostile(),
    }


def judged(folder, content):
    """(exit code, seconds, CPU seconds of the command and its children, its MB, what is wrong) of one file."""
    folder.mkdir()
    file, told = folder / "settings.toml", folder / "memory"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(file), str(told)],
        cwd=folder, capture_output=True, text=True, errors="replace", timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    seconds = time.monotonic() - began
    wrong = []
    if done.returncode not in (2, 4):
        wrong.append(f"exit code {done.returncode}")
    if "Traceback" in done.stderr or not done.stderr.strip():
        wrong.append("no sentence on stderr, or a traceback")
    if any(path.name not in ("settings.toml", "memory") for path in folder.iterdir()):
        wrong.append("something was begun")
    kilobytes, cpu = map(float, told.read_text().split()) if told.exists() else (float("inf"), float("inf"))
    if kilobytes / 1024 > MOST_MB:
        wrong.append(f"{kilobytes / 1024:.0f} MB")
    return done.returncode, seconds, cpu, kilobytes / 1024, wrong


def judge_all(folder, count=FILES, seed=0):
    """The table as lines, and what is wrong."""
    made = files(random.Random(seed))  # noqa: S311 - chooses mistakes
    plain = [judged(folder / f"plain-{number}", "[nothing]")[2] for number in range(3)]
    refusal = sorted(plain)[1]
    rows, wrong = defaultdict(list), []
    for kind, share in SHARES.items():
        for number in range(round(share * count)):
            content = next(made[kind])
            *figures, problems = judged(folder / f"{kind}-{number}", content)
            rows[kind].append(figures)
            # A busy host makes everything late; what the command itself spends hardly depends on it.
            if (cpu := figures[2]) > MOST_OF_KIND.get(kind, MOST_REFUSALS) * refusal:
                problems.append(f"{cpu:.2f} s of CPU, a plain refusal takes {refusal:.2f}")
            wrong += [f"{kind} {number}: {problem}: {content[:200]!r}" for problem in problems]
    lines = [
        f"{'kind':<14}{'files':>6}{'exit 2':>8}{'exit 4':>8}{'median s':>10}{'max s':>8}{'max CPU s':>11}{'MB':>7}"
    ]
    for kind, found in rows.items():
        times = sorted(seconds for _, seconds, _, _ in found)
        codes = [code for code, _, _, _ in found]
        lines.append(
            f"{kind:<14}{len(found):>6}{codes.count(2):>8}{codes.count(4):>8}{times[len(times) // 2]:>10.2f}"
            f"{times[-1]:>8.2f}{max(cpu for *_, cpu, _ in found):>11.2f}{max(mb for *_, mb in found):>7.0f}"
        )
    return lines, wrong


@pytest.mark.slow
def test_five_hundred_bad_files_are_refused_in_words_and_nothing_is_started(tmp_path, capsys):
    lines, wrong = judge_all(tmp_path)
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not wrong, "\n".join(wrong[:20])


def test_a_few_bad_files_of_each_kind_are_refused(tmp_path):
    """Without the bar of CPU: the first of them compiles a fresh clone's files, on a processor of any speed."""
    made = files(random.Random(1))  # noqa: S311 - chooses mistakes
    for kind in ("typos", "wrong types", "out of range", "huge", "hostile"):
        code, *_, wrong = judged(tmp_path / kind, next(made[kind]))
        assert not wrong, (kind, code, wrong)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        table, mistakes = judge_all(Path(place), int(sys.argv[1]) if sys.argv[1:] else FILES)
    print("\n".join((*table, "", f"{len(mistakes)} mistakes", *mistakes[:20])))
    sys.exit(bool(mistakes))
