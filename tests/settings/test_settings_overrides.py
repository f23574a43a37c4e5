"""`--set a.b=VALUE`: TOML if it is, else a text; its mistakes name it."""

import pytest
from settings_tools import minimal, problems_of, write

from mlxe_async.settings import load_settings

ENV = '[task]\nenv = "A-v0"\n'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("true", True),
        ('"1"', "1"),
        ("[1, 2]", [1, 2]),
        ("{a = 1}", {"a": 1}),
        ("hello", "hello"),
        ("my.own:Thing", "my.own:Thing"),
        ("", ""),
        ("a=b", "a=b"),
        ("1\nb = 2", "1\nb = 2"),
        ("[1", "[1"),
        ('"', '"'),
        ("# x", "# x"),
    ],
)
def test_a_value_is_toml_or_else_a_text(text, value):
    settings = load_settings(minimal(), [f"algorithm.x={text}"])
    assert settings.algorithm.table["x"] == value


def test_the_last_override_of_a_key_holds_and_the_files_other_keys_stay(tmp_path):
    path = write(tmp_path, ENV + "[run]\nseed = 1\nname = 'n'\n")
    run = load_settings(path, ["run.seed=2", "run.seed=3"]).run
    assert (run.seed, run.name) == (3, "n")


def test_overrides_may_be_a_mapping():
    assert load_settings(minimal(), {"run.seed": 5, "task.kwargs": {"a": 1}}).task.kwargs == {"a": 1}


def test_a_table_can_be_overridden_and_then_a_key_in_it():
    tree = minimal(task={"env": "A-v0", "kwargs": {"old": 1}})
    settings = load_settings(tree, ["task.kwargs={a = 1}", "task.kwargs.b=2"])
    assert settings.task.kwargs == {"a": 1, "b": 2}
    assert tree["task"]["kwargs"] == {"old": 1}


def test_a_wrong_override_is_told_by_its_own_name_and_not_by_the_files_line(tmp_path):
    lines = problems_of(write(tmp_path, ENV + "[run]\nseed = 1\n"), ["run.seed=1.5", "run.sed=1", "schedule.kind=oaa"])
    assert sorted(line.split(": got")[0] for line in lines) == [
        *("--set run.sed: run.sed", "--set run.seed: run.seed", "--set schedule.kind: schedule.kind")
    ]


def test_mistakes_inside_an_overridden_table_name_the_override(tmp_path):
    [line] = problems_of(write(tmp_path, ENV), ["run={sed = 1}"])
    assert line.startswith("--set run: run.sed: got 1")


@pytest.mark.parametrize("text", ["seed", "=1", "a..b=1", ".a=1", "a b=1", "run.seed", "--set=1\x1b"])
def test_what_is_no_key_and_value_is_told(text):
    [line] = [line for line in problems_of(minimal(), [text]) if "--set" in line]
    assert "expected" in line
    assert line.isprintable()


def test_a_key_inside_a_value_is_told(tmp_path):
    path = write(tmp_path, ENV + "[run]\nseed = 1\n")
    assert problems_of(path, ["run.seed.x=1"]) == [
        "--set run.seed.x: got a key inside run.seed, which is 1, expected a table there"
    ]


def test_overrides_have_the_limits_of_files():
    assert "more than 16 deep" in problems_of(minimal(), ["algorithm.x=" + "[" * 5000])[0]
    assert "parts" in problems_of(minimal(), [".".join("abcdefghij") + "=1"])[0]
    assert "digits" in problems_of(minimal(), ["run.seed=" + "9" * 5000])[0]


def test_a_contradiction_between_file_and_override_names_both_places(tmp_path):
    path = write(tmp_path, ENV + "[schedule]\nexecutors = 2\n")
    assert problems_of(path, ["schedule.min_executors=3"]) == [
        "--set schedule.min_executors: schedule.min_executors: got 3, "
        "expected at most schedule.executors = 2 (run.toml:4)"
    ]
