"""The key of settings: by it a study knows whether a finished run was made by what is asked for now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mlxe_async.analysis import study
from mlxe_async.settings import Settings


def key_of_settings(file: str | bytes, overrides: Sequence[str], settings: Settings) -> str:
    """Hash of a settings file, or of its content, of the overrides, and of the user's own files that they name."""
    content = file if isinstance(file, bytes) else Path(file)
    items = (settings.task.reset_options, settings.task.test_options)
    data = {Path(path) for path in items if path is not None}
    return study.key_of(content, overrides, {*_own_modules(settings), *data})


def _own_modules(settings: Settings) -> Iterator[Path]:
    """Files of the user's own that the settings name as `module:something`; of packages, all that is in them."""
    modules = {module for _, module in settings.named_modules()}
    for folder in map(Path, settings.run.python_path):
        for module in modules:
            top, *below = module.split(".")
            path = folder.joinpath(top, *below).with_suffix(".py")
            if below or (folder / top / "__init__.py").is_file() or not path.is_file():
                yield from (file for file in (folder / top).rglob("*.py") if file.is_file())
            elif path.is_file():
                yield path
