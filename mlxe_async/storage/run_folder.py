"""The folder of a run, made and locked: settings, host, status, log and checkpoints, for its owner only.

A lock, which the kernel drops with the process that holds it, says whether the run is alive. Nothing in the folder is
written through a link, and what is replaced is replaced in one step.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxe_async.errors import NotFound, ResourceError, RunFolderBusy, SettingsError
from mlxe_async.storage.files import PLAIN_NAME, STAGED, is_folder, kind_of, make_folder, read_bounded, replace_file
from mlxe_async.storage.safe_text import redact, visible
from mlxe_async.storage.seals import SEAL

LOG, LOCK, SETTINGS, RUN, STATUS = "log.jsonl", "lock", "settings.toml", "run.json", "status.json"
EARLIER = ".1"  # after the log's name: the part before, where it became too long
LATEST, RECORDING, CHECKPOINTS, VIDEOS = "latest", "recording.bin", "checkpoints", "videos"
CRASH, OUTPUT = "crash", "output"

_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.01
_MOST_IN_ONE_SECOND = 1000
_MOST_SWEPT = 100


class RunFolder:
    """A run's folder, locked by this process until `close`. Make one with `create` or `reopen`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        # Whatever the folder is called by now, this one is it; held open, so that its number is not given to another.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # The lock's file may be removed while the run lives; the folder cannot be without ending it.
            _take_folder(self._descriptor, path)
        except BaseException:
            os.close(self._descriptor)
            raise
        about = os.fstat(self._descriptor)
        self._identity = about.st_dev, about.st_ino

    @classmethod
    def create(cls, base: str | os.PathLike[str], name: str) -> RunFolder:
        """Make `<base>/<utc time>-<name>`, with a number behind it if two start in one second, and lock it.

        Raises:
            SettingsError: the name could lead elsewhere.
            ResourceError: the folder cannot be made.
        """
        if not PLAIN_NAME.fullmatch(name):
            raise SettingsError(
                [f"run.name: got {visible(repr(name), 60)}, expected letters, digits, '_', '-' and '.'"]
            )
        root = Path(base).absolute()
        try:
            make_folder(root)
            _sweep(root)
            path = _make_unique(root, f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{name}")
            with _locked(path) as lock:
                point_latest_to(path)
                return cls(path, lock)
        except OSError as error:
            raise ResourceError(f"no run folder can be made in {visible(str(root))}: {error.strerror}") from error

    @classmethod
    def reopen(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Lock an existing run folder to go on with it, and remove what its end left half done.

        Raises:
            RunFolderBusy: another process holds it.
            NotFound: it is no folder.
            ResourceError: it cannot be used, or something else is in the place of one of its files.
        """
        whole = Path(path).resolve()
        try:
            if not whole.is_dir():
                raise NotFound(f"{visible(str(path))} is no run folder")
            _refuse_oddities(whole)
            with _locked(whole) as lock:
                _remove_staged(whole)
                return cls(whole, lock)
        except OSError as error:
            raise ResourceError(f"the run folder {visible(str(path))} cannot be used: {error.strerror}") from error

    @property
    def is_there(self) -> bool:
        """Return whether the folder is still where it was made; a user may have removed or renamed it."""
        try:
            return _identity(self.path) == self._identity
        except OSError:
            return False

    @property
    def name(self) -> str:
        """The folder's own name, which is also the run's name in its log."""
        return self.path.name

    @property
    def log_path(self) -> Path:
        """Where the log is."""
        return self.path / LOG

    @property
    def checkpoints_path(self) -> Path:
        """Where the checkpoints are, one folder each."""
        return self.path / CHECKPOINTS

    @property
    def crash_path(self) -> Path:
        """The folder for reports and stacks of faults; made when first asked for."""
        return self._own_folder(CRASH)

    @property
    def output_path(self) -> Path:
        """The folder for what processes print; made when first asked for."""
        return self._own_folder(OUTPUT)

    def _own_folder(self, name: str) -> Path:
        path = self.path / name
        if path.is_symlink():
            path.unlink()
        make_folder(path)
        return path

    def write_settings(self, text: str, seal: str = "") -> None:
        """Keep the resolved settings as `settings.toml`, and what proves that they are this user's own, if anything."""
        if seal:
            self._write(SEAL, f"{seal}\n", durable=True)
        else:
            (self.path / SEAL).unlink(missing_ok=True)
        self._write(SETTINGS, text, durable=True)

    def write_run_json(self, facts: Mapping[str, Any]) -> None:
        """Keep facts about versions, host and seeds as `run.json`, without secrets."""
        self._write(RUN, json.dumps(redact(facts), indent=1) + "\n", durable=True)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace `status.json` in one step. Not synced: it is only of interest while the run lives."""
        self._write(STATUS, json.dumps(redact(status)) + "\n", durable=False)

    def save_checkpoint(
        self,
        number: int,
        tensors: Mapping[str, Any],
        facts: Mapping[str, Any],
        keep: int = 3,
        files: Mapping[str, Any] | None = None,
    ) -> int:
        """Save a checkpoint durably and remove old ones; see `checkpoints.save`. Returns its size in bytes."""
        from mlxe_async.storage import checkpoints

        with self._checkpoints() as path:
            return checkpoints.save(path, number, tensors, redact(facts), keep, files)

    def stage_checkpoint(self, number: int) -> Path:
        """A new, empty folder for the files of a whole checkpoint; see `checkpoints.stage`.

        Raises:
            ResourceError: it cannot be made.
        """
        from mlxe_async.storage import checkpoints

        with self._checkpoints() as path:
            return self.checkpoints_path / checkpoints.stage(path, number).name

    def drop_staged_checkpoint(self, number: int) -> None:
        """Remove what was staged, wherever the run folder is by now, when nothing comes of it."""
        from mlxe_async.storage import checkpoints

        with contextlib.suppress(ResourceError), self._checkpoints() as path:
            checkpoints.drop_staged(path, number)

    @contextlib.contextmanager
    def _checkpoints(self) -> Iterator[Path]:
        """The folder of checkpoints by a descriptor: no link is followed to it, or can be put in its place."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(CHECKPOINTS, 0o700, dir_fd=self._descriptor)
                os.chmod(CHECKPOINTS, 0o700, dir_fd=self._descriptor)
            descriptor = os.open(CHECKPOINTS, flags, dir_fd=self._descriptor)
        except OSError as error:
            what = "a link or a file is in its place" if isinstance(error, NotADirectoryError) else error.strerror
            where = visible(str(self.checkpoints_path))
            raise ResourceError(f"nothing is saved in {where}, expected a folder of this run's own: {what}") from error
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)

    def point_latest(self) -> None:
        """Let `latest` beside the folder name it, as when it was made."""
        with contextlib.suppress(OSError):
            point_latest_to(self.path)

    def close(self) -> None:
        """Give the folder free. May be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            os.close(self._descriptor)
            self._lock = self._descriptor = -1

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, name: str, text: str, *, durable: bool) -> None:
        if not self.is_there:
            raise ResourceError(f"{name} cannot be written in {visible(str(self.path))}: it was removed or renamed")
        try:
            replace_file(self.path / name, text.encode(), durable=durable)
        except OSError as error:
            raise ResourceError(f"{name} cannot be written in {visible(str(self.path))}: {error.strerror}") from error


def find_run(run: str | os.PathLike[str], base: str | os.PathLike[str] = "runs") -> Path:
    """The folder meant by a path, by the name of a folder in `base` or of a run there, or by `latest`.

    A run's own name, `run.name`, means the newest folder that has it behind its time.

    Raises:
        NotFound: there is none, or what is there is no run folder.
    """
    text = os.fspath(run)
    shown, where = visible(text, 200), visible(os.fspath(base), 200)
    for path in (Path(text), Path(base) / text if re.fullmatch(r"[\w.-]+", text) else Path(text)):
        if text in ("", "..", ".") or not is_folder(path):
            continue
        if not _is_run(path):
            if newest := newest_named(text, base):
                return newest
            raise NotFound(f'{shown} is no run: expected a folder that a run has made; "runs list" names those in runs')
        return path.resolve()
    if newest := newest_named(text, base):
        return newest
    where = visible(str(Path(base).absolute()), 200)
    ways = '"runs list" names them; of runs elsewhere give the path, or --dir FOLDER'
    raise NotFound(f'there is no run "{shown}", neither as a path nor in {where}; {ways}')


def newest_named(name: str, base: str | os.PathLike[str] = "runs") -> Path | None:
    """Return the newest folder in `base` of a run that was called so, by `run.name`; None if there is none."""
    if not PLAIN_NAME.fullmatch(name):
        return None
    of_a_run = re.compile(rf"\d{{8}}T\d{{6}}Z-{re.escape(name)}")
    found = sorted(path for path in Path(base).glob("*") if of_a_run.fullmatch(path.name) and _is_run(path))
    return found[-1].resolve() if found else None


def _is_run(path: Path) -> bool:
    return any(os.path.lexists(path / name) for name in (LOCK, LOG, SETTINGS, CHECKPOINTS))


def is_held(path: Path) -> bool | None:
    """Return whether a living process holds the run folder; None if that cannot be told."""
    if _is_folder_locked(path):
        return True
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _is_folder_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # of a file system that locks no folders the file alone tells
        return False
    else:
        return False
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    """Remove what runs that were killed were in the middle of writing, in the newest folders of `root`."""
    staged = [entry for entry in root.glob(f"{STAGED}*") if entry.is_symlink()]
    names = sorted((entry.name for entry in root.iterdir() if entry.name[:1].isdigit()), reverse=True)
    for path in (root / name for name in names[:_MOST_SWEPT]):
        try:
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_staged(path)
        except OSError:  # it lives, or is not ours to change
            staged = [entry for entry in staged if not entry.name.endswith(path.name)]
        finally:
            os.close(lock)
    for entry in staged:
        entry.unlink(missing_ok=True)


def _refuse_oddities(path: Path) -> None:
    """See that what is to be opened are files: a process that opens a FIFO, or writes to it, may wait for ever.

    A link is told of where it would be followed.

    Raises:
        ResourceError: something else is in the place of a file or a folder.
    """
    files = [path / name for name in (LOG, LOG + EARLIER, LOCK, SETTINGS, SEAL, RUN, STATUS, RECORDING)]
    folders = [path / name for name in (CRASH, OUTPUT)]
    files += [one for folder in folders if folder.is_dir() for one in folder.iterdir()]
    for expected, there in (("a file", files), ("a folder", [*folders, path / CHECKPOINTS])):
        for one in there:
            try:
                kind = kind_of(one.lstat().st_mode)
            except FileNotFoundError:
                continue
            if kind not in (expected, "a link"):
                raise ResourceError(
                    f"{visible(str(one))} is {kind}, expected {expected}; remove it, or put back what the run has "
                    "written there"
                )


def _remove_staged(path: Path) -> None:
    for entry in path.glob(f"{STAGED}*"):
        entry.unlink(missing_ok=True)
    if any((path / "checkpoints").glob(f"{STAGED}*")):
        from mlxe_async.storage import checkpoints  # here, because making a folder must not wait for numpy

        checkpoints.remove_staged(path / "checkpoints")


def _identity(path: Path) -> tuple[int, int]:
    about = path.lstat()
    return about.st_dev, about.st_ino


def _make_unique(root: Path, name: str) -> Path:
    for attempt in range(1, _MOST_IN_ONE_SECOND):
        path = root / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            make_folder(path, exclusive=True)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, f"{_MOST_IN_ONE_SECOND} runs of this name were started in this second")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """A descriptor that holds the lock, closed only if the block raises; children do not inherit it."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": dt.datetime.now(dt.UTC).isoformat()}
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield descriptor
    except BaseException:  # a forgotten descriptor would hold the lock for as long as we live
        os.close(descriptor)
        raise


def _take_folder(descriptor: int, path: Path) -> None:
    """Lock the folder itself, where its file system can."""
    try:
        _take(descriptor, path)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
            raise


def _take(descriptor: int, path: Path) -> None:
    for attempt in range(_LOCK_TRIES):
        if attempt:  # someone may only be looking whether the run is alive
            time.sleep(_LOCK_PAUSE_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
    raise RunFolderBusy(f"{visible(str(path))} is held by another run{_holder(path)}")


def _holder(path: Path) -> str:
    try:
        holder = json.loads(read_bounded(path / LOCK, 4096))
        return visible(f": pid {holder['pid']} on {holder['host']} since {holder['since']}", 300)
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def point_latest_to(path: Path) -> None:
    """Let `latest` beside a run's folder name it, unless the user keeps something else under that name.

    Raises:
        OSError: it cannot be made.
    """
    latest, staged = path.with_name(LATEST), path.with_name(f"{STAGED}{path.name}")
    if latest.is_symlink() or not latest.exists():
        staged.unlink(missing_ok=True)
        staged.symlink_to(path.name)
        staged.replace(latest)
