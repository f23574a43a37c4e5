"""Who may read the page: one host, one origin, one token; all else is refused with a reason."""

import socket

import pytest

from mlxe_async.cli.dashboard.access import Access, Asked, token_of
from mlxe_async.errors import SettingsError

TOKEN = "0123456789abcdef"  # noqa: S105 - nothing listens
EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens
ACCESS = Access("127.0.0.1", 8421, TOKEN)
HERE = "127.0.0.1:8421"


def asked(host=HERE, **fields):
    return Asked(**{"hosts": [host], "tokens": [TOKEN], **fields})


@pytest.mark.parametrize(
    "one",
    [
        asked(),
        asked("localhost:8421"),
        asked("LOCALHOST:8421"),
        asked(origins=[f"http://{HERE}"]),
        asked(site="same-origin"),
        asked(site="none", is_visit=True),
        asked(site="cross-site", is_visit=True),
        asked(tokens=["wrong", TOKEN]),
    ],
    ids=str,
)
def test_a_reader_with_the_token_at_this_address_is_answered(one):
    assert ACCESS.refusal(one) == ""


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (asked("evil.example:8421"), "another host: evil.example:8421"),
        (asked("127.0.0.1.evil.example:8421"), "another host"),
        (asked("127.0.0.1"), "another host"),
        (asked("127.0.0.1:8422"), "another host"),
        (asked("127.0.0.2:8421"), "another host"),
        (asked("[::1]:8421"), "another host"),
        (asked("10.0.0.1:8421"), "another host"),
        (asked("127.0.0.1:8421@evil.example"), "another host"),
        (asked("127.0.0.1:\uff18\uff14\uff12\uff11"), "another host"),
        (asked("a\x1b[31m:8421"), r"another host: a\x1b[31m"),
        (Asked(hosts=[], tokens=[TOKEN]), "another host: none"),
        (Asked(hosts=[HERE, HERE], tokens=[TOKEN]), "another host"),
        (asked(origins=["http://evil.example"]), "came from http://evil.example"),
        (asked(origins=["null"]), "came from null"),
        (asked(origins=[f"https://{HERE}"]), "came from https"),
        (asked(origins=["http://127.0.0.1:9"]), "came from http://127.0.0.1:9"),
        (asked(origins=[f"http://{HERE}.evil.example"]), "came from"),
        (asked(origins=[f"http://{HERE}", "http://evil.example"]), "came from http://evil.example"),
        (asked(site="cross-site"), "came from a page of another address"),
        (asked(site="same-site"), "came from a page of another address"),
        (asked(tokens=[]), "the token is missing"),
        (asked(tokens=[""]), "the token is missing or is another one"),
        (asked(tokens=[TOKEN[:-1]]), "another one"),
        (asked(tokens=[TOKEN.upper()]), "another one"),
        (asked(tokens=["\ud800"]), "another one"),
    ],
    ids=str,
)
def test_all_others_are_refused_with_a_reason(one, said):
    assert said in ACCESS.refusal(one)


@pytest.mark.parametrize(
    ("address", "host", "is_answered"),
    [
        (EVERYWHERE, "192.168.1.7:8421", True),
        (EVERYWHERE, "127.0.0.1:8421", True),
        (EVERYWHERE, f"{socket.gethostname()}:8421", True),
        (EVERYWHERE, "rebound.example:8421", False),
        (EVERYWHERE, "localhost:8421", False),
        ("192.168.1.7", "192.168.1.7:8421", True),
        ("192.168.1.7", "192.168.1.8:8421", False),
        ("::1", "[::1]:8421", True),
        ("::1", "[0:0:0:0:0:0:0:1]:8421", True),
        ("::1", "127.0.0.1:8421", False),
        ("::", "[2001:db8::1]:8421", True),
    ],
)
def test_elsewhere_an_address_in_digits_is_answered_and_no_name_that_could_be_rebound(address, host, is_answered):
    assert (Access(address, 8421, TOKEN).refusal(asked(host)) == "") == is_answered


@pytest.mark.parametrize(
    ("address", "url"),
    [("127.0.0.1", "http://127.0.0.1:8421"), (EVERYWHERE, "http://127.0.0.1:8421"), ("::1", "http://[::1]:8421")],
)
def test_the_address_that_is_printed_leads_here(address, url):
    assert Access(address, 8421, TOKEN).url == url


def test_a_token_that_is_made_is_long_and_another_one_each_time():
    one, other = token_of(None), token_of(None)
    assert one != other
    assert len(one) == 32
    assert token_of(one) == one


@pytest.mark.parametrize("given", ["", "short", "a" * 201, "a b c d e f g h i j k", "ä" * 20, "a" * 16 + "&x"])
def test_a_token_that_is_short_or_cannot_stand_in_an_address_is_refused(given):
    with pytest.raises(SettingsError, match="expected 16 to 200 letters, digits"):
        token_of(given)


def test_the_token_is_in_no_text_about_the_access():
    assert TOKEN not in repr(ACCESS)
