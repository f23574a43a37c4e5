"""What a role cannot have answered is refused, with what is wrong about it."""

import pytest

from mlxe_async.errors import ProtocolError
from mlxe_async.supervisor.handles.answers import is_evaluated, is_rollout

EPISODES = {"env": [1], "episode": [4], "steps": [9], "return": [9.0], "terminated": [True], "seed": [2**32 - 1]}
ROLLOUT = {
    "rows": 18, "blocks": 1, "out_of_bounds": 0, "rss_mb": None, "version": 3, "episodes": EPISODES,
    "moved": [0, 1], "begun": [4, 5], "running": [True, False], "cut": False, "start_ns": 1, "seconds": 0.1,
    "lane_wait_s": 0.0, "ingested": [], "action_changes": None,
}  # fmt: skip
VERDICT = {
    "version": 3, "passed": False, "episodes": 2, "steps": 9, "return_min": 1.0, "return_mean": 2.0, "seconds": 0.1,
    "failed_at": None, "fault": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"begun": [4]}, "of 2 environments"),
        ({"running": [True]}, "of 2 environments"),
        ({"moved": [0, 0]}, "of 2 environments, each once"),
        ({"moved": [0, 2]}, "of 2 environments, each once"),
        ({"moved": [-1, 0]}, "of 2 environments, each once"),
        ({"moved": [0]}, "of 1 environments, those moved"),
        ({"moved": [0, 1, 2]}, "of 2 environments, each once"),
        ({"begun": [4, -1]}, "a negative one"),
        ({"rows": -1}, "a negative one"),
        ({"episodes": EPISODES | {"seed": []}}, "lists of one length"),
        ({"episodes": EPISODES | {"return": ["9"]}}, r"episodes: return\[0\]: expected float"),
        ({"seconds": None}, "seconds: expected float"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused(changed, words):
    is_rollout(ROLLOUT, envs=2)
    is_rollout(ROLLOUT | {"moved": [], "begun": [], "running": []}, envs=2)
    with pytest.raises(ProtocolError, match=words):
        is_rollout(ROLLOUT | changed, envs=2)


def test_a_verdict_on_a_version_that_is_not_under_test_is_refused():
    is_evaluated({"in_flight": 0, "verdicts": [VERDICT], "odd": []}, under_test={3})
    for verdict, words in ((VERDICT, "version 3, which is not under test"), (VERDICT | {"fault": None}, "fault")):
        with pytest.raises(ProtocolError, match=words):
            is_evaluated({"in_flight": 0, "verdicts": [verdict], "odd": []}, under_test={4})
