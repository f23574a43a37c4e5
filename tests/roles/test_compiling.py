"""The learner has its updates compiled once, before anything waits for them, and says what came of it."""

import numpy as np
import pytest

from mlxe_async.errors import CompileFailed
from mlxe_async.roles.learner import COMPILE_LIMIT_S, Learner


class Weights:
    version = 0

    def publish(self, _):
        self.version += 1
        return self.version


class Page:
    def __init__(self):
        self.limits, self.left = [], 0

    def enter(self, limit_s, call):
        self.limits.append(limit_s)

    def leave(self):
        self.left += 1


class Algorithm:
    def weights(self):
        return np.ones(3, np.float32)


class Compiling(Algorithm):
    compiled = 0

    def compile(self):
        self.compiled += 1
        return 2.5


class Failing(Algorithm):
    def compile(self):
        raise CompileFailed("no C++ compiler was found")


def learner(algorithm, wanted):
    told, page = [], Page()

    def notify(notice):
        if notice["kind"] != "updates":
            told.append(notice)

    made = Learner(
        algorithm=algorithm, memory=None, weights=Weights(), page=page, update_timeout_s=1, compile=wanted,
        notify=notify,
    )  # fmt: skip
    return made, told, page


@pytest.mark.parametrize("wanted", [True, "auto"])
def test_it_compiles_before_the_first_publication_and_never_again(wanted):
    made, told, page = learner(Compiling(), wanted)
    made.publish()
    made.publish()
    assert made.algorithm.compiled == 1
    assert told == [{"kind": "compiled", "seconds": 2.5, "detail": ""}]
    assert page.limits == [COMPILE_LIMIT_S]
    assert page.left == 1


def test_without_the_setting_nothing_is_compiled():
    made, told, _ = learner(Compiling(), False)
    made.publish()
    assert (made.algorithm.compiled, told) == (0, [])


@pytest.mark.parametrize("algorithm", [Failing(), Algorithm()])
def test_auto_goes_on_without_and_says_why_once(algorithm):
    made, told, page = learner(algorithm, "auto")
    assert made.publish()["version"] == 1
    made.publish()
    assert [(one["kind"], one["seconds"]) for one in told] == [("compiled", None)]
    assert told[0]["detail"]
    assert page.left == 1


@pytest.mark.parametrize(
    ("algorithm", "reason"), [(Failing(), "no C\\+\\+ compiler"), (Algorithm(), "Algorithm has no")]
)
def test_true_is_refused_where_it_cannot_be(algorithm, reason):
    made, told, page = learner(algorithm, True)
    with pytest.raises(CompileFailed, match=f'learner.compile: {reason}.*"auto" or false'):
        made.publish()
    assert told == []
    assert page.left == 1
