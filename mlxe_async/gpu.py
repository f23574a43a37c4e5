"""What a learner does otherwise on a GPU: it copies without waiting, and launches a whole step at once.

On a network of some thousands of weights a GPU takes microseconds for what Python takes milliseconds to ask of it: a
step of the optimiser is a hundred small kernels. `Captured` has them recorded as a CUDA graph, and then asks once.
`uploaded` brings all columns of a batch over by one copy, and large ones, where their memory is page-locked, right out
of that memory: `PinnedMemory` makes it so for the shared memory in which rollouts lie.

Nothing is recorded unless `[learner] graphs` asks for it. On the CPU all of this is plain calls. What the driver
refuses is done without, and `refusals` says why.

Many kernels of a GPU add up in the order in which its threads come along, and so differ from call to call in the last
bits. `use_kernels` asks for others where a run is to repeat itself, and says whether factors may be rounded to TF32.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Outputs = tuple[Any, ...]
Kind = tuple[NDArray[Any], "torch.dtype"]
ALIGNMENT = 256  # bytes, of each column within a piece
LARGE = 1 << 18  # bytes from which a column travels by itself, if it can
WARM_UP = 3  # calls of one shape before they are recorded: libraries choose their kernels in the first ones
MOST_GRAPHS = 8  # shapes that are recorded at all: each keeps its memory
NEAR = 1e-3  # of a tensor's norm: how far a recording may be from the work itself, once, before it is trusted


_refused: list[str] = []
_graphs = False


def use_graphs(wanted: bool) -> None:
    """Set whether work that is made `Captured` from now on, in this process, is recorded on a GPU."""
    global _graphs
    _graphs = wanted


def refusals() -> list[str]:
    """Return what this process could not have since this was last asked, in words."""
    told, _refused[:] = _refused[:], []
    return told


# -- kernels -----------------------------------------------------------------------------------------------------------

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_NO_KERNEL = " does not have a deterministic implementation"


def use_kernels(device: str, *, repeatable: bool, precision: str = "float32") -> None:
    """Say how this process computes on a GPU from now on. On the CPU nothing changes: it repeats itself as it is.

    Args:
        device: a torch device name.
        repeatable: only by kernels that come to the same bits each time; an operation without one raises, and
            `unrepeatable` knows its error.
        precision: `"tf32"` rounds the factors of products and convolutions to 10 bits of mantissa; any other leaves
            those of float32 as they are, where torch itself would round those of convolutions.
    """
    if device == "cpu":
        return
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if not repeatable:
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")  # cuBLAS reads it when it is first used, and torch asks for it
    torch.backends.cudnn.benchmark = False  # which kernel is the fastest differs from start to start
    torch.use_deterministic_algorithms(True)
    # All of ours is written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # torch adds it when it runs


def unrepeatable(error: BaseException) -> str:
    """The operation for want of whose repeatable kernel torch raised this; "" if that was not the reason."""
    words = str(error).partition(_NO_KERNEL)
    return words[0].split()[-1] if words[1] and words[0].split() else ""


# -- memory ------------------------------------------------------------------------------------------------------------


class PinnedMemory:
    """Memory of this process that a GPU may copy out of by itself, until it is closed.

    Args:
        buffer: writable bytes, which stay where they are.
        runtime: CUDA's, left out: torch's.
        wait: returns when the GPU has copied all that it was to copy; left out: torch's.
    """

    def __init__(self, buffer: Any, runtime: Any = None, wait: Callable[[], None] | None = None) -> None:
        import torch

        self._wait = wait or torch.cuda.synchronize
        self.refusal = ""
        "Why the driver will not have it; empty if it has."
        # Kept until it is given back: the driver takes what comes to lie at a freed address for page-locked still.
        self._view: NDArray[np.uint8] | None = np.frombuffer(buffer, np.uint8)
        self._pointer, self.nbytes = self._view.ctypes.data, self._view.nbytes
        try:
            self._runtime: Any = runtime or torch.cuda.cudart()
            code = int(self._runtime.cudaHostRegister(self._pointer, self.nbytes, 0))
            self.refusal = f"cudaHostRegister of {self.nbytes:,} bytes: error {code}" if code else ""
        except RuntimeError as error:
            self.refusal = f"cudaHostRegister of {self.nbytes:,} bytes: {error}"
        if self.refusal:
            self._view = None
            _refused.append(f"memory stays pageable, copies out of it take a step more: {self.refusal}")
            _forget_error()

    def close(self) -> None:
        """Give it back, after the last copy out of it. May be called twice."""
        if not self._pointer or self.refusal:
            return
        pointer, self._pointer = self._pointer, 0
        self._wait()
        self._runtime.cudaHostUnregister(pointer)
        self._view = None


def _forget_error() -> None:
    """Clear the runtime's last error: it would be told to the caller that launches the next kernel."""
    import torch

    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda").add_(1)


# -- copies ------------------------------------------------------------------------------------------------------------


def uploaded(columns: Mapping[str, Kind], device: torch.device) -> dict[str, torch.Tensor]:
    """Columns as tensors of the given types on a GPU, without waiting for them.

    What is computed there later, on the same stream, finds them arrived. The columns themselves may be overwritten at
    once, but for large ones in page-locked memory (see `PinnedMemory`): those when something computed of them is seen.
    """
    import torch

    if not columns:
        return {}
    whole = {name: column for name, (column, dtype) in columns.items() if _travels_alone(column, dtype)}
    piece, places = packed({name: kind for name, kind in columns.items() if name not in whole}, pin=True)
    result = unpacked(piece.to(device, non_blocking=True), places)
    if whole:
        copies, here = _copies(device), torch.cuda.current_stream(device)
        with torch.cuda.stream(copies):
            alone = {name: torch.from_numpy(column).to(device, non_blocking=True) for name, column in whole.items()}
        here.wait_stream(copies)
        for tensor in alone.values():
            tensor.record_stream(here)
        result |= alone
    return {name: result[name] for name in columns}


def _travels_alone(column: NDArray[Any], dtype: torch.dtype) -> bool:
    import torch

    if column.nbytes < LARGE or not column.flags.c_contiguous or not column.flags.writeable:
        return False
    here = torch.from_numpy(column)
    return here.dtype == dtype and here.is_pinned()


@functools.cache
def _copies(device: torch.device) -> Any:
    import torch

    return torch.cuda.Stream(device)


Place = tuple[int, int, tuple[int, ...], "torch.dtype"]


def packed(columns: Mapping[str, Kind], *, pin: bool) -> tuple[torch.Tensor, dict[str, Place]]:
    """One piece of bytes that holds all columns, converted, and where each lies in it.

    Args:
        columns: name -> array and the type it is to have.
        pin: in page-locked memory, which torch keeps for the next time, but not before the copy out of it is done.
    """
    import torch

    places: dict[str, Place] = {}
    end = 0
    for name, (column, dtype) in columns.items():
        nbytes = column.size * dtype.itemsize
        places[name] = (end, nbytes, column.shape, dtype)
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    piece = torch.empty(end, dtype=torch.uint8, pin_memory=pin)
    for name, view in unpacked(piece, places).items():
        np.copyto(view.numpy(), columns[name][0], casting="unsafe")
    return piece, places


def unpacked(piece: torch.Tensor, places: Mapping[str, Place]) -> dict[str, torch.Tensor]:
    """Views on a piece that `packed` made, wherever it is now."""
    return {
        name: piece[start : start + nbytes].view(dtype).view(shape)
        for name, (start, nbytes, shape, dtype) in places.items()
    }


# -- steps -------------------------------------------------------------------------------------------------------------


class Recorder(Protocol):
    """What runs work on a device, and records it."""

    def aside(self, work: Callable[[], Outputs]) -> Outputs:
        """Do it, as it will be recorded."""

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Sequence[torch.Tensor]]:
        """Not do it, but learn it: returns what does it from now on, and where its results are found then.

        Raises:
            RuntimeError: it cannot be recorded.
        """


class Captured:
    """Work on tensors that, once its arguments have had the same shapes a few times, is launched as one.

    Such work may read and write tensors that stay where they are, beside its arguments; it must not decide anything by
    what is in them, nor make them on the host. Work that cannot be recorded is done operation by operation, and so is
    what proves to do something else, when recording and work are compared on the first arguments.

    Args:
        work: of columns by name; returns a tuple of float32 tensors.
        device: a torch device name; on the CPU nothing is recorded, elsewhere only if `use_graphs` was said.
        writes: the tensors that it writes.
        wanted: False: so it is anywhere.
        recorder: left out: CUDA's graphs.
    """

    def __init__(
        self,
        work: Callable[[Mapping[str, torch.Tensor]], Outputs],
        device: str,
        *,
        writes: Sequence[torch.Tensor] = (),
        wanted: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        self._work, self._writes = work, writes
        self._recorder = recorder or (CudaGraphs(device) if wanted and _graphs and device != "cpu" else None)
        self._seen: dict[tuple[Any, ...], int] = {}
        self._recorded: dict[tuple[Any, ...], _Recording] = {}
        self.refusal = ""
        "Why it could not be recorded; empty if it could, or was not tried."

    @property
    def recorded(self) -> int:
        """Shapes of arguments that are launched as one."""
        return len(self._recorded)

    def __call__(self, rows: Mapping[str, torch.Tensor]) -> Outputs:
        """Do the work on these arguments. What is returned is the caller's."""
        if self._recorder is None:
            return self._work(rows)
        shapes = tuple((name, column.shape, column.dtype) for name, column in rows.items())
        if (recording := self._recorded.get(shapes)) is not None:
            return recording.replayed(rows)
        self._seen[shapes] = times = self._seen.get(shapes, 0) + 1
        if times <= WARM_UP or len(self._recorded) == MOST_GRAPHS:
            return self._recorder.aside(lambda: self._work(rows))
        try:
            recording = _Recording(self._recorder, self._work, rows)
        except RuntimeError as error:
            self._refuse(" ".join(str(error).split())[:300])
            return self._work(rows)
        found, agrees = self._compared(recording, rows, self._recorder)
        if agrees:
            self._recorded[shapes] = recording
        else:
            self._refuse("a recording did not do what the work itself does")
        return found

    def _refuse(self, reason: str) -> None:
        self._recorder, self.refusal = None, reason
        self._recorded.clear()
        _refused.append(f"steps are launched one operation at a time, they could not be recorded: {reason}")

    def _compared(
        self, recording: _Recording, rows: Mapping[str, torch.Tensor], recorder: Recorder
    ) -> tuple[Outputs, bool]:
        """Do the work by itself and as recorded, from the same state; what it came to, and whether both agree."""
        import torch

        with torch.no_grad():
            before = [one.clone() for one in self._writes]
        found = recorder.aside(lambda: self._work(rows))
        with torch.no_grad():
            after = [one.clone() for one in self._writes]
            for one, was in zip(self._writes, before, strict=True):
                one.copy_(was)
        replayed = recording.replayed(rows)
        with torch.no_grad():
            pairs = zip((*replayed, *self._writes), (*found, *after), strict=True)
            agrees = all(bool((one - other).norm() <= NEAR * other.norm() + 1e-9) for one, other in pairs)
            for one, now in zip(self._writes, after, strict=True):
                one.copy_(now)
        return found, agrees


class _Recording:
    """Work as it was recorded for arguments of certain shapes, which are copied to where they then lay."""

    def __init__(self, recorder: Recorder, work: Callable[..., Outputs], rows: Mapping[str, torch.Tensor]) -> None:
        import torch

        self._arguments = {name: column.clone() for name, column in rows.items()}
        self._shapes: list[torch.Size] = []

        def at_once() -> Outputs:
            found = work(self._arguments)
            self._shapes = [one.shape for one in found]
            return (torch.cat([one.detach().reshape(-1) for one in found]),) if found else ()

        self._replay, self._results = recorder.record(at_once)

    def replayed(self, rows: Mapping[str, torch.Tensor]) -> Outputs:
        import torch

        if rows:
            torch._foreach_copy_([*self._arguments.values()], [rows[name] for name in self._arguments])
        self._replay()
        if not self._results:
            return ()
        pieces = torch.split(self._results[0].clone(), [shape.numel() for shape in self._shapes])
        return tuple(piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True))


class CudaGraphs:
    """Records work as CUDA graphs, each with memory of its own.

    Args:
        device: a torch device name.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._stream: Any = torch.cuda.Stream(torch.device(device))

    def aside(self, work: Callable[[], Outputs]) -> Outputs:
        """On the stream that records: what autograd keeps for each weight remembers the stream it was made on."""
        import torch

        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            found = work()
        here.wait_stream(self._stream)
        for one in found:
            one.record_stream(here)
        return found

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Sequence[torch.Tensor]]:
        """Record it as one graph; other threads may go on with what they do."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            results = work()
        return graph.replay, results


# -- what is used ------------------------------------------------------------------------------------------------------

TELLS_EVERY_S = 1.0


class Gauge:
    """Reads how much of a GPU this process uses, once a second at most.

    Args:
        device: a torch device name, such as `"cuda"`.
        cuda: torch's module; left out: `torch.cuda`.
        clock: seconds, for the pauses.
    """

    def __init__(self, device: str, cuda: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        import torch

        self._device, self._cuda, self._clock = torch.device(device), cuda or torch.cuda, clock
        self._last: float | None = None
        self._is_utilisation_known = True

    def read(self) -> dict[str, Any] | None:
        """Return `name`, `allocated`, `reserved`, `most` and `whole` in bytes, and `busy`; None: it is not time yet.

        `busy` is the part of the driver's last sampling period, a sixth of a second to a second, in which any program
        had the GPU compute; None where NVML is not at hand (`pip install nvidia-ml-py`).
        """
        now = self._clock()
        if self._last is not None and now - self._last < TELLS_EVERY_S:
            return None
        self._last, cuda, device = now, self._cuda, self._device
        return {
            "name": str(cuda.get_device_name(device)),
            "allocated": int(cuda.memory_allocated(device)),
            "reserved": int(cuda.memory_reserved(device)),
            "most": int(cuda.max_memory_allocated(device)),
            "whole": int(cuda.get_device_properties(device).total_memory),
            "busy": self._busy(),
        }

    def _busy(self) -> float | None:
        if not self._is_utilisation_known:
            return None
        try:
            return float(self._cuda.utilization(self._device)) / 100
        except (ImportError, RuntimeError, AttributeError, OSError):  # no NVML here, or a driver that will not tell
            self._is_utilisation_known = False
            return None


def gauge_of(device: str) -> Callable[[], dict[str, Any] | None]:
    """A function that reads a device's gauge; on the CPU it finds nothing."""
    return Gauge(device).read if device.startswith("cuda") else lambda: None
