"""A file becomes a tree of settings, or all its mistakes at once."""

import pytest
from pydantic import ValidationError
from settings_tools import minimal, problems_of, write

from mlxe_async.errors import SettingsError
from mlxe_async.settings import algorithm_problems, load_settings
from mlxe_async.settings.forms import with_whole_numbers


def test_a_file_with_only_an_environment_and_an_algorithm_is_enough(tmp_path):
    settings = load_settings(write(tmp_path, '[task]\nenv = "CartPole-v1"\n[algorithm]\nname = "mlxe"\n'))
    assert settings.task.env == "CartPole-v1"
    assert settings.schedule.kind == "is"
    assert settings.algorithm.table == {"name": "mlxe"}


def test_settings_cannot_be_changed():
    settings = load_settings(minimal())
    with pytest.raises(ValidationError, match="frozen"):
        settings.run.seed = 1


def test_the_run_is_called_like_its_file_unless_it_has_a_name(tmp_path):
    text = '[task]\nenv = "CartPole-v1"\n'
    assert load_settings(write(tmp_path, text, "mine.toml")).run.name == "mine"
    assert load_settings(write(tmp_path, text + '[run]\nname = "x"\n', "mine.toml")).run.name == "x"
    assert load_settings(write(tmp_path, text, "not a name.toml")).run.name == "run"


def test_every_mistake_is_told_at_once_with_file_line_key_got_and_expected(tmp_path):
    text = (
        "[run]\nsed = 3\nname = '../x'\n\n[task]\nenv = \"CartPole-v1\"\nmax_episode_steps = 999.5\n"
        "[schedule]\nexecutors = true\n[stop]\nepisodes = 0\n"
    )
    assert problems_of(write(tmp_path, text)) == [
        "run.toml:2: run.sed: got 3, expected one of the keys of [run] (name, seed, dir, python_path, allow_modules, "
        'init_from, record); did you mean "seed"?',
        'run.toml:3: run.name: got "../x", expected a name of at most 64 letters, digits, "_", "-" and ".", '
        "starting with a letter or a digit",
        "run.toml:7: task.max_episode_steps: got 999.5, expected a whole number from 1 to 1000000000",
        'run.toml:9: schedule.executors: got true, expected a whole number from 1 to 1024 or "auto"',
        "run.toml:11: stop.episodes: got 0, expected a whole number from 1 to 1000000000000000",
    ]


def test_what_is_missing_is_told_where_its_table_is(tmp_path):
    assert problems_of(write(tmp_path, "[run]\n[task]\nmirror = true\n")) == [
        'run.toml:2: task.env: got nothing, expected a text such as "CartPole-v1"'
    ]
    assert problems_of(write(tmp_path, "")) == ["run.toml:1: task: got nothing, expected a table"]


def test_an_unknown_table_is_compared_with_the_tables(tmp_path):
    [line] = problems_of(write(tmp_path, '[task]\nenv = "A-v0"\n[shedule]\nkind = "oa"\n'))
    assert line.startswith("run.toml:3: shedule: got a table, expected one of the tables (run, stop, task, schedule,")
    assert line.endswith('did you mean "schedule"?')


def test_a_key_in_the_wrong_table_is_shown_the_right_one(tmp_path):
    [line] = problems_of(write(tmp_path, '[task]\nenv = "A-v0"\n[run]\nexecutors = 4\n'))
    assert line.endswith('did you mean "schedule.executors"?')


def test_a_key_of_another_kind_of_schedule_is_told_apart_from_a_typing_mistake(tmp_path):
    text = '[task]\nenv = "A-v0"\n[schedule]\nkind = "is"\nmax_rollouts = 4\n'
    assert problems_of(write(tmp_path, text)) == [
        'run.toml:5: schedule.max_rollouts: got 4; there is no such key with schedule.kind = "is": only "ia" has it'
    ]


@pytest.mark.parametrize("kind", ["ia", "istb"])
def test_lag_is_only_simulated_where_all_repeats_itself_and_of_pushes(tmp_path, kind):
    text = f'[task]\nenv = "A-v0"\n[schedule]\nkind = "{kind}"\nsimulated_lag = 4\n'
    (line,) = problems_of(write(tmp_path, text))
    assert line.startswith(
        f'run.toml:5: schedule.simulated_lag: got 4; there is no such key with schedule.kind = "{kind}"'
    )
    assert line.endswith('only "is", "oa" or "serial" has it')


def test_an_unknown_kind_of_schedule_names_those_there_are(tmp_path):
    [line] = problems_of(write(tmp_path, '[task]\nenv = "A-v0"\n[schedule]\nkind = "oaa"\n'))
    assert (
        line
        == 'run.toml:4: schedule.kind: got "oaa", expected "ia", "is", "istb", "oa" or "serial"; did you mean "oa"?'
    )


def test_a_wrong_choice_names_all_choices_and_the_nearest():
    [line] = problems_of(minimal(evaluation={"rule": "mean_retrun"}))
    assert line.endswith('got "mean_retrun", expected "cap" or "mean_return"; did you mean "mean_return"?')


def test_several_environments_in_one_executor_deliver_rollouts_by_themselves():
    assert load_settings(minimal(schedule={"envs_per_executor": 8})).schedule.sync == "rollout"
    assert load_settings(minimal(schedule={"executors": 8})).schedule.sync == "episode"


def test_the_memory_holds_1024_rows_for_each_executor_unless_told_otherwise():
    assert load_settings(minimal(schedule={"executors": 3})).capacity_rows == 3072
    assert load_settings(minimal(memory={"capacity_rows": 500})).capacity_rows == 500


def test_the_algorithms_own_keys_are_kept_as_they_are():
    settings = load_settings(minimal(algorithm={"name": "my.own:Thing", "layers": [3, 4], "x": {"y": 1.5}}))
    assert settings.algorithm.table == {"name": "my.own:Thing", "layers": [3, 4], "x": {"y": 1.5}}


def test_the_algorithms_completed_keys_can_be_put_in_place():
    settings = load_settings(minimal()).with_algorithm({"name": "mlxe", "learning_rate": 0.5, "other": None})
    assert settings.algorithm.table == {"name": "mlxe", "learning_rate": 0.5}


def test_own_code_is_found_from_the_settings_file_on(tmp_path):
    (tmp_path / "code").mkdir()
    text = '[task]\nenv = "A-v0"\n[run]\npython_path = [".", "code"]\n'
    settings = load_settings(write(tmp_path, text))
    assert settings.run.python_path == (str(tmp_path), str(tmp_path / "code"))


def test_a_folder_for_own_code_that_does_not_exist_is_a_mistake(tmp_path):
    [line] = problems_of(write(tmp_path, '[task]\nenv = "A-v0"\n[run]\npython_path = [\n  ".",\n  "cod"]\n'))
    assert line.startswith('run.toml:6: run.python_path[1]: got "cod", expected an existing folder')


def test_more_problems_than_anyone_reads_are_counted(tmp_path):
    lines = problems_of(write(tmp_path, "[run]\n" + "".join(f"k{i} = 1\n" for i in range(500))))
    assert len(lines) == 51
    assert lines[-1] == "... and 451 more problems of this kind"


@pytest.mark.parametrize("place", ["file", "set", "mapping"])
def test_a_whole_number_may_be_written_as_people_write_large_ones(tmp_path, place):
    if place == "file":
        text = '[task]\nenv = "CartPole-v1"\n[stop]\nenv_steps = 1e5\n[schedule]\nenvs_per_executor = 8.0\n'
        settings = load_settings(write(tmp_path, text))
    elif place == "set":
        settings = load_settings(minimal(), ["stop.env_steps=1e5", "schedule.envs_per_executor=8e0"])
    else:
        settings = load_settings(minimal(stop={"env_steps": 1e5}, schedule={"envs_per_executor": 8.0}))
    assert (settings.stop.env_steps, type(settings.stop.env_steps)) == (100_000, int)
    assert (settings.schedule.envs_per_executor, settings.schedule.sync) == (8, "rollout")


def test_an_algorithms_whole_numbers_may_be_written_so_too():
    from mlxe_async.algorithms import load_algorithm

    model = load_algorithm("dqn").Settings
    table = {"name": "dqn", "start_rows": 1e3, "layers": [128.0, 64], "discount": 1.0}
    assert algorithm_problems(model, table) == []
    whole = with_whole_numbers(model, table)
    assert (whole["start_rows"], whole["layers"], type(whole["discount"])) == (1000, [128, 64], float)
    [problem] = algorithm_problems(model, {"name": "dqn", "start_rows": 1.5})
    assert problem.message.startswith("got 1.5, expected a whole number")


@pytest.mark.parametrize("value", [True, "auto", False])
def test_a_key_that_is_gone_is_refused_with_the_reason_and_no_other_is_proposed(value):
    (line,) = problems_of(minimal() | {"learner": {"compile": value}})
    assert "learner.compile: got" in line
    assert "this key is gone: updates by torch's compiler took longer" in line
    assert line.endswith("take it out")


def test_what_an_older_run_wrote_down_is_read_without_keys_that_were_off():
    written = minimal() | {"learner": {"compile": False, "threads": 1}}
    assert load_settings(written, of_run=True).learner.threads == 1
    with pytest.raises(SettingsError, match=r"learner\.compile: got true; this key is gone"):
        load_settings(minimal() | {"learner": {"compile": True}}, of_run=True)
