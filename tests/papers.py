"""Where the built-in algorithms' files are."""

from pathlib import Path

from mlxe_async.algorithms import REGISTRY

PACKAGE = Path(__file__).parents[1] / "mlxe_async"


def place_of(name):
    """An algorithm's file, from the package's folder on."""
    parts = REGISTRY[name].partition(":")[0].split(".")
    return Path(*parts[1:]).with_suffix(".py")


def text_of(name):
    return (PACKAGE / place_of(name)).read_text()
