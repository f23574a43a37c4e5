"""A column's dtype and shape are taken as numpy takes them, and a mistake is told by the column's name."""

import numpy as np
import pytest

from mlxe_async.rows import Column


@pytest.mark.parametrize("dtype", ["<f4", np.float32, np.dtype("<f4")])
@pytest.mark.parametrize("shape", [(4,), [4], 4, (np.int64(4),)])
def test_a_column_says_the_same_however_it_was_written(dtype, shape):
    assert Column("hidden", dtype, shape) == Column("hidden", "<f4", (4,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (((), np.float32), r"dtype of numbers such as \"<f4\", got \(\)"),
        (("hello",), "got 'hello'"),
        ((object,), "got <class 'object'>"),
        ((None,), "got None"),
        (("<U3",), "got '<U3'"),
        (("<f4", "x"), r"shape such as \(64,\), got 'x'"),
        (("<f4", (-1,)), r"got \(-1,\)"),
        (("<f4", (2.0,)), r"got \(2.0,\)"),
    ],
)
def test_a_mistake_is_told_by_the_columns_name(given, said):
    with pytest.raises(ValueError, match=f"Column\\('partial', dtype, shape\\): expected a .*{said}"):
        Column("partial", *given)
