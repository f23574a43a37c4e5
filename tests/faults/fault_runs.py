"""What the rows of the catalogue are made with: a table of rows, runs of the real command, and what is always checked.

A row is a function with a decorator; it starts runs, says what it wants and what it saw. Everything is judged from the
outside: exit code, last line, log, status, files, processes, memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
for folder in (TESTS, TESTS / "runs"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import leaks  # noqa: E402 - found by the line above
from command import Command  # noqa: E402 - see above

from mlxe_async.errors import MlxeError, ResourceError  # noqa: E402 - see above
from mlxe_async.storage import checkpoints  # noqa: E402 - see above
from mlxe_async.testing import audit  # noqa: E402 - see above

SCALES = ("ci", "hour", "day")
LIMIT_S = 150.0
# The imports of a run that must not be refused before the task was tried out.
SLOW_START_S = 5.0
PYTHON = sys.executable
ROOT = str(TESTS.parent)
PYTHON_PATH = os.pathsep.join([ROOT, str(HERE)])
"""Where runs find the package, and the environments that misbehave."""

BASE = {
    "run": {"name": "fault"},
    "stop": {"env_steps": 1200},
    "task": {"env": "misbehaving:Chaos-v0"},
    "schedule": {"kind": "oa", "executors": 2},
    "algorithm": {
        "name": "mlxe",
        "min_updates": 1,
        "batch": 512,
        "common": [8],
        "policy": [],
        "value": [],
        "input_scale": [1e-7],
    },
    "memory": {"capacity_rows": 200_000, "keep_rows": 2000},
    "logs": {"ledger_interval_s": 1.0},
}


class NotRun(Exception):
    """The row cannot be judged here; the message says what it needs."""


@dataclass
class Row:
    """One row of the catalogue."""

    id: str
    fault: str
    required: str
    how: str = ""
    check: object = None
    needs: tuple[str, ...] = ()
    missing: str = ""
    scale: str = "ci"
    ci: int = 2
    quick: bool = False

    def seeds(self, scale):
        return range(self.ci if scale == "ci" else 20 if self.ci > 1 else 1)


ROWS: dict[str, Row] = {}


def row(id_, fault, required, **more):
    """Put a check into the catalogue; its docstring says how the fault is brought about."""

    def take(check):
        assert id_ not in ROWS, f"row {id_} is there twice"
        ROWS[id_] = Row(id_, fault, required, " ".join((check.__doc__ or "").split()), check, **more)
        return check

    return take


def missing(id_, fault, required, why):
    """A row about something that does not exist in the program."""
    ROWS[id_] = Row(id_, fault, required, "", None, missing=why)


def out_of_reach(id_, fault, required, *needs):
    """A row that no check is written for, because of what it needs."""
    ROWS[id_] = Row(id_, fault, required, "", None, needs=needs)


# -- what a host may lack --------------------------------------------------------------------------------------------


def _can_mount():
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _has(program):
    return lambda: shutil.which(program) is not None


def _control_groups():
    """Where groups with a limit on memory may be made, and the name of the limit, by version of the interface."""
    root = Path("/sys/fs/cgroup")
    return ((root, "memory.max"), (root / "memory", "memory.limit_in_bytes"))


@contextlib.contextmanager
def memory_group(nbytes):
    """The folder of a control group whose processes may use so much memory; it is removed when they are gone."""
    made = None
    for root, limit in _control_groups():
        group = root / f"mlxe-fault-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                (group / limit).write_text(str(nbytes))
                made = group
                break
            group.rmdir()
    if made is None:
        raise NotRun("a memory control group that may be written to")
    try:
        yield made
    finally:
        deadline = time.monotonic() + 10.0
        while (made / "cgroup.procs").read_text() and time.monotonic() < deadline:
            pause(0.05)
        made.rmdir()


def _can_limit_memory():
    try:
        with memory_group(1 << 30):
            return True
    except NotRun:
        return False


NEEDS = {
    "root": lambda: os.geteuid() == 0,
    "mount namespaces": lambda: shutil.which("unshare") is not None and _can_mount(),
    "memory control group": _can_limit_memory,
    "strace": _has("strace"),
    "ss": _has("ss"),
    "setpriv": _has("setpriv"),
}


def lacks(needs):
    """Which of the needs this host does not meet; those that nobody can look up are never met."""
    return [need for need in needs if not NEEDS.get(need, lambda: False)()]


# -- TOML ------------------------------------------------------------------------------------------------------------


def toml_value(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value)


def toml(tables):
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None)]
    return "\n".join(lines) + "\n"


def merged(*many):
    result = {}
    for tables in many:
        for name, table in tables.items():
            result[name] = {**result.get(name, {}), **table}
    return result


# -- runs ------------------------------------------------------------------------------------------------------------


class FaultRun(Command):
    """The command, with what a test may want to do to the process that it becomes."""

    def __init__(
        self,
        folder,
        tables,
        *arguments,
        env=None,
        prefix=(),
        program=None,
        safe_path=True,
        wants_own_group=True,
        runs=None,
        **popen,
    ):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.runs = Path(runs or folder / "runs")
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.temporary_before = self.temporary.stat().st_mtime_ns
        file = folder / "settings.toml"
        if tables is not None:
            place = {"run": {"dir": str(self.runs), **tables.get("run", {})}} if isinstance(tables, dict) else {}
            text = tables if isinstance(tables, str) else toml(merged(tables, place))
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        program = program or ["-m", "mlxe_async", str(file), "--no-progress"]
        self._out, self._err = (folder / "stdout").open("wb"), (folder / "stderr").open("wb")
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._out, "stderr": self._err, **popen}
        path = os.pathsep.join(filter(None, [PYTHON_PATH, os.environ.get("PYTHONPATH", "")]))
        self._read, self._lines = 0, []
        self._by_event = {}
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*prefix, PYTHON, *(["-P"] if safe_path else []), *program, *arguments],
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(self.temporary), **(env or {})},
            start_new_session=wants_own_group,
            cwd=folder,
            **streams,
        )

    @property
    def log(self):
        return self.runs / "latest" / "log.jsonl"

    def lines(self):
        """The whole lines of the log so far; only what is new is read again."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return self._lines
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        for text in data.splitlines():
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                self._lines.append(line)
                self._by_event.setdefault(line["event"], []).append(line)
        return self._lines

    def error(self):
        return (self.folder / "stderr").read_text(errors="replace")

    def output(self):
        return (self.folder / "stdout").read_text(errors="replace")

    def until(self, condition, seconds=LIMIT_S):
        """Wait until `condition()` is true or the command has ended; the last answer."""
        deadline = time.monotonic() + seconds
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return condition()
        try:
            while not (answer := condition()):
                if select.select([pidfd], [], [], 0.02)[0] or time.monotonic() > deadline:
                    return condition()
            return answer
        finally:
            os.close(pidfd)

    def all(self, event, **fields):
        self.lines()
        told = self._by_event.get(event, [])
        return [line for line in told if all(line.get(name) == value for name, value in fields.items())]

    def told(self, event, times=1, seconds=LIMIT_S, **fields):
        """Whether the log comes to tell of `event` so often."""
        return bool(self.until(lambda: len(self.all(event, **fields)) >= times, seconds))

    def steps(self):
        return max((line["env_steps"] for line in self.all("episode_end")), default=0)

    def reached(self, steps, seconds=LIMIT_S):
        return bool(self.until(lambda: self.steps() >= steps, seconds))

    def living(self, process):
        """Process id of the present life of a process, by its name in the log."""
        started = self.all("proc_start", process=process)
        return started[-1]["pid"] if started else None

    def status(self):
        try:
            return json.loads((self.runs / "latest" / "status.json").read_text())
        except (OSError, ValueError):
            return {}

    def ended(self, seconds=LIMIT_S):
        """The exit code, as a shell sees it; None if it does not end."""
        if not self.until(lambda: self.process.poll() is not None, seconds):
            return None
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def close(self):
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                self.process.send_signal(number)
        self.process.wait()
        for stream in (self._out, self._err):
            stream.close()


def kill(pid, number=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError, TypeError):
        os.kill(pid, number)


def pause(seconds):
    """Nothing to wait for but time itself."""
    select.select([], [], [], seconds)


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return None


def memory_kb(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def cpu_seconds(pid):
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# -- a case ----------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One row with one seed: collects what was wanted and is not so, and what was seen."""

    row: Row
    seed: int
    scale: str
    folder: Path
    failures: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    runs: list[FaultRun] = field(default_factory=list)

    @property
    def kind(self):
        """Both schedules come in turn."""
        return ("oa", "is")[self.seed % 2]

    def amount(self, ci, hour, day=None):
        """How much of it one seed takes; where chance plays, an hour and a day have twenty seeds."""
        return {"ci": ci, "hour": hour, "day": day or hour}[self.scale]

    def want(self, condition, sentence):
        if not condition:
            self.failures.append(sentence)
        return bool(condition)

    def saw(self, sentence):
        self.seen.append(sentence)

    def start(self, kwargs=None, tables=None, **how):
        """A run with these arguments for the environment, on top of the small settings."""
        task = {"task": {"kwargs": {"seed": self.seed, **kwargs}}} if kwargs is not None else {}
        chosen = merged(BASE, {"run": {"seed": self.seed}, "schedule": {"kind": self.kind}}, task, tables or {})
        return self.start_raw(chosen, **how)

    def start_raw(self, tables, *, folder=None, **how):
        run = FaultRun(folder or self.folder / str(len(self.runs)), tables, **how)
        self.runs.append(run)
        return run

    def resumed(self, run, *more, **how):
        """The command asked to go on with this run, by its own settings and what is given besides."""
        folder = str((run.runs / "latest").resolve())
        program = ["-m", "mlxe_async", "--resume", folder, "--no-progress", *more]
        return self.start_raw(None, program=program, runs=run.runs, **how)

    def driver(self, text, tables=None, **how):
        """A program of its own that embeds runs: gets the settings file as its argument."""
        tables = merged(BASE, {"run": {"seed": self.seed}}, tables or {})
        number = len(self.runs)
        (self.folder / str(number)).mkdir(parents=True, exist_ok=True)
        script = self.folder / str(number) / "driver.py"
        script.write_text(text)
        return self.start_raw(tables, program=[str(script), str(self.folder / str(number) / "settings.toml")], **how)

    def within(self, seconds, bar, what):
        """A bar on time; a host that is busy with other things gets as much longer as it is busier."""
        slack = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) * (1.5 if os.nice(0) > 0 else 1.0)
        busy = f", on a busy host {bar * slack:.1f} s" if slack > 1 else ""
        return self.want(seconds <= bar * slack, f"{what} within {bar:g} s{busy} (took {seconds:.2f} s)")

    def survives(self, kwargs, tables=None, steps=600, *, whole=True, seconds=LIMIT_S, until=None):
        """A run that must get so far in spite of its fault, whose rows are proven, and which is then asked to stop.

        `until(run)` is waited for too; what it was is for the row to judge.
        """
        endless = merged({"stop": {"env_steps": 10_000_000}}, tables or {})
        run = self.start(kwargs, endless)
        if self.want(run.reached(steps, seconds), f"the run went on (it came to {run.steps()} of {steps} steps)"):
            if until is not None:
                run.until(lambda: until(run), seconds)
            self.proves(run, whole=whole)
        self.stops(run)
        return run

    def proves(self, run, *, whole=True, holes=False):
        """The rows in memory are what the environments lived through; `holes`: but for blocks that were set aside."""
        try:
            found = audit(run.runs / "latest", whole=whole)
        except ResourceError as error:
            self.want(False, f"audit: {error}")
            return None
        problems = [problem for problem in found.problems if not (holes and "missing" in problem)]
        self.want(not problems, f"audit: {'; '.join(problems[:2])}")
        self.want(found.rows > 0, "audit: there are rows")
        return found

    def stops(self, run, number=signal.SIGTERM, code=143, seconds=5.0):
        """Asked to stop, it does within its time, and everything is as it should be afterwards."""
        if run.process.poll() is None:
            began = time.monotonic()
            run.signal(number)
            run.ended(30.0)
            self.within(time.monotonic() - began, seconds, f"stops after {signal.Signals(number).name}")
        self.checks(run, code)

    def checks(self, run, code=0, *, has_log=True, last=""):
        """What holds after every run: exit code, last line, log, ledger, episodes, versions, leftovers."""
        got = run.ended()
        error = run.error()
        said = [line for line in error.splitlines() if line.strip()]
        self.want(got == code, f"exit code {code} (was {got}: {said[-1][:200] if said else 'no last line'})")
        self.want("Traceback" not in error, "no traceback on stderr")
        self.want(said, "the last line of stderr says how it ended")
        if last:
            self.want(said and last in said[-1], f"the last line names {last!r} (was {said[-1][:200] if said else ''})")
        if has_log:
            self.reads(run, got)
        self.nothing_left(run)
        return got

    def reads(self, run, code):
        """The log is whole and its accounts balance."""
        try:
            raw = run.log.read_bytes()
        except OSError as error:
            self.want(False, f"there is a log ({error.strerror})")
            return
        lines = []
        for text in raw.split(b"\n"):
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
        self.want(len(lines) == raw.count(b"\n"), "every line of the log is JSON")
        void = [
            range(line["void_from"], line["void_to"] + 1)
            for line in lines
            if line["event"] == "run_resume" and line.get("void_from") is not None
        ]
        by_event = defaultdict(list)
        for line in lines:
            if not any(line["seq"] in undone for undone in void):
                by_event[line["event"]].append(line)
        self.want([line["seq"] for line in lines] == list(range(len(lines))), "the lines of the log are numbered")
        ends = by_event["run_end"]
        if self.want(len(ends) == 1, f"the log ends with one run_end (has {len(ends)})"):
            self.want(ends[0]["exit_code"] == code, f"run_end tells exit code {code} (tells {ends[0]['exit_code']})")
            told = len(by_event["episode_end"])
            self.want(ends[0]["episodes"] == told, f"{ends[0]['episodes']} episodes are told ({told} are)")
        for ledger in by_event["ledger"][-1:]:
            off = {name: ledger[name] for name in ("lost", "torn") if ledger[name]}
            self.want(not off, f"the ledger balances ({off})")
            self.want(ledger["committed"] == ledger["ingested"] + ledger["backlog"], "committed = ingested + backlog")
        versions = [line["version"] for line in by_event["weights"]]
        self.want(all(a < b for a, b in itertools.pairwise(versions)), "versions only grow")
        named = [(e["idx"], e["env"], e["episode"], e["seed"]) for e in by_event["episode_end"]]
        self.want(len(set(named)) == len(named), "no episode is told twice")

    def nothing_left(self, run, seconds=2.0):
        """No process, no file half written."""
        seconds *= max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        left = leaks.processes_after(seconds)
        self.want(not left, f"no process is left ({left})")
        for pid in left:
            kill(pid)
        staged = [str(path.relative_to(run.folder)) for path in run.runs.rglob(".staged-*")]
        self.want(not staged, f"no file is half written ({staged[:3]})")

    def close(self):
        for run in self.runs:
            run.close()
        for pid in leaks.processes_after(1.0):
            kill(pid)


def loadable(run):
    """Whether the newest fit checkpoint of a run can be loaded."""
    try:
        return bool(checkpoints.load(run.runs / "latest" / "checkpoints")[0])
    except MlxeError:
        return False


def newest_first(folder):
    """The checkpoints of a run folder."""
    return sorted(
        (path for path in (folder / "checkpoints").iterdir() if path.name.isdigit()), key=lambda path: -int(path.name)
    )


def loaded(folder):
    """The version of the weights in the newest fit checkpoint of a run folder, or what the error says."""
    try:
        return checkpoints.load(folder / "checkpoints")[1]["version"]
    except MlxeError as error:
        return str(error)


def loaded_version(path):
    """The version of the weights that the manifest of one checkpoint names."""
    return json.loads((path / "manifest.json").read_text())["body"]["facts"]["version"]


def state_of(pid):
    """The letter of a process's state: `T` while it is stopped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def between(first, second):
    """Seconds between two lines of a log."""
    return (second["mono_ns"] - first["mono_ns"]) / 1e9
