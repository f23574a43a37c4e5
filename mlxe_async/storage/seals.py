"""Seals: by them a run's folder proves that this user made it on this machine, as Jupyter's notebooks do.

The secret behind them never leaves the user's own folder of state. What comes from elsewhere cannot have a seal that
fits, and a folder that changes hands has none on the other machine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from mlxe_async.storage.files import make_folder, new_file, read_bounded

SEAL = "seal"
_BYTES = 32
_LONGEST = 256


def sealed(what: Any) -> str:
    """The seal of JSON values, made with the user's secret, which is drawn when first asked for.

    Empty where no secret can be kept: without a home, or on a disk that cannot be written to.
    """
    secret = _secret() or _drawn()
    return _digest(secret, what) if secret else ""


def fits(seal: str, what: Any) -> bool:
    """Return whether a seal is this user's own, of these values."""
    secret = _secret()
    return bool(secret and seal) and hmac.compare_digest(seal.encode(), _digest(secret, what).encode())


def seal_in(folder: Path) -> str:
    """The seal that lies in a folder; empty where there is none, or something else."""
    try:
        return read_bounded(folder / SEAL, _LONGEST).decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def _digest(secret: bytes, what: Any) -> str:
    text = json.dumps(what, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _place() -> Path | None:
    """Return where the secret is kept, by the rules of freedesktop.org; None without a home."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    if not Path(base).is_absolute():
        try:
            base = str(Path.home() / ".local" / "state")
        except RuntimeError:
            return None
    return Path(base) / "mlxe_async" / "secret"


def _secret() -> bytes:
    """The user's secret; empty where there is none, or where others may know it."""
    path = _place()
    if path is None:
        return b""
    try:
        about = path.lstat()
        is_private = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
        found = read_bounded(path, _BYTES) if is_private else b""
    except OSError:
        return b""
    return found if len(found) == _BYTES else b""


def _drawn() -> bytes:
    """A new secret, or the one that another process has drawn meanwhile; empty where it cannot be kept."""
    path = _place()
    if path is None:
        return b""
    staged = path.with_name(f".{secrets.token_hex(8)}")
    try:
        make_folder(path.parent)
        with new_file(staged, durable=True) as descriptor:
            os.write(descriptor, secrets.token_bytes(_BYTES))
        try:
            os.link(staged, path)  # whole or not at all, and never over one that is there
        finally:
            staged.unlink()
    except OSError:
        pass  # another process was first, or nothing can be kept here: what is there now decides
    return _secret()
