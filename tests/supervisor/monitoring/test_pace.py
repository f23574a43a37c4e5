"""Executors may make the gradients where the schedule, the memory and the algorithm allow it, and do not yet."""

import pytest

from mlxe_async.settings import load_settings
from mlxe_async.supervisor.monitoring.pace import may_differentiate

FACTS = {"has_gradients": True, "memory_kind": "rollouts"}
REPLAY = {"memory_kind": "replay"}


@pytest.mark.parametrize(
    ("schedule", "facts", "others", "may"),
    [
        ({"kind": "is"}, {}, {}, True),
        ({"kind": "is"}, REPLAY, {}, True),
        ({"kind": "oa"}, {}, {}, True),
        ({"kind": "oa"}, REPLAY, {}, True),
        ({"kind": "ia"}, {}, {}, False),
        ({"kind": "is", "executors": 1}, {}, {}, False),
        ({"kind": "is", "gradients": "executors"}, {}, {}, False),
        ({"kind": "is"}, {"has_gradients": False}, {}, False),
        ({"kind": "is"}, {}, {"learner": {"device": "cuda"}}, False),
        ({"kind": "is"}, {}, {"learner": {"promote_best": 5}}, False),
        ({"kind": "oa"}, {}, {"run": {"record": True}}, True),
        ({"kind": "oa"}, REPLAY, {"run": {"record": True}}, False),
    ],
)
def test_they_may_where_the_same_settings_with_it_would_not_be_refused(schedule, facts, others, may):
    tables = {"task": {"env": "CartPole-v1"}, "schedule": {"executors": 2, **schedule}, **others}
    assert may_differentiate(load_settings(tables), FACTS | facts) is may
