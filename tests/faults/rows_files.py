"""Faults of settings files and of checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import time
import zipfile
from collections import Counter
from pathlib import Path

from fault_runs import PYTHON, ROOT, SLOW_START_S, loaded, loaded_version, newest_first, row
from settings_keys import known_keys
from tampering import tampered

from mlxe_async.storage import checkpoints
from mlxe_async.storage.checkpoints import TENSORS
from mlxe_async.supervisor.checkpointing.saved_state import SUFFIX

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
    """One letter wrong in a key of six tables, by the command; then every typo of every key, through the loader."""
    for table, key in (
        ("run", "seed"),
        ("stop", "episodes"),
        ("task", "max_episode_steps"),
        ("schedule", "executors"),
        ("memory", "block_rows"),
        ("supervision", "restart_limit"),
    ):
        refused(case, {table: {key[:-1]: 1}}, f'did you mean "{key}"')
    refused(case, {"scheduel": {"executors": 2}}, 'did you mean "schedule"')
    in_the_loader(case, "typos", at_least=10_000)


@row("C3", "values of another type", "exit 2 with key, got and expected; all mistakes in one go", ci=1)
def _(case):
    """Four wrong types at once, by the command; then every key by a value of each other type, through the loader."""
    many = {
        "schedule": {"executors": True},
        "run": {"seed": 1.5},
        "memory": {"block_rows": "text"},
        "stop": {"episodes": [1]},
    }
    run = refused(case, many, "schedule.executors")
    case.want(
        all(word in run.error() for word in ("run.seed", "memory.block_rows", "stop.episodes")),
        f"all of them are told ({run.error()[-400:]})",
    )
    in_the_loader(case, "types", at_least=500)


@row("C4", "values out of range, NaN, infinities", "exit 2 with the range", ci=1)
def _(case):
    """Every numeric key by what lies outside its range, through the loader; three by the command."""
    for tables in (
        {"schedule": {"executors": 0}},
        {"schedule": {"executors": 2**63}},
        {"algorithm": {"discount": 1.1}},
    ):
        refused(case, tables, "expected", seconds=SLOW_START_S if "algorithm" in tables else 1.0)
    in_the_loader(case, "ranges", at_least=500)


def in_the_loader(case, mistakes, *, at_least):
    """Hold every key against such mistakes, in a process of its own."""
    done = subprocess.run(
        [PYTHON, "-P", str(Path(__file__).with_name("bad_values.py")), mistakes],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
        timeout=900,
    )
    if case.want(done.returncode == 0, f"the loader can be asked ({done.stderr[-300:]})"):
        judged, wrong = json.loads(done.stdout)
        case.want(not wrong, f"every one is refused in these words ({len(wrong)} are not: {wrong[:5]})")
        case.want(judged >= at_least, f"there are many ({judged})")
        case.saw(f"{judged} {mistakes} refused")


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


SPOILT = ("cut off", "a bit flipped", "empty", "from the one before", "swapped with its neighbour")


def spoil(newest, before, way, chance, names=("manifest.json", "tensors.safetensors")):
    """Spoil a file of one checkpoint in this way; what to call to mend it, and the file's name."""
    name = chance.choice(names)
    other = chance.choice([another for another in names if another != name])
    good = {name: (newest / name).read_bytes(), other: (newest / other).read_bytes()}
    at, bit = chance.randrange(len(good[name])), 1 << chance.randrange(8)
    spoilt = {
        "cut off": good[name][:at],
        "a bit flipped": good[name][:at] + bytes([good[name][at] ^ bit]) + good[name][at + 1 :],
        "empty": b"",
        "from the one before": (before / name).read_bytes(),
        "swapped with its neighbour": good[other],
    }[way]
    (newest / name).write_bytes(spoilt if spoilt != good[name] else spoilt + b"x")
    if way == "swapped with its neighbour":
        (newest / other).write_bytes(good[name])
    return (lambda: [(newest / name).write_bytes(data) for name, data in good.items()]), name


@row("K1", "checkpoints cut off, with flipped bits, empty, swapped", "detected; the newest fit one is taken", ci=1)
def _(case):
    """The newest is spoilt in many ways and loaded; in each way once, the command is asked to resume from it."""
    folder = with_checkpoints(case)
    stopped = case.runs[-1]
    chance = random.Random(case.seed)  # noqa: S311 - chooses bits
    newest, before = newest_first(folder)[:2]
    ways = case.amount(60, 1000)
    for number in range(ways):
        way = SPOILT[number % 2] if number % 10 else SPOILT[2 + number // 10 % 3]
        mend, name = spoil(newest, before, way, chance)
        got = loaded(folder)
        case.want(got == loaded_version(before), f"{way} ({name}): version {loaded_version(before)} ({got})")
        mend()
    case.want(loaded(folder) == loaded_version(newest), "unspoilt, the newest is taken")
    for way in SPOILT:
        newest, before = newest_first(folder)[:2]
        names = sorted(path.name for path in newest.iterdir() if (before / path.name).exists())
        _, name = spoil(newest, before, way, chance, names)
        told = len(stopped.all("checkpoint_rejected"))
        again = case.resumed(stopped, "--set", f"stop.env_steps={stopped.steps() + 1000}")
        case.want(again.ended() == 0, f"{way} ({name}): resumed ({again.ended()}: {again.error()[-300:]})")
        rejected = [line for line in stopped.all("checkpoint_rejected")[told:] if line["number"] == int(newest.name)]
        case.want(rejected and rejected[0]["cause"], f"{way} ({name}): checkpoint_rejected says why ({rejected})")
    case.nothing_left(stopped)
    case.saw(f"{ways} spoilt checkpoints detected, {len(SPOILT)} runs resumed from the one before")


@row("K2", "no checkpoint is fit", "exit 3, they are named; never a silent fresh start", ci=1)
def _(case):
    """All are emptied; then eval and --resume."""
    folder = with_checkpoints(case)
    stopped = case.runs[-1]
    for path in newest_first(folder):
        (path / "tensors.safetensors").write_bytes(b"")
    names, steps = [path.name for path in newest_first(folder)], stopped.steps()
    for run in (case.start_raw(None, program=["-m", "mlxe_async", "eval", str(folder)]), case.resumed(stopped)):
        got = run.ended()
        case.want(got == 3, f"exit 3 ({got}: {run.error()[-300:]})")
        case.want("Traceback" not in run.error(), f"no traceback ({run.error()[-300:]})")
        case.want(all(f"{name} (" in run.error() for name in names), f"all are named ({names}: {run.error()[-400:]})")
    case.want(stopped.steps() == steps, "no step was taken afresh")
    case.nothing_left(stopped)


class Bomb:
    """Whoever unpickles it makes the marker."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def crafted_tensors(marker):
    """What may stand in the place of tensors, by name."""

    def headed(header, length=None, data=bytes(4)):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    def one(dtype="F32", shape=(1,), offsets=(0, 4), **more):
        return headed({"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}})

    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:  # as torch.save writes it
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(marker)))
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps(entry).encode()
    return {
        **{f"pickle {protocol}": pickle.dumps(Bomb(marker), protocol) for protocol in range(6)},
        "zip with a pickle": zipped.getvalue(),
        "2^60 entries": one(shape=(2**60,)),
        "2^32 by 2^32": one(shape=(2**32, 2**32)),
        "2^64 entries": one(shape=(2**64,)),
        "a shape below zero": one(shape=(-1,)),
        "a shape of fractions": one(shape=(1.5,)),
        "a thousand dimensions": one(shape=(1,) * 1000),
        "an unknown type": one(dtype="PICKLE"),
        "more than there is": one(offsets=(0, 2**40)),
        "backwards": one(offsets=(4, 0)),
        "below zero": one(offsets=(-4, 0)),
        "fewer bytes than entries": one(shape=(2,)),
        "overlapping": headed({"a": entry, "b": entry}),
        "a hole": headed({"a": {**entry, "data_offsets": [4, 8]}}, data=bytes(8)),
        "bytes of nobody": headed({"a": entry}, data=bytes(64)),
        "the same name twice": headed(b'{"a":' + text + b',"a":' + text + b"}"),
        "a list": headed([entry]),
        "no JSON": headed(b"\x80\x04" * 20),
        "no UTF-8": headed(b'{"\xff\xfe": 1}'),
        "50,000 levels": headed(b'{"a":' * 50_000),
        "a header of 100 MB": struct.pack("<Q", 10**8) + b" " * 100,
        "a header that is all": headed({"a": entry}, length=2**20),
        "a header of 2^63": struct.pack("<Q", 2**63) + bytes(8),
        "a header of -1": struct.pack("<q", -1) + bytes(8),
        "half a length": bytes(3),
    }


def peak_mb():
    """The highest memory of this process since it was last asked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    Path("/proc/self/clear_refs").write_text("5")
    return peak


@row(
    "K3",
    "a pickle with the name of a checkpoint; tensors of 2^60 entries; overlapping; a header of 100 MB",
    "refused, nothing runs, nothing is allocated",
    ci=1,
)
def _(case):
    """Thirty crafted files in the newest checkpoint, with its manifest as it was and made to fit by size and hash."""
    folder = with_checkpoints(case)
    marker = case.folder / "it-ran"
    newest, before = newest_first(folder)[:2]
    file, manifest = newest / "tensors.safetensors", newest / "manifest.json"
    good, crafted = manifest.read_text(), crafted_tensors(marker)
    case.want(loaded(folder) == loaded_version(newest), "untouched, it is taken")
    peak_mb()
    held = peak_mb()
    for name, data in crafted.items():
        file.write_bytes(data)
        for fits in (False, True):
            whole = json.loads(good)
            if fits:
                body = whole["body"]
                body["bytes"], body["sha256"] = len(data), hashlib.sha256(data).hexdigest()
                text = json.dumps(body, sort_keys=True, separators=(",", ":"))
                whole["sha256"] = hashlib.sha256(text.encode()).hexdigest()
            manifest.write_text(json.dumps(whole))
            rejected, began = [], time.monotonic()
            facts = checkpoints.load(folder / "checkpoints", on_rejected=lambda *why: rejected.append(why))[1]  # noqa: B023 - called at once
            case.within(time.monotonic() - began, 1.0, f"{name}: refused")
            case.want(facts["version"] == loaded_version(before), f"{name}: the one before is taken ({facts})")
            (why,) = [why for number, why in rejected if number == int(newest.name)]
            by_sums = why.startswith("its tensors are ") or why.endswith("their checksum")
            case.want(by_sums is not fits, f"{name}: refused for itself where its sums fit ({fits}: {why})")
    case.want(peak_mb() <= held + 50, "at most 50 MB more were held")
    case.want(not marker.exists(), "nothing ran")
    case.saw(f"{len(crafted)} files, each with sums that fit and with sums that do not")


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
    from mlxe_async.settings.resuming import CLASSES

    named = {tuple(f"{key.table}.{key.name}".split(".")[:2]) for key in known_keys()}
    case.want(named - {("algorithm", "name")} <= set(CLASSES), f"every key has a class ({named - set(CLASSES)})")
    run = stopped_run(case)
    forbidden = {
        "run.seed": ("77", "-> 77"),
        "schedule.envs_per_executor": ("2", "-> 2"),
        "task.kwargs": ("{seed = 9}", "9"),
        "algorithm.common": ("[9]", "-> [9]"),
        "algorithm.name": ('"ppo"', 'got "ppo", expected "mlxe"'),
    }
    for key, (value, words) in forbidden.items():
        refused = case.resumed(run, "--set", f"{key}={value}", "--set", 'schedule.sync="rollout"')
        got = refused.ended()
        case.want(got == 2, f"{key}: forbidden, exit 2 ({got}: {refused.error()[-300:]})")
        case.want(key in refused.error() and words in refused.error(), f"old and new ({refused.error()[-600:]})")
        case.want("Traceback" not in refused.error(), f"{key}: no traceback")
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
        "algorithm": {"name": "mlxe", "min_updates": 4, "batch": 64},
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
    killed = case.start_raw({**tables, "task": {"env": "misbehaving:Chaos-v0"}})
    killed.told("checkpoint")
    killed.signal(signal.SIGKILL)
    case.want(killed.ended() == 137, f"it was killed before its end ({killed.ended()})")
    again = case.resumed(killed)
    case.want(again.ended() == 0, f"exit code 0 ({again.ended()}: {again.error()[-300:]})")
    told = [line["exact"] for line in again.all("run_resume")]
    why = [line["message"] for line in again.all("warning") if "keeps something" in line["message"]]
    case.want(told == [False] and why, f"an environment that counts its episodes is not told exact ({told}, {why})")


@row(
    "K8",
    "checkpoints that somebody changed, with all checksums made anew",
    "refused by file and key, or harmless; never an error of the program's own",
    ci=2,
)
def _(case):
    """Any key of the manifest, any array, any header; each resumed by the command itself."""
    newest = newest_first(with_checkpoints(case))[0]
    stopped = case.runs[-1]
    for path in newest.parent.iterdir():
        if path != newest:
            shutil.rmtree(path)
    kept = shutil.copytree(newest, case.folder / "kept")
    files = sorted(path.name for path in kept.iterdir() if path.suffix == SUFFIX and path.name != TENSORS)
    done, ways = Counter(), case.amount(4, 10)
    for number in range(ways):
        for path in newest.parent.iterdir():
            shutil.rmtree(path)
        shutil.copytree(kept, newest)
        kinds = ("in_facts", "in_body", "in_arrays", "in_header", "in_weights")
        _, what = tampered(newest, ways * case.seed + number, kinds, files)
        run = case.resumed(stopped, "--set", f"stop.env_steps={stopped.steps() + 500}")
        got, error = run.ended(), run.error()
        done[got] += 1
        case.want(got in (0, 3), f"{what}: exit code 0 or 3 ({got}: {error[-300:]})")
        case.want("Traceback" not in error and "mlxe_async itself" not in error, f"{what}: in words ({error[-500:]})")
        case.want(got == 0 or what.split(": ")[0] in error, f"{what}: the file is named ({error[-300:]})")
        case.nothing_left(run)
    case.saw(f"{ways} changed: {done[3]} refused, {done[0]} harmless")


@row("K9", "a FIFO, a folder, a torn line in the place of the log's end", "refused at once; or cut off and told", ci=1)
def _(case):
    """Before a resumption; each file of the run's folder in turn is a FIFO."""
    folder = with_checkpoints(case)
    stopped = case.runs[-1]
    for name in ("log.jsonl", "lock", "settings.toml", "run.json", "status.json", "log.jsonl.1", "recording.bin"):
        path, aside = folder / name, case.folder / "aside"
        is_there = path.exists()
        if is_there:
            path.rename(aside)
        os.mkfifo(path)
        run = case.resumed(stopped)
        got = run.ended(30)
        case.want(got in (2, 4), f"{name}: refused ({got}: {run.error()[-300:]})")
        case.want(str(path) in run.error(), f"{name}: named ({run.error()[-300:]})")
        case.within(time.monotonic() - run.began, SLOW_START_S, f"{name}: refused")
        path.unlink()
        if is_there:
            aside.rename(path)
    with stopped.log.open("ab") as file:
        file.write(b'{"ts": "2026-01-01T00:00:00.000Z", "mono')
    run = case.resumed(stopped, "--set", f"stop.env_steps={stopped.steps() + 500}")
    case.want(run.ended() == 0, f"torn: it goes on ({run.ended()}: {run.error()[-300:]})")
    case.reads(run, 0)
    case.want(any("40 bytes were cut off" in line["message"] for line in run.all("warning")), "torn: it is told")
    case.nothing_left(run)
