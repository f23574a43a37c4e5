"""Who may read the page: requests for this address alone, of this page alone, by a reader who knows the token.

A page of another site cannot read what is here: its requests name it as their origin, or say by Sec-Fetch-Site that
they come from elsewhere. A name that is made to lead here (DNS rebinding) is none of the names that are answered to.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlxe_async.errors import SettingsError
from mlxe_async.storage.safe_text import visible

LEAST_TOKEN, MOST_TOKEN = 16, 200
_TOKEN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
FOREIGN_SITES = ("cross-site", "same-site")  # another port of this machine is the same site

# Nothing is fetched from elsewhere, no script or style of a text runs, and no other page may frame this one. Charts
# place their texts by style attributes, which the page's own numbers alone fill.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "mlxe_async",
}


@dataclass(frozen=True)
class Asked:
    """The parts of a request that decide whether it is answered.

    Args:
        hosts: its Host headers.
        origins: its Origin headers.
        site: Sec-Fetch-Site; empty if it has none.
        is_visit: whether a browser is to show the answer as a page of its own, in no frame.
        tokens: those that it brings: in the address, a cookie or a header.
    """

    hosts: Sequence[str]
    origins: Sequence[str] = ()
    site: str = ""
    is_visit: bool = False
    tokens: Sequence[str] = ()


@dataclass(frozen=True)
class Access:
    """The one place at which the page is read, and the token that it takes.

    Args:
        address: at which it listens.
        port: at which it listens.
        token: at least 16 letters, digits, `-` and `_`.
    """

    address: str
    port: int
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """The page's address without the token."""
        address = self.address if not self._is_everywhere else "127.0.0.1"
        return f"http://{f'[{address}]' if ':' in address else address}:{self.port}"

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds the token; other ports of this machine have others."""
        return f"mlxe-dashboard-{self.port}"

    def refusal(self, asked: Asked) -> str:
        """Why a request is not answered, in a sentence; empty if it is."""
        if len(asked.hosts) != 1 or not self._is_ours(asked.hosts[0]):
            got = visible(", ".join(asked.hosts), 100) or "none"
            return f"this page is read at {self.url} alone, and the request was for another host: {got}"
        for origin in asked.origins:
            if origin.lower() != f"http://{asked.hosts[0].lower()}":
                return f"this page answers to itself alone, and the request came from {visible(origin, 100)}"
        if asked.site.lower() in FOREIGN_SITES and not asked.is_visit:
            return "this page answers to itself alone, and the request came from a page of another address"
        if not any(hmac.compare_digest(self.token.encode(), one.encode("utf-8", "replace")) for one in asked.tokens):
            return "the token is missing or is another one; open the address that was printed when the page was started"
        return ""

    @property
    def _is_everywhere(self) -> bool:
        return ipaddress.ip_address(self.address).is_unspecified

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host header names the place at which we listen; a name from elsewhere never does."""
        match = _HOST.fullmatch(host)
        if match is None or int(match["port"] or 80) != self.port:
            return False
        name = match["name"].strip("[]").lower()
        here = ipaddress.ip_address(self.address)
        try:
            asked = ipaddress.ip_address(name)
        except ValueError:
            return name == ("localhost" if here.is_loopback else socket.gethostname().lower())
        # Where all addresses of this machine are listened at, an address in digits is one of them: none can be forged.
        return asked == here or (here.is_unspecified and asked.version == here.version)


def token_of(given: str | None) -> str:
    """The token that was asked for, or a new one.

    Raises:
        SettingsError: it is too short or too long, or cannot stand in an address.
    """
    if given is None:
        return secrets.token_urlsafe(24)
    if not LEAST_TOKEN <= len(given) <= MOST_TOKEN or not _TOKEN.fullmatch(given):
        told = f"got {len(given)} characters, expected {LEAST_TOKEN} to {MOST_TOKEN} letters, digits, '-' and '_'"
        raise SettingsError([f"--token, or MLXE_DASHBOARD_TOKEN: {told}; leave it out to have one made"])
    return given
