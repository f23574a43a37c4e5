"""Priorities made of age, risk and TD error: hand-computed buffers through the real memory and memorizer.

Four episodes of one row each. Rows 0 and 1 came for the first learning phase, row 2 for the second, row 3 for the
third, so that then their ages are 3, 3, 2, 1. The algorithm says what it is told of them:

    return G    -10      0     10     30    risk w = 1 - u/40 + 0.01, u = G + 10:  1.01  0.76  0.51  0.01  sum 2.29
    TD error      0  -0.49   0.24      5    min(|delta| + 0.01, 1):                0.01  0.50  0.25  1.00  sum 1.76
    age           3      3      2      1    3 - age + 1:                           1     1     2     3     sum 7
"""

import itertools

import numpy as np
import pytest
from role_fakes import LAYOUT, FakeAlgorithm, FakeLane, FakeTask, FakeWeights
from test_executor import BLOCK, make

from mlxe_async.algorithms.interface import Priorities
from mlxe_async.errors import MlxeError
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.sampling import pick
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan

RETURNS = np.array([-10.0, 0.0, 10.0, 30.0])
TD_ERRORS = np.array([0.0, -0.49, 0.24, 5.0])
CAME = (2, 1, 1)  # episodes that came for each phase

# Each column of the table above divided by its sum, averaged by hand.
AGE = [1 / 7, 1 / 7, 2 / 7, 3 / 7]
RISK = [0.4410480, 0.3318777, 0.2227074, 0.0043668]
TD = [0.0056818, 0.2840909, 0.1420455, 0.5681818]
WORKED_OUT = {
    ("age",): AGE,
    ("risk",): RISK,
    ("td",): TD,
    ("age", "risk"): [0.2919526, 0.2373674, 0.2542108, 0.2164692],
    ("age", "td"): [0.0742695, 0.2134740, 0.2138799, 0.4983766],
    ("risk", "td"): [0.2233649, 0.3079843, 0.1823764, 0.2862743],
    ("age", "risk", "td"): [0.1965290, 0.2529419, 0.2168224, 0.3337067],
}
# The same to the power 0.4, divided by the sum of the powers.
FLATTENED = {
    ("age",): [0.205282, 0.205282, 0.270871, 0.318566],
    ("risk",): [0.355722, 0.317473, 0.270651, 0.056154],
    ("td",): [0.063633, 0.304276, 0.230598, 0.401494],
    ("age", "risk"): [0.266390, 0.245223, 0.252040, 0.236347],
    ("age", "td"): [0.161458, 0.246305, 0.246492, 0.345746],
    ("risk", "td"): [0.240178, 0.273111, 0.221470, 0.265241],
    ("age", "risk", "td"): [0.228197, 0.252434, 0.237346, 0.282024],
}


class Judge(FakeAlgorithm):
    """Says of a row what is told for its episode; what it says depends on the weights only if asked."""

    memory = "replay"

    def __init__(self, factors, batch_rows=1, updates_due=512, returns=RETURNS, td_errors=TD_ERRORS, **how):
        super().__init__(updates_due)
        self.batch_rows = batch_rows
        self.priorities = Priorities("factors", tuple(factors), **{"exponent": 1.0, "correction": 0.0, **how})
        self.returns, self.td_errors = returns, td_errors
        self.appraised = []

    def appraise(self, rows):
        self.appraised.append(len(rows["obs"]))
        episode = rows["episode"]
        return {"return": self.returns[episode], "td_error": self.td_errors[episode]}


class Bench:
    """A memory and its memorizer, and an executor to fill its lane with."""

    def __init__(self, algorithm, lanes=1, weights=None, stream_rows=32):
        self.algorithm, self.weights = algorithm, weights or FakeWeights(version=1)
        self.lanes = [FakeLane(BLOCK) for _ in range(lanes)]
        shape = ReplayShape(lanes, 1, stream_rows, 16, BLOCK, 4, 512, LAYOUT.to_json(), [])
        self.buffer = bytearray(shape.nbytes)
        self.shape = shape
        self.executor, _, _, _ = make(FakeTask([1]), lane=self.lanes[0])
        self.rollouts = 0
        self.begin()

    def begin(self):
        """The memorizer, or its successor."""
        self.memory = ReplayMemory(self.shape, self.buffer)
        plan = MemorizerPlan(seed=0, block_rows=BLOCK, redo=False, rollouts_per_update=1, plan_updates=512)
        self.memorizer = Memorizer(
            plan,
            algorithm=self.algorithm,
            memory=self.memory,
            layout=LAYOUT,
            lanes=self.lanes,
            weights=self.weights,
        )

    def play(self, episodes):
        for _ in range(episodes):
            self.executor.generate(rollout=self.rollouts)
            self.rollouts += 1

    def play_all(self):
        for episodes in CAME:
            self.play(episodes)
            plan = self.memorizer.memorize(most_updates=1)
        return plan

    def by_row(self, of_live):
        """Numbers of `live()` in the order of the episodes."""
        order = np.argsort([int(self.memory.row(i)["episode"]) for i in self.memory.live()])
        return np.asarray(of_live)[order]


@pytest.mark.parametrize("factors", WORKED_OUT, ids="+".join)
def test_the_probabilities_of_a_buffer_are_those_worked_out_by_hand(factors):
    for exponent, expected in ((1.0, WORKED_OUT), (0.4, FLATTENED), (0.0, dict.fromkeys(WORKED_OUT, [0.25] * 4))):
        bench = Bench(Judge(factors, exponent=exponent))
        bench.play_all()
        assert bench.by_row(bench.memory.ages()).tolist() == [3, 3, 2, 1]
        assert bench.by_row(bench.memorizer.probabilities()) == pytest.approx(expected[factors], abs=2e-6)


@pytest.mark.parametrize("factors", WORKED_OUT, ids="+".join)
def test_rows_are_drawn_as_often_as_that(factors):
    bench = Bench(Judge(factors, updates_due=1024))
    bench.play_all()
    counts = np.zeros(4)
    for _ in range(9):
        plan = bench.memorizer.memorize()
        for k in range(plan["updates"]):
            batch, _ = bench.memory.gather(plan, k)
            counts[batch["episode"]] += 1
    expected = counts.sum() * np.array(WORKED_OUT[factors])
    assert counts.sum() == 4 * 1024 - 3
    assert bench.memorizer.memorize()["updates"] == 0
    # Chi-square with three degrees of freedom: 16.3 is exceeded once in a thousand seeds.
    assert ((counts - expected) ** 2 / expected).sum() < 16.3


def test_the_order_in_which_factors_are_named_changes_nothing():
    drawn = []
    for factors in itertools.permutations(("age", "risk", "td")):
        bench = Bench(Judge(factors))
        bench.play_all()
        drawn.append(bench.memorizer.probabilities())
    assert np.allclose(drawn, drawn[0], rtol=1e-12)


@pytest.mark.parametrize("factors", [("risk",), ("td",), ("risk", "td")])
def test_rows_of_equal_returns_and_errors_are_drawn_alike(factors):
    bench = Bench(Judge(factors, returns=np.full(4, -3.0), td_errors=np.zeros(4)))
    bench.play_all()
    assert bench.memorizer.probabilities() == pytest.approx([0.25] * 4)


def test_a_buffer_of_one_row_can_be_drawn_from():
    bench = Bench(Judge(("age", "risk", "td")))
    bench.play(1)
    assert bench.memorizer.memorize()["updates"] == 512
    assert bench.memorizer.probabilities().tolist() == [1.0]


def test_rows_of_one_minibatch_differ_and_come_as_often_as_successive_draws_give_them():
    """Of 0.5, 0.3, 0.2 two are drawn: the first is among them with 0.5 + 0.3 * 0.5/0.7 + 0.2 * 0.5/0.8 = 0.8392857."""
    rng, counts = np.random.default_rng(5), np.zeros(3)
    for _ in range(20_000):
        first, second = pick(rng, np.array([0.5, 0.3, 0.2]), 2)
        assert first != second
        counts[[first, second]] += 1
    assert counts / 20_000 == pytest.approx([0.8392857, 0.675, 0.4857143], abs=0.012)


def test_importance_weights_are_those_of_the_paper():
    """(N P)^-1 of RISK with N = 4: 0.566832, 0.753289, 1.122549, 57.25; divided by the largest of the minibatch."""
    bench = Bench(Judge(("risk",), batch_rows=4, correction=1.0))
    plan = bench.play_all()
    batch, _ = bench.memory.gather(plan, 0)
    assert sorted(batch["episode"]) == [0, 1, 2, 3]
    assert batch["weight"][np.argsort(batch["episode"])] == pytest.approx(
        [0.0099010, 0.0131579, 0.0196078, 1.0], abs=2e-6
    )


def test_importance_weights_of_half_the_exponent_and_of_none():
    for beta, expected in ((0.5, [0.0995037, 0.1147079, 0.1400280, 1.0]), (0.0, [1.0] * 4)):
        bench = Bench(Judge(("risk",), batch_rows=4, correction=beta))
        batch, _ = bench.memory.gather(bench.play_all(), 0)
        assert batch["weight"][np.argsort(batch["episode"])] == pytest.approx(expected, abs=2e-6)


def test_the_exponent_grows_with_each_phase_and_executor_until_it_is_one():
    bench = Bench(Judge(("age",), exponent=0.4, exponent_growth=0.125), lanes=2)
    exponents = []
    for _ in range(4):
        bench.play(1)
        bench.memorizer.memorize(most_updates=1)
        exponents.append(bench.memorizer.exponent)
    assert exponents == pytest.approx([0.4, 0.65, 0.9, 1.0])
    bench.memorizer.algorithm.priorities = Priorities("factors", ("age",), 0.4, 0.001)
    assert bench.memorizer.exponent == pytest.approx(0.4 + 0.001 * 2 * 3)


def test_the_exponent_that_grew_is_the_one_that_is_used():
    bench = Bench(Judge(("risk",), exponent=0.0, exponent_growth=0.5))
    bench.play_all()
    assert bench.by_row(bench.memorizer.probabilities()) == pytest.approx(RISK, abs=2e-6)


def test_a_phase_lasts_until_new_rows_come_and_is_appraised_once():
    bench = Bench(Judge(("age", "td"), updates_due=6))
    bench.play(2)
    first = [bench.memorizer.memorize(most_updates=4) for _ in range(4)]
    assert [plan["updates"] for plan in first] == [4, 4, 4, 0]
    assert bench.algorithm.appraised == [2]
    assert bench.memory.phases == 1
    bench.play(1)
    bench.memorizer.memorize(most_updates=4)
    assert bench.algorithm.appraised == [2, 3]
    assert bench.by_row(bench.memory.ages()).tolist() == [2, 2, 1]


def test_rows_that_are_only_taken_in_wait_for_the_next_phase():
    bench = Bench(Judge(("age",)))
    bench.play(1)
    bench.memorizer.memorize(most_updates=1)
    bench.play(1)
    bench.memorizer.ingest()
    bench.play(1)
    bench.memorizer.memorize(most_updates=1)
    assert bench.by_row(bench.memory.ages()).tolist() == [2, 1, 1]


def test_rows_are_appraised_by_the_newest_published_weights_at_the_start_of_each_phase():
    bench = Bench(Judge(("td",), updates_due=1))
    for value in (1.5, 1.5, 2.5):
        bench.play(1)
        if value != bench.weights.flat[0]:
            bench.weights.publish(np.full(3, value, np.float32))
        bench.memorizer.memorize()
    assert [flat.tolist() for flat in bench.algorithm.loaded] == [[1.5] * 3, [2.5] * 3]


def test_a_large_memory_is_appraised_in_pieces_that_come_to_the_same(monkeypatch):
    whole = Bench(Judge(("risk", "td")))
    whole.play_all()
    monkeypatch.setattr("mlxe_async.roles.memorizer.APPRAISED_AT_ONCE", 3)
    pieces = Bench(Judge(("risk", "td")))
    pieces.play_all()
    assert pieces.algorithm.appraised[-2:] == [3, 1]
    assert pieces.memorizer.probabilities().tolist() == whole.memorizer.probabilities().tolist()


def test_the_same_seed_draws_the_same_plans_and_a_successor_gives_the_same_probabilities():
    def story(successors):
        bench, told = Bench(Judge(("age", "risk", "td"), batch_rows=2, updates_due=4)), []
        for episodes in CAME:
            bench.play(episodes)
            bench.memorizer.ingest()
            if successors:
                bench.begin()
            plan = bench.memorizer.memorize()
            told.append(bench.memorizer.probabilities().tolist())
            told += [bench.memory.gather(plan, k)[0]["episode"].tolist() for k in range(plan["updates"])]
        return told

    assert story(successors=False) == story(successors=False)
    assert story(successors=True) == story(successors=False)


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [False, True], ids=["before it is stored", "after it is stored"])
@pytest.mark.parametrize("kill", range(1, 11))
def test_a_memorizer_killed_anywhere_leaves_rows_of_the_right_age_and_no_phase_counted_twice(kill, after):
    """Four blocks, three phases and three draws are ten commits; at each of them the keeper dies, and another comes."""
    bench = Bench(Judge(("age", "risk", "td"), updates_due=4))
    commits = [0]

    def watch():
        store = bench.memory._books.committed.store

        def killing(state):
            commits[0] += 1
            if commits[0] == kill and not after:
                raise Killed
            store(state)
            if commits[0] == kill:
                raise Killed

        bench.memory._books.committed.store = killing

    watch()
    died = 0
    for episodes in CAME:
        bench.play(episodes)
        while True:
            try:
                bench.memorizer.memorize()
                break
            except Killed:
                died += 1
                bench.lanes[0].position = 0
                bench.begin()
                watch()
    assert died == 1
    assert bench.memory.phases == 3
    assert bench.memory.owed == 0
    assert bench.by_row(bench.memory.ages()).tolist() == [3, 3, 2, 1]
    assert bench.by_row(bench.memorizer.probabilities()) == pytest.approx(WORKED_OUT["age", "risk", "td"], abs=2e-6)


def test_minibatches_that_are_owed_are_still_owed_by_a_successor():
    bench = Bench(Judge(("age",), updates_due=6))
    bench.play(1)
    assert bench.memorizer.memorize(most_updates=4)["owed"] == 2
    bench.begin()
    plan = bench.memorizer.memorize(most_updates=4)
    assert (plan["updates"], plan["owed"]) == (2, 0)


@pytest.mark.parametrize(
    ("factors", "words"),
    [((), "expected different ones of age, risk, td"), (("age", "luck"), "luck"), (("td", "td"), "different")],
)
def test_factors_that_do_not_exist_are_refused(factors, words):
    with pytest.raises(ValueError, match=words):
        Bench(Judge(factors))


def test_an_algorithm_that_cannot_appraise_is_refused_and_by_age_alone_it_need_not():
    class Mute(Judge):
        appraise = None

    with pytest.raises(ValueError, match="td and risk need an algorithm with the verb appraise"):
        Bench(Mute(("age", "td", "risk")))
    bench = Bench(Mute(("age",)))
    bench.play_all()
    assert bench.by_row(bench.memorizer.probabilities()) == pytest.approx(AGE)


def test_an_algorithm_that_learns_from_whole_rollouts_is_refused():
    algorithm = Judge(("age",))
    algorithm.memory = "rollouts"
    with pytest.raises(ValueError, match="learns from each row once"):
        Bench(algorithm)


def test_without_weights_to_read_it_is_refused_and_without_any_published_nothing_is_drawn():
    bench = Bench(Judge(("td",)))
    plan = MemorizerPlan(seed=0, block_rows=BLOCK, redo=False, rollouts_per_update=1, plan_updates=512)
    with pytest.raises(ValueError, match="td need published weights to be read"):
        Memorizer(plan, algorithm=Judge(("td",)), memory=bench.memory, layout=LAYOUT, lanes=bench.lanes)

    class Nothing(FakeWeights):
        def read(self, into):
            return None

    unborn = Bench(Judge(("td",)), weights=Nothing(version=0))
    unborn.play(1)
    with pytest.raises(MlxeError, match="expected published weights to appraise rows by, found none"):
        unborn.memorizer.memorize()


def test_weights_that_could_not_be_read_whole_leave_the_ones_that_are_loaded_in_force():
    bench = Bench(Judge(("td",)))
    bench.play(1)
    bench.memorizer.memorize(most_updates=1)
    bench.weights.version += 1
    bench.weights.read = lambda into: None
    bench.play(1)
    assert bench.memorizer.memorize(most_updates=1)["updates"] == 1
    assert len(bench.algorithm.loaded) == 1


@pytest.mark.parametrize("answer", [np.array([np.nan] * 4), np.zeros(3), np.zeros((4, 1))])
def test_an_appraisal_that_is_no_number_for_each_row_is_an_error_and_not_uniform(answer):
    algorithm = Judge(("risk",))
    bench = Bench(algorithm)
    bench.play(4)
    algorithm.appraise = lambda rows: {"return": answer}
    with pytest.raises(MlxeError, match="expected appraise to return return as 4 finite numbers"):
        bench.memorizer.memorize()


def test_probabilities_for_another_number_of_rows_are_refused():
    bench = Bench(Judge(("age",)))
    bench.play_all()
    with pytest.raises(ValueError, match="expected probabilities of 4 rows"):
        bench.memory.draw(0, 1, 1, share=np.full(3, 1 / 3))


def test_the_weights_of_a_minibatch_are_those_of_prioritised_replay():
    """(N P)^-beta over the largest: Schaul et al. 2016, section 3.4."""
    bench = Bench(Judge(("td",), batch_rows=3, correction=0.7))
    batch, _ = bench.memory.gather(bench.play_all(), 0)
    share = np.array(TD)[batch["episode"]]
    weight = (4 * share) ** -0.7
    assert batch["weight"] == pytest.approx(weight / weight.max(), rel=1e-4)
