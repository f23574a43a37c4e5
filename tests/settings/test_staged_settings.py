"""Stages, seeds and items in `[task]`: what does not fit is refused with its place, and what fits is written back."""

import pytest
from settings_tools import problems_of, write

from mlxe_async.settings import dump_settings, load_settings
from mlxe_async.settings.task import seeds_in, task_of
from mlxe_async.settings.trust import code_of, foreign_code

HEAD = '[task]\nenv = "CartPole-v1"\n'
STAGES = """
[[task.stages]]
kwargs = { sutton_barto_reward = true }
max_episode_steps = 50
until_return = 40.0
[[task.stages]]
wrappers = ["mine:Harder"]
until_steps = 1000
[[task.stages]]
"""


def test_stages_are_written_back_as_they_are(tmp_path):
    settings = load_settings(write(tmp_path, f'{HEAD}seeds = {{ train = "0..9", test = [10, 12] }}\n{STAGES}'))
    again = load_settings(write(tmp_path, dump_settings(settings), "again.toml"), {"run.name": settings.run.name})
    assert again.model_dump() == settings.model_dump()
    assert task_of(settings.task.model_dump(mode="json")).stages[1].wrappers == settings.task.stages[1].wrappers


def test_a_stage_changes_what_it_says_and_nothing_else(tmp_path):
    task = load_settings(write(tmp_path, f"{HEAD}kwargs = {{ render_mode = 'rgb_array' }}\n{STAGES}")).task
    first, second, last = (task.in_stage(number) for number in range(3))
    assert first.kwargs == {"render_mode": "rgb_array", "sutton_barto_reward": True}
    assert (first.max_episode_steps, first.wrappers) == (50, ())
    assert (second.max_episode_steps, second.wrappers[0].entry) == (None, "mine:Harder")
    assert last.model_dump() == task.model_dump()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[task.stages]]\n[[task.stages]]\n", "run.toml:3: task.stages[0]: got no until_return and no until_steps"),
        (
            "[[task.stages]]\nuntil_steps = 5\n[[task.stages]]\nuntil_steps = 5\n",
            "run.toml:5: task.stages[1]: got a condition in the last stage, expected none",
        ),
        ("[[task.stages]]\n", "run.toml:3: task.stages: got one stage, expected two or more"),
        ("[[task.stages]]\nuntil_retrun = 5.0\n[[task.stages]]\n", 'did you mean "until_return"?'),
        ("[[task.stages]]\nuntil_steps = 0\n[[task.stages]]\n", "run.toml:4: task.stages[0].until_steps: got 0"),
        (
            'vectorize = "native"\n' + STAGES,
            'task.vectorize: got "native", expected "single" or "auto" with',
        ),
        (
            STAGES + "[learner]\npromote_best = 3\n",
            "expected 0 with task.stages = a list: the results of",
        ),
        (
            STAGES + '[run]\nrecord = true\n[schedule]\nkind = "oa"\n',
            "which stage and item an episode has is",
        ),
        (
            'seeds = { train = "0..9", test = "9..12" }\n',
            "task.seeds: got the seed 9 in train and in test, expected",
        ),
        (
            'seeds = { train = "9..0", test = "9..12" }\n',
            'task.seeds.train: got "9..0", expected "A..B" with 0 <=',
        ),
        ("seeds = { train = [1, 1], test = [2] }\n", "task.seeds.train: got a list, expected"),
        ("seeds = { train = [1] }\n", "task.seeds.test: got nothing, expected a text"),
        ('reset_options = "none.jsonl"\n', 'task.reset_options: got "none.jsonl", expected an existing file'),
        ("shuffle_options = true\n", "task.shuffle_options: got true, expected task.reset_options with it"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(tmp_path, text, said):
    problems = problems_of(write(tmp_path, HEAD + text))
    assert any(said in problem for problem in problems), problems


def test_files_of_items_are_seen_from_the_settings_file(tmp_path, monkeypatch):
    (tmp_path / "items.jsonl").write_text("{}\n")
    path = write(tmp_path, f'{HEAD}reset_options = "items.jsonl"\n')
    monkeypatch.chdir("/")
    assert load_settings(path).task.reset_options == str(tmp_path / "items.jsonl")


def test_a_run_whose_items_are_gone_can_still_be_read(tmp_path):
    path = write(tmp_path, f'{HEAD}reset_options = "gone.jsonl"\n')
    assert load_settings(path, of_run=True).task.reset_options == str(tmp_path / "gone.jsonl")
    assert any("expected an existing file" in problem for problem in problems_of(path))


def test_a_range_of_seeds_takes_no_memory_and_has_both_ends():
    assert seeds_in("3..5") == range(3, 6)
    assert seeds_in((7, 2)) == (7, 2)


def test_code_of_a_stages_wrappers_is_named_like_all_own_code(tmp_path):
    settings = load_settings(write(tmp_path, HEAD + STAGES))
    assert (("task", "stages", 1, "wrappers", 0), "mine") in set(settings.named_modules())
    entry = settings.task.stages[1].wrappers[0].entry
    assert (("task", "stages", 1, "wrappers", 0), entry, "mine") in list(foreign_code(settings))
    without = settings.task.model_copy(update={"stages": ()})
    assert code_of(settings) != code_of(settings.model_copy(update={"task": without}))
