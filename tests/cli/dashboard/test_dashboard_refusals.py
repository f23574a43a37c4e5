"""Over the wire: each refusal is a 403 with its reason, what is there is read alone, and nothing leads elsewhere."""

import os
import shutil
from html.parser import HTMLParser

import pytest
from dashboard_tools import BEARER, TOKEN, ask, served, streamed, within
from report_runs import story, write

NAME = "20261127T135002Z-oa-0"
PATHS = ["/", "/stream", "/runs.json", f"/run/{NAME}", f"/run/{NAME}/stream", f"/run/{NAME}/state.json", "/page.js"]


@pytest.fixture
def runs(tmp_path):
    write(tmp_path, story())
    return tmp_path


@pytest.mark.parametrize("path", [*PATHS, "/style.css", "/icon.svg", "/no/such/thing"])
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "the token is missing"),
        ({"Authorization": f"Bearer {TOKEN}x"}, "the token is missing or is another one"),
        ({"Authorization": f"Basic {TOKEN}"}, "the token is missing"),
        ({"Cookie": f"other={TOKEN}"}, "the token is missing"),
        ({**BEARER, "Host": "evil.example"}, "another host: evil.example"),
        ({**BEARER, "Host": "rebound.example:PORT"}, "another host: rebound.example"),
        ([("Host", "127.0.0.1:PORT"), ("Host", "evil.example"), *BEARER.items()], "another host"),
        ({**BEARER, "Host": None}, "another host: none"),
        ({**BEARER, "Origin": "http://evil.example"}, "came from http://evil.example"),
        ({**BEARER, "Origin": "null"}, "came from null"),
        ({**BEARER, "Sec-Fetch-Site": "same-site"}, "came from a page of another address"),
        ({**BEARER, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, "came from a page of another"),
        (
            {**BEARER, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
            "came from a page of another address",
        ),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_refused_with_403(runs, path, headers, said):
    async def main():
        async with served(runs) as (_, port):
            pairs = list(headers.items() if isinstance(headers, dict) else headers)
            answer = await ask(
                port, path, [(name, value and value.replace("PORT", str(port))) for name, value in pairs]
            )
            if answer.status == 400:  # refused by the parser, which takes no request with two hosts, or none
                assert said.startswith("another host")
                return
            assert answer.status == 403
            assert said in answer.body
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert TOKEN not in answer.body

    within(main)


def test_every_answer_forbids_scripts_frames_and_requests_elsewhere(runs):
    async def main():
        async with served(runs) as (_, port):
            for path in [path for path in PATHS if not path.endswith("stream")]:
                for headers in (BEARER, {}):
                    told = (await ask(port, path, headers)).headers
                    assert told["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
                    assert "frame-ancestors 'none'" in told["Content-Security-Policy"]
                    assert told["X-Content-Type-Options"] == "nosniff"
                    assert told["Referrer-Policy"] == "no-referrer"
                    assert told["Cache-Control"] == "no-store"
                    assert "aiohttp" not in told["Server"]

    within(main)


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(runs):
    async def main():
        async with served(runs) as (_, port):
            answer = await ask(port, f"/?token={TOKEN}", {})
            assert answer.status == 200
            cookie = answer.headers["Set-Cookie"]
            assert cookie == f"mlxe-dashboard-{port}={TOKEN}; HttpOnly; Path=/; SameSite=Strict"
            assert TOKEN not in answer.body
            brought = {"Cookie": cookie.partition(";")[0]}
            assert (await ask(port, "/runs.json", brought)).json()[0]["run"] == NAME
            assert "Set-Cookie" not in (await ask(port, "/", brought)).headers
            assert (await ask(port, "/?token=another", brought)).status == 403

    within(main)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_can_be_changed(runs, method):
    async def main():
        async with served(runs) as (_, port):
            assert {(await ask(port, path, BEARER, method)).status for path in PATHS} == {405}

    within(main)


@pytest.mark.parametrize(
    "name",
    [
        "nowhere",
        "..",
        ".",
        "%2e%2e",
        "..%2f..%2fetc",
        "%2fetc",
        "linked",
        "file",
        "empty",
        "%00",
        "a" * 300,
        "%ff",
        "fifo",
    ],
)
def test_no_name_leads_out_of_the_folder_or_to_what_is_no_run(runs, name):
    inside, outside = runs / "inside", runs / "outside"
    inside.mkdir()
    shutil.copytree(runs / NAME, outside)
    (inside / "linked").symlink_to(outside)
    (inside / "file").write_text("x")
    (inside / "empty").mkdir()
    (inside / "fifo").mkdir()
    os.mkfifo(inside / "fifo/log.jsonl")

    async def main():
        async with served(inside) as (_, port):
            for rest in ("", "/stream", "/state.json"):
                assert (await ask(port, f"/run/{name}{rest}")).status == 404
            assert (await ask(port, "/runs.json")).json() == []

    within(main)


def test_a_name_that_is_no_text_is_left_out_of_the_list(runs):
    shutil.copytree(runs / NAME, runs / os.fsdecode(b"\xff\xfe"))

    async def main():
        async with served(runs) as (_, port):
            assert [one["run"] for one in (await ask(port, "/runs.json")).json()] == [NAME]
            assert (await ask(port, "/run/latest/state.json")).json()["run"] == NAME

    within(main)


def test_a_folder_without_runs_or_that_is_not_there_yet_has_an_empty_list(tmp_path):
    async def main():
        async with served(tmp_path / "runs") as (_, port):
            assert (await ask(port, "/runs.json")).json() == []
            assert (await ask(port, "/run/latest")).status == 404
            write(tmp_path / "runs", story())
            assert (await ask(port, "/runs.json")).json()[0]["run"] == NAME
            assert (await ask(port, "/run/latest")).status == 200

    within(main)


@pytest.mark.parametrize("name", [NAME, "latest"])
def test_the_folder_of_one_run_is_taken_as_the_only_one(runs, name):
    (runs / "latest").symlink_to(NAME)

    async def main():
        async with served(runs / name) as (_, port):
            assert [one["run"] for one in (await ask(port, "/runs.json")).json()] == [NAME]
            assert (await ask(port, f"/run/{NAME}/state.json")).json()["env_steps"] == 1000
            assert (await ask(port, "/run/other")).status == 404

    within(main)


class Elements(HTMLParser):
    """Elements and attributes, as a browser reads them."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_name_of_a_folder_becomes_no_element_and_leads_to_its_own_page(runs):
    name = """<img src=x onerror=alert(1)>"'&?#%2e .."""
    (runs / NAME).rename(runs / name)

    async def main():
        async with served(runs) as (_, port):
            async with streamed(port, "/stream") as stream:
                await stream.until(lambda parts: "<table" in parts.get("runs", ""))
            links = [about["href"] for tag, about in Elements(stream.parts["runs"]).found if tag == "a"]
            page = await ask(port, links[0])
            assert page.status == 200
            found = Elements(page.body).found
            assert {tag for tag, _ in found} & {"img", "iframe"} == set()
            assert [about for tag, about in found if tag == "script"] == [{"src": "/page.js", "defer": None}]
            (body,) = [about for tag, about in found if tag == "body"]
            async with streamed(port, body["data-stream"]) as stream:
                await stream.until(lambda parts: "1,000" in parts.get("numbers", ""))

    within(main)
