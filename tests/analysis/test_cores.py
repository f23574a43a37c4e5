"""What is predicted of many cores follows from the costs, in ways that can be said without a computer."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def model():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import cores_model

        yield cores_model
    finally:
        sys.path.remove(str(BENCHMARKS))
        sys.modules.pop("cores_model", None)


@pytest.fixture
def costs(model):
    return model.Costs(
        act=2.0, sleep=0.0, row=1.0, step=100.0, publish=0.0, exchange=5.0, exchange_byte=0.0, apply=50.0
    )


@pytest.fixture
def work(model):
    return model.Work(rows=1000, replays=1.0, batch=500, replayed=False, nbytes=20_000)


def rate(model, costs, work, cores, executors, kind, gradients):
    return model.predicted(costs, work, cores=cores, executors=executors, kind=kind, gradients=gradients)


def test_a_round_of_one_executor_is_the_sum_of_its_parts(model, costs, work):
    alone = 1e6 * 1000 / (2000 + 1000 + 2 * 100)
    assert rate(model, costs, work, 1, 1, "is", "learner") == pytest.approx(alone)
    assert rate(model, costs, work, 1, 1, "is", "executors") == pytest.approx(alone)
    paid = replace(costs, publish=300.0)
    assert rate(model, paid, work, 1, 1, "is", "learner") == pytest.approx(1e6 * 1000 / 3500)


def test_with_one_learner_many_cores_are_bound_by_it_and_with_many_workers_they_are_not(model, costs, work):
    bound = 1e6 / (costs.row + costs.step / work.batch)  # rows/s of a learner that never waits
    for cores in (16, 64, 128):
        assert rate(model, costs, work, cores, cores, "oa", "learner") == pytest.approx(bound)
        assert rate(model, costs, work, cores, cores, "is", "learner") < 1e6 / costs.row
        assert rate(model, costs, work, cores, cores, "is", "executors") > bound
    ratio = [rate(model, costs, work, n, n, "is", "executors") for n in (1, 16)]
    assert 8 < ratio[1] / ratio[0] < 16  # exchanges take a part


def test_exchanges_are_paid_for_by_workers_and_bytes(model, costs, work):
    assert model.exchange_us(costs, 20_000, 1) == 0
    dear = replace(costs, exchange_byte=0.01)
    assert model.exchange_us(dear, 20_000, 4) == pytest.approx(4 * (5 + 200))
    assert rate(model, dear, work, 8, 8, "is", "executors") < rate(model, costs, work, 8, 8, "is", "executors")
    assert rate(model, dear, work, 8, 8, "is", "learner") == rate(model, costs, work, 8, 8, "is", "learner")


def test_pushes_are_bound_by_executors_first_and_by_the_learner_in_the_end(model, costs, work):
    one = rate(model, costs, work, 1, 1, "oa", "executors")
    assert one == pytest.approx(1e6 * 1000 / 3250)
    assert rate(model, costs, work, 8, 8, "oa", "executors") == pytest.approx(8 * one)
    assert rate(model, costs, work, 128, 128, "oa", "executors") == pytest.approx(1e6 * 1000 / 50)


def test_steps_that_sleep_take_time_and_no_core(model, costs, work):
    asleep = replace(costs, sleep=5000.0)
    one = rate(model, asleep, work, 1, 1, "oa", "learner")
    assert one == pytest.approx(1e6 / 5002)
    assert rate(model, asleep, work, 1, 8, "oa", "learner") == pytest.approx(8 * one)
    assert model.limit(asleep, work, cores=1, executors=8) == pytest.approx(8 * one)


@pytest.mark.parametrize("cores", [1, 2, 7, 64])
@pytest.mark.parametrize("kind", ["is", "oa"])
@pytest.mark.parametrize("gradients", ["learner", "executors"])
@pytest.mark.parametrize("replayed", [False, True])
def test_nothing_is_faster_than_the_limit_where_steps_are_not_made_larger(
    model, costs, work, cores, kind, gradients, replayed
):
    # Rollouts of many are learned from in larger steps, which are fewer: the limit does not know of them.
    cheap = replace(costs, step=0.0 if not replayed else costs.step)
    here = replace(work, replayed=replayed, replays=4.0 if replayed else 1.0)
    found = rate(model, cheap, here, cores, model.executors_of(cores), kind, gradients)
    most = model.limit(cheap, here, cores=cores, executors=model.executors_of(cores))
    assert 0 < found <= most * (1 + 1e-9)


def test_costs_come_back_from_what_they_made(model):
    row, step = model.of_two_batches((100, 2 + 50 / 100), (400, 2 + 50 / 400))
    assert (row, step) == (pytest.approx(2), pytest.approx(50))
    made = [(workers, nbytes, workers * (3 + 2e-4 * nbytes)) for workers in (2, 4, 8) for nbytes in (4096, 1 << 20)]
    assert model.fitted(made) == (pytest.approx(3), pytest.approx(2e-4))
    with pytest.raises(ValueError, match="two sizes of a step"):
        model.of_two_batches((100, 1.0), (100, 2.0))
    with pytest.raises(ValueError, match="two exchanges"):
        model.fitted(made[:1])


def test_executors_follow_the_cores(model):
    assert [model.executors_of(cores) for cores in (1, 2, 3, 4, 8, 16)] == [1, 2, 2, 2, 6, 14]
