"""Keep the report of a study in little room: `python tests/benchmarks/keep_study.py STUDY FOLDER [...]`.

STUDY is a folder of `compare`. FOLDER, such as `runs/study/presets`, then holds

    outcomes.jsonl  one line per run, without its first seconds and its curve, which only pictures need, see `--curves`;
                    digest and program only where they differ from those of the line before
    table.md        all tables but that of every run, which the lines are
    A.png, B.png    the pictures named, in few colours and at most 1,000 pixels wide

`python -m mlxe_async compare FOLDER --no-pictures` makes the tables anew from the lines, and
`tests/analysis/test_kept_studies.py` holds both against each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from mlxe_async.analysis.outcomes import Outcome
from mlxe_async.analysis.study import ALL_OUTCOMES, INHERITED, reported_outcomes

COLOURS = 32
WIDTH = 1000  # pixels
DIGITS = 5  # tables show one; with fewer, ranks would be tied and shares and p-values change
FOR_ALL = ("host", "versions")  # facts that are told again only where they differ from the line before
TOLD = ("env", "passes", "episode_steps", "jobs", *FOR_ALL)
AT_THE_END = ("episodes", "seconds")


def short_lines(outcomes: Iterable[Outcome], *, curves: bool = False) -> Iterator[str]:
    """One line of JSON per run, without what is as if it were left out."""
    before: dict[str, Any] = {}
    inherited: dict[str, Any] = {}
    for one in outcomes:
        facts = {key: value for key, value in one.facts.items() if key in TOLD and value is not None}
        told = {key: value for key, value in facts.items() if key not in FOR_ALL or before.get(key) != value}
        end = {key: value for key, value in one.end.items() if key in AT_THE_END}
        before = facts
        curve = one.curve if curves else ()
        values = dataclasses.replace(one, facts=told, end=end, run="", curve=curve, spans=()).to_json()
        known, inherited = inherited, {name: values[name] for name in INHERITED}
        values = {name: value for name, value in values.items() if name not in known or known[name] != value}
        kept = {key: _rounded(value) for key, value in values.items() if key in known or not _is_default(key, value)}
        yield json.dumps(kept, separators=(",", ":")) + "\n"


def _is_default(name: str, value: Any) -> bool:
    (item,) = (item for item in dataclasses.fields(Outcome) if item.name == name)
    if item.default_factory is not dataclasses.MISSING:
        return bool(value == item.default_factory())
    return item.default is not dataclasses.MISSING and value == item.default


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: round(item, DIGITS) if isinstance(item, float) else item for key, item in value.items()}
    if not isinstance(value, float):
        return value
    short = round(value, DIGITS)
    return short if f"{short:.1f}" == f"{value:.1f}" else value


def _in_few_colours(picture: Image.Image) -> Image.Image:
    small = picture.convert("RGB")
    if small.width > WIDTH:
        small = small.resize((WIDTH, round(small.height * WIDTH / small.width)), Image.Resampling.LANCZOS)
    return small.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="a folder of compare, or one that is kept")
    parser.add_argument("folder", type=Path, help="where to keep it; files of the same names are replaced")
    parser.add_argument("--pictures", default="", metavar="A,B", help="pictures to keep, without .png")
    parser.add_argument("--curves", action="store_true", help="keep the learning curves too")
    asked = parser.parse_args()
    lines = list(short_lines(reported_outcomes(asked.study / ALL_OUTCOMES), curves=asked.curves))
    tables = (asked.study / "table.md").read_text().partition("\n### Every run\n")[0].rstrip("\n") + "\n"
    pictures = {name: Image.open(asked.study / f"{name}.png") for name in asked.pictures.split(",") if name}
    asked.folder.mkdir(parents=True, exist_ok=True)
    (asked.folder / ALL_OUTCOMES).write_text("".join(lines))
    (asked.folder / "table.md").write_text(tables)
    for name, picture in pictures.items():
        _in_few_colours(picture).save(asked.folder / f"{name}.png", optimize=True)
    print(f"{asked.folder}: {len(lines)} runs, {sum(file.stat().st_size for file in asked.folder.iterdir()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
