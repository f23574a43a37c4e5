"""A writer that dies at any moment leaves the arrays of the label before; what is torn or damaged is never found."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from memory_tools import fork, in_fresh_process

from mlxe_async.errors import ProtocolError, ResourceError
from mlxe_async.ipc.shared import kept, segments
from mlxe_async.ipc.shared.kept import LEAST_BYTES, KeptState
from mlxe_async.ipc.shared.segments import Segment


class Died(Exception):
    pass


class Torn(dict):
    """Arrays of which only the first few can be copied."""

    def __init__(self, arrays, whole):
        super().__init__(arrays)
        self.whole = whole

    def items(self):
        for count, pair in enumerate(super().items()):
            if count == self.whole:
                raise Died
            yield pair


@pytest.fixture
def segment():
    with Segment.create("learner", LEAST_BYTES, grows=True) as made:
        yield made


def state(value, size=3000):
    return {
        "weights": np.full(size, value, np.float32),
        "steps": np.array(value, np.int64),
        "words": np.full((2, 3), value, np.uint64),
        "none": np.zeros((0, 4)),
    }


def by_columns(value, shape=(4, 3, 2)):
    numbers = np.arange(np.prod(shape), dtype=np.float32) + value
    return {"weights": numbers.reshape(shape[::-1]).T, "by_rows": numbers.reshape(shape)}


@pytest.fixture
def successor():
    attached = []

    def come(segment):
        attached.append(Segment.attach("learner", os.dup(segment.fd)))
        return KeptState(attached[-1])

    yield come
    for one in attached:
        one.close()


def value_of(found):
    label, arrays = found
    for name, array in state(int(arrays["steps"])).items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    return label, int(arrays["steps"])


def torn(store, label, value, whole, monkeypatch, spare=None):
    write = kept._Slot.write
    with monkeypatch.context() as patched:
        patched.setattr(kept._Slot, "write", lambda slot, number, to, new: write(slot, number, to, Torn(new, whole)))
        with pytest.raises(Died):
            store.keep(label, state(value), spare=label - 1 if spare is None else spare)


def test_before_anything_is_kept_there_is_nothing(segment, successor):
    assert KeptState(segment).find(2**63) is None
    assert successor(segment).find(2**63) is None


def test_what_is_kept_is_found_under_its_label_by_a_successor_too(segment, successor):
    store = KeptState(segment)
    for label in range(1, 8):
        store.keep(label, state(10 * label), spare=label - 1)
        for reader in (store, successor(segment)):
            assert value_of(reader.find(label)) == (label, 10 * label)
            assert label == 1 or value_of(reader.find(label - 1)) == (label - 1, 10 * label - 10)
            assert label < 3 or reader.find(label - 2) is None


def test_what_is_found_are_copies(segment):
    store = KeptState(segment)
    store.keep(1, state(1))
    store.find(1)[1]["weights"][:] = 7
    assert value_of(store.find(1)) == (1, 1)


def test_a_successor_goes_on_keeping(segment, successor):
    KeptState(segment).keep(1, state(1))
    for label in range(2, 6):
        successor(segment).keep(label, state(label), spare=label - 1)
    assert value_of(successor(segment).find(9)) == (5, 5)


def test_the_later_of_two_under_one_label_counts_and_the_earlier_is_spared_meanwhile(segment, successor, monkeypatch):
    store = KeptState(segment)
    store.keep(4, state(1))
    torn(store, 5, 2, 1, monkeypatch)
    store.keep(4, state(3), spare=4)
    assert value_of(store.find(4)) == (4, 3)
    torn(store, 5, 4, 2, monkeypatch)
    assert value_of(successor(segment).find(9)) == (4, 3)


@pytest.mark.parametrize("whole", range(4))
def test_whoever_dies_writing_leaves_the_label_before(segment, successor, whole, monkeypatch):
    store = KeptState(segment)
    store.keep(1, state(1))
    store.keep(2, state(2), spare=1)
    torn(store, 3, 3, whole, monkeypatch)
    after = successor(segment)
    assert value_of(after.find(3)) == (2, 2)
    after.keep(3, state(33), spare=2)
    assert value_of(successor(segment).find(3)) == (3, 33)
    assert value_of(successor(segment).find(2)) == (2, 2)


@pytest.mark.parametrize("kept", [[(2, 2), (4, 4)], [(4, 4)], [(3, 3), (7, 4)], [(3, 3), (5, 4)]], ids=str)
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("second", range(5))
def test_any_number_of_deaths_in_a_row_leave_what_was_published(segment, successor, kept, first, second, monkeypatch):
    """States are kept now and then: the published version is none that was kept."""
    published = 6
    for label, spare in kept:
        KeptState(segment).keep(label, state(label), spare=spare)
    expected = max(label for label, _ in kept if label <= published)
    for whole in (first, second, first):
        store = successor(segment)
        assert value_of(store.find(published)) == (expected, expected)
        if whole == 4:  # dies between keeping and publishing
            store.keep(7, state(7), spare=published)
        else:
            torn(store, 7, 7, whole, monkeypatch, spare=published)
    store = successor(segment)
    assert value_of(store.find(published)) == (expected, expected)
    store.keep(8, state(8), spare=published)
    assert value_of(successor(segment).find(8)) == (8, 8)


def test_an_error_in_the_middle_of_a_write_leaves_a_slot_that_is_written_first(segment, monkeypatch):
    store = KeptState(segment)
    store.keep(3, state(3))
    store.keep(2, state(2))
    torn(store, 4, 4, 1, monkeypatch, spare=1)
    torn(store, 4, 4, 1, monkeypatch, spare=1)
    assert store.find(9) is not None


@pytest.mark.parametrize("kills", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_is_lost_however_often_a_writer_that_keeps_now_and_then_is_killed(kills):
    """As under `oa`: each life publishes a version or more without keeping its state, and is killed inside `keep`."""
    tally = in_fresh_process("kill_loops:kill_keepers", kills, 5)
    assert (tally["kills"], tally["lost"], tally["torn"]) == (kills, 0, 0), tally
    assert tally["half_written"] > kills // 10, "few kills met a half-written state: a broken rule would not be seen"


def test_a_bit_that_flips_anywhere_in_a_slot_makes_the_other_one_be_found(segment):
    store = KeptState(segment)
    store.keep(1, state(1, size=40))
    store.keep(2, state(2, size=40), spare=1)
    newest = max(store._slots, key=lambda slot: slot.sequence)
    for place in range(len(newest._bytes)):
        newest._bytes[place] ^= 1 << place % 8
        assert store.find(2)[0] == 1
        newest._bytes[place] ^= 1 << place % 8
    for word in ("sequence", "label", "crc"):
        then = newest._words.get(word)
        newest._words.set(word, then ^ 4)
        found = store.find(2)
        assert found is not None
        assert found[0] == 1
        newest._words.set(word, then)
    assert value_of_small(store.find(2)) == (2, 2)


def value_of_small(found):
    return found[0], int(found[1]["steps"])


def test_a_label_that_was_never_published_is_not_found(segment):
    store = KeptState(segment)
    store.keep(6, state(6))
    store.keep(7, state(7), spare=6)
    assert value_of(store.find(6)) == (6, 6)
    assert store.find(5) is None


def test_a_writer_that_is_killed_in_its_first_write_leaves_nothing_and_no_harm(segment, successor, monkeypatch):
    def at_layout():
        store = successor(segment)
        monkeypatch.setattr(kept._Slot, "clear", lambda _slot: os._exit(3))
        store.keep(1, state(1))

    assert os.waitstatus_to_exitcode(os.waitpid(fork(at_layout), 0)[1]) == 3
    assert os.fstat(segment.fd).st_size > LEAST_BYTES
    after = successor(segment)
    assert after.find(9) is None
    after.keep(1, state(1))
    assert value_of(successor(segment).find(1)) == (1, 1)


def test_a_damaged_table_is_none_and_is_written_again(segment, successor):
    KeptState(segment).keep(1, state(1))
    segment.buffer[kept._HEAD_BYTES + 5] ^= 1
    after = successor(segment)
    assert after.find(1) is None
    after.keep(2, state(2))
    assert value_of(successor(segment).find(9)) == (2, 2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"weights": np.zeros(7, np.float32)}, "weights"),
        ({"steps": np.array(1.5)}, "steps"),
        ({"more": np.zeros(1)}, "more"),
    ],
)
def test_other_arrays_than_at_first_are_refused_by_name_and_what_is_kept_stays(segment, change, named):
    store = KeptState(segment)
    store.keep(1, state(1))
    with pytest.raises(ValueError, match=f"got others of {named}; have state"):
        store.keep(2, state(2) | change)
    assert value_of(store.find(2)) == (1, 1)


def test_python_objects_are_refused(segment):
    with pytest.raises(ValueError, match="expected arrays of numbers, got one of Python objects"):
        KeptState(segment).keep(1, {"what": np.array([object()])})


def test_memory_that_there_is_not_is_refused_when_it_is_first_needed(segment, monkeypatch):
    monkeypatch.setattr("mlxe_async.ipc.shared.segments.available_memory", lambda: 2**20)
    with pytest.raises(ResourceError, match="segment learner: cannot reserve"):
        KeptState(segment).keep(1, {"weights": np.zeros(2**20, np.float32)})
    assert os.fstat(segment.fd).st_size == LEAST_BYTES


def test_a_segment_grows_once_and_then_its_size_is_sealed(segment):
    segment.grow(3 * LEAST_BYTES)
    segment.buffer[-1] = 7
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(segment.fd, 4 * LEAST_BYTES)
    with pytest.raises(ResourceError):
        segment.grow(5 * LEAST_BYTES)
    with pytest.raises(ProtocolError):
        Segment.attach("learner", segment.fd, LEAST_BYTES)


def test_what_a_segment_has_reserved_already_is_not_asked_for_again(segment, monkeypatch):
    monkeypatch.setattr(segments, "available_memory", lambda: 2 * LEAST_BYTES)
    segment.grow(3 * LEAST_BYTES, sealed=False)
    with pytest.raises(ResourceError, match="more: only"):
        segment.grow(6 * LEAST_BYTES)
    segment.grow(5 * LEAST_BYTES)


def test_what_is_looked_for_while_it_is_written_is_found_whole(segment):
    """Threads take turns at any byte code, so that the writer begins between any two looks of the reader."""
    store = KeptState(segment)
    store.keep(1, state(1, 50))
    reader, before = KeptState(segment), sys.getswitchinterval()

    def looked():
        labels = []
        for _ in range(3000):
            label, arrays = reader.find_certified(2**62)
            expected = state(label, 50)
            assert all(np.array_equal(array, expected[name]) for name, array in arrays.items())
            labels.append(label)
        return labels

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            looking, label = pool.submit(looked), 1
            while not looking.done():
                label += 1
                store.keep(label, state(label, 50))
    finally:
        sys.setswitchinterval(before)
    labels = looking.result()
    assert labels == sorted(labels)
    assert labels[-1] > 1


def test_a_writer_that_begins_between_two_looks_is_waited_for(segment, monkeypatch):
    store, rng, label_of = KeptState(segment), np.random.default_rng(0), kept._Slot.label.fget
    for label in (1, 2):
        store.keep(label, state(label))
    monkeypatch.setattr(kept._Slot, "label", property(lambda slot: label_of(slot) if rng.random() < 0.8 else None))
    for _ in range(100):
        assert value_of(store.find_certified(2)) in ((1, 1), (2, 2))


@pytest.mark.parametrize("then", ["by columns", "by rows", "neither"])
def test_what_lies_by_columns_is_found_by_rows_however_it_lies_later(segment, successor, then):
    """The second slot is written from arrays that lie in another way than those of the first write did."""
    writer = KeptState(segment)
    writer.keep(1, by_columns(1))
    lies = {"by columns": np.asfortranarray, "by rows": np.ascontiguousarray}
    turned = lies.get(then, lambda array: np.repeat(array, 2, axis=0)[::2])
    writer.keep(2, {name: turned(array) for name, array in by_columns(5).items()})
    for label in (1, 2):
        found, arrays = successor(segment).find(label)
        assert found == label
        for name, expected in by_columns({1: 1, 2: 5}[label]).items():
            np.testing.assert_array_equal(arrays[name], expected)
            assert arrays[name].flags.c_contiguous


def test_where_an_array_lies_otherwise_and_another_has_another_shape_the_latter_is_told(segment):
    writer = KeptState(segment)
    writer.keep(1, by_columns(1))
    other = {"weights": np.ascontiguousarray(by_columns(1)["weights"]), "by_rows": np.zeros((4, 3), np.float32)}
    with pytest.raises(ValueError, match="got others of by_rows;"):
        writer.keep(2, other)
