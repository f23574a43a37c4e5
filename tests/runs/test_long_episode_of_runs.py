"""The counts at both ends of the first long training episode, held against the log's own episodes."""

import pytest

LONG = 60


@pytest.mark.parametrize("kind", ["oa", pytest.param("serial", marks=pytest.mark.slow)])
def test_the_counts_are_those_of_the_moments_when_it_began_and_was_through(live, kind):
    _, run = live(schedule={"kind": kind, "executors": 2}, stop={"episode_steps": LONG})
    [told] = run.all("long_episode")
    episodes = run.all("episode_end")
    [place] = [place for place, line in enumerate(episodes) if line["length"] >= LONG][:1]
    line, began, ended = episodes[place], told["began"], told["ended"]
    assert (told["length"], told["version"], told["idx"]) == (line["length"], line["version"], line["idx"])
    assert ended["episodes"] == line["episodes"] == place + 1
    assert began["episodes"] <= place
    own = [one for one in episodes[:place] if one["idx"] == line["idx"]]
    assert began["episodes"] >= (own[-1]["episodes"] if own else 0)
    assert ended["env_steps"] - began["env_steps"] >= line["length"]
    # What the other one had under way was delivered later, or never.
    later = [one["length"] for one in episodes[place + 1 :] if one["idx"] != line["idx"]]
    under_way = ended["env_steps"] - line["env_steps"]
    assert 0 <= under_way <= (later[0] if later else 200)
    assert began["mono_ns"] < ended["mono_ns"]
    assert began["updates"] <= ended["updates"]
    if kind == "serial":
        assert under_way == 0
        assert began["env_steps"] == sum(one["length"] for one in episodes[:place])


def test_where_no_episode_can_be_so_long_nothing_is_told(live):
    _, run = live(schedule={"kind": "serial", "executors": 1}, stop={"env_steps": 100})
    assert not run.all("long_episode")
