"""How mutants are put in place, what becomes of them, and that each equivalent one is one."""

import signal
from pathlib import Path

import pytest
from mutants import defaults_in, mutants
from survivors import (
    ALGORITHMS,
    FILES,
    HERE,
    PACKAGE,
    ROOT,
    Results,
    Verdict,
    equivalents,
    forked,
    is_asked,
    swapped,
)

from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.maths import annealing, returns, vtrace

MATHS = f"{PACKAGE}/maths"


def mutant(name, after):
    file = f"{MATHS}/{name}.py"
    text = (ROOT / file).read_text()
    (found,) = [one for one in mutants(ROOT / file, name=file) if one.after == after]
    return found, text


def test_every_built_in_algorithm_is_asked_and_every_file_is_there():
    assert {load_algorithm(name).__module__.replace(".", "/") + ".py" for name in REGISTRY} <= {*FILES}
    assert [name for name in FILES if not (ROOT / name).is_file()] == []


@pytest.fixture
def restored():
    """The functions that these tests exchange are as before afterwards."""
    functions = [annealing.linear, vtrace.vtrace]
    known = [(one.__code__, one.__defaults__, one.__kwdefaults__) for one in functions]
    yield
    for one, (code, defaults, keywords) in zip(functions, known, strict=True):
        one.__code__, one.__defaults__, one.__kwdefaults__ = code, defaults, keywords


@pytest.mark.usefixtures("restored")
def test_a_changed_function_is_exchanged_wherever_it_was_imported():
    linear = annealing.linear
    swap = swapped(*mutant("annealing", "return first - (last - first) * min(1.0, now / over)"))
    assert linear(1.0, 0.0, 4, 2) == 0.5
    swap()
    assert linear(1.0, 0.0, 4, 2) == 1.5


@pytest.mark.usefixtures("restored")
def test_a_changed_default_is_exchanged():
    swapped(*mutant("vtrace", "lambda_: float = (2 * 1.0),"))()
    assert vtrace.vtrace.__kwdefaults__ == {"lambda_": 2.0, "rho_clip": 1.0, "c_clip": 1.0}


def test_what_is_no_function_needs_a_fresh_import():
    assert swapped(*mutant("returns", "_FEW = 0")) is None
    assert returns._FEW == 32


def test_a_child_says_what_became_of_the_mutant():
    assert forked(lambda tell: None, 60).outcome == "survived"
    killed = forked(lambda tell: tell("tests/one.py::test"), 60)
    assert (killed.outcome, killed.by) == ("killed", "tests/one.py::test")
    assert forked(lambda tell: signal.pause(), 0.1).outcome == "late"


def test_a_child_that_fails_without_a_test_is_no_verdict():
    def broken(tell):
        raise KeyError("no such thing")

    with pytest.raises(RuntimeError, match="no such thing"):
        forked(broken, 60)


def test_a_survivor_is_asked_again_where_tests_have_changed_and_a_killed_one_is_not(tmp_path):
    (one, _), (other, _) = mutant("returns", "_FEW = 0"), mutant("returns", "_FEW = 33")
    path = tmp_path / "some" / "results.jsonl"
    results = Results(path)
    results.note(one, "old", Verdict("survived", "", 0.1))
    results.note(other, "old", Verdict("killed", "tests/one.py::test", 0.1))
    for known in (results, Results(path)):
        assert known.of(one, "old")["outcome"] == "survived"
        assert known.of(one, "new") is None
        assert known.of(other, "new")["outcome"] == "killed"
    results.note(one, "new", Verdict("killed", "tests/two.py::test", 0.1))
    assert Results(path).of(one, "newer")["by"] == "tests/two.py::test"


@pytest.mark.long
def test_settings_and_acting_are_not_asked():
    defaults, asked = defaults_in(ROOT / PACKAGE), set()
    for name in ("ppo", "mlxe/critics"):
        file = f"{PACKAGE}/algorithms/{name}.py"
        asked |= {one.scope for one in mutants(ROOT / file, name=file, defaults=defaults) if is_asked(one)}
    assert {"policy_loss", "PPO.update", "Critic.target"} <= asked
    assert not any("Settings" in scope or "Fields" in scope or scope.endswith(".weights") for scope in asked)


@pytest.mark.long
def test_each_equivalent_mutant_is_a_mutant_and_says_why():
    known = equivalents(HERE / "equivalent.toml")
    assert all(len(reason) > 20 for reason in known.values())
    assert {file for file, _, _ in known} <= set(FILES)
    # The program itself tells of those whose algorithm has been rewritten.
    known = {one: reason for one, reason in known.items() if one[0] not in ALGORITHMS}
    files = sorted({file for file, _, _ in known})
    assert all(Path(ROOT / folder).is_dir() for folder in FILES.values())
    defaults = defaults_in(ROOT / PACKAGE)
    found = {
        (file, one.before, one.after) for file in files for one in mutants(ROOT / file, name=file, defaults=defaults)
    }
    assert known.keys() <= found, sorted(known.keys() - found)
