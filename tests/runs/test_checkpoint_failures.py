"""A run that cannot save its checkpoints."""

import pytest

from mlxe_async.errors import ProtocolError, ResourceError
from mlxe_async.ipc.shared.segments import STAMP_BYTES

SAVING = {"checkpoint": {"interval_s": 0.0, "interval_steps": 100, "keep": 2}}


def spoiled(folder):
    """A file in the place of the folder of checkpoints."""
    folder.rename(folder.with_name("moved"))
    folder.touch()


def test_one_that_is_to_stop_does_so_after_three_failures_in_a_row(live):
    async def spoil(run):
        await run.saw("checkpoint", times=2)
        spoiled(run.supervisor._startup.folder.checkpoints_path)
        await run.saw("run_end")
        runs.append(run)

    runs = []
    with pytest.raises(ResourceError, match="3 checkpoints in a row could not be saved: "):
        live(spoil, supervision={"on_checkpoint_failure": "stop"}, stop={"env_steps": 10**6}, **SAVING)
    assert runs[0].all("run_end")[0]["exit_code"] == 4
    assert len(runs[0].all("checkpoint_rejected")) >= 3


@pytest.mark.long
def test_one_that_goes_on_ends_with_another_exit_code_when_its_last_weights_are_lost(live):
    async def spoil(run):
        await run.saw("checkpoint", times=1)
        spoiled(run.supervisor._startup.folder.checkpoints_path)
        await run.saw("checkpoint_rejected", times=4)
        run.supervisor.request_stop("enough")

    result, _ = live(spoil, stop={"env_steps": 10**6}, **SAVING)
    assert (result.exit_code, result.reason.split(":")[0]) == (4, "enough, but the last weights could not be saved")


def test_one_whose_weights_in_memory_are_damaged_still_tells_its_end(live):
    async def spoil(run):
        await run.saw("weights", times=2)
        buffer = run.supervisor._startup.segments["weights"].buffer
        buffer[:STAMP_BYTES] = buffer[-STAMP_BYTES:] = bytes(STAMP_BYTES)
        await run.saw("run_end")
        runs.append(run)

    runs = []
    with pytest.raises(ProtocolError, match="segment weights: expected a header"):
        live(spoil, stop={"env_steps": 10**6}, **SAVING)
    (end,) = runs[0].all("run_end")
    assert (end["exit_code"], end["weights_hash"]) == (3, None)
    assert any(line["message"].startswith("the last weights cannot be saved: ") for line in runs[0].all("warning"))


@pytest.mark.long
def test_one_that_is_stopped_by_a_signal_does_not_say_that_what_is_lost_was_saved(live):
    async def spoil(run):
        await run.saw("checkpoint", times=1)
        spoiled(run.supervisor._startup.folder.checkpoints_path)
        await run.saw("checkpoint_rejected", times=2)
        run.supervisor.request_stop("SIGTERM")

    result, run = live(spoil, stop={"env_steps": 10**6}, **SAVING)
    assert (result.exit_code, result.reason.split(":")[0]) == (4, "SIGTERM, but the last weights could not be saved")
    said = [line["message"] for line in run.all("warning")]
    assert not any("weights are saved" in message for message in said)
    assert any("the newest weights are not saved: " in message for message in said)
