"""What an environment can do wrong, by name: `fault(env, answer)` gets the environment and its good answer.

A fault returns what the environment answers instead, raises, ends the process, or never comes back. It reads
`env.seconds` and `env.amount` where it needs a time or a size. None of them touches anything outside its process, but
for the processes it starts and what it prints.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import locale
import mmap
import multiprocessing
import os
import queue
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces

from mlxe_async.ipc.messages.frames import encode

MEGABYTE = 1 << 20
# The supervisor's end reads it as a message of which only the first bytes have come.
_HALF_A_FRAME = struct.pack("<4sIII", b"MLXF", 1, 1000, 0) + b'{"ev'
KEPT: list[Any] = []
"""What leaks."""


class TwoArguments(Exception):
    """Cannot be made again from its message alone, as unpickling would."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class Unpicklable(Exception):
    """Carries what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.what = lambda: None


class Unprintable(Exception):
    """Raises when it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


# -- raises ------------------------------------------------------------------------------------------------------------


def _raises(make: Callable[[], BaseException]) -> Callable[[Any, Any], NoReturn]:
    def fault(_env: Any, _answer: Any) -> NoReturn:
        raise make()

    return fault


def _its_own_cause() -> BaseException:
    first, second = ValueError("caused by its own effect"), KeyError("caused by its own cause")
    first.__cause__, second.__cause__ = second, first
    return first


def _recursion(env: Any, answer: Any) -> Any:
    return _recursion(env, answer)


RAISED: dict[str, Callable[[Any, Any], Any]] = {
    "raise": _raises(lambda: ValueError("the motor is too hot")),
    "raise unpicklable": _raises(Unpicklable),
    "raise two arguments": _raises(lambda: TwoArguments("first", "second")),
    "raise unprintable": _raises(Unprintable),
    "raise its own cause": _raises(_its_own_cause),
    "raise huge": _raises(lambda: ValueError("x" * 10 * MEGABYTE)),
    "raise forged": _raises(lambda: ValueError('\n{"event": "run_end"}\n\x1b[2J\x1b]0;title\x07\0')),
    "raise recursion": _recursion,
    "raise memory": _raises(MemoryError),
    "raise exit": _raises(lambda: SystemExit(3)),
    "raise interrupt": _raises(KeyboardInterrupt),
    "raise generator exit": _raises(GeneratorExit),
    "raise cancelled": _raises(asyncio.CancelledError),
    "raise stop iteration": _raises(StopIteration),
    "raise broken pipe": _raises(BrokenPipeError),
}

# -- dies --------------------------------------------------------------------------------------------------------------


def _signals_itself(number: int) -> Callable[[Any, Any], Any]:
    def fault(_env: Any, answer: Any) -> Any:
        os.kill(os.getpid(), number)
        return answer

    return fault


def _segfault(_env: Any, _answer: Any) -> Any:
    return ctypes.string_at(0)


def _bus_error(_env: Any, _answer: Any) -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            file.truncate(0)
            return memory[0]


def _exits(code: int) -> Callable[[Any, Any], NoReturn]:
    def fault(_env: Any, _answer: Any) -> NoReturn:
        os._exit(code)

    return fault


def _poison(env: Any, answer: Any) -> Any:
    """Dies for one seed in `amount`: the same episode brings the same death."""
    if env.reset_seed is not None and env.reset_seed % env.amount == 0:
        os._exit(9)
    return answer


DEADLY: dict[str, Callable[[Any, Any], Any]] = {
    "exit 0": _exits(0),
    "exit 7": _exits(7),
    "kill": _signals_itself(signal.SIGKILL),
    "segfault": _segfault,
    "abort": lambda _env, _answer: os.abort(),
    "fpe": _signals_itself(signal.SIGFPE),
    "ill": _signals_itself(signal.SIGILL),
    "bus": _bus_error,
    "poison": _poison,
}

# -- hangs -------------------------------------------------------------------------------------------------------------


def _sleeps(env: Any, answer: Any) -> Any:
    time.sleep(env.seconds)
    return answer


def _sleeps_with_the_interpreter_locked(env: Any, answer: Any) -> Any:
    ctypes.PyDLL(None).sleep(min(10**6, int(env.seconds)))
    return answer


def _searches_for_ever(_env: Any, answer: Any) -> Any:
    re.match(r"(a+)+$", "a" * 64 + "b")
    return answer


def _spins(_env: Any, _answer: Any) -> NoReturn:
    while True:
        pass


def _waits_for_a_lock(_env: Any, answer: Any) -> Any:
    lock = threading.Lock()
    for _ in range(2):
        lock.acquire()
    return answer


def _waits_for_a_queue(_env: Any, _answer: Any) -> Any:
    return queue.SimpleQueue[Any]().get()


def _waits_for_a_pipe(_env: Any, answer: Any) -> Any:
    ours, _theirs = os.pipe()
    os.read(ours, 1)
    return answer


def _waits_for_a_child(_env: Any, answer: Any) -> Any:
    subprocess.run(["sleep", "1000000"], check=False)  # noqa: S607 - found by PATH, as a simulator would be
    return answer


def _waits_for_a_thread(_env: Any, answer: Any) -> Any:
    thread = threading.Thread(target=time.sleep, args=(1e6,), daemon=True)
    thread.start()
    thread.join()
    return answer


def _hangs_deaf(env: Any, answer: Any) -> Any:
    """No signal that can be blocked reaches it, so that nobody learns its stack."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return _sleeps(env, answer)


def _hangs_stubbornly(env: Any, _answer: Any) -> NoReturn:
    """Goes on sleeping whatever wakes it."""
    for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(env.seconds)


HANGING: dict[str, Callable[[Any, Any], Any]] = {
    "sleep": _sleeps,
    "hang locked": _sleeps_with_the_interpreter_locked,
    "hang in a search": _searches_for_ever,
    "stop": _signals_itself(signal.SIGSTOP),
    "spin": _spins,
    "hang on a lock": _waits_for_a_lock,
    "hang on a queue": _waits_for_a_queue,
    "hang on a pipe": _waits_for_a_pipe,
    "hang on a child": _waits_for_a_child,
    "hang on a thread": _waits_for_a_thread,
    "hang deaf": _hangs_deaf,
    "hang stubbornly": _hangs_stubbornly,
}

WITHOUT_STACK = frozenset({"hang deaf", "hang stubbornly"})
"""Hangs that keep the signal from coming through by which a process writes its stack."""

# -- answers wrongly ---------------------------------------------------------------------------------------------------


def _observes(make: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda _env, answer: (make(answer[0]), *answer[1:])


def _rewards(make: Callable[[float], Any]) -> Callable[[Any, Any], Any]:
    return lambda _env, answer: (answer[0], make(answer[1]), *answer[2:])


def _with(obs: Any, value: float) -> Any:
    changed = np.array(obs, np.float64)
    changed.flat[min(1, changed.size - 1)] = value
    too_large = np.isfinite(value) and abs(value) > np.finfo(np.float32).max
    return changed if too_large else changed.astype(np.float32)


def _space_changes(env: Any, answer: Any) -> Any:
    env.observation_space = spaces.Box(-1, 1, (3,), np.float32)
    return (np.zeros(3, np.float32), *answer[1:])


ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "nan observation": _observes(lambda obs: _with(obs, np.nan)),
    "inf observation": _observes(lambda obs: _with(obs, np.inf)),
    "-inf observation": _observes(lambda obs: _with(obs, -np.inf)),
    "huge observation": _observes(lambda obs: _with(obs, 1e300)),
    "nan reward": _rewards(lambda _: float("nan")),
    "inf reward": _rewards(lambda _: float("inf")),
    "-inf reward": _rewards(lambda _: float("-inf")),
    "large reward": _rewards(lambda _: 1e38),
    "reward none": _rewards(lambda _: None),
    "reward text": _rewards(lambda _: "1.0"),
    "reward complex": _rewards(lambda reward: complex(reward, 1)),
    "reward array": _rewards(lambda reward: np.array([reward, reward])),
    "reward scalar array": _rewards(np.array),
    "reward truth": _rewards(lambda _: np.True_),
    "four values": lambda _env, answer: answer[:4],
    "six values": lambda _env, answer: (*answer, 0),
    "a list": lambda _env, answer: list(answer),
    "nothing": lambda _env, _answer: None,
    "truncated none": lambda _env, answer: (*answer[:3], None, *answer[4:]),
    "terminated number": lambda _env, answer: (*answer[:2], 1, *answer[3:]),
    "longer": _observes(lambda obs: np.append(obs, np.float32(0))),
    "broadcastable": _observes(lambda obs: np.asarray(obs, np.float32).ravel()[:1]),
    "empty": _observes(lambda obs: np.asarray(obs, np.float32)[:0]),
    "ragged": _observes(lambda _: [[0.0], [0.0, 1.0]]),
    "objects": _observes(lambda obs: np.asarray(obs, object)),
    "out of bytes": _observes(lambda obs: np.full(np.shape(obs), 256, np.int64)),
    "space changes": _space_changes,
}


def _same_buffer(env: Any, answer: Any) -> Any:
    """Returns one array again and again, and spoils what was returned before."""
    buffer = env.__dict__.setdefault("buffer", np.zeros_like(answer[0]))
    buffer[:] = answer[0]
    return (buffer, *answer[1:])


def _info(make: Callable[[Any], dict[str, Any]]) -> Callable[[Any, Any], Any]:
    return lambda env, answer: (*answer[:-1], make(env))


def _nested(depth: int) -> dict[str, Any]:
    info: dict[str, Any] = {}
    for _ in range(depth):
        info = {"deeper": info}
    return info


ODD: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda _env, answer: answer,
    "same buffer": _same_buffer,
    "float64": _observes(lambda obs: np.asarray(obs, np.float64)),
    "big-endian": _observes(lambda obs: np.asarray(obs, ">f4")),
    "plain list": _observes(lambda obs: np.asarray(obs).tolist()),
    "out of bounds": _observes(lambda obs: obs),
    "huge info": _info(lambda env: {"big": b"x" * env.amount * MEGABYTE}),
    "nested info": _info(lambda _env: _nested(10_000)),
    "unpicklable info": _info(lambda _env: {"what": lambda: None, "lock": threading.Lock()}),
}

# -- changes its process -----------------------------------------------------------------------------------------------


def _prints(_env: Any, answer: Any) -> Any:
    line = "x" * 1023
    for _ in range(_env.amount * 1024):
        print(line)
    return answer


def _writes(_env: Any, answer: Any) -> Any:
    for fd in (1, 2):
        os.write(fd, b"\xff\xfe not text \x80 \0 \x1b[2J" * 40 + b"\n")
    print("\ud800 half a pair", file=sys.stderr)
    return answer


def _closes_descriptors(_env: Any, answer: Any) -> Any:
    os.closerange(3, 256)
    return answer


def _closes_standard(_env: Any, answer: Any) -> Any:
    os.closerange(0, 3)
    return answer


def _changes_everything(_env: Any, answer: Any) -> Any:
    os.chdir("/")
    os.umask(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(1)
    np.seterr(all="raise")
    np.random.seed(0)
    random.seed(0)
    locale.setlocale(locale.LC_ALL, "C")
    os.environ["OMP_NUM_THREADS"] = "64"
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()
    return answer


def _starts(**how: Any) -> Callable[[Any, Any], Any]:
    def fault(_env: Any, answer: Any) -> Any:
        KEPT.append(subprocess.Popen(["sleep", "600"], **how))  # noqa: S607 - found by PATH, as a simulator would be
        return answer

    return fault


def _starts_and_dies(_env: Any, answer: Any) -> Any:
    _starts()(_env, answer)
    _starts(start_new_session=True)(_env, answer)
    os.kill(os.getpid(), signal.SIGKILL)
    return answer


def _lists_descriptors(_env: Any, answer: Any) -> Any:
    """Has a child of its own print the descriptors it inherited; the environment prints them on."""
    said = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=False, close_fds=False)  # noqa: S607 - see _starts
    print(f"INHERITED {said.stdout!r}", flush=True)
    return answer


def _starts_threads(_env: Any, answer: Any) -> Any:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
    atexit.register(time.sleep, 600)
    return answer


def _doubled(number: int) -> int:
    return 2 * number


def _multiprocesses(_env: Any, answer: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        if pool.map(_doubled, [1, 2]) != [2, 4]:
            raise ValueError("the pool gave wrong answers")
    return answer


def _forks(_env: Any, answer: Any) -> Any:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return answer


def _leaks(env: Any, answer: Any) -> Any:
    KEPT.append(np.ones(env.amount * MEGABYTE, np.uint8))
    return answer


def _allocates(_env: Any, answer: Any) -> Any:
    """Ten times what the machine has, in one piece."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    KEPT.append(bytearray(10 * total))
    return answer


def _limited(_env: Any, answer: Any) -> Any:
    """Lowers its own limit on memory, and then needs more."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - as an environment would
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MEGABYTE, before[1]))
    try:
        KEPT.append(bytearray(1024 * MEGABYTE))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return answer


def _attacks_the_pipe(_env: Any, answer: Any) -> Any:
    """Writes garbage into every socket it finds: its own process's channel among them."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as an environment would
        try:
            if "socket:" in os.readlink(f"/proc/self/fd/{name}"):  # noqa: PTH115 - as an environment would
                os.write(int(name), b"\xde\xad\xbe\xef" * 64)
        except OSError:
            continue
    return answer


def _say(words: bytes) -> None:
    """Say something to the supervisor, through every socket there is."""
    said = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - see above
        # The listing's own descriptor is gone, and some socket may take no words; but one has to.
        with contextlib.suppress(OSError):
            if "socket:" in os.readlink(f"/proc/self/fd/{name}"):  # noqa: PTH115 - see above
                said += os.write(int(name), words) == len(words)
    if not said:
        raise RuntimeError("expected a socket of the process to speak to the supervisor through, found none")


def _says_half_a_frame(env: Any, answer: Any) -> Any:
    """Begins a message to the supervisor, and does not end it: dies, or sleeps if there is a time to sleep."""
    _say(_HALF_A_FRAME)
    if env.seconds >= 1e9:
        os._exit(9)
    time.sleep(env.seconds)
    return answer


def _says(*messages: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """Whole frames that are no messages of an executor."""

    def fault(_env: Any, answer: Any) -> Any:
        _say(b"".join(map(encode, messages)))
        return answer

    return fault


def _answers(result: Any) -> Callable[[Any, Any], Any]:
    """Answers in the executor's place: one of these numbers is that of the request that is under way."""
    return _says(*({"id": number, "result": result} for number in range(1, 50)))


_NOTICE: dict[str, Any] = {
    "kind": "env_error", "executor": 0, "env": 0, "phase": "step", "detail": "hot", "episode": 0, "step": 1, "seed": 1,
    "faults": 1, "trace": "",
}  # fmt: skip
_ROLLOUT: dict[str, Any] = {
    "rows": 3, "blocks": 1, "out_of_bounds": 0, "rss_mb": None, "version": 1, "cut": False, "start_ns": 0,
    "seconds": 0.1, "lane_wait_s": 0.0, "action_changes": None, "moved": [0], "begun": [0], "running": [False],
    "episodes": {"env": [], "episode": [], "steps": [], "return": [], "terminated": [], "seed": []},
}  # fmt: skip

FALSE_WORDS: dict[str, Callable[[Any, Any], Any]] = {
    "says nonsense": _says({"notice": {"kind": "nonsense"}}),
    "says half an error": _says({"notice": {"kind": "env_error", "executor": 0}}),
    "says an odd error": _says({"notice": _NOTICE | {"env": "0", "trace": None}}),
    "says another's error": _says({"notice": _NOTICE | {"executor": 99}}),
    "says hello again": _says({"hello": {"pid": 1, "epoch": 1, "facts": {}}}),
    "answers nothing": _answers(None),
    "answers without fields": _answers({}),
    "answers in text": _answers(_ROLLOUT | {"rows": "3"}),
    "answers for two": _answers(_ROLLOUT | {"begun": [0, 0]}),
    "answers with half episodes": _answers(_ROLLOUT | {"episodes": _ROLLOUT["episodes"] | {"return": [1.0]}}),
    "answers an odd failure": _says(*({"id": number, "error": {"kind": 3}} for number in range(1, 50))),
}
"""What an executor never says: each ends it, and nobody else."""

PROCESS: dict[str, Callable[[Any, Any], Any]] = {
    "print": _prints,
    "write garbage": _writes,
    "close descriptors": _closes_descriptors,
    "close standard": _closes_standard,
    "change everything": _changes_everything,
    "child": _starts(),
    "child in a session": _starts(start_new_session=True),
    "children and die": _starts_and_dies,
    "fork": _forks,
    "list descriptors": _lists_descriptors,
    "threads": _starts_threads,
    "multiprocessing": _multiprocesses,
    "leak": _leaks,
    "allocate": _allocates,
    "limit": _limited,
    "attack the pipe": _attacks_the_pipe,
    "half a frame": _says_half_a_frame,
    **FALSE_WORDS,
}

FAULTS: dict[str, Callable[[Any, Any], Any]] = {**RAISED, **DEADLY, **HANGING, **ANSWERS, **ODD, **PROCESS}

HARMLESS = frozenset({*HANGING, *ODD, *PROCESS, "poison", "large reward"}) - {"allocate", "limit", "multiprocessing"}
"""Faults after which the step still counts: its answer is as good as any, if it is ever given."""

# -- other spaces ------------------------------------------------------------------------------------------------------

# Functions, for some are large.
SPACES: dict[str, tuple[Callable[[], Any], Callable[[int], Any] | None]] = {
    "text": (lambda: spaces.Text(5), lambda _: "word"),
    "graph": (lambda: spaces.Graph(spaces.Box(0, 1, (2,)), None), lambda _: None),
    "sequence": (lambda: spaces.Sequence(spaces.Discrete(2)), lambda _: (1,)),
    "dict": (lambda: spaces.Dict({"a": spaces.Discrete(2)}), lambda _: {"a": 1}),
    "dict of dict": (lambda: spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}), lambda _: {"a": {"b": 1}}),
    "tuple": (lambda: spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), lambda _: (1, 1)),
    "discrete": (lambda: spaces.Discrete(4), lambda _: 1),
    "multi-binary": (lambda: spaces.MultiBinary(3), lambda _: np.zeros(3, np.int8)),
    "multi-discrete": (lambda: spaces.MultiDiscrete([2, 3]), lambda _: np.zeros(2, np.int64)),
    "float16": (lambda: spaces.Box(-9, 9, (2,), np.float16), lambda n: np.array([n % 9, 1], np.float16)),
    "float64": (lambda: spaces.Box(-9, 9, (2,), np.float64), lambda n: np.array([n % 9, 1.0])),
    "bytes": (lambda: spaces.Box(0, 255, (4, 4), np.uint8), lambda n: np.full((4, 4), n % 256, np.uint8)),
    "whole numbers": (lambda: spaces.Box(0, 10, (2,), np.int32), lambda _: np.zeros(2, np.int32)),
    "bounded": (lambda: spaces.Box(-1, 1, (2,), np.float32), lambda n: np.array([n, 0], np.float32)),
    "scalar": (lambda: spaces.Box(0, 1, ()), lambda _: np.float32(0)),
    "large": (lambda: spaces.Box(0, 1, (10**8,), np.uint8), lambda _: np.zeros(10**8, np.uint8)),
    "action from five": (lambda: spaces.Discrete(3, start=5), None),
    "action of floats": (lambda: spaces.Box(-1, 1, (2,), np.float32), None),
    "action multi-discrete": (lambda: spaces.MultiDiscrete([2, 3]), None),
}
"""Name -> the space, and what is observed at a step; actions where the name says so."""
