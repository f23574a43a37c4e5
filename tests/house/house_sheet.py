"""The stranger's sheet: every file of the package with its first line, and twenty questions; or how many were hit.

python tests/house/house_sheet.py                 what a reader is shown
python tests/house/house_sheet.py ANSWERS.txt     hits of a file of lines `number path`, the path below mlxe_async/
"""

import ast
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "mlxe_async"


def questions():
    """The twenty questions, each with its answer."""
    return tomllib.loads((HERE / "questions.toml").read_text())["question"]


def first_line(path):
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def sheet():
    """What a reader is shown: paths and first lines, then the questions."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield f"{path.relative_to(PACKAGE)}: {first_line(path)}"
    yield ""
    yield from (f"{number}. {question['ask']}" for number, question in enumerate(questions(), start=1))


def hits(answers):
    """Numbers of the questions whose answer is among `number path` lines."""
    told = {}
    for line in answers.splitlines():
        number, _, path = line.strip().partition(" ")
        if number.rstrip(".").isdigit():
            told[int(number.rstrip("."))] = path.strip().removeprefix("mlxe_async/")
    return [number for number, question in enumerate(questions(), start=1) if told.get(number) == question["answer"]]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found = hits(Path(sys.argv[1]).read_text())
        print(f"{len(found)} of {len(questions())}: {found}")
    else:
        print("\n".join(sheet()))
