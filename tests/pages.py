"""The Markdown pages of this repository: their sections, blocks, tables, commands, links and figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(
            path
            for folder in ("settings", "runs/study", "mlxe_async", "tests")
            for path in (ROOT / folder).rglob("README.md")
        ),
    ]
)
# What stands alone: neither part of a word, of a version or of a date, nor an exponent.
NUMBER = re.compile(r"(?<![\w.^])(?<!\w-)\d[\d,]*(?:\.\d+)?(?![\w^]|\.\d)")
DATE = re.compile(
    r"\d{1,2} (?:January|February|March|April|May|June|July|August|September|October|November|December) 20\d\d"
)
PACKAGES = "Python|torch|Linux|stable-baselines3|torchrl|sample-factory|tianshou|rllib|cpprb"
VERSION = re.compile(rf"\b(?:{PACKAGES}) \d+(?:\.\d+)+")
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    """Its path in the repository."""
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)


def section(page: Path, heading: str) -> str:
    """The text under a heading of the second degree, to the next one."""
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(), re.M | re.S)
    assert match, f"{name_of(page)} has no heading '{heading}'"
    return match[1]


def sections(page: Path) -> dict[str, str]:
    """All of them by heading; what comes before the first has no name."""
    head, *others = re.split(r"^## ", page.read_text(), flags=re.M)
    return {"": head} | {part.partition("\n")[0]: part.partition("\n")[2] for part in others}


@dataclass(frozen=True)
class Command:
    """One line that a reader may type."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands(page: Path) -> Iterator[Command]:
    """Lines of shell blocks, and words of the text that are commands as a whole."""
    text = page.read_text()
    for language, block in blocks(text):
        if language == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.sub(r"\s+#\s.*", "", line).split(" && "):
                    if part.strip() and not part.startswith("#"):
                        yield Command(name_of(page), part.strip())
    for words in re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        one = " ".join(words.split())
        if re.match(r"(python3?|tox|pytest|pip) ", one):
            yield Command(name_of(page), one)


def tables(text: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Where each table begins, and its rows of cells, the head first."""
    for match in re.finditer(r"(?:^\|.*\|\n)+", text, re.M):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in match[0].splitlines()]
        yield match.start(), [row for row in rows if set("".join(row)) - set("-: ")]


def figures(text: str) -> list[str]:
    """Numbers in the text, without thousands' commas; none of code, dates, versions or the targets of links."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for pattern, left in ((LINK, r"\1"), (re.compile(r"`[^`]*`"), ""), (DATE, ""), (VERSION, "")):
        plain = pattern.sub(left, plain)
    return numbers(plain)


def numbers(text: str) -> list[str]:
    """All of them, in order, without thousands' commas."""
    return [number.replace(",", "") for number in NUMBER.findall(text)]


def links(page: Path, text: str | None = None) -> Iterator[tuple[str, Path, str]]:
    """Each link that leads into the repository: as written, the file, and the heading."""
    for _, target in LINK.findall(page.read_text() if text is None else text):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            yield target, (page.parent / file if file else page), anchor


def anchors(page: Path) -> set[str]:
    """What links can lead to on a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
