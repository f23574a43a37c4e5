"""How many steps lie between two checkpoints."""

import itertools

import pytest

INTERVAL, EXECUTORS = 100, 2


@pytest.mark.long
# Rounds of up to 80 steps: after a short one there is no telling that the next is not the longest there may be.
@pytest.mark.parametrize("longest", [pytest.param(15, marks=pytest.mark.slow), 40])
def test_no_more_steps_than_the_interval_lie_between_two_checkpoints(live, longest):
    _, run = live(
        task={"max_episode_steps": longest},
        schedule={"kind": "is", "executors": EXECUTORS},
        stop={"env_steps": 1500},
        checkpoint={"interval_s": 0.0, "interval_steps": INTERVAL, "keep": 2},
    )
    steps, saved = 0, [0]
    for line in run.lines:
        if line["event"] == "episode_end":
            steps = line["env_steps"]
        elif line["event"] == "checkpoint" and line["whole"]:
            saved.append(steps)
    gaps = [later - earlier for earlier, later in itertools.pairwise(saved)]
    assert max(gaps) <= INTERVAL
    assert len(saved) <= 1500 / (INTERVAL - EXECUTORS * longest) + 1  # not for every round
