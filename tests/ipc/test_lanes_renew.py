"""A living writer begins another epoch of its lane: what was open before is never completed, nothing is lost."""

from memory_tools import SCHEMA

from mlxe_async.ipc.shared.lanes import LaneReader, LaneWriter, begin_epoch, format_lane, lane_bytes, lane_state
from mlxe_async.ipc.shared.segments import Segment


def test_blocks_before_and_after_are_read_with_their_epochs_and_a_cut_between_them():
    with Segment.create("lane", lane_bytes(4, 8)) as segment:
        format_lane(segment, 4, 8, SCHEMA)
        begin_epoch(segment)
        writer, reader, into = LaneWriter(segment, SCHEMA), LaneReader(segment, SCHEMA), bytearray(8)
        found = []
        for renews in (False, False, True, False, True):
            if renews:
                writer.renew()
            writer.reserve()[:] = b"abcdefgh"
            writer.commit(1)
            if len(found) != 1:  # now and then two blocks of different epochs wait
                while (got := reader.read(into)) is not None:
                    found.append((got.sequence, got.epoch, got.cut))
                    reader.release(got.sequence)
            else:
                found.append(None)
        found = [entry for entry in found if entry]
        assert [sequence for sequence, _, _ in found] == [0, 1, 2, 3, 4]
        assert [epoch for _, epoch, _ in found] == [1, 1, 2, 2, 3]
        assert [cut for _, _, cut in found] == [True, False, True, False, True]
        assert begin_epoch(segment) == 4
        assert lane_state(segment).backlog == 0
        del writer, reader, got


def test_a_reader_that_comes_later_sees_the_cut_in_the_block_itself():
    with Segment.create("lane", lane_bytes(4, 8)) as segment:
        format_lane(segment, 4, 8, SCHEMA)
        begin_epoch(segment)
        writer, into = LaneWriter(segment, SCHEMA), bytearray(8)
        for renews in (False, True, False):
            if renews:
                writer.renew()
            writer.reserve()[:] = b"abcdefgh"
            writer.commit(1)
        found = []
        for sequence in (1, 2):
            reader = LaneReader(segment, SCHEMA)
            reader.seek(sequence)
            got = reader.read(into)
            found.append((got.sequence, got.epoch, got.cut))
        assert found == [(1, 2, True), (2, 2, False)]
        del writer, reader
