"""Words and weights under writers that never rest. Runs in an interpreter of its own, where forking is safe."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from memory_tools import chance, child, wait_for_end

from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.weights import BUFFERS, WeightsReader, WeightsWriter, format_weights, weights_bytes
from mlxe_async.ipc.shared.words import MASK, PAGE_BYTES, Words

PATIENCE_S = 60


def flipping_word(changes: int) -> dict[str, Any]:
    """All values that a word was seen to hold, and whether it was seen to change so many times."""
    with Segment.create("words", PAGE_BYTES) as segment:
        words = Words(segment.buffer, 0, ("flip",))

        def flip() -> None:
            while True:
                words.set("flip", MASK)
                words.set("flip", 0)

        deadline, seen, last = time.monotonic() + PATIENCE_S, {0}, 0
        with child(flip):
            while changes > 0 and time.monotonic() < deadline:
                for _ in range(10_000):
                    value = words.get("flip")
                    changes -= value != last
                    seen.add(last := value)
    return {"seen": sorted(seen), "enough": changes <= 0}


def publish_for_ever(segment: Segment) -> None:
    """Publish versions as fast as it goes, every number of version v being v."""
    writer = WeightsWriter(segment)
    vector = np.zeros(writer.parameters, dtype=np.float32)
    while True:
        vector[:] = (writer.version + 1) % 2**24
        writer.publish(vector)


def reads_under_full_duty(reads: int, parameters: int) -> dict[str, int]:
    """Read at least so often, a hundredth of it fresh: a copy that mixes two versions shows it."""
    torn = served = fresh = last = 0
    with Segment.create("weights", weights_bytes(parameters)) as segment:
        format_weights(segment, parameters)
        reader, into = WeightsReader(segment), np.zeros(parameters, dtype=np.float32)
        with child(lambda: publish_for_ever(segment)) as pid:
            while served < reads or fresh < reads // 100:
                version = reader.read(into)
                if version is not None:
                    served += 1
                    torn += bool((into != version % 2**24).any()) or version < last
                    fresh += version > last
                    last = version
                if served % 1000 == 0:
                    assert not wait_for_end(pid, 0)
        return {"torn": torn, "served": served, "fresh": fresh, "stale": reader.stale, "retries": reader.retries}


def kill_publishers(kills: int, seed: int) -> dict[str, int]:
    """Kill publisher after publisher; after each, what is latest must be whole and not older than before."""
    draw, parameters = chance(seed), 20_000
    tally = {"torn": 0, "backwards": 0, "half_written": 0}
    with Segment.create("weights", weights_bytes(parameters)) as segment:
        format_weights(segment, parameters)
        reader, into, last = WeightsReader(segment), np.zeros(parameters, dtype=np.float32), 0
        for _ in range(kills):
            with child(lambda: publish_for_ever(segment)) as pid:
                deadline = time.monotonic() + PATIENCE_S
                while reader.latest() == last and time.monotonic() < deadline:
                    assert not wait_for_end(pid, 0.0005)
                assert not wait_for_end(pid, draw.uniform(0, 0.001))
            version = reader.read(into)
            assert version is not None
            tally["torn"] += bool((into != version % 2**24).any())
            tally["backwards"] += version <= last
            tally["half_written"] += reader._headers[(version + 1) % BUFFERS].get("sequence") == 2 * version + 1
            last = version
        return {**tally, "stale": reader.stale}
