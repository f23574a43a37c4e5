"""Folders as a stranger might prepare them, through every command that takes a run: no code of theirs may run.

    python tests/faults/foreign_folders.py [--only NAME] [--commands play,eval] [--first N]

Each is a whole run of CartPole with something changed: settings that name code, manifests that lie under checksums that
fit, files that are something else. A command may refuse them, in one line and with an exit code that `--help` knows. It
must not run what lies in them, end by an exception of ours, or take 500 MB, or much more than with the run unchanged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_BYTES = 500 * 10**6
MORE_BYTES = 100 * 10**6  # than the same command takes with the run as it was made
LONGEST_S = 60
CODES = (0, 2, 3, 4, 5, 75)
OURS = "an error of mlxe_async itself"
EVIL = "evil_stranger"
NAME = "20260101T000000Z-run"
MANY = 2**53

SETTINGS = """\
[task]
env = "CartPole-v1"
max_episode_steps = 50
[schedule]
kind = "serial"
executors = 1
[algorithm]
name = "mlxe"
common = [8]
min_updates = 4
[stop]
env_steps = 300
[checkpoint]
interval_s = 0
interval_steps = 150
[evaluation]
episodes = 2
max_episode_steps = 30
"""

COMMANDS = {
    "play": ["play", "{run}", "--max-steps", "20"],
    "eval": ["eval", "{run}", "--behaviour"],
    "study": ["study", "{run}", "--games", "1", "--out", "{out}"],
    "study --policy": ["study", "{run}", "--policy"],
    "compare": ["compare", "{run}", "--no-pictures", "--out", "{out}/study"],
    "curve": ["curve", "{run}"],
    "follow": ["follow", "{run}"],
    "runs list": ["runs", "list", "--dir", "{runs}"],
    "replay": ["replay", "{run}", "--no-progress"],
    "repro": ["repro", "{run}/crash/mlxe-exe-0.1.txt", "--here"],
    "--resume --check": ["--resume", "{run}", "--check"],
}


# -- one run of which all are made -------------------------------------------------------------------------------------


def make_run(folder: Path) -> Path:
    """A run that has ended, of built-in code alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "mlxe_async", "run.toml", "--no-progress"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return (folder / "runs" / "latest").resolve()


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))


def resign(checkpoint: Path, change) -> None:
    """Change a manifest's body, and make its checksum fit again."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    body = change(manifest["body"]) or manifest["body"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"format": 1, "sha256": hashlib.sha256(text.encode()).hexdigest(), "body": body}))


def put(run: Path, name: str, text: str | bytes) -> None:
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def evil(run: Path, *, name: str = EVIL) -> None:
    """A module that leaves a mark when it is imported, and has whatever settings may name."""
    put(
        run,
        f"{name}.py",
        f"open({str(run.parent / 'ran')!r}, 'a').write({name!r})\n"
        "try:\n    import gymnasium\n    class Env(gymnasium.Env): pass\n    class Wrap(gymnasium.Wrapper): pass\n"
        "except Exception:\n    pass\nclass Algorithm: pass\n",
    )


# -- what is wrong with them -------------------------------------------------------------------------------------------


def setting(*lines: tuple[str, str, str], names: tuple[str, ...] = (EVIL,), seal: bytes | None = None):
    """Settings with keys changed: (table, key, TOML); and modules that lie there."""

    def change(run: Path) -> None:
        import tomllib

        from mlxe_async.settings.writing import toml_value

        tree = tomllib.loads((run / "settings.toml").read_text())
        for table, key, value in lines:
            tree.setdefault(table, {})[key] = tomllib.loads(f"x = {value}")["x"]
        text = "".join(
            f"[{table}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in keys.items())
            for table, keys in tree.items()
        )
        put(run, "settings.toml", text)
        for name in names:
            evil(run, name=name)
        if seal is not None:
            put(run, "seal", seal)

    return change


def facts(**changed):
    """Facts of all manifests changed; a callable value is given what was there."""

    def body(found):
        for name, value in changed.items():
            found["facts"][name] = value(found["facts"].get(name)) if callable(value) else value

    return manifests(body)


def spaces(**changed):
    return facts(spaces=lambda old: {**old, **changed})


def manifests(change):
    def all_of_them(run: Path) -> None:
        for checkpoint in (run / "checkpoints").iterdir():
            resign(checkpoint, change)

    return all_of_them


def large_weights(run: Path) -> None:
    """2.5 GB of weights that the manifest tells of, in a file without blocks."""
    rows = 10_000_000
    for checkpoint in (run / "checkpoints").iterdir():
        header = json.dumps({"w": {"dtype": "F32", "shape": [rows, 64], "data_offsets": [0, rows * 256]}}).encode()
        with (checkpoint / "tensors.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + rows * 256)

        size = (checkpoint / "tensors.safetensors").stat().st_size

        def body(found, size=size):
            found["bytes"], found["sha256"] = size, "0" * 64
            found["tensors"] = {"w": ["<f4", [rows, 64]]}
            found["facts"]["parameters"] = [["w", [rows, 64]]]
            found["facts"]["spaces"]["observation_shape"] = [rows]

        resign(checkpoint, body)


def wide(size: int):
    """Observations so wide, in settings, facts and manifests alike; the file is not so long."""

    def change(run: Path) -> None:
        def body(found):
            told = [["common.0.weight", [size, 8]], *found["facts"]["parameters"][1:]]
            found["facts"]["parameters"] = told
            found["tensors"]["common.0.weight"] = ["<f4", [size, 8]]
            found["facts"]["spaces"]["observation_shape"] = [size]

        manifests(body)(run)

    return change


def many_checkpoints(run: Path) -> None:
    """A hundred manifests of a MiB each, all of empty objects."""
    stuff = [{}] * 330_000
    source = newest(run)
    for number in range(100, 200):
        target = run / "checkpoints" / str(number)
        shutil.copytree(source, target)
        resign(target, lambda found, number=number: {**found, "number": number, "facts": {"stuff": stuff}})


def special(name: str, make):
    def change(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return change


def pickled(run: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return (open, (str(run.parent / "ran"), "a"))

    for checkpoint in (run / "checkpoints").iterdir():
        data = pickle.dumps(Bomb())
        (checkpoint / "tensors.safetensors").write_bytes(data)

        def body(found, data=data):
            found["bytes"], found["sha256"] = len(data), hashlib.sha256(data).hexdigest()

        resign(checkpoint, body)


def crash_report(text: str):
    return lambda run: put(run, "crash/mlxe-exe-0.1.txt", text)


NESTED = "[" * 100_000
HERE = ("run", "python_path", '["."]')
OWN = ("algorithm", "name", f'"{EVIL}:Algorithm"')
FOLDERS = {
    # code that settings name
    "algorithm": setting(HERE, OWN),
    "algorithm, absolute path": lambda run: setting(("run", "python_path", json.dumps([str(run)])), OWN)(run),
    "algorithm, no path": setting(OWN),
    "environment class": setting(HERE, ("task", "env", f'"{EVIL}:Env"')),
    "environment id": setting(HERE, ("task", "env", f'"{EVIL}:Evil-v0"')),
    "environment in a package": setting(HERE, ("task", "env", '"evil.sub:Env"'), names=("evil/__init__", "evil/sub")),
    "wrapper": setting(HERE, ("task", "wrappers", f'["{EVIL}:Wrap"]')),
    "wrapper with arguments": setting(HERE, ("task", "wrappers", f'[{{entry = "{EVIL}:Wrap", kwargs = {{a = 1}}}}]')),
    "wrapper that writes": setting(
        ("task", "wrappers", '[{entry = "gymnasium.wrappers:RecordVideo", kwargs = {video_folder = "ran"}}]'), names=()
    ),
    "installed module": setting(("task", "env", '"pip.__main__:Env"'), names=()),
    "a module of our own": setting(("task", "env", '"mlxe_async.testing.auditing:Audit"'), names=()),
    "old gym by its name": setting(
        HERE, ("task", "env", '"GymV26Environment-v0"'), ("task", "kwargs", f'{{env_id = "{EVIL}:Evil-v0"}}')
    ),
    "shadows of packages": setting(HERE, names=("gymnasium", "numpy", "torch", "pydantic", "uvloop", "safetensors")),
    "shadows of the library": setting(HERE, names=("json", "random", "sitecustomize", "usercustomize", "antigravity")),
    "shadow of us": setting(HERE, names=("mlxe_async", "mlxe_async/__init__", "mlxe_async/algorithms/__init__")),
    "standard library": setting(("task", "env", '"antigravity:Env"'), names=()),
    "allowed by itself": setting(HERE, OWN, ("run", "allow_modules", f'["{EVIL}"]')),
    "seal of zeros": setting(HERE, OWN, seal=b"0" * 64),
    "empty seal": setting(HERE, OWN, seal=b""),
    "seal of bytes": setting(HERE, OWN, seal=b"\xff\x00" * 50),
    "seal of a MiB": setting(HERE, OWN, seal=b"a" * 2**20),
    "seal that is a link": lambda run: (setting(HERE, OWN)(run), (run / "seal").symlink_to("/dev/zero")),
    "weights that are a pickle": pickled,
    # manifests that lie
    "2.5 GB of weights": large_weights,
    "wide observations": wide(10_000_000),
    "wider observations": wide(2**40),
    "no parameters": facts(parameters=[]),
    "a parameter ten thousand times": facts(parameters=lambda old: old[:1] * 10_000),
    "parameters that are no list": facts(parameters=7),
    "parameters of other names": facts(parameters=lambda old: [[f"x{name}", shape] for name, shape in old]),
    "a parameter of a negative shape": facts(parameters=lambda old: [[old[0][0], [-1, 8]], *old[1:]]),
    "observations of nothing": spaces(observation_shape=[]),
    "observations of zeros": spaces(observation_shape=[0]),
    "huge observations": spaces(observation_shape=[MANY]),
    "huge observations of many sides": spaces(observation_shape=[MANY] * 2000),
    "observations of bytes": spaces(observation_dtype="|u1", observation_shape=[4]),
    "observations of texts": spaces(observation_dtype="<U4"),
    "other observations": spaces(observation_shape=[5]),
    "no actions": spaces(actions=0, action_sizes=[0]),
    "very many actions": spaces(actions=MANY, action_sizes=[MANY]),
    "actions of another kind": spaces(action_kind="box"),
    "several actions": spaces(action_kind="multi_discrete", actions=None, action_sizes=[3, 2], action_shape=[2]),
    "bounds that are missing": spaces(action_kind="box", actions=None, action_sizes=[], action_shape=[3]),
    "masks of nothing": spaces(masked=True),
    "a mirror that is none": spaces(symmetry={"observation_sign": [1.0], "action_order": [9, 9]}),
    "facts that are texts": facts(version="x", spaces="y", parameters="z"),
    "a version of minus one": facts(version=-1),
    "counters of texts": facts(counters={"env_steps": "many"}),
    "tensors that are numbers": manifests(lambda body: body | {"tensors": dict.fromkeys(body["tensors"], 7)}),
    "tensors of a negative shape": manifests(lambda body: body | {"tensors": {"w": ["<f4", [-5, 5]]}}),
    "bytes beyond all": manifests(lambda body: body | {"bytes": MANY}),
    "many checkpoints": many_checkpoints,
    # settings and other files
    "layers of a GB": setting(("algorithm", "common", "[16000, 16000, 16000]"), names=()),
    "layers without end": setting(("algorithm", "common", str([64] * 20_000)), names=()),
    "settings that are nested": lambda run: put(run, "settings.toml", f"x = {NESTED}"),
    "settings that are a device": special("settings.toml", lambda path: path.symlink_to("/dev/zero")),
    "a manifest that is nested": lambda run: put(newest(run), "manifest.json", NESTED),
    "run.json of 3 MiB": lambda run: put(run, "run.json", "[" + "{}," * 2**20 + "{}]"),
    "a status that is nested": lambda run: put(run, "status.json", NESTED),
    "a checkpoint that is a pipe": lambda run: special(f"checkpoints/{newest(run).name}/manifest.json", os.mkfifo)(run),
    "a recording of nothing": lambda run: put(run, "recording.bin", os.urandom(4096)),
    "a crash report of nothing": crash_report("nothing"),
    "a log that is a pipe": special("log.jsonl", os.mkfifo),
    "a lock that is a pipe": special("lock", os.mkfifo),
    "secrets of others": special("log.jsonl", lambda path: path.symlink_to("/dev/full")),
}


def prepare(name: str, source: Path, where: Path) -> Path:
    """The folder of this name, a changed copy of a run; without a name, unchanged."""
    run = where / NAME
    shutil.copytree(source, run)
    (run / "lock").touch()
    if name:
        FOLDERS[name](run)
    return run


# -- through a command, in a fork of a process that has done nothing but import ----------------------------------------


class Commands:
    """Forks commands, and measures each.

    The process that is forked has imported what commands import and has done nothing else: a fork of one that has
    calculated would wait for torch's threads for ever, and has all of that one's memory.
    """

    def __init__(self) -> None:
        program = [sys.executable, __file__, "--forks"]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self, command: str, run: Path, where: Path) -> tuple[int, int, str]:
        """Exit code, most bytes of a process, and what was said, of a command with a run in a folder."""
        places = {"run": run, "runs": where, "out": where / "out"}
        words = [part.format(**places) for part in COMMANDS[command]]
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([words, str(where)]) + "\n")
        self.process.stdin.flush()
        code, most, said = json.loads(self.process.stdout.readline())
        return code, most, said

    def close(self) -> None:
        """End it."""
        self.process.communicate()

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def answer_all() -> None:
    """Fork what is asked for by lines of JSON, until there are no more."""
    import mlxe_async.cli.compare
    import mlxe_async.cli.evaluate
    import mlxe_async.cli.study
    import mlxe_async.policy  # noqa: F401 - for the forks

    for line in sys.stdin:
        words, where = json.loads(line)
        sys.stdout.write(json.dumps(tried(words, Path(where))) + "\n")
        sys.stdout.flush()


def tried(command: list[str], where: Path, limit_s: float = LONGEST_S) -> tuple[int, int, str]:
    """Exit code, most bytes, and what was said, of a command in a fork of this process, in a folder."""
    said = where / "said"
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(where)
            from mlxe_async.cli import main

            code = main(command)
        finally:
            os._exit(code)
    deadline = time.monotonic() + limit_s
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.killpg(child, 9)
            used = os.wait4(child, 0)[2]
            return -1, used.ru_maxrss * 1024, f"hung for {limit_s} s: {said.read_text(errors='replace')}"
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024, said.read_text(errors="replace")


def usual_bytes(commands: Commands, source: Path, names: list[str], where: Path) -> dict[str, int]:
    """Most bytes of a process that each command takes with the run as it was made.

    Raises:
        RuntimeError: one of them hung, or ended by an exception.
    """
    run = prepare("", source, where)
    usual = {}
    for name in names:
        code, usual[name], said = commands.answer(name, run, where)
        if code not in CODES or "Traceback" in said:
            raise RuntimeError(f"{name} with the run as it was made: exit code {code}: {said[-600:]}")
    return usual


def faults_of(commands: Commands, name: str, source: Path, usual: dict[str, int], where: Path) -> list[str]:
    """What each command did with the folder of this name that it must not do; `usual`: bytes that each takes else."""
    run = prepare(name, source, where)
    found = []
    for command, bytes_else in usual.items():
        code, most, said = commands.answer(command, run, where)
        told = f"{name}: {command}"
        if (where / "ran").exists():
            found.append(f"{told}: ran {(where / 'ran').name}")
            shutil.rmtree(where / "ran") if (where / "ran").is_dir() else (where / "ran").unlink()
        if code not in CODES or OURS in said or "Traceback" in said:
            found.append(f"{told}: exit code {code}: {said[-600:]}")
        if most >= min(bytes_else + MORE_BYTES, MOST_BYTES):
            found.append(f"{told}: {most / 10**6:.0f} MB, {bytes_else / 10**6:.0f} with the run as it was made")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="folders whose names have this in them")
    parser.add_argument("--first", type=int, default=0, help="how many of them to leave out, to go on where it stopped")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument(
        "--forks", action="store_true", help="for this program alone: fork what standard input asks for"
    )
    asked = parser.parse_args()
    if asked.forks:
        answer_all()
        return 0
    names = [name for name in FOLDERS if asked.only in name][asked.first :]
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as base:
        os.environ["XDG_STATE_HOME"] = f"{base}/state"
        source = make_run(Path(base) / "own")
        with Commands() as commands:
            with tempfile.TemporaryDirectory(dir=base) as where:
                usual = usual_bytes(commands, source, asked.commands.split(","), Path(where))
            for name in names:
                with tempfile.TemporaryDirectory(dir=base) as where:
                    new = faults_of(commands, name, source, usual, Path(where))
                sys.stdout.write("".join(f"FAULT {one}\n" for one in new) or f"ok    {name}\n")
                sys.stdout.flush()
                faults += new
    told = ", ".join(f"{command} {most / 10**6:.0f}" for command, most in usual.items())
    sys.stdout.write(f"MB with the run as it was made: {told}\n")
    sys.stdout.write(f"{len(names)} folders, {len(usual)} commands: {len(faults)} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
