"""What is written is valid settings again; the schema says what a file may hold; the presets are good."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, model_validator
from settings_tools import keys, minimal, problems_of, write

from mlxe_async.algorithms import load_algorithm
from mlxe_async.settings import algorithm_problems, dump_settings, load_settings, settings_schema

PRESETS = sorted((Path(__file__).parents[2] / "settings").glob("*.toml"))

values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab. \n\"'", max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), values, max_size=4))
def test_dumped_settings_load_again_as_equal(tmp_path_factory, kwargs):
    settings = load_settings(minimal(task={"env": "A-v0", "kwargs": kwargs}, stop={"seconds": 1e-7, "episodes": 3}))
    path = write(tmp_path_factory.mktemp("dump"), dump_settings(settings), "other.toml")
    assert load_settings(path) == settings


def test_equal_settings_are_equal_wherever_they_were_written(tmp_path):
    text = '[task]\nenv = "A-v0"\n'
    one, two = (load_settings(write(tmp_path, line + text, "x.toml")) for line in ("", "# moved down\n"))
    assert one == two
    assert one != load_settings(tmp_path / "x.toml", ["run.seed=1"])


def test_secrets_can_be_left_out_of_what_is_written(tmp_path):
    tree = minimal(task={"env": "A-v0", "kwargs": {"api_key": "canary", "x": {"password": 1234}, "max_tokens": 5}})
    text = dump_settings(load_settings(tree), hide_secrets=True)
    assert "canary" not in text
    assert "1234" not in text
    assert load_settings(write(tmp_path, text)).task.kwargs["max_tokens"] == 5


def test_the_schema_describes_every_key_with_its_range():
    schema = settings_schema()
    json.dumps(schema)
    for model in schema["$defs"].values():
        for table in (part for part in (model, *model.get("anyOf", ())) if "properties" in part):
            for name, about in table["properties"].items():
                assert about.get("description"), name
    assert len(keys()) > 50


def test_the_schema_can_hold_the_keys_of_several_algorithms():
    schema = settings_schema({"mlxe": load_algorithm("mlxe").Settings, "own": Own})
    variants = [schema["$defs"][v["$ref"].removeprefix("#/$defs/")] for v in schema["$defs"]["AlgorithmTable"]["oneOf"]]
    mlxe, own, another = variants
    assert "learning_rate" in mlxe["properties"]
    assert mlxe["additionalProperties"] is False
    assert mlxe["required"] == []  # it is the one that is meant when none is named
    assert own["properties"]["name"]["const"] == "own"
    assert own["required"] == ["name"]
    assert set(own["properties"]) == {"name", "learning_rate", "layers", "even"}
    assert another["additionalProperties"] is True


class Own(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(1e-3, gt=0)
    layers: tuple[int, ...] = (3,)
    even: int = 2

    @model_validator(mode="after")
    def _even(self):
        if self.even % 2:
            raise ValueError("even must be even")
        return self


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"lr": 1}, "expected algorithm.learning_rate, as it is called here"),
        ({"learning_rate": True}, "got true, expected a number above 0"),
        ({"layers": [1, 2.5]}, "got 2.5, expected a whole number"),
        ({"learning_rate": float("nan")}, "got nan, expected a finite number"),
        ({"even": 3}, "even must be even"),
    ],
)
def test_an_algorithms_own_settings_are_judged_as_strictly_and_told_as_well(table, message):
    [problem] = algorithm_problems(Own, {"name": "own", **table})
    assert problem.path[0] == "algorithm"
    assert problem.message.endswith(message)


def test_an_algorithms_good_table_has_no_problems():
    assert algorithm_problems(Own, {"name": "own", "learning_rate": 1, "layers": [1, 2]}) == []


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_is_valid_and_explains_each_of_its_keys(path):
    settings = load_settings(path)
    if path.stem in ("serial", "istb", "is", "ia", "oa"):
        assert settings.schedule.kind == path.stem
    assert algorithm_problems(load_algorithm(settings.algorithm.name).Settings, settings.algorithm.table) == []
    for line in path.read_text().splitlines():
        assert len(line) <= 120
        if "=" in line and not line.startswith("#"):
            assert "#" in line, line


@pytest.mark.parametrize("kind", ["istb", "ia"])
def test_presets_of_the_other_rounds_differ_from_is_in_their_schedule_alone(kind):
    other, reference = (load_settings(PRESETS[0].parent / f"{name}.toml") for name in (kind, "is"))
    tables = {name for name in type(reference).model_fields if name not in ("run", "schedule")}
    assert all(getattr(other, name) == getattr(reference, name) for name in tables)
    shared = set(type(reference.schedule).model_fields) & set(type(other.schedule).model_fields) - {"kind"}
    assert {key: getattr(other.schedule, key) for key in shared} == {
        key: getattr(reference.schedule, key) for key in shared
    }
    assert other.run.model_copy(update={"name": "is"}) == reference.run


def test_places_are_kept_for_what_is_judged_later(tmp_path):
    settings = load_settings(write(tmp_path, '[task]\nenv = "A-v0"\n[algorithm]\nname = "own:Own"\nlr = 1\n'))
    [problem] = algorithm_problems(Own, settings.algorithm.table)
    assert settings.places.line(problem).startswith(f"{tmp_path}/run.toml:5: algorithm.lr: got 1")


def test_a_refused_file_is_told_by_the_path_it_was_given(tmp_path, monkeypatch):
    write(tmp_path, "[tusk]\n")
    monkeypatch.chdir(tmp_path)
    assert all(line.startswith("run.toml:1: ") for line in problems_of("run.toml"))
