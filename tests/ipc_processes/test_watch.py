"""One timer for all children: each is looked at ten times a second, of many each five times."""

import asyncio

import pytest
from virtual_time import in_virtual_time

from mlxe_async.ipc.processes.life import FEW, Watch


async def looks_in(seconds, children, gone=()):
    """How often each child was looked at; some are gone after half of the time."""
    watch, seen = Watch(), [0] * children

    def look_at(child):
        def look():
            seen[child] += 1

        return look

    looks = [look_at(child) for child in range(children)]
    for look in looks:
        watch.add(look)
    await asyncio.sleep(seconds / 2)
    for child in gone:
        watch.remove(looks[child])
    await asyncio.sleep(seconds / 2)
    for look in looks:
        watch.remove(look)
    return seen


@pytest.mark.parametrize(("children", "a_second"), [(1, 10), (FEW, 10), (FEW + 1, 5), (100, 5)])
def test_each_child_is_looked_at_as_often(children, a_second):
    seen, _ = in_virtual_time(looks_in(20, children))
    assert all(abs(looks - 20 * a_second) <= 1 for looks in seen)


def test_none_is_forgotten_when_others_go():
    seen, _ = in_virtual_time(looks_in(20, FEW + 3, gone=(0, 3)))
    assert all(looks >= 20 * 5 - 2 for child, looks in enumerate(seen) if child not in (0, 3))
    assert max(seen[0], seen[3]) <= 10 * 5 + 1
