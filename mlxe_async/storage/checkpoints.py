"""Checkpoints: tensors in safetensors, everything else in JSON, nothing that could run when it is loaded.

One is staged beside its place, synced, and renamed: a crash at any moment leaves the old ones and never half of a new
one. What is loaded is verified first (owner, sizes, SHA-256, shapes), and what fails gives way to the one before it.

All have the weights. A *whole* one also has a file of each role, written by the process that holds it, and is what a
run can go on from. These files are written and read by `array_files`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.errors import NotFound, ResourceError, RunFailed
from mlxe_async.rows import Array, Spaces
from mlxe_async.storage import json_checks
from mlxe_async.storage.array_files import LONGEST_HEADER, Written
from mlxe_async.storage.files import PLAIN_NAME, STAGED, make_folder, open_plain, read_bounded, sync_folder, write_new
from mlxe_async.storage.json_checks import Misfit

FORMAT = 1
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
LONGEST_MANIFEST = 2**20
NO_SCORE = float("-inf")
LARGEST_SCORE = 2.0**1023

Rejected = Callable[[int, str], None]


class Unfit(Exception):
    """A checkpoint that must not be used; the message says why."""


Judge = Callable[["Whole"], None]
Foresee = Callable[[Mapping[str, Any], Mapping[str, Any]], None]
"""Judges the facts and the tensors' types and shapes that a manifest names, before any tensor is read."""


@dataclass(frozen=True)
class Whole:
    """A checkpoint that was verified; if it has files of the roles, it is a whole one.

    Args:
        number: its number.
        path: its folder.
        tensors: the weights, by name.
        facts: what is known about it.
        files: names of the roles' files in its folder.
    """

    number: int
    path: Path
    tensors: dict[str, Array]
    facts: dict[str, Any]
    files: tuple[str, ...]


def stage(folder: Path, number: int) -> Path:
    """A new, empty folder in which the roles' files of checkpoint `number` may be written; `save` takes it over.

    Raises:
        ResourceError: it cannot be made.
    """
    staged = folder / f"{STAGED}{number}"
    try:
        make_folder(folder)
        shutil.rmtree(staged, ignore_errors=True)
        make_folder(staged, exclusive=True)
    except OSError as error:
        raise ResourceError(f"checkpoint {number} cannot be saved: {error.strerror or error}") from error
    return staged


def drop_staged(folder: Path, number: int) -> None:
    """Remove what was staged, when nothing comes of it."""
    shutil.rmtree(folder / f"{STAGED}{number}", ignore_errors=True)


def save(
    folder: Path,
    number: int,
    tensors: Mapping[str, Array],
    facts: Mapping[str, Any],
    keep: int,
    files: Mapping[str, Written] | None = None,
) -> int:
    """Save checkpoint `number` durably, then remove old ones.

    Args:
        folder: where checkpoints are kept, one folder each.
        number: a number not used before.
        tensors: name -> array of any shape.
        facts: what to know about it, as JSON types. `version` tells which weights are newer. `solved: true` keeps it
            for good. The highest `score` is kept too, the newer of two alike. `best: true` says that it is there for
            its score alone: it is not one of the newest, and goes when another one has a higher score.
        keep: how many of the newest are kept, and of the newest whole ones.
        files: those that lie in the staged folder already (`stage`), by name; with them it is whole.

    Returns:
        Its size in bytes.

    Raises:
        ValueError: the number is taken.
        ResourceError: it cannot be written; nothing of it is left, and the old ones are untouched.
    """
    from safetensors.numpy import save as serialize  # here, because reading a status must not pay for it

    final, staged = folder / str(number), folder / f"{STAGED}{number}"
    if final.exists():
        raise ValueError(f"checkpoint {number} exists already, expected a new number")
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    data = serialize(arrays)
    body = {
        "number": number,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "tensors": {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()},
        "facts": dict(facts),
    }
    if files is not None:
        body["files"] = {name: [written.nbytes, written.sha256] for name, written in files.items()}
    # Without indentation: json indents by functions that refer to each other, garbage that waits for a full collection.
    manifest = json.dumps({"format": FORMAT, "sha256": _digest(body), "body": body}).encode()
    if len(manifest) > LONGEST_MANIFEST:
        told = f"its manifest would have {len(manifest):,} bytes, at most {LONGEST_MANIFEST:,} can be read"
        raise ResourceError(f"checkpoint {number} cannot be saved: {told}")
    try:
        if files is None:
            stage(folder, number)
        for name, written in (files or {}).items():
            if (staged / name).lstat().st_size != written.nbytes:
                raise FileNotFoundError(errno.ENOENT, f"{name} was not written where it belongs")
        write_new(staged / TENSORS, data, durable=True)
        write_new(staged / MANIFEST, manifest, durable=True)
        sync_folder(staged)
        staged.rename(final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise ResourceError(f"checkpoint {number} cannot be saved: {error.strerror or error}") from error
    _prune(folder, keep)
    return len(data) + len(manifest) + sum(written.nbytes for written in (files or {}).values())


def load(
    folder: Path,
    which: str | int = "last",
    on_rejected: Rejected = lambda _number, _cause: None,
    judge: Judge = lambda _checkpoint: None,
    foresee: Foresee = lambda _facts, _tensors: None,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Load the wanted checkpoint, or, if it is not fit, the next best of its kind.

    Args:
        folder: where checkpoints are kept.
        which: `"last"` (highest version), `"best"` (highest score), `"solved"`, or a number.
        on_rejected: told the number and the cause of each that was not fit.
        judge: shown what was loaded; raises `Unfit`, or `json_checks.Misfit`, where it is not what it should be.
        foresee: the same, shown what the manifest says, before the tensors take memory.

    Returns:
        The tensors, and the facts with `number` added.

    Raises:
        NotFound: there is none of the kind.
        RunFailed: none is fit, or others than the user of this process may put some there.
    """
    rejected: list[str] = []
    candidates = []
    _check_folder(folder)
    for number in numbers(folder):
        try:
            candidates.append(_Brief.of(_read_manifest(folder / str(number))))
        except (Unfit, OSError) as error:
            rejected.append(_reject(number, error, on_rejected))
    for number in _ordered(candidates, which):
        path = folder / str(number)
        try:
            found = _loaded(number, path, _read_manifest(path), foresee)
            judge(found)
        except (Unfit, Misfit, OSError) as error:
            rejected.append(_reject(number, error, on_rejected))
        else:
            return found.tensors, found.facts
    causes = f"; not fit: {'; '.join(rejected)}" if rejected else ""
    wanted = f"with number {which}" if isinstance(which, int) else f'for "{which}"'
    there = ", ".join(str(one.number) for one in candidates) or "none"
    told = f"no checkpoint {wanted} can be loaded from {folder}; there: {there}{causes}"
    raise RunFailed(told) if rejected else NotFound(told)


def load_whole(
    folder: Path,
    on_rejected: Rejected = lambda _number, _cause: None,
    judge: Judge = lambda _checkpoint: None,
    foresee: Foresee = lambda _facts, _tensors: None,
) -> Whole:
    """The newest whole checkpoint that is fit; every file is read through and verified.

    Args:
        folder: where checkpoints are kept.
        on_rejected: told the number and the cause of each that was not fit.
        judge: as for `load`.
        foresee: as for `load`.

    Raises:
        RunFailed: there is none, or none is fit; the message names those that are not. Or others than the user of
            this process may put some there.
    """
    rejected: list[str] = []
    _check_folder(folder)
    for number in numbers(folder):
        path = folder / str(number)
        try:
            body = _read_manifest(path)
            if "files" not in body:
                continue
            _check_files(path, body["files"])
            found = _loaded(number, path, body, foresee)
            judge(found)
        except (Unfit, Misfit, OSError) as error:
            rejected.append(_reject(number, error, on_rejected))
        else:
            return found
    causes = f"; not fit: {'; '.join(rejected)}" if rejected else ""
    raise RunFailed(f"there is no whole checkpoint in {folder} to go on from{causes}")


def check_facts(facts: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """See that facts are what `WeightsSaver` writes, and tell of the tensors that the manifest names.

    Args:
        facts: of a manifest.
        tensors: name -> type and shape, as the manifest has them.

    Raises:
        Misfit: a fact is something else; the message names file and key.
        Unfit: it tells of other tensors.
    """
    _FACTS(f"{MANIFEST}: facts", facts)
    told = [[name, ["<f4", list(shape)]] for name, shape in facts["parameters"]]
    names = [name for name, _ in told]
    if len(set(names)) < len(names) or not names:
        twice = next((json_checks.shown(name) for name in names if names.count(name) > 1), "none")
        raise Unfit(f"{MANIFEST}: facts.parameters: got {twice} {'twice' if names else ''}, expected each name once")
    named = dict(tensors)
    for name, about in told:
        if named.pop(name, None) != about:
            where = f"{MANIFEST}: tensors.{json_checks.shown(name)}"
            raise Unfit(f"{where}: expected float32 of shape {tuple(about[1])}, as facts.parameters tells")
    if named:
        raise Unfit(f"{MANIFEST}: tensors: got {json_checks.shown(next(iter(named)))} too, expected facts.parameters")


def check_weights(found: Whole) -> None:
    """See that the weights are those that the facts tell of, and finite, and the facts what `WeightsSaver` writes.

    Raises:
        Misfit: a fact is something else; the message names file and key.
        Unfit: the weights are.
    """
    _FACTS(f"{MANIFEST}: facts", found.facts)
    told = {name: tuple(shape) for name, shape in found.facts["parameters"]}
    for name in dict.fromkeys((*told, *found.tensors)):
        tensor = found.tensors.get(name)
        got = "nothing" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"
        if name not in told or tensor is None or tensor.dtype != np.float32 or tensor.shape != told[name]:
            expected = f"float32 of shape {told[name]}" if name in told else "no such weights"
            raise Unfit(
                f"{TENSORS}: {json_checks.shown(name)}: got {got}, expected {expected}, as {MANIFEST} tells of its "
                "parameters"
            )
        if not np.isfinite(tensor).all():
            raise Unfit(f"{TENSORS}: {json_checks.shown(name)}: got numbers that are not finite, expected finite ones")


def _parameter(place: str, value: Any) -> None:
    json_checks.list_of(json_checks.anything)(place, value)
    if len(value) != 2:
        raise json_checks.misfit(place, value, "a name and a shape")
    json_checks.text(f"{place}[0]", value[0])
    json_checks.list_of(json_checks.count)(f"{place}[1]", value[1])


def _dtype(place: str, value: Any) -> None:
    json_checks.text(place, value)
    if value not in _DTYPES:
        raise json_checks.misfit(place, value, "a type of numbers")


_DTYPES = {np.dtype(kind).str for kind in "?bBhHiIqQefd"}
_LENGTHS = json_checks.list_of(json_checks.count)
_NUMBERS = json_checks.list_of(json_checks.maybe(json_checks.number))
_SPACES = json_checks.table(
    {
        "observation_shape": _LENGTHS,
        "observation_dtype": _dtype,
        "actions": json_checks.maybe(json_checks.count),
        "action_shape": _LENGTHS,
        "action_low": _NUMBERS,
        "action_high": _NUMBERS,
        "symmetry": json_checks.maybe(
            json_checks.table({"observation_sign": json_checks.list_of(json_checks.number), "action_order": _LENGTHS})
        ),
    },
    {
        "limits": json_checks.maybe(_NUMBERS),
        "frames": json_checks.count,
        "parts": json_checks.list_of(
            json_checks.table(
                {
                    "name": json_checks.text,
                    "shape": _LENGTHS,
                    "dtype": json_checks.one_of("<f4", "|u1"),
                    "offset": json_checks.count,
                }
            )
        ),
        "action_kind": json_checks.one_of("discrete", "multi_discrete", "multi_binary", "box"),
        "action_sizes": _LENGTHS,
        "masked": json_checks.flag,
        "observation_sizes": _LENGTHS,
        "action_starts": json_checks.list_of(json_checks.integer),
    },
)


def _spaces(place: str, value: Any) -> None:
    _SPACES(place, value)
    if not Spaces.from_json(value).fits_together:
        raise json_checks.misfit(f"{place}.parts", value.get("parts"), "parts that make up an observation")


_FACTS = json_checks.table(
    {"version": json_checks.count, "parameters": json_checks.list_of(_parameter), "spaces": _spaces},
    {
        "counters": json_checks.by_name(json_checks.count),
        "score": json_checks.number,
        "wrappers": json_checks.maybe(json_checks.text),
    },
)


def numbers(folder: Path) -> list[int]:
    """The numbers of all checkpoints, newest first."""
    if not folder.is_dir():
        return []
    return sorted((int(entry.name) for entry in folder.iterdir() if _is_number(entry.name)), reverse=True)


def newest_version(folder: Path) -> int:
    """The highest version of all checkpoints whose manifests can be read, 0 without any."""
    briefs = (_brief_or_none(folder / str(number)) for number in numbers(folder))
    return max((one.version for one in briefs if one is not None), default=0)


def remove_staged(folder: Path) -> None:
    """Remove what a killed run was in the middle of saving or removing."""
    for entry in folder.glob(f"{STAGED}*"):
        shutil.rmtree(entry, ignore_errors=True)


@dataclass(frozen=True)
class _Brief:
    """What of a manifest decides whether it is wanted: a folder may hold thousands of them, each of a MiB."""

    number: int
    version: int
    score: float
    is_solved: bool
    is_best: bool
    is_whole: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> _Brief:
        facts = body["facts"]
        solved, best = facts.get("solved") is True, facts.get("best") is True
        return cls(int(body["number"]), _version(body), _score(body), solved, best, "files" in body)


def _loaded(number: int, path: Path, body: Mapping[str, Any], foresee: Foresee) -> Whole:
    foresee(body["facts"], body["tensors"])
    facts, files = {**body["facts"], "number": number}, body.get("files")
    names = tuple(files) if isinstance(files, dict) else ()
    return Whole(number, path, _read_tensors(path, body), facts, names)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= 18 and (name == "0" or name[0] != "0")


def _reject(number: int, error: Exception, on_rejected: Rejected) -> str:
    cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
    on_rejected(number, cause)
    return f"{number} ({cause})"


def _ordered(candidates: list[_Brief], which: str | int) -> list[int]:
    """The numbers of those that are wanted, the most wanted first."""
    match which:
        case "last":
            found = sorted(candidates, key=lambda one: one.version, reverse=True)
        case "solved":
            found = [one for one in candidates if one.is_solved]
        case "best":
            found = sorted((one for one in candidates if one.score > NO_SCORE), key=lambda one: one.score, reverse=True)
        case _:
            found = [one for one in candidates if one.number == which]
    return [one.number for one in found]


def _score(body: Mapping[str, Any]) -> float:
    score = body["facts"].get("score")
    return float(score) if isinstance(score, int | float) and abs(score) < LARGEST_SCORE else NO_SCORE


def _version(body: Mapping[str, Any]) -> int:
    version = body["facts"].get("version")
    return version if isinstance(version, int) and 0 <= version <= json_checks.MOST_COUNT else -1


def _prune(folder: Path, keep: int) -> None:
    # What is not fit is left where it is: someone may want to look at it.
    briefs = {number: _brief_or_none(folder / str(number)) for number in numbers(folder)}
    scored = [one for one in briefs.values() if one is not None and one.score > NO_SCORE]
    best = max(scored, key=lambda one: one.score, default=None)  # the first of them, so the newest
    ordinary = [number for number, one in briefs.items() if one is None or not (one.is_solved or one.is_best)]
    whole = [number for number in ordinary if (one := briefs[number]) is not None and one.is_whole]
    newest = {*ordinary[:keep], *whole[:keep]}
    for number, brief in briefs.items():
        if brief is None or number in newest or brief.is_solved or brief is best:
            continue
        doomed = folder / f"{STAGED}{number}"  # renamed first: never half of one under a final name
        try:
            (folder / str(number)).rename(doomed)
        except OSError:
            continue
        shutil.rmtree(doomed, ignore_errors=True)


def _brief_or_none(folder: Path) -> _Brief | None:
    try:
        return _Brief.of(_read_manifest(folder))
    except (Unfit, OSError):
        return None


def _read_manifest(folder: Path) -> dict[str, Any]:
    _check_owner(folder)
    try:
        manifest = json.loads(read_bounded(folder / MANIFEST, LONGEST_MANIFEST))
    except (ValueError, RecursionError):
        raise Unfit("its manifest is not JSON") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise Unfit("its manifest says no format")
    if manifest["format"] != FORMAT:
        raise Unfit(f"its format is {manifest['format']}, this version reads {FORMAT}")
    body = manifest.get("body")
    if not isinstance(body, dict) or manifest.get("sha256") != _digest(body):
        raise Unfit("its manifest does not match its checksum")
    shape_is_right = (
        type(body.get("number")) is int
        and type(body.get("bytes")) is int
        and isinstance(body.get("tensors"), dict)
        and isinstance(body.get("facts"), dict)
    )
    if not shape_is_right or str(body["number"]) != folder.name:
        raise Unfit("its manifest belongs to another checkpoint")
    return body


def _read_tensors(folder: Path, body: Mapping[str, Any]) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as parse

    path = folder / TENSORS
    size = path.lstat().st_size
    if size != body["bytes"]:
        raise Unfit(f"its tensors are {size} bytes, expected {body['bytes']}")
    if not 0 <= size - _nbytes(body["tensors"]) <= 8 + LONGEST_HEADER:
        raise Unfit(f"its tensors are {size} bytes, expected those of the types and shapes that its manifest says")
    data = read_bounded(path, size)
    if hashlib.sha256(data).hexdigest() != body.get("sha256"):
        raise Unfit("its tensors do not match their checksum")
    header = int.from_bytes(data[:8], "little")
    if header > min(LONGEST_HEADER, len(data)):
        raise Unfit(f"its tensors begin with a header of {header} bytes, expected at most {LONGEST_HEADER}")
    try:
        tensors: dict[str, Array] = parse(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise Unfit(f"its tensors cannot be read: {error}") from None
    if {name: [array.dtype.str, list(array.shape)] for name, array in tensors.items()} != body["tensors"]:
        raise Unfit("its tensors have other names, types or shapes than its manifest says")
    return tensors


def _nbytes(tensors: Mapping[str, Any]) -> int:
    """The bytes of tensors, by the types and shapes that a manifest names."""
    total = 0
    for about in tensors.values():
        match about:
            case [str(dtype), list(shape)] if dtype in _DTYPES and all(type(one) is int and one >= 0 for one in shape):
                total += np.dtype(dtype).itemsize * math.prod(shape)
            case _:
                raise Unfit("its manifest names types or shapes of its tensors in another form")
    return total


def _check_folder(folder: Path) -> None:
    """See that no other user may put a checkpoint among the others.

    Raises:
        RunFailed: another user may.
    """
    try:
        if folder.exists():
            _check_owner(folder)
    except Unfit as error:
        raise RunFailed(f"nothing is loaded from {folder}: {error}") from None


def _check_owner(folder: Path) -> None:
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise Unfit("it is not a folder that only its owner, the user of this process, may write to")


def _check_files(folder: Path, files: Any) -> None:
    """Read the roles' files through, in pieces, and compare sizes and sums."""
    if not isinstance(files, dict):
        raise Unfit("its manifest names its files in another form")
    for name, about in files.items():
        match about:
            case [int(nbytes), str(expected)] if PLAIN_NAME.fullmatch(name):
                pass
            case _:
                raise Unfit("its manifest names its files in another form")
        with open_plain(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
            if size != nbytes:
                raise Unfit(f"{name} is {size} bytes, expected {nbytes}")
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise Unfit(f"{name} does not match its checksum")


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
