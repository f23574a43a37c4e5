"""Every key refuses every wrong value, with a sentence and without an exception of another kind."""

import datetime as dt
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from settings_tools import is_plain, keys, minimal, problems_of, tree_with

from mlxe_async.errors import SettingsError
from mlxe_async.settings import dump_settings, load_settings
from mlxe_async.settings.problems import closest

KEYS = keys()
NUMBERS = [(t, k, a) for t, k, a in KEYS if is_plain(a, int) or is_plain(a, float)]
SAMPLES = {
    "a whole number": 3,
    "a fraction": 1.5,
    "1e3": 1e3,
    "a text": "?!",
    "a switch": True,
    "a list": [[]],
    "a table": {"a": 1},
    "a date": dt.date(2025, 1, 1),
}


def fits(annotation, sample) -> bool:
    kinds = {int: (int,), float: (int, float), bool: (bool,), str: (str,), dict: (dict,), tuple: (list,)}
    for kind, accepted in kinds.items():
        if is_plain(annotation, kind) or getattr(annotation, "__origin__", None) is kind:
            return type(sample) in accepted or (kind is int and type(sample) is float and sample.is_integer())
    return isinstance(sample, str) or (type(sample) is bool and bool in get_args(annotation))  # a choice


@pytest.mark.parametrize(("table", "key", "annotation"), KEYS, ids=lambda value: value if type(value) is str else "")
def test_no_key_takes_a_value_of_another_type(table, key, annotation):
    for name, sample in SAMPLES.items():
        if fits(annotation, sample):
            continue
        with pytest.raises(SettingsError) as refused:
            load_settings(tree_with(table, key, sample))
        assert any(f"{table}.{key}" in line and "expected" in line for line in refused.value.problems), name


@pytest.mark.parametrize(("table", "key", "annotation"), NUMBERS, ids=lambda value: value if type(value) is str else "")
def test_every_number_has_a_range_that_is_told(table, key, annotation):
    for wrong in (-1e301, 2**63, 10**400, math.nan, math.inf, -math.inf):
        value = int(wrong) if is_plain(annotation, int) and isinstance(wrong, float) and math.isfinite(wrong) else wrong
        if (table, key) == ("evaluation", "threshold") and value == 2**63:
            continue  # a return may be that large
        [line] = [line for line in problems_of(tree_with(table, key, value)) if f"{table}.{key}:" in line]
        assert "number" in line.partition("expected")[2]


@pytest.mark.parametrize(("table", "key"), [(t, k) for t, k, _ in NUMBERS if k not in ("seed", "threshold")])
def test_no_count_or_duration_is_negative(table, key):
    assert any(f"{table}.{key}" in line for line in problems_of(tree_with(table, key, -1)))


@pytest.mark.parametrize(("table", "key"), [(table, key) for table, key, _ in KEYS])
def test_a_typing_mistake_in_a_key_is_recognised(table, key):
    known = [other for owner, other, _ in KEYS if owner == table]
    for position in range(len(key)):
        for typed in (key[:position] + key[position + 1 :], key[:position] + "q" + key[position + 1 :]):
            if typed and typed not in known and typed != "q":
                guess = closest(typed, known)
                assert guess == key or (guess is not None and abs(len(guess) - len(key)) <= 2), typed


def test_of_two_names_alike_the_one_with_fewer_mistakes_is_meant():
    both = ["epsilon_min", "epsilon_max"]
    for names in (both, both[::-1]):
        for typed in ("epsilon_mai", "epsilon_mnx"):
            assert closest(typed, names) == "epsilon_max", typed


def test_initials_are_recognised():
    assert closest("lr", ["layers", "learning_rate", "seed"]) == "learning_rate"


NAMES_REFUSED = [
    *("../../etc/x", "/etc/x", "a/b", "~", "$HOME", "", ".", "..", ".hidden", "-x", "a b", "a\nb", "a\x00b", "é"),
    *("x" * 65, "a\x1b[31m", "\u202e"),
]


@pytest.mark.parametrize("name", NAMES_REFUSED)
def test_a_name_cannot_lead_elsewhere(name):
    [line] = problems_of(minimal(run={"name": name}))
    assert line.isprintable()


@pytest.mark.parametrize("folder", ["~/runs", "$HOME/runs", "", "a\x00b", "a\nb"])
def test_a_folder_is_taken_literally_or_refused(folder):
    assert any("run.dir" in line for line in problems_of(minimal(run={"dir": folder})))


@pytest.mark.parametrize(
    "env", ["os:system", "builtins:eval", "a b", "subprocess:Popen-v0", "x:y:z-v0;", "", "a\nb", "x" * 600 + ":Y-v0"]
)
def test_an_environment_is_an_id_and_no_code(env):
    assert any("task.env" in line for line in problems_of({"task": {"env": env}}))


@pytest.mark.parametrize("entry", ["os:system", "nodots", "a.b", "a:b()", "a:b:c", "sys:exit", 3])
def test_a_wrapper_is_a_class_of_a_package_and_no_code(entry):
    assert any("task.wrappers[0]" in line for line in problems_of({"task": {"env": "A-v0", "wrappers": [entry]}}))


def test_free_tables_hold_only_what_json_can():
    lines = problems_of(
        minimal(
            task={"env": "A-v0", "kwargs": {"a": math.nan, "b": {"c": [1, dt.date(2025, 1, 1)]}}},
            algorithm={"rate": math.inf, "big": 2**64},
        )
    )
    keys_told = sorted(line.split(": ")[1] for line in lines)
    assert keys_told == ["algorithm.big", "algorithm.rate", "task.kwargs.a", "task.kwargs.b.c[1]"]


def test_a_value_under_a_secret_name_is_not_repeated():
    [line] = problems_of(minimal(task={"env": "A-v0", "kwargs": {"api_key": math.nan}, "mirror": False}))
    assert "nan" in line or "not shown" in line
    [line] = problems_of(minimal(run={"password": "canary"}))
    assert "canary" not in line


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([table for table, _, _ in KEYS] + ["runs", "x"])


@given(st.dictionaries(names, json_like | st.dictionaries(st.sampled_from([k for _, k, _ in KEYS]), json_like)))
def test_whatever_the_tree_holds_it_is_accepted_or_refused_in_printable_lines(tree):
    lines = []
    try:
        load_settings(tree)
    except SettingsError as refused:
        lines = refused.problems or [""]
    assert all(0 < len(line) < 2000 and line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"entry": 3}, "task.wrappers[0].entry: got 3, expected a text"),
        ({"kwargs": {}}, "task.wrappers[0].entry: got nothing, expected a text"),
        (
            {"entry": "a:B", "size": 4},
            "task.wrappers[0].size: got 4, expected one of the keys of [task.wrappers[0]]",
        ),
        ("nonsense", 'task.wrappers[0].entry: got "nonsense", expected a class written "package.module:Class"'),
        (7, "task.wrappers[0]: got 7, expected a text or a table"),
    ],
)
def test_an_entry_with_arguments_is_a_table_of_two_keys(entry, words):
    assert any(words in line for line in problems_of({"task": {"env": "A-v0", "wrappers": [entry]}}))


def test_an_entry_with_arguments_is_written_as_it_was_read(tmp_path):
    stacked = {"entry": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 4}}
    chosen = load_settings(
        {"task": {"env": "CartPole-v1", "wrappers": [stacked, "gymnasium.wrappers:FlattenObservation"]}}
    )
    text = dump_settings(chosen)
    assert 'kwargs = {stack_size = 4}}, "gymnasium.wrappers:FlattenObservation"]' in text
    (tmp_path / "again.toml").write_text(text)
    assert load_settings(tmp_path / "again.toml").task == chosen.task


def test_the_parts_that_are_observed_are_written_as_they_were_read(tmp_path):
    chosen = load_settings({"task": {"env": "A-v0", "observe": ["image", 'a "word"', "0"], "action_mask": True}})
    (tmp_path / "again.toml").write_text(dump_settings(chosen))
    again = load_settings(tmp_path / "again.toml").task
    assert (again.observe, again.action_mask) == (("image", 'a "word"', "0"), True)
    assert load_settings({"task": {"env": "A-v0"}}).task.observe == ()
    (said,) = problems_of({"task": {"env": "A-v0", "observe": [0]}})
    assert "task.observe[0]: got 0, expected a text" in said
    (said,) = problems_of({"task": {"env": "A-v0", "action_mask": 1}})
    assert "task.action_mask: got 1, expected true or false" in said
