"""What needs nobody's word is refused before the first process is started."""

import asyncio

import pytest

from mlxe_async.errors import ResourceError
from mlxe_async.settings import load_settings
from mlxe_async.supervisor.probing import probed


class NeverStarted:
    async def start(self, *_):
        raise AssertionError("a process would have been started")


def test_more_rows_than_even_the_smallest_could_fit_are_refused_at_once():
    settings = load_settings({"task": {"env": "CartPole-v1"}, "memory": {"capacity_rows": 10**12}})

    async def main():
        async with probed(NeverStarted(), settings, []):
            pass

    with pytest.raises(ResourceError, match=r"at least, for memory.capacity_rows = 1000000000000 +38,146,972.66 MiB"):
        asyncio.run(main())
