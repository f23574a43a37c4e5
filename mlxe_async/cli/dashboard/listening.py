"""The socket that requests come to, opened before anything else is started: a port that is taken is told at once."""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import socket

from mlxe_async.errors import ResourceError, SettingsError

LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 8421, 20  # where no port is asked for, the first of these that is free
BACKLOG = 64
SEND_BYTES = 2**16  # that the kernel takes for a reader that does not read, more or less


def require_library() -> None:
    """See that the library of the server is there.

    Raises:
        SettingsError: it is not installed; the message names the extra that brings it.
    """
    if importlib.util.find_spec("aiohttp") is None:
        told = 'needs a package that is not installed: pip install "mlxe_async[dashboard]" (aiohttp)'
        raise SettingsError([f"dashboard: {told}"])


def listen(port: int | None, address: str = LOOPBACK) -> socket.socket:
    """A socket that listens; it is the caller's.

    Args:
        port: which one; 0: one that is free; None: the first of some that is.
        address: of this machine, in digits.

    Raises:
        SettingsError: that is no address.
        ResourceError: the port is taken, or may not be had.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        raise SettingsError(
            [f"--host: got {address!r:.60}, expected an address in digits, such as {LOOPBACK}"]
        ) from None
    ports = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]
    for one in ports:
        try:
            return _bound(family, address, one)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and one != ports[-1]:
                continue
            raise ResourceError(_refused(address, one, error, port is None)) from error
    raise AssertionError("there is a last port")


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # connections inherit it
        made.bind((address, port))
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _refused(address: str, port: int, error: OSError, was_chosen: bool) -> str:
    where = f"port {port} of {address}"
    if error.errno == errno.EADDRINUSE:
        if was_chosen:
            first = FIRST_PORT
            return (
                f"dashboard: ports {first} to {first + PORTS - 1} of {address} are taken; expected a free one: name it"
            )
        return f"dashboard: {where} is taken by another program; expected a free one, or none to have one chosen"
    if error.errno == errno.EACCES:
        return f"dashboard: {where} may not be had ({error.strerror}); expected one from 1024 on"
    return f"dashboard: {where} cannot be had: {error.strerror}"
