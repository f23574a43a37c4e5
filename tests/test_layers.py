"""The layers of the house: every import points downwards."""

import ast
import functools
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
    "cores": set(),
    "fences": set(),
    "turns": set(),
    "denormals": set(),
    "waits": set(),
    "plain_json": set(),
    "ticks": set(),
    "storage": {"errors", "rows"},
    "logs": {"errors", "plain_json", "storage"},
    "ipc": {"errors", "fences", "plain_json", "ticks", "waits"},
    "maths": {"rows"},
    "gpu": set(),
    "networks": {"gpu", "maths", "parts", "rows"},
    "optimisers": {"gpu"},
    "tasks": {"errors", "parts", "rows", "settings"},
    "memory": {"errors", "fences", "parts", "rows"},
    "algorithms": {"denormals", "errors", "maths", "networks", "optimisers", "rows", "turns"},
    # Above the algorithms, which know nothing of it; of the roles the learner alone imports it.
    "fast": {"algorithms", "errors", "gpu", "maths", "networks", "optimisers", "rows"},
    "roles": {
        *("algorithms", "denormals", "errors", "fast", "maths", "memory", "rows", "seeds", "settings", "tasks"),
        *("turns", "waits"),
    },
    "settings": {"algorithms", "cores", "errors", "storage"},
    "schedules": set(),
    "analysis": {"algorithms", "errors", "logs", "roles", "rows", "seeds", "storage", "tasks"},
    "workers": {"*"},
    "advice": {"choices"},
    "choices": {"networks", "rows", "tasks"},
    "elsewhere": set(),
    "foreseen": {"algorithms", "errors", "rows", "settings", "storage"},
    "policy": {"*"},
    "export": {"*"},
    "supervisor": {"*"},
    "cli": {"*"},
    "testing": {"*"},
    "__main__": {"cli"},
}
ABOVE = {"cli", "__main__", "supervisor", "testing"}

# part -> third-party packages it may import at all.
PACKAGES = {
    "errors": set(),
    "parts": {"numpy", "torch"},
    "rows": {"numpy"},
    "seeds": {"numpy"},
    "cores": set(),
    "fences": set(),
    "turns": set(),
    "denormals": {"numpy"},
    "waits": {"torch"},
    "plain_json": set(),
    "ticks": set(),
    "storage": {"numpy", "safetensors"},
    "logs": {"structlog"},
    "ipc": {"numpy"},
    "maths": {"numpy", "torch"},
    "gpu": {"numpy", "torch"},
    "networks": {"numpy", "torch"},
    "optimisers": {"torch"},
    "fast": {"numpy", "torch"},
    "tasks": {"cloudpickle", "numpy", "gymnasium"},
    "memory": {"numpy"},
    "algorithms": {"numpy", "torch", "pydantic"},
    "roles": {"numpy"},
    "settings": {"pydantic", "pydantic_core"},
    "schedules": set(),
    "analysis": {"numpy", "matplotlib", "pyarrow", "tensorboard", "uvloop", "wandb"},
    "export": {"gymnasium", "matplotlib", "numpy", "torch"},
    "supervisor": {"numpy", "uvloop"},
    "testing": {"numpy", "gymnasium"},
}


def part_of(path):
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def modules_of(node):
    """Modules that a statement imports, if it is one that does."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        if node.module == "mlxe_async":
            yield from (f"mlxe_async.{alias.name}" for alias in node.names)
        else:
            yield node.module


@functools.cache
def statements_of(path):
    """Statements of a file that import, also inside functions."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports_of(path):
    """Modules that a file imports, also inside functions."""
    return [module for node in statements_of(path) for module in modules_of(node)]


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
            "pyarrow",
            "tensorboard",
            "wandb",
        }:
            assert module.split(".")[0] in PACKAGES[part], f"{part} imports {module}"


def test_twins_are_imported_by_the_learners_role_alone():
    importing = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if part_of(path) != "fast" and any(module.startswith("mlxe_async.fast") for module in imports_of(path))
    }
    assert importing == {"roles/learner.py"}


def test_a_run_folder_is_made_without_waiting_for_numpy():
    for name in ("run_folder", "files", "safe_text", "crash_reports", "json_checks"):
        tree = ast.parse((PACKAGE / "storage" / f"{name}.py").read_text())
        at_once = {module for node in tree.body for module in modules_of(node)}
        assert not {"numpy", "safetensors", "mlxe_async.rows", "mlxe_async.storage.array_files"} & at_once


def test_roles_know_no_loops_and_no_pipes():
    loops = {"asyncio", "socket", "mlxe_async.ipc.messages.channel", "mlxe_async.ipc.processes.process"}
    for path in (PACKAGE / "roles").glob("*.py"):
        assert not loops & set(imports_of(path))


def test_every_part_of_the_package_has_its_place_in_the_table():
    assert {part_of(path) for path in FILES} <= set(TABLE)


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_among(path, own):
    """Which of our `own` modules a file imports: also inside functions, and for types only."""
    for node in statements_of(path):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & own or {node.module} & own  # a package that is only on the way is not counted
        else:
            yield from own.intersection(modules_of(node))


def test_no_module_imports_itself_by_way_of_others():
    own = {name_of(path): path for path in FILES}
    after = {name: set(imports_among(path, set(own))) - {name} for name, path in own.items()}
    # What imports nothing that is left is in no circle; what remains in the end is in one, or leads into one.
    while leaves := [name for name, others in after.items() if not others]:
        for leaf in leaves:
            del after[leaf]
        for others in after.values():
            others.difference_update(leaves)
    assert not after


# part of the package -> its rooms, folders and loose files, from the ground up: each may import those below it.
FLOORS = {
    "ipc": ("shared", "messages", "processes", "__init__"),
    "supervisor": (
        "waiting",
        "plan",
        "recording",
        "checkpointing",
        "run_files",
        "context",
        "handles",
        "learning",
        "startup",
        "assembly",
        "monitoring",
        "whole_checkpoints",
        "ending",
        "main_loop",
        "run",
        "__init__",
    ),
}


def rooms_of(part):
    """File -> the room of its part that it is in."""
    within = {path: path.relative_to(PACKAGE / part) for path in FILES if part_of(path) == part}
    return {path: relative.with_suffix("").parts[0] for path, relative in within.items()}


@pytest.mark.parametrize("part", FLOORS)
def test_every_room_has_its_floor(part):
    assert set(rooms_of(part).values()) == set(FLOORS[part])


@pytest.mark.parametrize("part", FLOORS)
def test_a_room_imports_only_rooms_below_it(part):
    floors = {name_of(path): FLOORS[part].index(room) for path, room in rooms_of(part).items()}
    upwards = [
        f"{name_of(path)} imports {module}"
        for path in rooms_of(part)
        for module in imports_among(path, set(floors))
        if floors[module] > floors[name_of(path)]
    ]
    assert upwards == []


WINGS = sorted(path.parent for path in (PACKAGE / "supervisor").glob("*/__init__.py"))


def test_the_supervisor_is_a_house_of_few_rooms():
    rooms = [*(PACKAGE / "supervisor").glob("*.py"), *WINGS]
    assert len(rooms) <= 16, sorted(path.name for path in rooms)


@pytest.mark.parametrize("wing", WINGS, ids=lambda path: path.name)
def test_a_wing_of_the_supervisor_has_few_files(wing):
    assert len(list(wing.glob("*.py"))) <= 8


@pytest.mark.parametrize("path", sorted((PACKAGE / "supervisor").rglob("*.py")), ids=lambda path: path.name)
def test_no_file_of_the_supervisor_is_long(path):
    assert len(path.read_text().splitlines()) <= 350


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
