"""Durations as counts in buckets, four to each doubling: from a microsecond to minutes in 113 numbers.

The quantile of a process's calls is known to an eighth then, at the price of one addition for each call.
"""

from __future__ import annotations

from collections.abc import Sequence

BUCKETS = 113
QUANTILES = (0.5, 0.9, 0.99)
_FIRST_BITS = 11  # durations below 1024 ns share the first bucket
_FINEST = 1 << (_FIRST_BITS - 1)


def bucket_of(duration_ns: int) -> int:
    """Return the bucket of a duration; the last one takes all that are longer."""
    if duration_ns < _FINEST:
        return 0
    bits = duration_ns.bit_length()
    bucket = 4 * (bits - _FIRST_BITS) + ((duration_ns >> (bits - 3)) & 3) + 1
    return bucket if bucket < BUCKETS else BUCKETS - 1


def edge_of(bucket: int) -> int:
    """Return where a bucket ends: every duration in it is shorter, in nanoseconds."""
    doublings, quarter = divmod(bucket, 4)
    return (4 + quarter) << (_FIRST_BITS - 3 + doublings)


def histogram(counts: Sequence[int]) -> dict[str, int]:
    """Return the buckets that hold any, by where each ends in nanoseconds, ascending; as text, for JSON."""
    return {str(edge_of(bucket)): count for bucket, count in enumerate(counts) if count}


def quantiles(counts: Sequence[int]) -> dict[str, float]:
    """Return `count`, and `p50`, `p90` and `p99` in seconds: the end of the bucket that each is in."""
    total, found = sum(counts), dict[str, float]()
    for quantile in QUANTILES if total else ():
        below, rank = 0, quantile * total
        for bucket, count in enumerate(counts):
            below += count
            if below >= rank:
                found[f"p{round(100 * quantile)}"] = edge_of(bucket) / 1e9
                break
    return {"count": total, **found} if total else {}
