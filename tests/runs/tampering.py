"""Checkpoints that somebody changed, with all checksums made anew: what is changed, and how, follows from a seed."""

import copy
import hashlib
import json
import math
import random

import numpy as np

from mlxe_async.storage.array_files import read_arrays, write_arrays
from mlxe_async.storage.checkpoints import MANIFEST, TENSORS

VALUES = (
    -1, -5, 0, 7, 2**31, 2**53 + 1, 2**62, 2**63, -(2**63) - 1, 10**400, 1.5, -0.5, 1e308, math.nan, math.inf,
    -math.inf, "7", "", "\x1b[2J", "x" * 5000, True, False, None, [], {}, [1], [[]], {"a": 1}, {"7": None}, ["x"] * 50,
)  # fmt: skip
ARRAYS = {
    "missing": lambda array: None,
    "longer": lambda array: np.concatenate([array.ravel(), array.ravel()[:1], np.zeros(1, array.dtype)]),
    "empty": lambda array: array.ravel()[:0],
    "another dimension": lambda array: array[None],
    "floats": lambda array: np.full(array.shape, 0.5),
    "bytes": lambda array: np.full(array.shape, 200, np.uint8),
    "below zero": lambda array: np.full(array.shape, -3, array.dtype if array.dtype.kind in "if" else np.int64),
    "huge": lambda array: np.full(array.shape, 2**62, np.int64),
    "NaN": lambda array: np.full(array.shape, np.nan, array.dtype if array.dtype.kind == "f" else np.float32),
}


class Tampered:
    """One checkpoint with one change in it.

    Args:
        folder: of the checkpoint.
        chance: chooses what is changed.
    """

    def __init__(self, folder, chance):
        self.folder, self.chance = folder, chance
        self.body = json.loads((folder / MANIFEST).read_text())["body"]

    def in_body(self):
        """Change what the manifest says of the files, which is told in other words than by its key."""
        table = self.body[self.chance.choice(["files", "tensors"])] if self.chance.random() < 0.5 else self.body
        key = self.chance.choice(sorted(set(table) - {"facts"}))
        if self.chance.random() < 0.3:
            del table[key]
        else:
            table[key] = copy.deepcopy(self.chance.choice(VALUES))
        self.write_manifest()
        return "", f"checkpoints: {key} is {ascii(table.get(key))[:40]}"

    def in_facts(self):
        """Change one of the facts in the manifest; returns its key, and a sentence about it."""
        table, path = self.body["facts"], []
        while True:
            # Each part of the state has its turn, however many keys are in it.
            key = self.chance.choice(sorted(table) if isinstance(table, dict) else range(len(table)))
            path.append(key)
            inner = table[key]
            deeper = isinstance(inner, dict | list) and len(inner) > 0
            if not deeper or (len(path) > 1 and self.chance.random() < 0.2):
                break
            table = inner
        if isinstance(table, dict) and self.chance.random() < 0.2:
            del table[key]
            what = "is missing"
        else:
            value = table[key] = copy.deepcopy(self.chance.choice(VALUES))
            what = f"is {ascii(value)[:40]}"
        self.write_manifest()
        name = next(part for part in reversed(path) if isinstance(part, str))
        return name, f"{MANIFEST}: {'.'.join(map(str, path))} {what}"

    def in_arrays(self, file):
        """Change one array of a role's file."""
        path = self.folder / file
        arrays = read_arrays(path)
        if not arrays:
            return "", f"{file} holds nothing"
        name = self.chance.choice(sorted(arrays))
        how = self.chance.choice(sorted(ARRAYS))
        changed = ARRAYS[how](arrays.pop(name))
        if changed is not None:
            arrays[name] = changed
        path.unlink()
        written = write_arrays(path, arrays)
        self.body["files"][file] = [written.nbytes, written.sha256]
        self.write_manifest()
        return name, f"{file}: {name}: {how}"

    def in_header(self, file):
        """Change one fact of the header of a role's file."""
        path = self.folder / file
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        if not header:
            return "", f"{file} holds nothing"
        name = self.chance.choice(sorted(header))
        key = self.chance.choice(sorted(header[name]))
        value = self.chance.choice([*VALUES, [2**60], [2**32, 2**32], [1] * 1000, [0, 2**62], [-4, 0], [0.0, 8.0]])
        header[name][key] = copy.deepcopy(value)
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + data[8 + length :]
        path.write_bytes(data)
        self.body["files"][file] = [len(data), hashlib.sha256(data).hexdigest()]
        self.write_manifest()
        return name, f"{file}: {name}: {key} is {ascii(value)[:40]}"

    def in_weights(self):
        """Change the weights themselves."""
        arrays = read_arrays(self.folder / TENSORS)
        name, how = self.chance.choice(sorted(arrays)), self.chance.choice(sorted(ARRAYS))
        changed = ARRAYS[how](arrays.pop(name))
        if changed is not None:
            arrays[name] = changed
        (self.folder / TENSORS).unlink()
        written = write_arrays(self.folder / TENSORS, arrays)
        self.body["bytes"], self.body["sha256"] = written.nbytes, written.sha256
        self.body["tensors"] = {key: [array.dtype.str, list(array.shape)] for key, array in arrays.items()}
        self.write_manifest()
        return name, f"{TENSORS}: {name}: {how}"

    def write_manifest(self):
        text = json.dumps(self.body, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        manifest = {"format": 1, "sha256": digest, "body": self.body}
        (self.folder / MANIFEST).write_text(json.dumps(manifest))


def tampered(folder, seed, kinds, files):
    """Change a checkpoint; returns the name of what was changed, where it has one, and a sentence about it."""
    chance = random.Random(seed)  # noqa: S311 - chooses changes, guards no secret
    one = Tampered(folder, chance)
    kind = chance.choice(kinds)
    there = [file for file in files if (folder / file).exists()]  # an executor that never waits has none
    return getattr(one, kind)(*([chance.choice(there)] if kind in ("in_arrays", "in_header") else []))
