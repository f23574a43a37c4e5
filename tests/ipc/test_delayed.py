"""Which version executors act with under simulated lag, publication by publication."""

import numpy as np
import pytest

from mlxe_async.errors import RunFailed
from mlxe_async.ipc.shared.delayed import DelayedWeights
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.weights import WeightsReader, WeightsWriter, format_weights, weights_bytes

SIZE = 3


def weights_of(version):
    return np.full(SIZE, version, np.float32)


@pytest.fixture
def segment():
    made = Segment.create("delayed", weights_bytes(SIZE))
    format_weights(made, SIZE)
    yield made
    made.close()


def delayed(segment, lag, publications):
    """Under a lag, after these versions were published; what executors read after each of them."""
    newest = iter(publications)
    kept = DelayedWeights(lag, WeightsWriter(segment), lambda: (version := next(newest), weights_of(version)))
    reader, seen, into = WeightsReader(segment), [], np.empty(SIZE, np.float32)
    for _ in publications:
        kept.note_publication()
        seen.append(reader.read(into))
        assert into.tolist() == [seen[-1]] * SIZE
        assert kept.version == seen[-1]
    reader.release()
    return kept, seen


@pytest.mark.parametrize(("lag", "seen"), [(1, [1, 1, 2, 3, 4, 5, 6]), (3, [1, 1, 1, 1, 2, 3, 4]), (64, [1] * 7)])
def test_executors_see_the_version_so_many_before_the_newest(segment, lag, seen):
    kept, told = delayed(segment, lag, range(1, 8))
    assert told == seen
    kept.release()


def test_versions_that_are_passed_over_have_no_weights(segment):
    kept, told = delayed(segment, 2, [5, 6, 9, 10, 11])
    assert told == [5, 5, 5, 6, 9]
    kept.release()


def test_what_was_kept_is_gone_on_with(segment):
    first, _ = delayed(segment, 3, range(1, 10))
    saved = first.state()
    assert set(saved) == {f"delayed.{version}" for version in (6, 7, 8, 9)}
    first.release()
    format_weights(segment, SIZE)
    second = DelayedWeights(3, WeightsWriter(segment), lambda: (10, weights_of(10)))
    second.restore({**saved, "best": weights_of(99), "passed.3": weights_of(3)})
    assert second.version == 6
    second.note_publication()
    assert second.version == 7
    second.release()


def test_a_shorter_lag_goes_on_with_the_newest_of_them_and_one_without_any_with_the_newest(segment):
    kept = DelayedWeights(1, WeightsWriter(segment), lambda: (9, weights_of(9)))
    kept.restore({f"delayed.{version}": weights_of(version) for version in (10, 8, 9, 7)})
    assert kept.version == 9
    kept.release()
    format_weights(segment, SIZE)
    kept = DelayedWeights(4, WeightsWriter(segment), lambda: (9, weights_of(9)))
    kept.restore({"best": weights_of(3)})
    assert kept.version == 9
    kept.release()


def test_a_publication_that_cannot_be_read_ends_the_run(segment):
    kept = DelayedWeights(1, WeightsWriter(segment), lambda: None)
    with pytest.raises(RunFailed, match="none that are whole"):
        kept.note_publication()
    kept.release()
