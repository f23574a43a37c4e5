"""Each package's docstring is its map: all modules in it are named there, and none that is not there."""

import ast
import re

import pytest
from house_sheet import PACKAGE

PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))
ROW = re.compile(r"^    ([a-z_0-9]+(?:, [a-z_0-9]+)*) {2,}\S", re.MULTILINE)


def rows_of(text):
    """Names in the left column of a map: an indented row has them, and behind two spaces what they are."""
    return {name for row in ROW.findall(text) for name in row.split(", ")}


def members(folder):
    """Modules and packages in a folder, and folders of files."""
    found = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return found | {path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: str(folder.relative_to(PACKAGE)))
def test_all_modules_are_named_and_all_that_are_named_are_there(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    here, rows = members(folder), rows_of(text)
    assert here - rows - set(re.findall(r"`([a-z_0-9]+)`", text)) == set()
    assert rows - here == set()


def test_a_row_names_what_stands_before_two_spaces_and_says_what_it_is():
    text = "Text.\n\n    one, two_2    what they are\n    bare\n    not_this = a line of code\n"
    assert rows_of(text) == {"one", "two_2"}
