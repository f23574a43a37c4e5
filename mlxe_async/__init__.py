"""Reinforcement learning on one machine: one TOML file says what to learn, and who waits for whom.

The journey of a sample
=======================

A *supervisor* (asyncio) starts *executors* that step environments, a *memorizer* that keeps their experience, a
*learner* that turns it into new weights and an *evaluator* that tests frozen versions. They share memory, never locks,
and pass short messages that say where data lies, never the data. Follow one step of one environment:

1.  **Weights.** At the start of a rollout an executor looks at one shared word, the newest published version. If it has
    moved, the executor copies the weights (`ipc.shared.weights`). It never changes them in the middle of a rollout.
2.  **Action.** The algorithm's behaviour policy (`algorithms.interface.Algorithm.act`) answers for all environments of
    the executor at once, with the action and log mu(a|s), the log-probability with which it really was chosen.
3.  **Step.** The environments step (`tasks.vector`), are checked, and the executor (`roles.executor`) writes the row in
    place, as numpy views on its own *lane* of shared memory. `next_obs` is where the step led, also at the end of an
    episode; `terminated` (the world ended) and `truncated` (we stopped) stay two flags.
4.  **Commit.** A block of rows becomes visible by sequence, epoch and checksum (`ipc.shared.lanes`): one writer, no
    lock. A short message goes up the executor's pipe: how many rows, which episodes ended.
5.  **Schedule.** The supervisor's loop wakes, the handle's verb returns, and the coroutine of the schedule goes on
    (`schedules`): these ten lines decide who waits for whom.
6.  **Memory.** The memorizer (`roles.memorizer`) takes the blocks out of all lanes and gives the room back. A finished
    segment of rows is completed (returns) and kept (`memory.replay`, `memory.rollouts`). A full lane makes its executor
    wait; nothing unread is ever overwritten.
7.  **Batch.** On demand the memorizer draws a *plan*: indices, stamps and importance weights, left in shared memory.
    The learner (`roles.learner`) gathers the rows from the very same memory; rows that gave way meanwhile are noticed.
8.  **Update.** The algorithm computes its loss and steps its optimiser, returns metrics and new priorities. Policy lag,
    the learner's version minus the row's, is measured for every batch.
9.  **Publication.** What learns but does not act (optimiser, targets, generators) is kept beside them
    (`roles.keeping`, in `ipc.shared.kept`). New weights go into the one of three buffers that no process reads, then
    the version word moves. Back to 1.

Any of these processes may be killed at any moment. The memory belongs to no name in any file system, the supervisor
holds it, and a successor takes up the work where the last commit left it (`ipc.processes`).

Where is what
=============

Each package's docstring is a map of its modules, as this is of the whole:

    supervisor, schedules                       runs the schedule, and watches the others
    roles, workers                              executor, memorizer, learner, evaluator; the processes that hold them
    ipc, fences                                 shared memory, messages, processes
    memory, rows, parts                         what is kept for learning; columns of a row; parts of observations
    algorithms, networks, maths, optimisers     the papers, their layers, formulas and optimisers
    fast, gpu, denormals, waits                 the same updates in less time, on a CPU and on a GPU
    tasks                                       environments: made, checked, stepped
    settings, choices, cores, foreseen          what a file may say; defaults that follow from task and machine
    logs, storage, plain_json                   the log; the run's folder and checkpoints
    analysis                                    reports, timelines, verdicts and tables, from finished runs
    cli, __main__, advice, elsewhere            the command line; which algorithm fits; names of other packages
    policy, export                              a trained policy, and files that other programs read
    testing                                     what tests of one's own may import
    errors, seeds, ticks, turns                 errors with exit codes; seeds; periodic work; threads that take turns

WORDS.md beside this file explains forty words that the code uses.
"""

import os  # these two are part of the interpreter itself
import sys


def _leave_out_the_working_folder() -> None:
    """See that no file of the working folder runs in place of one of Python's own, or of a package.

    `python -m` has put that folder before all others. What Python itself imports until here has been looked up there
    already: a stand-in for it is refused, for it has run.
    """
    asked = any(word.removeprefix("-m").split(".")[0] == __name__ for word in sys.orig_argv)
    if sys.argv[:1] != ["-m"] or not asked or sys.flags.safe_path:
        return
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib is not to be imported yet
    except OSError:  # it is gone
        return
    if sys.path[:1] == [here]:
        del sys.path[0]
    if here == os.path.dirname(os.__file__):  # noqa: PTH120 - see above
        return
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name in sys.stdlib_module_names and file in (f"{here}/{name}.py", f"{here}/{name}/__init__.py"):
            sys.stderr.write(
                f"{ascii(file)[1:-1]} has run in place of Python's own module {name}, which is imported before this "
                f"program; expected no such name in the working folder: rename it, or use python -P -m {__name__}\n"
            )
            raise SystemExit(2)


_leave_out_the_working_folder()

import time  # noqa: E402 - only now is it certain which one that is
from importlib import import_module  # noqa: E402 - see above
from typing import TYPE_CHECKING, Any  # noqa: E402 - see above

if TYPE_CHECKING:
    from mlxe_async.logs.reader import follow, read_log
    from mlxe_async.policy import load_policy
    from mlxe_async.settings import Settings, load_settings
    from mlxe_async.supervisor import Result, Supervisor

__version__ = "0.1.0"
IMPORTED_NS = time.time_ns()
"""When this program, or the one that it was forked from, began to load its code; nanoseconds since 1970."""
__all__ = ["Result", "Settings", "Supervisor", "follow", "load_policy", "load_settings", "read_log"]

# Names are looked up when they are first used: a mistake in a settings file should not wait for torch.
_HOMES = {
    "Result": "mlxe_async.supervisor",
    "Settings": "mlxe_async.settings",
    "Supervisor": "mlxe_async.supervisor",
    "follow": "mlxe_async.logs.reader",
    "load_policy": "mlxe_async.policy",
    "load_settings": "mlxe_async.settings",
    "read_log": "mlxe_async.logs.reader",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if not name.startswith("_") and (told := import_module("mlxe_async.elsewhere").told_of(name)):
        raise ImportError(told)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
