"""What somebody hostile may try: crafted files, other users, secrets, forged lines, foreign code."""

from __future__ import annotations

import ast
import configparser
import os
import random
import re
import signal
import struct
import subprocess
from pathlib import Path

import leaks
from fault_runs import ROOT, kill, out_of_reach, pause, row
from rows_files import refused
from rows_learning import segment_of

ENDLESS = {"stop": {"env_steps": 10_000_000}}
PACKAGE = Path(ROOT, "mlxe_async")
BANNED = {"pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle"}


@row(
    "T1",
    "a checkpoint that carries a pickle",
    "never loaded; pickle, marshal, eval, exec, torch.load nowhere in the package",
    ci=1,
)
def _(case):
    """The package's source is searched; loading a crafted file is row K3."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                found += [f"{path.name}: {name}" for name in names if name.split(".")[0] in BANNED]
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", "")
                owner = getattr(getattr(node.func, "value", None), "id", "")
                if name in ("eval", "exec") or (owner, getattr(node.func, "attr", "")) == ("torch", "load"):
                    found.append(f"{path.name}: {name or 'torch.load'}")
    case.want(not found, f"none of them is used ({found})")


@row(
    "T3",
    "entry strings that name foreign code",
    "dotted names only; the working folder is not on the path; nothing of it runs",
    ci=1,
)
def _(case):
    """os:system, builtins:eval and others as environment, wrapper, algorithm; gymnasium.py in the working folder."""
    for env in ("os:system", "builtins:eval", "os.path:join('a')", "a;b:C-v0", "../x:C-v0"):
        refused(case, {"task": {"env": env}}, "task.env", seconds=8.0)
    refused(case, {"task": {"wrappers": ["os:system"]}}, "wrappers", seconds=8.0)
    refused(case, {"algorithm": {"name": "os:system"}}, "algorithm", seconds=8.0)
    marker = case.folder / "it-ran"
    number = len(case.runs)
    there = case.folder / str(number)
    there.mkdir()
    for name in ("gymnasium", "torch", "numpy", "uvloop", "json", "asyncio", "tomllib"):
        (there / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise SystemExit(9)\n")
    run = case.start({}, {"stop": {"env_steps": 200}}, safe_path=False)
    case.want(run.ended() == 0, f"files in the working folder change nothing ({run.ended()}: {run.error()[-200:]})")
    case.want(not marker.exists(), "none of them ran")


@row(
    "T3.2",
    "modules of the environment are imported from anywhere",
    "only what is allowed by name: allow_modules, shown in run_start",
    ci=1,
)
def _(case):
    """A module in python_path as environment, as wrapper and as algorithm; then one that is allowed."""
    folder = case.folder / "modules"
    folder.mkdir()
    marker = case.folder / "it-ran"
    (folder / "foreign.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    run = {"python_path": [str(folder)], "allow_modules": ["misbehaving"]}
    for tables in (
        {"task": {"env": "foreign:X-v0"}},
        {"task": {"wrappers": ["foreign:Wrapper"]}},
        {"algorithm": {"name": "foreign:Learner"}},
    ):
        refused(case, {"run": run, **tables}, "allow_modules", seconds=3.0)
    case.want(not marker.exists(), "nothing of it ran")
    fine = case.start({}, {"stop": {"env_steps": 200}, "run": run})
    case.checks(fine, 0)
    told = fine.all("run_start")[0]["modules"]
    case.want(told == ["misbehaving"], f"run_start tells the modules ({told})")


@row("T4", "arguments for the environment as a way in", "JSON types only, bounded in size and depth; exit 2", ci=1)
def _(case):
    """100,000 levels, and 2 MB."""
    refused(case, f'[task]\nenv = "CartPole-v1"\nkwargs = {"{a=" * 20_000}1{"}" * 20_000}\n', "")
    refused(case, f'[task]\nenv = "CartPole-v1"\nkwargs = {{a = "{"x" * 2_000_000}"}}\n', "")


@row("T5", "links planted where we write", "never followed; folders 0700, files 0600 whatever the umask", ci=1)
def _(case):
    """Links at runs/latest, at log, status and crash of a living run, and where its next checkpoints go; umask 0."""
    target = case.folder / "target"
    target.mkdir()
    (target / "log.jsonl").write_text("mine\n")
    runs = case.folder / "planted"
    runs.mkdir()
    (runs / "latest").symlink_to(target)
    umask = ["sh", "-c", 'umask 0; exec "$@"', "sh"]
    run = case.start({}, {**ENDLESS, "checkpoint": {"interval_s": 1.0}}, runs=runs, prefix=umask)
    case.want(run.reached(100) and run.told("checkpoint"), "it runs")
    folder = (runs / "latest").resolve()
    victim = case.folder / "victim"
    victim.write_text("mine")
    for name in (".staged-status.json", ".staged-settings.toml"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
    (folder / "log.jsonl").rename(folder / "old")
    (folder / "log.jsonl").symlink_to(victim)
    (folder / "status.json").unlink()
    (folder / "status.json").symlink_to(victim)
    saved = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    planted = [folder / "checkpoints" / f".staged-{number}" for number in range(saved + 1, saved + 4)]
    for link in planted:
        link.symlink_to(target)
    crash = folder / "crash"
    if crash.exists():
        crash.rename(folder / "old-crash")
    crash.symlink_to(target)
    kill(run.living("mlxe-exe-0"))
    pause(6.5)
    case.want(victim.read_text() == "mine", "links planted at log and status are not followed")
    found = {path.name: path.read_text() for path in target.iterdir()}
    case.want(found == {"log.jsonl": "mine\n"}, f"nor those at latest, crash and checkpoints ({list(found)})")
    newest = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    case.want(newest > saved, f"checkpoints are saved all the same ({saved}, {newest})")
    loose = [str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_symlink() and p.stat().st_mode & 0o077]
    case.want(not loose, f"nothing is readable for others ({loose})")
    run.signal(signal.SIGTERM)
    case.want(run.ended(20) == 143, f"it ends as asked ({run.ended()}: {run.error()[-200:]})")


@row("T7", "huge numbers", "planned in whole numbers and refused before anything is allocated", ci=1)
def _(case):
    """capacity 10^30 and 10^12, an observation of 10^8 bytes with a large memory, 10^6 environments."""
    refused(case, {"memory": {"capacity_rows": 10**30}}, "capacity_rows")
    refused(case, {"memory": {"capacity_rows": 10**12}}, "memory", code=4, seconds=8.0)
    refused(case, {"schedule": {"envs_per_executor": 10**6, "sync": "rollout"}}, "envs_per_executor")
    run = case.start({"space": "large"}, {"algorithm": {"input_scale": [0.1]}})
    got = run.ended()
    case.want(
        got in (2, 4) and "Traceback" not in run.error(),
        f"a huge observation: exit 2 or 4 ({got}: {run.error()[-300:]})",
    )
    case.nothing_left(run)


@row(
    "T8",
    "another user of the host reaches for the memory",
    "cannot open it; nobody can change its size; no name in /dev/shm",
    needs=("root", "setpriv"),
    ci=1,
)
def _(case):
    """As uid 65534 through /proc/PID/fd; ftruncate as ourselves."""
    before = set(os.listdir("/dev/shm"))  # noqa: PTH208, S108 - to look, not to write
    run = case.start({}, ENDLESS)
    run.reached(100)
    case.want(set(os.listdir("/dev/shm")) <= before, "no name in /dev/shm")  # noqa: PTH208, S108 - see above
    with segment_of(run, "memory") as memory:
        try:
            os.ftruncate(memory.fd, 10)
            case.want(False, "its size cannot be changed")
        except PermissionError:
            pass
    script = f"""
import os
for number in range(3, 40):
    try:
        os.open(f"/proc/{run.pid}/fd/{{number}}", os.O_RDWR)
        print("opened", number)
    except OSError:
        pass
"""
    other = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", script]
    done = subprocess.run(other, capture_output=True, text=True, check=False)
    case.want("opened" not in done.stdout, f"another user cannot open it ({done.stdout[:100]})")
    case.stops(run)


CANARY = "canary-7c1d2e"


@row("T9", "secrets in environment variables and settings", "written nowhere", ci=1)
def _(case):
    """A canary as a variable and in kwargs, an exception and a death; every file written is searched."""
    module = case.folder / "modules"
    module.mkdir()
    (module / "takes_secrets.py").write_text(
        "import gymnasium\nfrom misbehaving import ChaosEnv\n"
        "def make(api_token='', password='', **kwargs):\n    return ChaosEnv(**kwargs)\n"
        "gymnasium.register('Secret-v0', entry_point=make)\n"
    )
    secrets = {"api_token": CANARY, "password": CANARY}
    task = {"task": {"env": "takes_secrets:Secret-v0"}, "run": {"python_path": [str(module)]}}
    for fault, event in (("raise", "env_error"), ("segfault", "crash_report")):
        run = case.start({**secrets, "fault": fault, "step": 50, "times": 1}, task, env={"MY_SECRET_TOKEN": CANARY})
        case.checks(run, 0)
        case.want(run.all(event), f"{event} tells of it")
        wrote = [p for p in [*run.runs.rglob("*"), run.folder / "stdout", run.folder / "stderr"] if p.is_file()]
        told = [p.name for p in wrote if CANARY.encode() in p.read_bytes()]
        case.want(not told, f"{event}: the secret is in no file ({told})")
        marked = [p.name for p in wrote if b"<redacted>" in p.read_bytes()]
        case.want("settings.toml" in marked, f"{event}: what was left out is marked so ({marked})")


@row(
    "T10",
    "forged lines and terminal sequences in messages",
    "JSON on one line; control characters never reach the terminal",
    ci=1,
)
def _(case):
    """An exception whose message holds a line break, a run_end event, escape sequences and NUL."""
    run = case.start({"fault": "raise forged", "step": 50}, {"schedule": {"kind": "oa"}})
    case.checks(run, 0)
    case.want(len(run.all("run_end")) == 1, "one run_end")
    errors = run.all("env_error")
    case.want(len(errors) == 1, "one env_error")
    case.want("\x1b" not in run.error() and "\0" not in run.error(), "no escape sequences on stderr")


@row("T11", "a port that is reachable from the network", "nothing listens", needs=("ss",), ci=1)
def _(case):
    """ss -ltnp while it runs."""
    run = case.start({}, ENDLESS)
    run.reached(100)
    ours = {run.pid, *leaks.processes()}
    told = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=False).stdout  # noqa: S607
    listening = [line for line in told.splitlines() if any(f"pid={pid}," in line for pid in ours)]
    case.want(not listening, f"nothing listens ({listening})")
    case.stops(run)


for _id, _what in (
    ("T12", "DNS rebinding, requests across sites"),
    ("T13", "scripts in names and log text"),
    ("T14", "slow and large requests"),
):
    out_of_reach(_id, _what, "of the dashboard", "a dashboard, and there is none")


# Segments, and which of their bytes: headers and words that somebody else acts on, and the first rows.
TARGETS = [("lane-0", 64, 700), ("memory", 0, 8192), ("weights", 0, 4096), ("control", 0, 8192), ("tested", 0, 4096)]


@row("T15", "a hostile worker writes into shared memory", "the supervisor never follows an unchecked number, and lives")
def _(case):
    """Random bytes all over the first words of a lane, of the memory, the weights or the control words, for a while."""
    chance = random.Random(case.seed)  # noqa: S311 - makes garbage
    run = case.start(
        {},
        {
            **ENDLESS,
            "schedule": {"kind": "oa", "memorizer": "own"},
            "supervision": {"restart_limit": 10_000, "backoff_s": 0.02},
        },
    )
    run.reached(200)
    name, begin, end = TARGETS[case.seed % len(TARGETS)]
    with segment_of(run, name) as segment:
        for number in range(case.amount(200, 20_000)):
            at = chance.randrange(begin, min(end, segment.size) - 8)
            segment.buffer[at : at + 8] = struct.pack("<Q", chance.getrandbits(64))
            if number % case.amount(1, 10) == 0:
                pause(0.005)
            if run.process.poll() is not None:
                break
    pause(2.0)
    alive = run.process.poll() is None
    case.want(
        alive or run.process.poll() in (3, 4),
        f"{name}: it lives, or ends in order ({run.process.poll()}: {run.error()[-300:]})",
    )
    case.want("Traceback" not in run.error(), f"no traceback ({run.error()[-300:]})")
    if alive:
        run.signal(signal.SIGTERM)
        code = run.ended(20)
        named = code == 3 and f"segment {name}: " in run.error()  # what was to be saved is gone
        case.want(code == 143 or named, f"it ends as asked, or says what is damaged ({code}: {run.error()[-300:]})")
    case.nothing_left(run)


@row("T16", "descriptors leak into children of the environment", "a child sees 0, 1 and 2 only", ci=1)
def _(case):
    """The environment has ls list its own descriptors."""
    run = case.start({"fault": "list descriptors", "step": 50}, {})
    case.checks(run, 0)
    said = "".join(p.read_text(errors="replace") for p in (run.runs / "latest" / "output").glob("mlxe-exe-0*"))
    case.want("INHERITED" in said, "it said what it saw")
    inherited = set(re.findall(r" (\d+) -> (?!/proc/\d+/fd)", said))  # ls itself opens the folder that it lists
    case.want(inherited == {"0", "1", "2"}, f"0, 1 and 2 only ({said[-300:]})")


@row("T17", "signals to a process that took over a number", "through pidfds, or to children not yet reaped", ci=1)
def _(case):
    """The package's source is searched for os.kill and os.killpg."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "testing"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("kill", "killpg") and getattr(node.value, "id", "") == "os"
    ]
    # The guard itself only; at last a child that is not reaped yet.
    known = {"linux.py", "guard.py", "nursery_main.py", "repro.py"}
    case.want(
        {name.split(":")[0] for name in found} <= known, f"only where the number cannot have changed hands ({found})"
    )
    case.saw(f"os.kill only in {', '.join(found)}")


@row("T18", "files in /tmp", "none; everything is staged beside its target", ci=1)
def _(case):
    """The folder TMPDIR names is never written to: its time of change stays."""
    run = case.start({}, {"checkpoint": {"interval_s": 0.3}})
    case.checks(run, 0)
    case.want(run.temporary.stat().st_mtime_ns == run.temporary_before, "nothing was ever made in TMPDIR")


@row("T19", "a dependency with a known hole", "pip-audit is part of tox", ci=1)
def _(case):
    """tox.ini is read; the audit itself needs the network."""
    parser = configparser.ConfigParser()
    parser.read(Path(ROOT) / "tox.ini")
    case.want(parser.has_section("testenv:audit"), "there is an environment audit")
    if parser.has_section("testenv:audit"):
        case.want("pip-audit" in parser["testenv:audit"]["commands"], "it runs pip-audit")
        case.want(">=" in parser["testenv:audit"]["deps"], "of a version that is named")


out_of_reach("T20", "Ray", "loopback, tokens", "a Ray mode, and there is none")


@row(
    "T21",
    "a checkpoint planted in a shared folder",
    "folders that others may write to, or that another user owns, are refused",
    needs=("root",),
    ci=1,
)
def _(case):
    """chmod 777 of the checkpoints and of the folder they are in, and another owner; each time one is loaded."""
    from rows_files import loaded, newest_first, with_checkpoints

    folder = with_checkpoints(case)
    version = loaded(folder)
    case.want(isinstance(version, int), f"it can be loaded as it is ({version})")
    (folder / "checkpoints").chmod(0o777)
    case.want(not isinstance(loaded(folder), int), f"not when others may put one there ({loaded(folder)})")
    (folder / "checkpoints").chmod(0o700)
    for path in newest_first(folder):
        path.chmod(0o777)
    case.want(not isinstance(loaded(folder), int), f"not when others may write to it ({loaded(folder)})")
    for path in newest_first(folder):
        path.chmod(0o700)
        os.chown(path, 65534, 65534)
    case.want(not isinstance(loaded(folder), int), f"not when it is another user's ({loaded(folder)})")


@row("T22", "stacks of crashes hold data", "text only, mode 0600", ci=1)
def _(case):
    """A crash, then the modes of all files under crash/ and output/ with umask 0."""
    run = case.start(
        {"fault": "segfault", "step": 50}, {"stop": {"env_steps": 600}}, prefix=["sh", "-c", 'umask 0; exec "$@"', "sh"]
    )
    case.checks(run, 0)
    files = [p for name in ("crash", "output") for p in (run.runs / "latest" / name).iterdir() if p.is_file()]
    case.want(files, "there are files")
    case.want(all(not p.stat().st_mode & 0o077 for p in files), "mode 0600")
