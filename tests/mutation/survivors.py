"""Which changes of losses, targets and priorities do the tests not notice?

Each mutant of `mutants.py` is put in place of its module in a process of its own, and the tests of the file's folder
run against it until one fails. What is left survives: a test is missing there, or the mutant is equivalent, which
`equivalent.toml` says with the reason; each of these takes all of its tests, so only `--equivalent-too` asks them. The
program ends with 1 if fewer than 97 % of the others are killed.

A process that has collected the tests once is forked for each mutant. There the code of the changed function is
exchanged; only tests that call the function run, fast ones first. Where a change lies outside of all functions, the
module is imported from the changed text before the tests are collected. Results go to a file, one line of JSON for each
mutant: a second call goes on where the first one was interrupted, and asks survivors again where tests have changed.

    python tests/mutation/survivors.py --files maths/vtrace --list
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import importlib.abc
import importlib.util
import inspect
import itertools
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutants import Mutant, defaults_in, mutants

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = "mlxe_async"
WANTED = 0.97
LIMIT_S = 60.0

MATHS = (
    *("annealing", "baselines", "categorical", "correction", "delay_compensation", "distributional", "gradients"),
    *("metrics", "normaliser", "outliers", "priorities", "rescaling", "returns", "reward_scaling", "rollouts"),
    *("symmetry", "vtrace"),
)
PAPERS = (
    *("ppo", "dqn", "c51", "rainbow", "sac", "td3", "ddpg", "a2c", "impala", "reinforce", "apex", "q_learning"),
    *("sarsa", "mlxe/paper"),
)
PARTS = (
    *("mlxe/critics", "mlxe/exploration", "mlxe/fields", "mlxe/returns", "parts/continuous", "parts/deterministic"),
    *("parts/exploration", "parts/layers", "parts/on_policy", "parts/policies", "parts/recurrent", "parts/replay"),
    *("parts/sequences", "parts/soft", "parts/tabular", "parts/value_based", "parts/value_networks"),
)
FILES = {
    **{f"{PACKAGE}/maths/{name}.py": "tests/maths" for name in MATHS},
    **{f"{PACKAGE}/memory/{name}.py": "tests/memory" for name in ("priorities", "sampling", "sum_tree")},
    **{f"{PACKAGE}/algorithms/{name}.py": "tests/algorithms" for name in (*PAPERS, *PARTS)},
    **{f"{PACKAGE}/networks/{name}.py": "tests/algorithms" for name in ("cells", "dilated", "recurrence")},
}
"""File -> folder of its tests."""

ALGORITHMS = tuple(
    f"{PACKAGE}/algorithms/{name}.py"
    for name in (
        *("parts/continuous", "ppo", "mlxe/paper", "sac", "td3", "ddpg", "parts/value_based", "dqn", "c51", "rainbow"),
        *("a2c", "impala", "reinforce", "parts/on_policy", "parts/policies", "apex", "parts/tabular"),
        *("q_learning", "sarsa"),
    )
)
NOT_LEARNING = {"__init__", "load", "act", "greedy", "greedy_many", "behaviour_log_prob", "policy"}
NOT_LEARNING |= {"build", "build_learner", "weights", "set_weights"}
NOT_LEARNING |= {"make_networks", "box_entries", "best", "bounded", "uniform", "uniform_log_prob"}


def is_asked(one: Mutant) -> bool:
    """Whether a mutant belongs to a loss, a target or a priority: no settings class, and no acting."""
    parts = one.scope.split(".")
    if one.file in ALGORITHMS:
        in_function = not parts[-1][:1].isupper() and bool(one.scope)
        return in_function and not parts[0].endswith("Settings") and parts[-1] not in NOT_LEARNING
    return not parts[0].endswith("Fields")


# -- one mutant in place of its module --


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from another text."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=str(self._path))
        assert spec is not None
        spec.has_location = True
        return spec

    def get_source(self, fullname: str) -> str:
        return self._source

    def exec_module(self, module: types.ModuleType) -> None:
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)  # noqa: S102 - our own package, changed


def module_name(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def _codes(code: types.CodeType) -> dict[str, types.CodeType]:
    """All code objects of a module by position and name."""
    found = {}
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            found[f"{one.co_qualname}:{one.co_firstlineno}"] = one
            found |= _codes(one)
    return found


def _shallow(code: types.CodeType) -> tuple[Any, ...]:
    constants = tuple(repr(one) for one in code.co_consts if not isinstance(one, types.CodeType))
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _function(module: types.ModuleType, qualname: str) -> types.FunctionType | None:
    """A function or method of a module, the getter of a property."""
    found: Any = module
    for part in qualname.split("."):
        found = vars(found).get(part)
        if found is None:
            return None
        found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    found = inspect.unwrap(found) if callable(found) else found  # what is decorated is called from within
    return found if isinstance(found, types.FunctionType) else None


def swapped(one: Mutant, original: str) -> Callable[[], None] | None:
    """What exchanges the one function that a mutant changes, in its module as it is imported; None: not a function."""
    path, name = str(ROOT / one.file), module_name(one.file)
    before, after = _codes(compile(original, path, "exec")), _codes(code := compile(one.source, path, "exec"))
    function = _function(sys.modules[name], one.scope)
    if function is None or before.keys() != after.keys():
        return None
    changed = {
        after[key].co_qualname.split(".<locals>")[0] for key in before if _shallow(before[key]) != _shallow(after[key])
    }
    codes = [code for code in after.values() if code.co_qualname == one.scope]
    if changed == {one.scope} and len(codes) == 1:
        return functools.partial(setattr, function, "__code__", codes[0])

    def by_defaults() -> None:
        """The change is one of the values for arguments that are left out."""
        scratch = types.ModuleType(name)
        exec(code, scratch.__dict__)  # noqa: S102 - our own package, changed
        other = _function(scratch, one.scope)
        assert other is not None
        if (other.__defaults__, other.__kwdefaults__) == (function.__defaults__, function.__kwdefaults__):
            raise RuntimeError(f"survivors: {one.file}:{one.line} changes something outside of {one.scope}")
        function.__defaults__, function.__kwdefaults__ = other.__defaults__, other.__kwdefaults__

    return by_defaults


# -- tests in forked children --

_BROKEN = 99
"What a child ends with where not the mutant's tests have failed, but this program."


@dataclasses.dataclass
class Verdict:
    """What became of one mutant: killed, survived or late, by which test, and how long it took."""

    outcome: str
    by: str
    seconds: float


def forked(work: Callable[[Callable[[str], None]], None], limit: float) -> Verdict:
    """Run `work(tell)` in a child with no terminal; it ends early by telling who killed the mutant."""
    began = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _alone(work, writing)
    os.close(writing)
    watched = os.pidfd_open(child)
    try:
        in_time = bool(select.select([watched], [], [], limit)[0])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what tests started and left behind, too
        _, status = os.waitpid(child, 0)
        said = os.read(reading, 4096).decode() if select.select([reading], [], [], 0)[0] else ""
    finally:
        os.close(watched)
        os.close(reading)
    seconds = time.monotonic() - began
    if not in_time:
        return Verdict("late", f"{limit:.0f} s", seconds)
    code = os.waitstatus_to_exitcode(status)
    if code == _BROKEN:
        raise RuntimeError(f"survivors: the tests could not be run: {said}")
    return Verdict("survived" if code == 0 else "killed", said or (f"exit {code}" if code else ""), seconds)


def _alone(work: Callable[[Callable[[str], None]], None], writing: int) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)

    def tell(who: str, code: int = 1) -> None:
        os.write(writing, who.encode()[:4000])
        os._exit(code)

    try:
        work(tell)
    except BaseException as error:  # noqa: BLE001 - the parent raises it: tests fail by reports, not by exceptions
        tell(f"{type(error).__name__}: {error}", _BROKEN)
    os._exit(0)


class _Watch:
    """Tells of the first failure."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(f"collection of {report.nodeid}")


class _Baseline:
    """Notes how long each test takes, which functions of the mutated files it calls, and whether it fails."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = {str(ROOT / file): file for file in files}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.calls: dict[str, list[tuple[str, int]]] = {}
        self._seen: set[tuple[str, int]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(f"{report.nodeid}\n{report.longreprtext}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        self._seen = set()
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.calls[item.nodeid] = sorted(self._seen)

    def _trace(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        file = self._files.get(code.co_filename)
        if file is not None:
            self._seen.add((file, code.co_firstlineno))


class _Session:
    """A pytest session that runs its tests once for each mutant instead of once.

    Args:
        pending: the mutants, all of files whose tests these are.
        found: is told each verdict; None where the mutant needs a fresh import.
    """

    def __init__(self, pending: Sequence[Mutant], found: Callable[[Mutant, Verdict | None], None]) -> None:
        self._pending, self._found = pending, found
        self.baseline: dict[str, Any] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = self._measured(session)
        self.baseline = known
        calls = {name: {tuple(one) for one in some} for name, some in known["calls"].items()}
        sources = {file: (ROOT / file).read_text() for file in {one.file for one in self._pending}}
        spans = {file: dict(_spans(text)) for file, text in sources.items()}
        for one in self._pending:
            swap = swapped(one, sources[one.file])
            if swap is None:
                self._found(one, None)
                continue
            lines = {(one.file, line) for line in spans[one.file][one.scope]}
            items = [item for item in session.items if calls.get(item.nodeid, set()) & lines]
            items.sort(key=lambda item: known["seconds"][item.nodeid])
            if not items:
                self._found(one, Verdict("survived", "no test calls it", 0.0))
                continue
            limit = LIMIT_S + 5 * sum(known["seconds"][item.nodeid] for item in items)
            self._found(one, forked(functools.partial(self._against, session, items, swap), limit))
        return True

    def _against(
        self, session: pytest.Session, items: list[pytest.Item], swap: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        session.config.pluginmanager.register(_Watch(tell))
        swap()
        _run(items)

    def _measured(self, session: pytest.Session) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile() as file:

            def work(_: Callable[[str], None]) -> None:
                baseline = _Baseline(sorted({one.file for one in self._pending}))
                session.config.pluginmanager.register(baseline)
                _run(session.items)
                Path(file.name).write_text(json.dumps(vars(baseline), default=lambda _: None))

            verdict = forked(work, 1800)
            if verdict.outcome != "survived":
                raise RuntimeError(f"survivors: the tests ended without a mutant: {verdict.by}")
            known: dict[str, Any] = json.loads(Path(file.name).read_text())
        if known["failed"]:
            raise RuntimeError("survivors: these fail without a mutant:\n" + "\n".join(known["failed"]))
        return known


def _run(items: Sequence[pytest.Item]) -> None:
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _spans(source: str) -> Iterator[tuple[str, list[int]]]:
    """Qualified name of each outermost function -> first lines of all code in it."""
    spans: dict[str, list[int]] = {}
    for code in _codes(compile(source, "", "exec")).values():
        spans.setdefault(code.co_qualname.split(".<locals>")[0], []).append(code.co_firstlineno)
    yield from spans.items()


def _pytest(folder: str, *more: str) -> list[str]:
    how = ["-q", "-s", "--no-header", "-m", "not slow", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    return [str(ROOT / folder), *how, *more]


def _fresh(one: Mutant, folder: str) -> Verdict:
    """Import the mutant in place of its module, then collect and run the tests."""

    def work(tell: Callable[[str], None]) -> None:
        name = module_name(one.file)
        if name in sys.modules:
            raise RuntimeError(f"survivors: {name} was imported before its mutant")
        sys.meta_path.insert(0, _Instead(name, ROOT / one.file, one.source))
        code = pytest.main(_pytest(folder, "-x"), plugins=[_Watch(tell)])
        if code:
            tell(f"pytest {code}")

    return forked(work, 5 * LIMIT_S)


# -- results --


def key_of(one: Mutant) -> str:
    return hashlib.sha256(f"{one.file}\n{one.source}".encode()).hexdigest()[:16]


def tests_of(folder: str) -> str:
    """A digest of the tests of a folder."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Results:
    """Verdicts, one line of JSON each; later lines count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {line["key"]: line for line in map(json.loads, lines)}

    def of(self, one: Mutant, tests: str) -> dict[str, Any] | None:
        """What is known of a mutant. That it survived holds only for the tests it survived."""
        line = self._known.get(key_of(one))
        return line if line and (line["outcome"] != "survived" or line["tests"] == tests) else None

    def note(self, one: Mutant, tests: str, verdict: Verdict) -> None:
        shown = {"file": one.file, "line": one.line, "kind": one.kind, "before": one.before, "after": one.after}
        line = {"key": key_of(one), "tests": tests, **dataclasses.asdict(verdict), **shown}
        self._known[line["key"]] = line
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def equivalents(path: Path) -> dict[tuple[str, str, str], str]:
    """(file, line before, line after) -> the reason why nobody can tell them apart."""
    known = {}
    for entry in tomllib.loads(path.read_text()).get("mutant", []):
        afters = [entry["after"]] if isinstance(entry["after"], str) else entry["after"]
        for after in afters:
            known[entry["file"], entry["before"], after] = entry["reason"]
    return known


def show_survivor(line: dict[str, Any]) -> None:
    print(f"{line['file']}:{line['line']} {line['kind']}\n    - {line['before']}\n    + {line['after']}")


def ask(pending: Sequence[Mutant], results: Results, folder_of: Callable[[str], str] = FILES.__getitem__) -> None:
    """Run the tests of each mutant's folder against all these mutants."""
    by_folder: dict[str, list[Mutant]] = {}
    for one in pending:
        by_folder.setdefault(folder_of(one.file), []).append(one)
    for folder, some in by_folder.items():
        tests, done = tests_of(folder), 0
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _session(folder, some, writing)
        os.close(writing)
        fresh: list[Mutant] = []
        with os.fdopen(reading) as lines:
            for line in lines:
                number, verdict = json.loads(line)
                if verdict is None:
                    fresh.append(some[number])
                else:
                    done += 1
                    results.note(some[number], tests, Verdict(**verdict))
                    _progress(folder, done, len(some), some[number], verdict["outcome"])
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise SystemExit(f"survivors: the tests of {folder} could not be run")
        for one in fresh:
            verdict = _fresh(one, folder)
            done += 1
            results.note(one, tests, verdict)
            _progress(folder, done, len(some), one, verdict.outcome)


def _progress(folder: str, done: int, of: int, one: Mutant, outcome: str) -> None:
    if outcome != "killed" or done % 50 == 0:
        print(f"{folder} {done}/{of} {one.file}:{one.line} {outcome}", file=sys.stderr, flush=True)


def _session(folder: str, some: Sequence[Mutant], writing: int) -> None:
    """Collect the tests of a folder and run them against mutants; tells verdicts by a pipe, and never returns."""
    numbers = {key_of(one): number for number, one in enumerate(some)}

    def found(one: Mutant, verdict: Verdict | None) -> None:
        told = verdict and dataclasses.asdict(verdict)
        os.write(writing, (json.dumps([numbers[key_of(one)], told]) + "\n").encode())

    for name in sorted({module_name(one.file) for one in some}):
        importlib.import_module(name)
    code = pytest.main(_pytest(folder), plugins=[_Session(some, found)])
    os.close(writing)
    sys.stdout.flush()
    os._exit(int(code))


def table(asked: Sequence[Mutant], results: Results, alike: dict[tuple[str, str, str], str]) -> float:
    """Print the counts of each file; returns the killed share of those that are not equivalent."""
    counts: dict[str, list[int]] = {}
    for one in asked:
        line = results.of(one, tests_once(FILES[one.file]))
        is_alike = (one.file, one.before, one.after) in alike
        row = counts.setdefault(one.file, [0, 0, 0])
        if line is not None and line["outcome"] != "survived":
            row[0] += 1
        elif line is not None or is_alike:
            row[1 if is_alike else 2] += 1
    print(f"\n{'file':42}{'killed':>8}{'equivalent':>12}{'surviving':>11}{'share':>9}")
    everything = [sum(column) for column in zip([0, 0, 0], *counts.values(), strict=True)]
    for name, row in [*counts.items(), ("all", everything)]:
        print(f"{name:42}{row[0]:8}{row[1]:12}{row[2]:11}{_share(row):9.1%}")
    return _share(everything)


def _share(row: Sequence[int]) -> float:
    return row[0] / (row[0] + row[2]) if row[0] + row[2] else 1.0


tests_once = functools.cache(tests_of)


@contextlib.contextmanager
def examples_elsewhere() -> Iterator[None]:
    """What hypothesis finds against mutants goes to a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        yield


@examples_elsewhere()
def main() -> int:
    """Ask, list and count."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--files", nargs="+", default=[""], metavar="PART", help="only files with one of these in their path"
    )
    parser.add_argument("--sample", type=int, help="only so many mutants, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print each survivor")
    parser.add_argument("--equivalent-too", action="store_true", help="run tests against equivalent ones as well")
    parser.add_argument("--afresh", action="store_true", help="believe nothing that was found before")
    parser.add_argument("--results", type=Path, default=ROOT / "build/mutation/survivors.jsonl")
    parser.add_argument("--equivalent", type=Path, default=HERE / "equivalent.toml")
    options = parser.parse_args()
    files = [file for file in FILES if any(part in file for part in options.files)]
    if not files:
        parser.error(f"--files: expected a part of one of {', '.join(FILES)}; got {' '.join(options.files)}")
    if options.afresh:
        options.results.unlink(missing_ok=True)
    results, alike, defaults = Results(options.results), equivalents(options.equivalent), defaults_in(ROOT / PACKAGE)
    asked = [one for file in files for one in mutants(ROOT / file, name=file, defaults=defaults) if is_asked(one)]
    unknown = [one for one in alike if one[0] in files and one not in {(m.file, m.before, m.after) for m in asked}]
    if options.sample is not None and options.sample < len(asked):
        asked = random.Random(options.seed).sample(asked, options.sample)  # noqa: S311 - a sample, no secret
    pending = [one for one in asked if results.of(one, tests_once(FILES[one.file])) is None]
    if not options.equivalent_too:
        pending = [one for one in pending if (one.file, one.before, one.after) not in alike]
    began = time.monotonic()
    import torch  # once, for all children

    torch.set_num_threads(1)
    ask(pending, results)
    if options.list:
        for one in asked:
            line = results.of(one, tests_once(FILES[one.file]))
            if line and line["outcome"] == "survived" and (one.file, one.before, one.after) not in alike:
                show_survivor(line)
    share = table(asked, results, alike)
    for file, before, after in unknown:
        print(f"equivalent.toml: no mutant of {file} is\n    - {before}\n    + {after}")
    print(f"\n{len(pending)} asked now in {time.monotonic() - began:.0f} s; at least {WANTED:.0%}: got {share:.1%}")
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
