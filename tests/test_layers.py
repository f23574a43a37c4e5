"""The layers of the house: every import points downwards."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mlxe_async"

# part of the package -> parts it may import; `*` stands for everything below the command line.
TABLE = {
    "errors": set(),
    "parts": set(),
    "rows": {"parts"},
    "seeds": set(),
    "files": {"errors"},
    "array_files": {"errors", "files", "rows"},
    "plain": set(),
    "checkpoints": {"array_files", "errors", "files", "plain", "rows"},
    "run_folder": {"errors", "files", "logs", "checkpoints"},
    "crashes": {"errors", "files", "logs", "plain"},
    "logs": {"errors", "files", "run_folder"},
    "ipc": {"errors"},
    "maths": {"rows"},
    "gpu": set(),
    "networks": {"gpu", "maths", "rows"},
    "convolutions": {"networks"},
    "optimisers": {"gpu"},
    "tasks": {"errors", "parts", "rows"},
    "memory": {"errors", "rows"},
    "algorithms": {"convolutions", "errors", "maths", "networks", "optimisers", "rows"},
    "toolchain": set(),
    # Above the algorithms, which know nothing of it; of the roles the learner alone imports it.
    "fast": {"algorithms", "convolutions", "errors", "gpu", "maths", "networks", "optimisers", "rows", "toolchain"},
    "roles": {"algorithms", "errors", "fast", "maths", "memory", "rows", "seeds", "tasks"},
    "settings": {"errors", "files", "logs"},
    "schedules": set(),
    "analysis": {"errors", "files", "logs", "rows", "run_folder"},
    "workers": {"*"},
    "policy": {"*"},
    "baselines": {"*"},
    "supervisor": {"*"},
    "cli": {"*"},
    "testing": {"*"},
    "__main__": {"cli"},
}
ABOVE = {"cli", "__main__", "supervisor", "testing"}

# part -> third-party packages it may import at all.
PACKAGES = {
    "errors": set(),
    "plain": set(),
    "parts": {"numpy", "torch"},
    "rows": {"numpy"},
    "seeds": {"numpy"},
    "files": set(),
    "array_files": {"numpy"},
    "checkpoints": {"numpy", "safetensors"},
    "run_folder": set(),
    "crashes": set(),
    "logs": {"structlog"},
    "ipc": {"numpy"},
    "maths": {"numpy", "torch"},
    "gpu": {"numpy", "torch"},
    "networks": {"numpy", "torch"},
    "convolutions": {"numpy", "torch"},
    "optimisers": {"torch"},
    "fast": {"numpy", "torch"},
    "tasks": {"numpy", "gymnasium"},
    "memory": {"numpy"},
    "algorithms": {"numpy", "torch", "pydantic"},
    "roles": {"numpy"},
    "settings": {"pydantic", "pydantic_core"},
    "schedules": set(),
    "analysis": {"numpy", "matplotlib"},
    "supervisor": {"numpy"},
    "testing": {"numpy", "gymnasium"},
}


def part_of(path):
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports_of(path):
    """(module, is it the package's own) for every import of a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "mlxe_async":
                yield from (f"mlxe_async.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_layer_may(path):
    part = part_of(path)
    allowed = TABLE[part]
    for module in imports_of(path):
        if module.split(".")[0] == "mlxe_async":
            other = module.split(".")[1] if "." in module else "__init__"
            if other == part or (other not in TABLE and other in {"__version__", "IMPORTED_NS"}):
                continue
            if "*" in allowed:
                assert part in ABOVE or other not in ABOVE, f"{part} imports {module} from above it"
            else:
                assert other in allowed, f"{part} imports {module}"
        elif part in PACKAGES and module.split(".")[0] in {
            "torch",
            "numpy",
            "gymnasium",
            "pydantic",
            "pydantic_core",
            "structlog",
            "uvloop",
            "safetensors",
            "rich",
            "matplotlib",
        }:
            assert module.split(".")[0] in PACKAGES[part], f"{part} imports {module}"


def test_twins_are_imported_by_the_learners_role_alone():
    importing = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if part_of(path) != "fast" and any(module.startswith("mlxe_async.fast") for module in imports_of(path))
    }
    assert importing == {"roles/learner.py"}


def test_roles_know_no_loops_and_no_pipes():
    for path in (PACKAGE / "roles").glob("*.py"):
        assert not {"asyncio", "socket", "mlxe_async.ipc.channel", "mlxe_async.ipc.process"} & set(imports_of(path))


def test_every_part_of_the_package_has_its_place_in_the_table():
    assert {part_of(path) for path in FILES} <= set(TABLE)


SCRIPTS = sorted(path for place in ("benchmarks", "faults") for path in (Path(__file__).parent / place).rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_scripts_take_from_the_package_is_there(script):
    """They run by themselves and rarely: a name that has moved would be noticed late."""
    taken = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in taken:
        if node.module and node.module.split(".")[0] == "mlxe_async":
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}"), name
