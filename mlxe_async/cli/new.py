"""`new NAME`: settings, an environment, an algorithm and a test of one's own, which run as they are written."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlxe_async.cli.arguments import Parser
from mlxe_async.errors import ResourceError, SettingsError
from mlxe_async.storage.safe_text import visible

PACKAGE = Path(__file__).parents[1]
TEMPLATES = PACKAGE / "cli" / "templates"
# A wheel has the settings files of the repository inside the package; a checkout beside it.
EXAMPLES = (PACKAGE / "examples", PACKAGE.parent / "settings")
PLACEHOLDER = "NAME"
FILES = {
    "settings.toml": "NAME.toml",
    "task.py.txt": "NAME_task.py",
    "algorithm.py.txt": "NAME_algorithm.py",
    "test.py.txt": "test_NAME.py",
}
A_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
ABOUT = """\
Write a folder NAME with a commented settings file, an environment, an algorithm and a test. They run as they are:
change one at a time.

With --examples the settings files that come with this package are copied into NAME/examples; those in its folder own
name tasks, networks and algorithms in files beside them."""


def run(arguments: Sequence[str]) -> int:
    """Write the files, and say how they are run. Returns the exit code.

    Raises:
        SettingsError: the name is not one of a Python module, or the folder is there already.
        ResourceError: the files cannot be written.
    """
    parser = Parser("new NAME [--dir FOLDER] [--examples]", ABOUT, "new lamp\nnew lamp --dir projects --examples")
    parser.add_argument("name", metavar="NAME", help="of folder, files and environment: small letters, digits and _")
    parser.add_argument(
        "--dir", type=Path, default=Path(), metavar="FOLDER", help="where; the working folder if left out"
    )
    parser.add_argument("--examples", action="store_true", help="copy the example settings files too")
    asked = parser.parse_args(arguments)
    if not A_NAME.fullmatch(asked.name) or keyword.iskeyword(asked.name):
        expected = "a small letter, then at most 39 small letters, digits and _, and no word of Python"
        raise SettingsError([f'new: got "{visible(asked.name, 60)}" as a name, expected {expected}; try my_task'])
    folder = asked.dir / asked.name
    texts = dict(written(asked.name))
    if asked.examples:
        texts |= {f"examples/{name}": path.read_text() for name, path in examples().items()}
    _write(folder, texts)
    told = "".join(f"  {folder / file}\n" for file in texts if "/" not in file)
    copied = f"  {folder / 'examples'}: {len(texts) - len(FILES)} files\n" if asked.examples else ""
    sys.stdout.write(
        f"written:\n{told}{copied}\nnow:\n  cd {shlex.quote(str(folder))}\n  python -m mlxe_async {asked.name}.toml\n"
        f"  python -m pytest test_{asked.name}.py    (once before: pip install pytest)\n"
    )
    return 0


def written(name: str) -> Iterator[tuple[str, str]]:
    """Each file's name and text."""
    for template, file in FILES.items():
        text = (TEMPLATES / template).read_text()
        yield file.replace(PLACEHOLDER, name), text.replace(PLACEHOLDER, name)


def examples() -> dict[str, Path]:
    """The settings files that come with the package, their schema, and the code that those in `own` name, by name.

    Raises:
        ResourceError: the installation lacks them.
    """
    for folder in EXAMPLES:
        forms = ("*.toml", "schema.json", "own/*.toml", "own/*.py")
        if found := sorted(path for form in forms for path in folder.glob(form)):
            return {str(path.relative_to(folder)): path for path in found}
    raise ResourceError(
        f"new: expected the example settings files in {EXAMPLES[0]}, got none; install the package anew"
    )


def _write(folder: Path, texts: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True)
        for file, text in texts.items():
            path = folder / file
            path.parent.mkdir(exist_ok=True, parents=True)
            with path.open("x") as new:
                new.write(text)
    except FileExistsError as error:
        there = visible(str(error.filename or folder), 200)
        raise SettingsError([f"new: got {there}, which is there already, expected none; take another name"]) from error
    except OSError as error:
        raise ResourceError(f"new: {visible(str(folder), 200)} cannot be written: {error.strerror}") from error
