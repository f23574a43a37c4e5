"""The verdict names what limits a run, and predicts what one change would bring."""

import pytest

from mlxe_async.analysis.verdict import Setup, Spent, verdict

CORES = 4


def executor(idx, *, stepping=0.0, acting=0.0, room=0.0, waiting=0.0, cpu_s=None, starved_s=0.0):
    seconds = {"starting": 1.0, "stepping": stepping, "acting": acting, "room": room, "waiting": waiting}
    return Spent("executor", idx, seconds, cpu_s, starved_s)


def learner(*, updating=0.0, waiting=0.0, drawing=0.0, taking_in=0.0, publishing=0.0):
    seconds = {"updating": updating, "publishing": publishing, "drawing": drawing, "taking_in": taking_in}
    return Spent("learner", None, {"starting": 2.0, "waiting": waiting, **seconds}, updating + drawing + taking_in)


def setup(kind="is", executors=2, envs=4, cores=CORES, **more):
    return Setup(kind, executors, envs, cores, **more)


def test_executors_that_step_most_of_the_time_want_more_of_them_where_cores_are_free():
    spent = [executor(i, stepping=8.0, waiting=2.0, cpu_s=8.0) for i in range(2)] + [learner(updating=2.0, waiting=8.0)]
    found = verdict(spent, setup())
    assert (found.limit, found.change) == ("executors", {"schedule.executors": 4})
    assert found.predicted == pytest.approx(10 / (2 + 8 * 2 / 4))
    assert found.sentence == (
        "executors work 80% of the time, and the others wait for them; schedule.executors = 4: predicted +67% "
        "(updates then have more rows, or other ones)"
    )
    assert found.share == {"executor-0": 0.8, "executor-1": 0.8, "learner": 0.2}


def test_without_a_free_core_environments_that_sleep_still_make_room_for_more():
    asleep = [executor(i, stepping=9.0, waiting=1.0, cpu_s=0.9) for i in range(2)]
    awake = [executor(i, stepping=9.0, waiting=1.0, cpu_s=9.0) for i in range(2)]
    others = [learner(updating=1.0, waiting=9.0)]
    assert verdict(asleep + others, setup(cores=2)).change == {"schedule.executors": 4}
    found = verdict(awake + others, setup(cores=2))
    assert (found.limit, found.change, found.predicted) == ("executors", {}, None)
    assert found.sentence.endswith("; a faster environment would help")


def test_environments_that_wait_are_told_apart_from_those_that_compute():
    asleep = [executor(i, stepping=9.0, waiting=1.0, cpu_s=0.9) for i in range(4)]
    others = [learner(updating=1.0, waiting=9.0)]
    found = verdict(asleep + others, setup(executors=4, cores=2))
    assert found.change == {"schedule.executors": 8}
    assert found.predicted == pytest.approx(10 / (1 + 9 * 4 / 8))
    assert found.sentence.startswith(
        "executors work 90% of the time, and the others wait for them (90% of that their environments wait and use no "
        "core: more executors than cores pay); schedule.executors = 8: predicted +82%"
    )
    free = verdict(asleep + others, setup("oa", executors=4, cores=2))
    assert "executors work 90% of the time (90% of that their environments wait" in free.sentence
    starved = [executor(i, stepping=9.0, waiting=1.0, cpu_s=0.9, starved_s=2.5) for i in range(4)]
    assert "62% of that" in verdict(starved + others, setup(executors=4, cores=2)).sentence
    unknown = [executor(i, stepping=9.0, waiting=1.0) for i in range(4)]
    assert "environments wait" not in verdict(unknown + others, setup(executors=4, cores=2)).sentence


def test_in_one_process_what_is_not_the_environments_is_taken_off():
    seconds = {"starting": 1.0, "stepping": 8.0, "updating": 2.0}
    waiting = verdict([Spent("supervisor", None, seconds, cpu_s=2.8)], setup("serial", executors=8, cores=2))
    assert "90% of that their environments wait" in waiting.sentence
    assert waiting.predicted == pytest.approx(10 / (10 - 8 * 7 / 8))
    busy = verdict([Spent("supervisor", None, seconds, cpu_s=9.9)], setup("serial", executors=8, cores=2))
    assert "environments wait" not in busy.sentence
    assert busy.predicted == pytest.approx(10 / 6)


def test_gradients_of_executors_are_an_option_where_the_learner_is_the_limit_and_may_be_relieved():
    held = [executor(i, stepping=2.0, room=7.0, waiting=1.0) for i in range(2)]
    spent = [*held, learner(updating=9.0)]
    assert "schedule.gradients" not in verdict(spent, setup("oa")).sentence
    found = verdict(spent, setup("oa", may_differentiate=True))
    assert found.change == {}
    assert found.sentence.endswith('; or schedule.gradients = "executors", which has them make the gradients')
    played = [executor(i, stepping=8.0, waiting=2.0, cpu_s=8.0) for i in range(2)]
    other = verdict([*played, learner(updating=1.0)], setup(may_differentiate=True))
    assert "schedule.gradients" not in other.sentence


def test_acting_is_shared_by_more_environments():
    spent = [executor(i, stepping=3.0, acting=6.0, waiting=1.0, cpu_s=9.0) for i in range(2)]
    found = verdict([*spent, learner(updating=1.0, waiting=9.0)], setup(cores=2))
    assert found.change == {"schedule.envs_per_executor": 8}
    assert found.predicted == pytest.approx(10 / 7)


def test_a_learner_for_which_all_wait_is_overlapped():
    spent = [executor(i, stepping=3.0, waiting=7.0, cpu_s=3.0) for i in range(2)]
    found = verdict([*spent, learner(updating=6.0, drawing=1.0, waiting=3.0)], setup())
    assert (found.limit, found.change) == ("learner", {"schedule.kind": "oa"})
    assert found.predicted == pytest.approx(10 / 7)
    apart = verdict([*spent, learner(updating=6.0, drawing=1.0, waiting=3.0)], setup(own_memorizer=True))
    assert apart.predicted == pytest.approx(10 / 6)


def test_one_slow_executor_is_named():
    spent = [executor(0, stepping=3.0, waiting=7.0), executor(1, stepping=9.0, waiting=1.0), executor(2, stepping=3.0)]
    found = verdict([*spent, learner(updating=1.0)], setup(executors=3))
    assert found.limit == "straggler"
    assert found.sentence == (
        "executor 1 takes 3.0 times as long as the others, which wait for it; look at what its environments do; "
        "as fast as the others: predicted +150%"
    )
    assert found.predicted == pytest.approx(10 / 4)
    free = verdict([*spent, learner(updating=1.0)], setup("oa", executors=3))
    assert free.limit == "executors"


@pytest.mark.parametrize(
    ("executors", "cpu_each", "said", "change"),
    [
        (8, 4.0, "8 executors share 4 cores", {"schedule.executors": 4}),
        (2, 10.0, "this run used 2.0 of 4: other programs take them", {}),
        (4, 9.0, "this run has work for more than its 4", {}),
    ],
)
def test_processes_that_had_no_core_come_first(executors, cpu_each, said, change):
    spent = [executor(i, stepping=10.0, cpu_s=cpu_each, starved_s=4.0) for i in range(executors)]
    found = verdict(spent, setup(executors=executors))
    assert (found.limit, found.change) == ("cores", change)
    assert said in found.sentence
    assert found.predicted == (1.0 if change else None)
    assert ("schedule.executors = 4: predicted as fast" in found.sentence) == bool(change)


def test_tests_that_take_the_cores_are_named_with_their_key_and_a_round_number():
    spent = [executor(i, stepping=10.0, cpu_s=5.0, starved_s=5.0) for i in range(2)]
    spent += [learner(updating=4.0), Spent("evaluator", None, {"testing": 10.0}, cpu_s=6.0)]
    found = verdict(spent, setup("oa", cores=2, tests_every=700))
    assert (found.limit, found.change) == ("cores", {"evaluation.interval_steps": 5000})
    assert found.predicted == pytest.approx(1 / (1 - 0.3 * (1 - 700 / 5000)))
    assert (
        "tests take 30% of the CPU time of this run; evaluation.interval_steps = 5000: predicted +35%" in found.sentence
    )
    assert verdict(spent, setup("oa", cores=2)).change == {}


@pytest.mark.parametrize("saved_every", [("checkpoint.interval_steps", 256), ("checkpoint.interval_s", 30.0)])
def test_checkpoints_that_take_longer_than_any_work_are_told_as_the_disk(saved_every):
    key, value = saved_every
    spent = [executor(0, stepping=1.0, waiting=9.0), learner(updating=0.5, waiting=9.5)]
    found = verdict(spent, setup(executors=1, saving_s=8.0, saved_every=saved_every))
    assert (found.limit, found.change) == ("disk", {key: 10 * value})
    assert found.predicted == pytest.approx(10 / (10 - 8 * 0.9))
    assert "saving checkpoints takes 80% of the time, and all wait for the disk" in found.sentence
    seldom = verdict(spent, setup(executors=1, saving_s=0.9, saved_every=saved_every))
    assert seldom.limit == "rounds"
    assert verdict(spent, setup(executors=1, saving_s=8.0)).limit == "rounds"


def test_rounds_that_are_all_beginning_and_end_should_be_longer():
    spent = [executor(i, stepping=1.0, waiting=9.0) for i in range(2)] + [learner(updating=1.0, waiting=9.0)]
    found = verdict(spent, setup(rollout_steps=5))
    assert (found.limit, found.change) == ("rounds", {"schedule.rollout_steps": 10})
    assert found.predicted == pytest.approx(10 / 6)
    assert verdict(spent, setup()).sentence.endswith('schedule.kind = "oa" would help')


def test_rounds_of_milliseconds_are_too_short_whoever_works_in_them():
    spent = [executor(i, stepping=3.0, waiting=7.0) for i in range(2)] + [learner(updating=5.0, waiting=5.0)]
    found = verdict(spent, setup(rollout_steps=1, rounds=5000))
    assert (found.limit, found.change) == ("rounds", {"schedule.rollout_steps": 2})
    assert found.predicted == pytest.approx(10 / 6.5)
    assert found.sentence.startswith("rounds take 2.0 ms, 70% of it for what is done once in each; ")
    assert verdict(spent, setup(rollout_steps=1, rounds=500)).limit == "learner"


def test_tests_that_are_waited_for_are_a_stage_of_the_round():
    spent = [executor(i, stepping=2.0, waiting=8.0) for i in range(2)] + [learner(updating=1.0, waiting=9.0)]
    spent.append(Spent("evaluator", None, {"testing": 7.0, "waiting": 3.0}))
    found = verdict(spent, setup(waits_for_tests=True))
    assert (found.limit, found.change, found.predicted) == ("evaluator", {"schedule.kind": "oa"}, pytest.approx(10 / 2))
    crowded = verdict(spent, setup(waits_for_tests=True, cores=2))
    assert crowded.predicted == pytest.approx(10 / (5 / 1.5))  # tests have a quarter of the two cores


def test_where_no_process_waits_the_busiest_sets_the_pace():
    busy = [executor(i, stepping=9.5, cpu_s=9.0) for i in range(2)]
    found = verdict([*busy, learner(updating=4.0, waiting=6.0)], setup("oa"))
    assert (found.limit, found.change) == ("executors", {"schedule.executors": 4})
    assert found.predicted == pytest.approx(2.0)
    found = verdict([*busy, learner(updating=8.0, waiting=2.0)], setup("oa"))
    assert found.predicted == pytest.approx(1.25)
    held = [executor(i, stepping=2.0, room=7.0, waiting=1.0) for i in range(2)]
    found = verdict([*held, learner(updating=9.0, drawing=0.5)], setup("oa"))
    assert (found.limit, found.change, found.predicted) == ("learner", {}, None)
    assert "executors wait for room 70% of it" in found.sentence


def test_a_memorizer_that_keeps_the_learner_from_learning_gets_its_own_process():
    held = [executor(i, stepping=2.0, room=7.0, waiting=1.0) for i in range(2)]
    found = verdict([*held, learner(updating=4.0, drawing=3.0, taking_in=3.0)], setup("oa"))
    assert (found.limit, found.change) == ("memorizer", {"schedule.memorizer": "own"})
    assert found.predicted == pytest.approx(1 / 0.6)


def test_in_one_process_work_could_be_side_by_side():
    all_of_it = {"starting": 1.0, "stepping": 6.0, "acting": 2.0, "updating": 2.0}
    found = verdict([Spent("supervisor", None, all_of_it)], setup("serial"))
    assert (found.limit, found.change) == ("executors", {"schedule.kind": "is"})
    assert found.predicted == pytest.approx(10 / 6)
    assert verdict([Spent("supervisor", None, all_of_it)], setup("serial", cores=1)).change == {}


def test_a_run_that_has_not_begun_is_not_judged():
    assert verdict([], setup()).sentence == "nothing was stepped yet"
    assert verdict([executor(0)], setup()).limit == "executors"


def test_a_change_that_would_bring_next_to_nothing_is_no_advice():
    spent = [executor(i, stepping=9.9, cpu_s=9.0) for i in range(2)] + [learner(updating=9.85)]
    found = verdict(spent, setup("oa"))
    assert found.predicted == pytest.approx(10 / 9.85, rel=0.02)
    assert "predicted" not in found.sentence
