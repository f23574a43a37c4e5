"""Faults of settings files and of checkpoints."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import time

from fault_runs import PYTHON, ROOT, SLOW_START_S, row

from mlxe_async.errors import MlxeError
from mlxe_async.run_folder import load_checkpoint

GOOD = '[task]\nenv = "CartPole-v1"\n'


def refused(case, text, words="", code=2, seconds=1.0, **how):
    """The file is refused at once, in words, without a traceback."""
    run = case.start_raw(text, **how) if isinstance(text, str) else case.start({}, text, **how)
    got = run.ended()
    took = time.monotonic() - run.began
    name = words or (text[:40] if isinstance(text, str) else str(text))
    case.want(got == code, f"{name!r}: exit code {code} ({got}: {run.error()[-200:]})")
    case.want("Traceback" not in run.error(), f"{name!r}: no traceback")
    case.want(words in run.error(), f"{name!r}: named ({run.error()[-200:]})")
    case.within(took, seconds, f"{name!r}: refused")
    case.want(not run.lines(), f"{name!r}: nothing is started")
    return run


@row(
    "C1",
    "broken files: syntax, duplicate key, bad UTF-8, NUL, empty; BOM and CRLF",
    "exit 2 with file:line, at most 1 s; BOM and CRLF are accepted",
    ci=1,
)
def _(case):
    """One file each."""
    for text, words in (
        ("[task\nenv = 1\n", "settings.toml:1"),
        (GOOD + 'env = "Again-v0"\n', "settings.toml:3"),
        ('[task]\nenv = "\udce9"\n', "settings.toml"),
        ("[task]\nenv = 'a\0b'\n", "settings.toml:2"),
        ("", "task"),
    ):
        refused(case, text, words)
    for text in ("\ufeff" + GOOD, GOOD.replace("\n", "\r\n")):
        run = case.start_raw(
            text + "[stop]\nenv_steps = 100\n",
            program=["-m", "mlxe_async", str(case.folder / str(len(case.runs)) / "settings.toml"), "--check"],
        )
        case.want(run.ended() == 0, f"{text[:3]!r}: accepted ({run.ended()}: {run.error()[-200:]})")


@row("C2", "unknown keys and tables", 'exit 2 with "did you mean"', ci=1)
def _(case):
    """A letter left out, added and changed, in one key of each table."""
    for table, key in (
        ("run", "seed"),
        ("stop", "episodes"),
        ("task", "max_episode_steps"),
        ("schedule", "executors"),
        ("memory", "chunk_rows"),
        ("supervision", "restart_limit"),
    ):
        for wrong in (key[:-1], key + "x", "x" + key[1:]):
            refused(case, {table: {wrong: 1}}, "did you mean")
    refused(case, {"scheduel": {"executors": 2}}, "did you mean")


WRONG_TYPES = [True, 1.5, "text", [1], {"a": 1}]


@row("C3", "values of another type", "exit 2 with key, got and expected; all mistakes in one go", ci=1)
def _(case):
    """Five wrong types at once, then one by one through the loader for every whole-number key."""
    many = {
        "schedule": {"executors": True},
        "run": {"seed": 1.5},
        "memory": {"chunk_rows": "text"},
        "stop": {"episodes": [1]},
    }
    run = refused(case, many, "schedule.executors")
    case.want(
        all(word in run.error() for word in ("run.seed", "memory.chunk_rows", "stop.episodes")),
        f"all of them are told ({run.error()[-400:]})",
    )
    judged = in_the_loader(case, types=True)
    case.saw(f"{judged} wrong values refused")


@row("C4", "values out of range, NaN, infinities", "exit 2 with the range", ci=1)
def _(case):
    """Every numeric key by ten bad values, through the loader; three through the command."""
    for tables in (
        {"schedule": {"executors": 0}},
        {"schedule": {"executors": 2**63}},
        {"algorithm": {"discount": 1.1}},
    ):
        refused(case, tables, "expected", seconds=SLOW_START_S if "algorithm" in tables else 1.0)
    judged = in_the_loader(case, types=False)
    case.saw(f"{judged} bad values refused")


def in_the_loader(case, *, types):
    """Hold every numeric key of the schema's tables against bad values; how many were refused as they should be."""
    script = f"""
import json, math, sys
from mlxe_async.errors import SettingsError
from mlxe_async.settings import load_settings, settings_schema
schema = settings_schema()
defs = schema.get("$defs", {{}})
def resolve(node):
    while "$ref" in node: node = defs[node["$ref"].rsplit("/", 1)[1]]
    return node
judged, wrong = 0, []
bad = [True, 1.5, "text", [1], {{"a": 1}}] if {types} else [-1, 2**63, 10**30, math.nan, math.inf, -math.inf, -(2**31)]
for table, node in schema["properties"].items():
    for choice in [resolve(node), *map(resolve, node.get("oneOf", node.get("anyOf", [])))]:
        for key, kind in choice.get("properties", {{}}).items():
            kinds = [kind, *kind.get("anyOf", [])]
            numeric = [k["type"] for k in kinds if k.get("type") in ("integer", "number")]
            if not numeric: continue
            for value in bad:
                if {types} and isinstance(value, float) and "number" in numeric: continue
                if {not types} and value in (-1, -(2**31), 2**63, 10**30) and "number" in numeric: continue
                tables = {{"task": {{"env": "CartPole-v1"}}}}
                tables.setdefault(table, {{}})[key] = value
                if "kind" in choice.get("properties", {{}}):
                    const = choice["properties"]["kind"].get("const")
                    if const: tables[table]["kind"] = const
                judged += 1
                try:
                    load_settings(tables)
                    wrong.append((table, key, repr(value)))
                except SettingsError:
                    pass
                except Exception as error:
                    wrong.append((table, key, repr(value), repr(error)))
print(json.dumps([judged, wrong[:5]]))
"""
    done = subprocess.run(
        [PYTHON, "-P", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
        timeout=120,
    )
    if not case.want(done.returncode == 0, f"the loader can be asked ({done.stderr[-300:]})"):
        return 0
    judged, wrong = json.loads(done.stdout)
    case.want(not wrong, f"every one is refused ({wrong})")
    case.want(judged >= 50, f"there are many ({judged})")
    return judged


@row("C5", "files made to exhaust", "exit 2 within 1 s and 100 MB", ci=1)
def _(case):
    """5,000 digits and levels, keys of 10,000 parts, 100,000 keys, 1 GB, FIFO, /dev/zero, a folder, a loop of links."""
    folder = case.folder / "files"
    folder.mkdir()
    os.mkfifo(folder / "fifo.toml")
    (folder / "loop.toml").symlink_to("loop.toml")
    (folder / "zero.toml").symlink_to("/dev/zero")
    (folder / "folder.toml").mkdir()
    with (folder / "giant.toml").open("wb") as file:
        file.truncate(10**9)
    texts = {
        "digits": f"[run]\nseed = {'9' * 5000}\n" + GOOD,
        "deep": "a = " + "[" * 5000 + "]" * 5000 + "\n" + GOOD,
        "parts": ".".join("a" * 10_000) + " = 1\n" + GOOD,
        "keys": GOOD + "".join(f"k{n} = 1\n" for n in range(100_000)),
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    for file in sorted(folder.iterdir()):
        run = case.start_raw(None, program=["-m", "mlxe_async", str(file)], prefix=["prlimit", f"--as={700 * 2**20}"])
        got = run.ended(20)
        took = time.monotonic() - run.began
        case.want(got == 2 and "Traceback" not in run.error(), f"{file.name}: exit 2 ({got}: {run.error()[-200:]})")
        case.within(took, 1.0, f"{file.name}: refused")


@row("C6", "contradictions", "exit 2, both keys named", ci=1)
def _(case):
    """Four pairs."""
    for tables, words in (
        ({"schedule": {"min_executors": 5, "executors": 2}}, ("min_executors", "executors")),
        ({"schedule": {"envs_per_executor": 4, "sync": "episode"}}, ("envs_per_executor", "sync")),
        (
            {"algorithm": {"batch": 4096}, "memory": {"capacity_rows": 1000, "keep_rows": 500}},
            ("batch", "capacity_rows"),
        ),
        ({"learner": {"device": "cuda"}}, ("device", "GPU")),
    ):
        run = refused(case, tables, words[0], seconds=SLOW_START_S)
        case.want(words[1] in run.error(), f"{words[1]} is named too ({run.error()[-200:]})")


BAD_NAMES = [
    "../../etc/x",
    "/etc/x",
    "~",
    "$HOME",
    "a\nb",
    "a\x1bb",
    "",
    ".",
    "..",
    ".hidden",
    "-dash",
    "a/b",
    "a\\b",
    "nul\0",
    "x" * 300,
]


@row("C7", "run names that lead elsewhere", "exit 2; nothing is expanded", ci=1)
def _(case):
    """Fifteen names."""
    for name in BAD_NAMES:
        refused(case, {"run": {"name": name}}, "name")


# -- checkpoints -----------------------------------------------------------------------------------------------------


def with_checkpoints(case, count=3):
    """A run that saved at least so many, ended."""
    run = case.start({}, {"stop": {"env_steps": 10_000_000}, "checkpoint": {"interval_s": 0.3}})
    run.told("checkpoint", count + 1)
    case.stops(run)
    return (run.runs / "latest").resolve()


def newest_first(folder):
    return sorted(
        (path for path in (folder / "checkpoints").iterdir() if path.name.isdigit()), key=lambda path: -int(path.name)
    )


def loaded(folder):
    try:
        return load_checkpoint(folder)[1]["version"]
    except MlxeError as error:
        return str(error)


@row("K1", "checkpoints cut off, with flipped bits, empty, swapped", "detected; the newest fit one is taken", ci=1)
def _(case):
    """The newest of three is spoilt in many ways, each in a copy, and loaded."""
    folder = with_checkpoints(case)
    chance = random.Random(case.seed)  # noqa: S311 - chooses bits
    versions = {
        path.name: json.loads((path / "manifest.json").read_text())["body"]["facts"]["version"]
        for path in newest_first(folder)
    }
    newest, before = newest_first(folder)[:2]
    expected = versions[before.name]
    ways = case.amount(60, 1000)
    for number in range(ways):
        file = newest / chance.choice(["manifest.json", "tensors.safetensors"])
        good = file.read_bytes()
        if number % 3 == 0:
            spoilt = good[: chance.randrange(len(good))]
        elif number % 3 == 1:
            at = chance.randrange(len(good))
            spoilt = good[:at] + bytes([good[at] ^ (1 << chance.randrange(8))]) + good[at + 1 :]
        else:
            spoilt = (before / file.name).read_bytes() if number % 2 else b""
        file.write_bytes(spoilt)
        got = loaded(folder)
        case.want(got == expected or spoilt == good, f"way {number} ({file.name}): version {expected} ({got})")
        file.write_bytes(good)
    case.want(loaded(folder) == versions[newest.name], "unspoilt, the newest is taken")
    case.saw(f"{ways} spoilt checkpoints detected")


@row("K2", "no checkpoint is fit", "exit 3, they are named; never a silent fresh start", ci=1)
def _(case):
    """All are emptied; then eval."""
    folder = with_checkpoints(case)
    for path in newest_first(folder):
        (path / "tensors.safetensors").write_bytes(b"")
    run = case.start_raw(None, program=["-m", "mlxe_async", "eval", str(folder)])
    got = run.ended()
    case.want(got == 3, f"exit 3 ({got}: {run.error()[-300:]})")
    case.want("Traceback" not in run.error() and newest_first(folder)[0].name in run.error(), "they are named")


def bomb(marker):
    return b"cposix\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."


@row(
    "K3",
    "a pickle with the name of a checkpoint; tensors of 2^60 entries; overlapping; a header of 100 MB",
    "refused, nothing runs, nothing is allocated",
    ci=1,
)
def _(case):
    """Each in the newest checkpoint, its manifest made to fit by size and hash where that can be."""
    import hashlib

    folder = with_checkpoints(case)
    marker = case.folder / "it-ran"
    newest = newest_first(folder)[0]
    file, manifest = newest / "tensors.safetensors", newest / "manifest.json"
    expected = {path.name: loaded_version(path) for path in newest_first(folder)}[newest_first(folder)[1].name]
    head = lambda header: struct.pack("<Q", len(header)) + header  # noqa: E731
    huge = json.dumps({"a": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 4]}}).encode()
    overlapping = json.dumps(
        {
            "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        }
    ).encode()
    crafted = {
        "pickle": bomb(marker),
        "2^60": head(huge) + bytes(4),
        "overlapping": head(overlapping) + bytes(4),
        "header": struct.pack("<Q", 10**8) + b" " * 100,
        "negative": struct.pack("<q", -1) + bytes(8),
    }
    good = manifest.read_text()
    for name, data in crafted.items():
        file.write_bytes(data)
        for fits in (False, True):
            body = json.loads(good)
            if fits:
                body["body"]["bytes"], body["body"]["sha256"] = len(data), hashlib.sha256(data).hexdigest()
                body["sha256"] = hashlib.sha256(json.dumps(body["body"], sort_keys=True).encode()).hexdigest()
            manifest.write_text(json.dumps(body))
            began = time.monotonic()
            got = loaded(folder)
            case.want(got == expected, f"{name}: refused, the one before is taken ({got})")
            case.within(time.monotonic() - began, 1.0, f"{name}: refused")
    case.want(not marker.exists(), "nothing ran")


def loaded_version(path):
    return json.loads((path / "manifest.json").read_text())["body"]["facts"]["version"]


@row("K4", "a checkpoint of another format version", "refused with both versions named", ci=1)
def _(case):
    """Format 2 in all of them; then eval."""
    folder = with_checkpoints(case)
    for path in newest_first(folder):
        whole = json.loads((path / "manifest.json").read_text())
        whole["format"] = 2
        (path / "manifest.json").write_text(json.dumps(whole))
    run = case.start_raw(None, program=["-m", "mlxe_async", "eval", str(folder)])
    got = run.ended()
    case.want(got == 3 and "format" in run.error(), f"exit 3 and the format is named ({got}: {run.error()[-300:]})")


def stopped_run(case, tables=None, steps=400):
    """A run that was asked to stop after so many steps, whole checkpoint included."""
    run = case.start({}, {"stop": {"env_steps": 10_000_000}, **(tables or {})})
    run.reached(steps)
    case.stops(run)
    return run


@row("K5", "resume with changed settings", "cosmetic, allowed, forbidden: a table; the difference is printed", ci=1)
def _(case):
    """Every key has its class; then cosmetic and allowed changes, and forbidden ones."""
    from mlxe_async.settings import settings_schema
    from mlxe_async.settings.resuming import CLASSES

    named = schema_keys(settings_schema())
    case.want(named - {("algorithm", "name")} <= set(CLASSES), f"every key has a class ({named - set(CLASSES)})")
    run = stopped_run(case)
    forbidden = ("run.seed=77", "schedule.envs_per_executor=2", 'schedule.sync="rollout"')
    refused = case.resumed(run, *(word for change in forbidden for word in ("--set", change)))
    case.want(refused.ended() == 2, f"forbidden: exit 2 ({refused.ended()}: {refused.error()[-300:]})")
    for change in forbidden[:2]:
        case.want(change.partition("=")[0] in refused.error(), f"{change} is named ({refused.error()[-600:]})")
    case.want("-> 77" in refused.error(), "old and new are printed")
    case.want("Traceback" not in refused.error(), "no traceback")
    steps = run.steps()
    fine = ("logs.status_interval_s=0.5", "schedule.executors=3", f"stop.env_steps={steps + 500}")
    again = case.resumed(run, *(word for change in fine for word in ("--set", change)))
    case.want(again.ended() == 0, f"exit code 0 ({again.ended()}: {again.error()[-300:]})")
    case.nothing_left(again)
    for told in again.all("run_resume")[:1]:
        case.want(any("schedule.executors: 2 -> 3" in line for line in told["changed"]), f"told ({told['changed']})")
        case.want(not any("status_interval" in line for line in told["changed"]), "what is cosmetic is not")
    case.want(again.all("run_resume"), "allowed: it goes on")
    case.saw(f"{len(CLASSES)} keys have a class")


def schema_keys(schema):
    """(table, key) of everything that a settings file may say, but for the free tables."""
    defs = schema.get("$defs", {})

    def resolved(node):
        while "$ref" in node:
            node = defs[node["$ref"].rsplit("/", 1)[1]]
        return node

    found = set()
    for table, node in schema["properties"].items():
        for choice in [resolved(node), *map(resolved, node.get("oneOf", node.get("anyOf", [])))]:
            if table != "algorithm":
                found |= {(table, key) for key in choice.get("properties", {})}
    return found


@row("K6", "resume twice at once, or while the first lives", "as R1", ci=1)
def _(case):
    """Two commands at once over a run that was stopped."""
    run = stopped_run(case)
    more = ("--set", f"stop.env_steps={run.steps() + 1000}")
    both = [case.resumed(run, *more), case.resumed(run, *more)]
    codes = sorted(one.ended() for one in both)
    case.want(codes == [0, 75], f"one goes on, the other exits 75 ({codes}: {[o.error()[-150:] for o in both]})")
    case.want(not any("Traceback" in one.error() for one in both), "no traceback")
    case.want(len(both[0].all("run_resume")) == 1, "it was resumed once")
    case.nothing_left(run)


@row("K7", "resume exactly", "2N steps = N, kill, resume, N, bit for bit", ci=1)
def _(case):
    """`is`, one executor: SIGKILL after a checkpoint, then --resume; CartPole, and Chaos, which counts its episodes."""
    tables = {
        "run": {"name": "fault", "seed": case.seed},
        "task": {"env": "CartPole-v1"},
        "stop": {"env_steps": 4000},
        "schedule": {"kind": "is", "executors": 1},
        "checkpoint": {"interval_s": 0, "interval_steps": 400},
        "algorithm": {"name": "a3c", "min_updates": 4, "batch": 64},
    }
    plain = case.start_raw(tables)
    case.checks(plain, 0)
    killed = case.start_raw(tables)
    killed.told("checkpoint")
    killed.signal(signal.SIGKILL)
    case.want(killed.ended() == 137, f"it was killed before its end ({killed.ended()})")
    again = case.resumed(killed)
    case.want(again.ended() == 0, f"exit code 0 ({again.ended()}: {again.error()[-300:]})")
    case.nothing_left(again)
    for told in again.all("run_resume")[:1]:
        case.want(told["exact"] and told["previous_run_died"], f"it goes on exactly ({told})")
        case.saw(f"from step {told['env_steps']} of 4000")
    hashes = [run.all("run_end")[-1]["weights_hash"] for run in (plain, again)]
    case.want(hashes[0] == hashes[1], f"the weights are the same, bit for bit ({hashes})")
    # What an environment keeps from one episode to the next no seed brings back: exactness must not be claimed.
    killed = case.start_raw({**tables, "task": {"env": "mlxe_async.testing:Chaos-v0"}})
    killed.told("checkpoint")
    killed.signal(signal.SIGKILL)
    case.want(killed.ended() == 137, f"it was killed before its end ({killed.ended()})")
    again = case.resumed(killed)
    case.want(again.ended() == 0, f"exit code 0 ({again.ended()}: {again.error()[-300:]})")
    told = [line["exact"] for line in again.all("run_resume")]
    why = [line["message"] for line in again.all("warning") if "keeps something" in line["message"]]
    case.want(told == [False] and why, f"an environment that counts its episodes is not told exact ({told}, {why})")
