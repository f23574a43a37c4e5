"""Durations are counted in buckets of a quarter of a doubling, and quantiles come out to an eighth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.ipc.shared import hours, words
from mlxe_async.ipc.shared.hours import NUMBERS, TIMED, Hours
from mlxe_async.ipc.shared.latencies import BUCKETS, bucket_of, edge_of, histogram, quantiles
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage, ProgressPages


@given(st.integers(0, 2**38 - 1))
def test_a_duration_lies_below_the_end_of_its_bucket_and_not_below_its_beginning(duration):
    bucket = bucket_of(duration)
    assert duration < edge_of(bucket)
    if bucket:
        assert duration >= edge_of(bucket - 1)
        assert edge_of(bucket) <= 1.25 * edge_of(bucket - 1)


def test_buckets_go_from_a_microsecond_to_minutes_and_the_last_takes_what_is_longer():
    assert (edge_of(0), bucket_of(0), bucket_of(1023), bucket_of(1024)) == (1024, 0, 0, 1)
    assert bucket_of(2**63) == BUCKETS - 1
    assert 200 < edge_of(BUCKETS - 2) / 1e9 < 300


@given(st.lists(st.integers(0, 2**36), min_size=1, max_size=200))
def test_quantiles_are_those_of_the_durations_to_a_quarter_above(durations):
    counts = [0] * BUCKETS
    for duration in durations:
        counts[bucket_of(duration)] += 1
    found, ordered = quantiles(counts), sorted(durations)
    assert found["count"] == len(durations) == sum(histogram(counts).values())
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        true = ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
        assert true <= found[name] * 1e9 <= max(1.25 * true, 1024)


def test_of_nothing_there_are_no_quantiles():
    assert quantiles([0] * BUCKETS) == {}
    assert histogram([0] * BUCKETS) == {}


class Clock:
    def __init__(self):
        self.now = 10**9

    def monotonic_ns(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(hours, "time", one)
    monkeypatch.setattr(words, "time", one)
    return one


def spell(one, clock, mode, ns):
    one.switch(NUMBERS[mode])
    clock.now += ns
    one.switch(NUMBERS["waiting"])


@given(st.lists(st.tuples(st.sampled_from(TIMED), st.integers(0, 2**40)), max_size=20))
def test_each_spell_of_a_timed_mode_is_in_its_bucket(spells):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(hours, "time", clock)
        one, expected = Hours(bytearray(hours.NBYTES), 0), {}
        one.begin()
        for mode, ns in spells:
            spell(one, clock, mode, ns)
            expected.setdefault(mode, [0] * BUCKETS)[bucket_of(ns)] += 1
        assert one.counts() == expected


def test_other_modes_are_not_counted_and_a_page_holds_all(clock):
    page = ProgressPage(bytearray(PAGE_BYTES))
    page.hours.begin()
    spell(page.hours, clock, "room", 5000)
    assert page.hours.counts() == {}
    for mode in TIMED:
        spell(page.hours, clock, mode, 2**50)
    assert {mode: counts[-1] for mode, counts in page.hours.counts().items()} == dict.fromkeys(TIMED, 1)


def test_spells_are_told_once_over_all_lives_also_beyond_the_counters_range(clock):
    page = ProgressPage(bytearray(PAGE_BYTES))
    pages = ProgressPages([page])
    pages.clear()
    page.hours._counts[bucket_of(10**6)] = 2**32 - 1
    assert pages.new_counts()[0]["acting"][bucket_of(10**6)] == 2**32 - 1
    spell(page.hours, clock, "acting", 10**6)
    spell(page.hours, clock, "acting", 10**6)
    assert pages.new_counts()[0]["acting"][bucket_of(10**6)] == 2
    pages.end()
    pages.clear()
    spell(page.hours, clock, "acting", 10**6)
    assert pages.new_counts()[0]["acting"][bucket_of(10**6)] == 1
    pages.end()
    pages.end()
    assert sum(pages.new_counts()[0]["acting"]) == 0
