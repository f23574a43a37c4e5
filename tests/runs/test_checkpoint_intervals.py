"""How many steps lie between two checkpoints."""

import itertools

INTERVAL, LONGEST = 100, 15


def test_no_more_steps_than_the_interval_lie_between_two_checkpoints(live):
    _, run = live(
        task={"max_episode_steps": LONGEST},
        schedule={"kind": "is"},
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
    assert len(saved) <= 2 * 1500 / INTERVAL  # not for every round
