"""What all children need alike is made in the nursery, before the fork, once."""

import mlxe_async.workers  # noqa: F401 - the nursery has imported it, too
from mlxe_async import load_settings
from mlxe_async.ipc.processes.birth import prepared
from mlxe_async.settings import Settings
from mlxe_async.supervisor.assembly import ENTRY


def spec(**tables):
    overrides = {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}
    return {"roles": ["executor-0"], "settings": load_settings("settings/is.toml", overrides).model_dump(mode="json")}


def test_settings_come_typed_and_all_children_of_a_run_have_the_same_ones():
    first, second = prepared(ENTRY, spec()), prepared(ENTRY, spec())
    assert isinstance(first["settings"], Settings)
    assert second["settings"] is first["settings"]


def test_other_settings_are_told_apart():
    first, second = prepared(ENTRY, spec()), prepared(ENTRY, spec(run={"seed": 8}))
    assert (first["settings"].run.seed, second["settings"].run.seed) == (0, 8)
    assert prepared(ENTRY, spec())["settings"].run.seed == 0


def test_what_was_asked_for_stays_as_it_is():
    asked = spec()
    prepared(ENTRY, asked)
    assert asked == spec()


def test_an_entry_that_prepares_nothing_gets_what_was_asked_for():
    asked = {"any": 1}
    assert prepared("mlxe_async.ipc.processes.serve:serve", asked) is asked
    assert prepared("not.yet.imported:main", asked) is asked
