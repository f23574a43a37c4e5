"""Stages go on when they are over, and numbers of items are dealt so that each is taken once."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.roles.dealing import Dealer, Hand, Order
from mlxe_async.roles.lessons import Curriculum, Lessons
from mlxe_async.settings.task import Stage


def curriculum(*stages):
    told = []
    made = Curriculum([Stage(**stage) for stage in stages], lambda stage, reason: told.append((stage, reason)))
    return made, told


def test_a_stage_is_over_once_the_mean_of_its_last_episodes_is_high_enough():
    made, told = curriculum({"until_return": 2.0, "over_episodes": 3}, {})
    for value in (9.0, 0.0, 0.0):
        made.heard([0], [value])
        made.advance(10)
    assert made.stage == 1
    assert told == [(1, "mean return 3 of its last 3 episodes, 2 was asked for")]


def test_of_fewer_episodes_there_is_no_mean_and_older_ones_are_forgotten():
    made, _ = curriculum({"until_return": 2.0, "over_episodes": 2}, {})
    made.heard([0], [9.0])
    made.advance(10)
    assert made.stage == 0
    made.heard([0, 0], [0.0, 1.0])
    made.advance(10)
    assert made.stage == 0


def test_a_stage_is_over_after_its_steps_counted_from_its_beginning():
    made, told = curriculum({"until_steps": 100}, {"until_steps": 100}, {})
    seen = []
    for steps in (99, 120, 219, 220, 10_000):
        made.advance(steps)
        seen.append(made.stage)
    assert seen == [0, 1, 1, 2, 2]
    assert [reason for _, reason in told] == [
        f"it has lasted for {steps} steps, 100 were asked for" for steps in (120, 100)
    ]


def test_episodes_that_began_in_an_earlier_stage_do_not_count():
    made, _ = curriculum({"until_steps": 1}, {"until_return": 5.0, "over_episodes": 2}, {})
    made.advance(1)
    made.heard([0, 0, 1], [9.0, 9.0, 9.0])
    made.advance(2)
    assert made.stage == 1
    made.heard([1], [1.0])
    made.advance(3)
    assert made.stage == 2


def test_a_restored_curriculum_decides_alike():
    one, _ = curriculum({"until_return": 2.0, "over_episodes": 3}, {"until_steps": 50}, {})
    other, told = curriculum({"until_return": 2.0, "over_episodes": 3}, {"until_steps": 50}, {})
    one.heard([0, 0], [2.0, 3.0])
    other.restore(json.loads(json.dumps(one.state())))
    other.heard([0], [1.0])
    other.advance(30)
    assert other.stage == 1
    assert len(told) == 1
    other.restore(json.loads(json.dumps(other.state())))
    other.advance(79)
    assert other.stage == 1
    other.advance(80)
    assert other.stage == 2


# -- items -------------------------------------------------------------------------------------------------------------


def taken_in(dealer, counts):
    """Numbers that each executor takes of its hand."""
    dealer.deal()
    found = []
    for index, count in enumerate(counts):
        found += itertools.islice(dealer.hand(index).numbers(), count)
        dealer.take(index, count)
    dealer.settle()
    return found


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(st.integers(0, 6), min_size=n, max_size=n), max_size=8)))
def test_each_number_is_taken_once_and_what_is_left_over_comes_first(rounds):
    if not rounds:
        return
    dealer, taken = Dealer(len(rounds[0])), []
    for counts in rounds:
        taken += taken_in(dealer, counts)
    assert len(set(taken)) == len(taken)
    left = set(range(dealer.following)) - set(taken)
    assert sorted(left) == list(dealer.left)
    assert not taken or max(taken) < dealer.following
    again = sum(map(len, [dealer.left]))
    assert set(dealer.left) <= set(taken_in(dealer, [again] * dealer.executors)), "what was left over came first"


def test_executors_take_every_other_number_in_order():
    dealer = Dealer(2)
    dealer.deal()
    assert list(itertools.islice(dealer.hand(0).numbers(), 3)) == [0, 2, 4]
    assert list(itertools.islice(dealer.hand(1).numbers(), 3)) == [1, 3, 5]
    dealer.take(0, 3)
    dealer.take(1, 1)
    dealer.settle()
    assert (dealer.left, dealer.following) == ((3,), 5)
    dealer.deal()
    assert list(itertools.islice(dealer.hand(0).numbers(), 2)) == [3, 6]
    assert list(itertools.islice(dealer.hand(1).numbers(), 2)) == [5, 7]


@given(st.lists(st.integers(0, 50), unique=True, max_size=5), st.integers(0, 9), st.integers(1, 4))
def test_a_hand_goes_on_where_it_was(first, taken, step):
    hand = Hand(tuple(first), 60, step)
    whole = list(itertools.islice(hand.numbers(), taken + 5))
    assert list(itertools.islice(Hand.from_json(hand.to_json()).numbers(taken), 5)) == whole[taken:]


def test_with_another_number_of_executors_what_is_left_is_dealt_anew():
    one = Dealer(3)
    one.deal()
    for index, count in enumerate((2, 0, 1)):
        one.take(index, count)
    other = Dealer(2)
    other.restore(json.loads(json.dumps(one.state())), keeps_deal=True)
    assert (other.left, other.following, other.taken, other.executors) == ((1,), 4, None, 2)
    same = Dealer(3)
    same.restore(json.loads(json.dumps(one.state())), keeps_deal=True)
    assert same.taken == [2, 0, 1]
    same.restore(one.state(), keeps_deal=False)
    assert (same.left, same.taken) == ((1,), None)


def test_a_pass_has_each_item_once_in_the_files_order_or_in_one_of_its_own():
    plain = Order(5, None)
    assert [plain.place(number) for number in range(10)] == [0, 1, 2, 3, 4] * 2
    mixed = [Order(5, 3).place(number) for number in range(15)]
    passes = [mixed[begin : begin + 5] for begin in (0, 5, 10)]
    assert all(sorted(one) == [0, 1, 2, 3, 4] for one in passes)
    assert len(set(map(tuple, passes))) > 1
    assert mixed == [Order(5, 3).place(number) for number in range(15)]
    assert mixed != [Order(5, 4).place(number) for number in range(15)]


# -- both --------------------------------------------------------------------------------------------------------------


def report(stage=0, value=0.0, taken=1):
    return {"episodes": {"stage": [stage], "return": [value]}, "taken": taken}


def lessons(*, in_rounds, stages=({"until_return": 2.0, "over_episodes": 2}, {})):
    made, told = curriculum(*stages)
    return Lessons(made, Dealer(2), in_rounds=in_rounds, env_steps=lambda: 0), told


def test_in_rounds_nothing_changes_before_all_have_delivered_and_order_does_not_matter():
    states = []
    for order in ((0, 1), (1, 0)):
        made, told = lessons(in_rounds=True)
        made.begin_round()
        before = [made.asked(index) for index in (0, 1)]
        for index in order:
            made.delivered(index, report(value=2.0 + index, taken=1 + index))
            assert made.stage == 0
            assert told == []
        made.end_round()
        assert made.stage == 1
        assert before[1]["hand"] == {"first": [], "then": 1, "step": 2, "taken": 0}
        states.append(made.state())
    assert states[0] == states[1]


def test_out_of_rounds_it_changes_with_each_delivery():
    made, told = lessons(in_rounds=False)
    assert made.asked(0)["stage"] == 0
    made.delivered(0, report(value=2.0))
    made.delivered(1, report(value=2.0))
    assert made.asked(1) == {"stage": 1, "hand": {"first": [], "then": 1, "step": 2, "taken": 1}}
    assert len(told) == 1


def test_a_round_that_was_interrupted_goes_on_with_what_it_was_dealt():
    whole, _ = lessons(in_rounds=True)
    whole.begin_round()
    whole.delivered(1, report(value=4.0, taken=3))
    resumed, told = lessons(in_rounds=True)
    resumed.restore(json.loads(json.dumps(whole.state())))
    for one in (whole, resumed):
        one.begin_round()
        assert one.asked(0)["hand"] == {"first": [], "then": 0, "step": 2, "taken": 0}
        one.delivered(0, report(value=2.0, taken=1))
        one.end_round()
    assert resumed.state() == whole.state()
    assert len(told) == 1


@pytest.mark.parametrize("in_rounds", [True, False])
def test_without_stages_and_items_nothing_is_told(in_rounds):
    made = Lessons(None, None, in_rounds=in_rounds, env_steps=lambda: 0)
    made.begin_round()
    assert made.asked(0) == {}
    made.delivered(0, {"episodes": {"return": [1.0]}})
    made.end_round()
    assert made.stage == 0
