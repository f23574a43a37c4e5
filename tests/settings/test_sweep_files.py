"""A sweep's file is as strict as all settings files: each mistake is told with its place, got and expected."""

import pytest

from mlxe_async.errors import SettingsError
from mlxe_async.settings.searching import load_sweep

MINE = '[task]\nenv = "CartPole-v1"\n[algorithm]\nname = "ppo"\n'
HEAD = '[sweep]\nsettings = "mine.toml"\nenv_steps = 1000\n[search]\n'


@pytest.fixture
def problems_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(MINE)

    def told(text):
        (tmp_path / "s.toml").write_text(text)
        with pytest.raises(SettingsError) as caught:
            load_sweep("s.toml")
        return caught.value.problems

    return told


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)

    def made(text):
        (tmp_path / "s.toml").write_text(text)
        return load_sweep(str(tmp_path / "s.toml"))

    return made


def test_keys_may_be_dotted_or_in_tables_of_their_own(sweep):
    one = sweep(f"{HEAD}algorithm.clip = {{ low = 0.1, high = 0.3 }}\nschedule.executors = {{ low = 1, high = 2 }}\n")
    other = sweep(
        f"{HEAD[: -len('[search]') - 1]}[search.algorithm]\nclip = {{ low = 0.1, high = 0.3 }}\n"
        "[search.schedule.executors]\nlow = 1\nhigh = 2\n"
    )
    assert one.keys == other.keys
    assert list(one.keys) == ["algorithm.clip", "schedule.executors"]
    assert one.keys["schedule.executors"].is_whole
    assert not one.keys["algorithm.clip"].is_whole


def test_the_settings_file_is_looked_for_beside_the_sweeps(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert sweep(f"{HEAD}algorithm.clip = {{ low = 0.1, high = 0.3 }}\n").file == str(tmp_path / "mine.toml")


def test_a_trial_has_the_budget_and_the_overrides_of_all_and_then_its_own(sweep):
    text = HEAD.replace("[search]", 'set = ["learner.threads=1"]\n[search]')
    one = sweep(f"{text}algorithm.policy = {{ choices = [[32], [64, 64]] }}\n")
    assert one.overrides_with({"algorithm.policy": [64, 64]}) == (
        "learner.threads=1",
        "stop.env_steps=1000",
        "algorithm.policy=[64, 64]",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("algorithm.clip = 0.1", "s.toml:5: search.algorithm.clip: got 0.1, expected { low = A, high = B } or"),
        ("algorithm.clip = { low = 0.3, high = 0.1 }", "got low = 0.3 and high = 0.1, expected low below high"),
        ("algorithm.clip = { low = 0.3 }", "search.algorithm.clip: got no values, expected low and high, or choices"),
        ("algorithm.clip = { choices = [0.1] }", "got 1 choice, expected two or more"),
        ("algorithm.clip = { choices = [0.1, 0.1] }", "got a choice twice, expected each once"),
        ("algorithm.clip = { low = 0.0, high = 0.1, log = true }", "got low = 0.0, expected above 0 with log = true"),
        ("algorithm.clip = { low = 0.1, high = 0.2, step = 0.5 }", "got step = 0.5, expected at most high - low"),
        ("algorithm.clip = { low = 0.1, high = 0.3, logg = true }", 'did you mean "log"?'),
        ("algorithm.clip = { low = 0.1, high = 0.3, choices = [0.1, 0.2] }", "got choices and a range too"),
        ("algorithm.epochs = { low = 1, high = 9, step = 0.5 }", "expected a whole number, as low and high are"),
        ("algorithm.clip = { low = -1.0, high = 0.3 }", "got -1.0 among its values, which is refused: algorithm.clip"),
        ("algorithm.clipp = { low = 0.1, high = 0.3 }", 'did you mean "clip"?'),
        ("algorithm.epochs = { low = 1.0, high = 9.5 }", "got 5.25 among its values, which is refused"),
        ("schedule.executor = { low = 1, high = 2 }", 'did you mean "executors"?'),
        ("clip = { low = 0.1, high = 0.3 }", "search.clip: got a key of no table, expected table.key"),
        ("run.seed = { low = 1, high = 3 }", "search.run.seed: got a key of [run] or [stop], expected one that says"),
        ("", "search: got no key, expected at least one"),
    ],
)
def test_a_mistake_in_the_search_is_told_with_its_place(problems_of, line, said):
    (problem,) = problems_of(f"{HEAD}{line}\n")
    assert problem.startswith("s.toml:")
    assert said in problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[sweep]\nsetings = "mine.toml"\n[search]\n', 'did you mean "settings"?'),
        ('[sweep]\nsettings = "mine.toml"\npruner = "medain"\n[search]\n', 's.toml:3: sweep.pruner: got "medain"'),
        ('[sweep]\nsettings = "mine.toml"\ntrials = 0\n[search]\n', "expected a whole number from 1 to 10000"),
        ('[sweep]\nsettings = "mine.toml"\n', "s.toml:1: search: got nothing, expected a table"),
        ('[sweeep]\nsettings = "mine.toml"\n[search]\n', 'did you mean "sweep"?'),
        ("[sweep\n", "s.toml:1:7: got text that is not TOML"),
    ],
)
def test_a_mistake_in_the_table_of_the_sweep_is_told_with_its_place(problems_of, text, said):
    assert any(said in problem for problem in problems_of(text)), problems_of(text)


def test_a_trial_without_an_end_is_refused(problems_of):
    text = '[sweep]\nsettings = "mine.toml"\n[search]\nalgorithm.clip = { low = 0.1, high = 0.3 }\n'
    assert problems_of(text) == ["s.toml:1: sweep.env_steps: got nothing, expected how many steps a trial lasts"]


def test_a_settings_file_that_is_not_there_is_told_by_its_name(problems_of):
    problem = problems_of(HEAD.replace("mine", "yours") + "algorithm.clip = { low = 0.1, high = 0.3 }\n")[0]
    assert "yours.toml:1: cannot be read (No such file or directory)" in problem
