"""One update on made-up rows: what goes wrong in it is a sentence with the line, and what is right goes through."""

from contextlib import contextmanager, nullcontext
from pathlib import Path

import awkward_updates
import numpy as np
import pytest

from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.tasks.vector import VectorTask
from mlxe_async.workers.probe import OWN_LIMIT_S, Probe
from mlxe_async.workers.rehearsal import rehearse

LIMIT_S = 7.0
SMALL = {"mlxe": {"batch": 32}, "dqn": {"batch": 32}, "ppo": {"minibatch": 16}}


def page():
    return ProgressPage(bytearray(PAGE_BYTES))


def settings(name, env="CartPole-v1", **algorithm):
    return {
        "algorithm": {"name": name, **algorithm},
        "learner": {"device": "cpu"},
        "task": {"env": env},
        "memory": {"capacity_rows": None},
        "schedule": {"reset_timeout_s": 60.0, "step_timeout_s": 60.0, "update_timeout_s": LIMIT_S},
    }


def problem(name):
    """What the probe says of an algorithm that it found nothing wrong with before."""
    probe = Probe(settings(f"awkward_updates:{name}"), page())
    assert "problems" not in probe.probe()
    ((found,),) = (probe.rehearse()["problems"],)
    probe.close()
    assert found["path"] == ["algorithm", "name"]
    assert "\n" not in found["message"]
    return found["message"]


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
@pytest.mark.parametrize("name", list(SMALL))
def test_every_built_in_algorithm_gets_through(name, env):
    chosen = settings(name, env, **SMALL[name])
    rehearse(chosen, VectorTask(chosen["task"], 1), nullcontext)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", "its update raised ValueError: the loss has a wrong shape ({file}:13)"),
        ("RaisesOnRollouts", "({file}:18)"),
        ("LearnsFromNaN", "its update measured policy_loss = nan, expected a finite number"),
        ("DerivesNothing", "its derive raised KeyError"),
        ("ReturnsNothing", "update returned a NoneType, expected what was measured, name -> number"),
        ("MeasuresWords", "update measured 'mood' as a str, expected a number"),
        ("Shrinks", "its weights() returned an array ("),
        ("CountsByOldWords", "updates_due() got an unexpected keyword argument 'new_rows' ({file}:120)"),
        ("OwesLess", "its updates_due returned -1, expected a number of updates, 0 or more"),
        ("OwesNothingSaid", "its updates_due returned None, expected a number of updates"),
    ],
)
def test_what_goes_wrong_is_a_sentence(name, words):
    assert words.format(file=awkward_updates.__file__) in problem(name)


def test_the_rows_are_of_the_tasks_spaces_and_of_the_batchs_shape():
    chosen = settings("awkward_updates:Learns", "Acrobot-v1", batch=40)
    rehearse(chosen, VectorTask(chosen["task"], 1), nullcontext)
    batch = awkward_updates.Learns.seen
    assert batch["obs"].shape == batch["next_obs"].shape == (40, 6)
    assert set(np.unique(batch["action"])) == {0, 1, 2}
    assert np.abs(batch["obs"][:, :4]).max() <= 1  # cosines and sines of real episodes
    assert set(np.unique(batch["terminated"])) == {0, 1}
    assert batch["weight"].shape == (40,)


@pytest.mark.parametrize(("name", "asked"), [("Learns", False), ("Normalises", True)])
def test_moments_are_handed_over_where_the_algorithm_wants_them(name, asked):
    chosen = settings(f"awkward_updates:{name}", batch=40)
    rehearse(chosen, VectorTask(chosen["task"], 1), nullcontext)
    found = getattr(awkward_updates, name).moments
    assert (found is not None) == asked
    if asked:
        assert (found.mean.shape, found.variance.shape, found.rows) == ((4,), (4,), 4.0)


def test_every_call_into_foreign_code_is_limited():
    chosen, entered = settings("awkward_updates:Learns", batch=40), []

    @contextmanager
    def limited(call):
        entered.append(call)
        yield

    rehearse(chosen, VectorTask(chosen["task"], 1), limited)
    assert entered == [*["reset"] * 4, "build", "act", "update"]


def test_an_update_is_given_the_time_of_the_settings():
    entered = []

    class Noting(ProgressPage):
        def enter(self, limit_s, call=""):
            entered.append((call, limit_s))
            super().enter(limit_s, call)

    probe = Probe(settings("awkward_updates:Learns", batch=40), Noting(bytearray(PAGE_BYTES)))
    assert "problems" not in probe.probe()
    assert probe.rehearse() == {}
    probe.close()
    assert dict(entered[-3:]) == {"build": OWN_LIMIT_S, "act": OWN_LIMIT_S, "update": LIMIT_S}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("import math\nprint(1 / 0)\n", 2, "ZeroDivisionError: division by zero"),
        ("\n\nimport no_such_package_at_all\n", 3, "No module named 'no_such_package_at_all'"),
        ("x = 1\nif x\n", 2, "SyntaxError"),
        ("import math\n\nclass Mine(math.Missing):\n    pass\n", 3, "AttributeError"),
    ],
)
@pytest.mark.parametrize("what", ["algorithm", "environment", "wrapper"])
def test_a_module_that_cannot_be_imported_is_told_with_file_and_line(
    tmp_path, monkeypatch, request, text, line, words, what
):
    name = f"own_{abs(hash(request.node.name))}"
    file = Path(tmp_path, f"{name}.py")
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    chosen = settings("mlxe")
    if what == "algorithm":
        chosen["algorithm"]["name"] = f"{name}:Mine"
    elif what == "environment":
        chosen["task"]["env"] = f"{name}:Mine"
    else:
        chosen["task"]["wrappers"] = [f"{name}:Mine"]
    found = Probe(chosen, page()).probe()
    said = found["problems"][0]["message"] if what == "algorithm" else found["task_error"]
    assert words in said
    assert said.count(f"{file}:{line}") == 1
    assert "\n" not in said


def test_a_module_that_is_not_there_has_no_line():
    said = Probe(settings("no_such_package_at_all:Mine"), page()).probe()["problems"][0]["message"]
    assert said.endswith("No module named 'no_such_package_at_all'")
