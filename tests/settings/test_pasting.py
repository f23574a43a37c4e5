"""What is offered for a name of another package is accepted by the file that it was written for, once it is pasted."""

import itertools
import re
import shlex
import tomllib

import pytest
from settings_tools import problems_of

from mlxe_async.algorithms import load_algorithm
from mlxe_async.cli.elsewhere import FLAGS, answered
from mlxe_async.errors import SettingsError
from mlxe_async.settings import algorithm_problems, load_settings
from mlxe_async.settings.effects import idle_in
from mlxe_async.settings.loading import written_in
from mlxe_async.settings.synonyms import ABSENT, SYNONYMS
from mlxe_async.settings.translating import answer, parsed

FLAG_NAMES = {name for names in FLAGS for name in names.split()}
NAMES = sorted({*SYNONYMS, *ABSENT, *FLAG_NAMES} - {"resume"})
OPEN = ("VALUE", "NAME", "N")
ALGORITHMS = ["ppo", "sac", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dqn", "impala"))]
TYPICAL = ("True", "False", "4", "word")


def file_of(name, env="CartPole-v1", more=""):
    return f'[task]\nenv = "{env}"\n[algorithm]\nname = "{name}"\n{more}'


def refusal(file, overrides):
    """What the settings say of overrides, those of the algorithm too; empty if they are accepted."""
    try:
        settings = load_settings(file, overrides)
    except SettingsError as error:
        return str(error.problems)
    table, model = settings.algorithm.table, load_algorithm(settings.algorithm.name).Settings
    idle = [problem for problem in idle_in(model, table) if problem.path[1] in table]
    return str(algorithm_problems(model, table) or idle or "")


def pasted(line):
    """Groups of `a.b=VALUE` that a line offers to be pasted together, those that are ready."""
    for part in re.split(r"; --", line):
        words = shlex.split(part.partition(" (")[0].replace(",", " ")) if "--set " in part else []
        sets = [word for before, word in itertools.pairwise(words) if before == "--set"]
        if sets and not any(one.partition("=")[2] in OPEN for one in sets):
            yield sets


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("value", TYPICAL)
def test_what_is_offered_for_an_option_is_accepted(algorithm, value, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(file_of(algorithm))
    offered = 0
    for name in NAMES:
        said = answered([str(file), f"--{name}={value}"])
        assert said, f"--{name} is not answered"
        for sets in pasted(said):
            offered += 1
            assert not refusal(file, sets), (said, refusal(file, sets))
    assert offered >= 30


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("value", ["True", "4"])
def test_what_is_offered_for_a_key_is_accepted(algorithm, value, tmp_path):
    value, keys = parsed(value), 0
    for name in sorted({*SYNONYMS, *ABSENT} - {"run"}):
        tree = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": algorithm}}
        own = load_algorithm(algorithm).Settings.model_fields
        if name in own or name == "name":
            continue
        tree["algorithm"][name] = value
        written = written_in(tree)
        [problem] = algorithm_problems(load_algorithm(algorithm).Settings, {"name": algorithm, name: value}, written)
        offered = re.search(r"expected ([\w.]+)(?: = (.+?))?, as it is called here", problem.message)
        if not offered:
            assert re.search(r"; |did you mean", problem.message), problem.message
            continue
        keys += 1
        given = tomllib.loads(f"value = {offered[2]}")["value"] if offered[2] else value
        beside = re.search(r"\(with ([\w.]+) = (.+?)[;)]", problem.message)
        del tree["algorithm"][name]
        sets = {offered[1]: given}
        if beside:
            sets[beside[1]] = tomllib.loads(f"value = {beside[2]}")["value"]
        said = refusal(tree, sets)
        # A value that does not fit is told next, with what does; the key itself is one of this file's.
        is_told_next = "got " in said and ("expected one of" not in said or offered[1] == "algorithm.name")
        assert not said or is_told_next, (problem.message, said)
        assert "has no effect" not in said
    assert keys >= 100


@pytest.mark.parametrize(
    ("algorithm", "option", "said"),
    [
        ("ppo", "--async_rl=True", "--async_rl is --set schedule.kind=oa"),
        ("ppo", "--async_rl=False", "--async_rl is --set schedule.kind=is"),
        ("a2c", "--async_rl=True", "--set schedule.kind=oa --set schedule.gradients=executors"),
        ("ppo", "--serial_mode=True", "--serial_mode is --set schedule.kind=serial"),
        ("ppo", "--serial_mode=False", "--serial_mode is --set schedule.kind=is"),
        ("ppo", "--use_rnn=True", "--use_rnn is --set algorithm.cell=lstm"),
        ("dqn", "--use_lstm", "--use_lstm is --set algorithm.cell=lstm"),
        ("impala", "--recurrent=False", "--recurrent is --set algorithm.cell=none"),
        ("sac", "--use_rnn=True", "--use_rnn: sac has no such key: algorithm.cell is a key of a2c, dqn"),
        ("sac", "--use_rnn=False", "--use_rnn: sac has no such thing that could be switched off: leave it out"),
        ("ppo", "--with_vtrace=True", "--with_vtrace is --set algorithm.name=impala"),
        ("ppo", "--with_vtrace=False", "--with_vtrace: ppo corrects nothing by V-trace: leave it out"),
        ("impala", "--with_vtrace=True", "--with_vtrace: impala always corrects by V-trace: leave it out"),
        ("mlxe", "--with_vtrace=True", "--with_vtrace is --set algorithm.correction=vtrace"),
        ("ppo", "--env_frameskip=4", 'task.atari.frame_skip is of Atari games alone (task.env = "ALE/...")'),
        ("ppo", "--env_framestack=4", "--env_framestack is --set task.history=4"),
        ("ppo", "--reward_scale=0.1", "algorithm.reward_scaling = true divides them by their deviation"),
        ("dqn", "--reward_scale=0.1", "--reward_scale is --set algorithm.return_scale=0.1"),
        ("ppo", "--num_policies=2", "--num_policies: there is no such key here: one agent learns"),
        ("ppo", "--worker_num_splits=2", "--worker_num_splits: there is no such key here: executors"),
        ("ppo", "--optimizer=adam", "--optimizer: ppo always takes Adam"),
        ("impala", "--optimizer=adam", "--optimizer is --set algorithm.optimiser=adam"),
        ("ppo", "--ppo_clip_value=0.2", "--ppo_clip_value is --set algorithm.value_clip=0.2"),
        ("impala", "--vtrace_rho=1.0", "--vtrace_rho is --set algorithm.rho_clip=1.0"),
        ("impala", "--vtrace_c=1.0", "--vtrace_c is --set algorithm.c_clip=1.0"),
        ("ppo", "--rnn_size=32", "--set algorithm.cell_size=32 --set algorithm.cell=lstm"),
        ("ppo", "--capture_video", "--set evaluation.video=true --set evaluation.enabled=true"),
        ("ppo", "--grad_clip=True", "--set algorithm.max_gradient_norm=VALUE (a number of at least 0)"),
        ("ppo", "--clip=0.3", "--clip is --set algorithm.clip=0.3"),
        ("ppo", "--algo=APPO", '--algo is --set algorithm.name=ppo (with schedule.kind = "oa")'),
    ],
)
def test_an_option_is_answered_by_what_the_file_takes(algorithm, option, said, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(file_of(algorithm))
    assert said in answered([str(file), option])
    assert said in answered([option, str(file)])


def test_options_of_an_atari_game_have_its_keys(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(file_of("dqn", "ALE/Pong-v5"))
    told = answered([str(file), "--env_frameskip=4", "--env_framestack", "4", "--grayscale=True"])
    assert "--env_frameskip is --set task.atari.frame_skip=4; " in told
    assert "--env_framestack is --set task.atari.stack=4; " in told
    assert "--grayscale is --set task.atari.colour=false" in told


def test_what_the_file_says_already_is_not_asked_for_again(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(file_of("ppo", more='cell = "gru"\nwrong = 1\n[evaluation]\nenabled = true\n'))
    told = answered([str(file), "--eval_freq=100", "--rnn_size=32"])
    assert told.endswith("--set evaluation.interval_steps=100; --rnn_size is --set algorithm.cell_size=32")


OF_SAMPLE_FACTORY = """
policy_workers_per_policy with_pbt decorrelate_envs_on_one_worker num_batches_per_epoch exploration_loss ppo_clip_value
decoder_mlp_layers vtrace_rho vtrace_c optimizer save_best_metric load_checkpoint_kind eval_deterministic
restart_behavior num_policies worker_num_splits
"""


@pytest.mark.parametrize("name", OF_SAMPLE_FACTORY.split())
def test_options_of_sample_factory_are_answered_as_keys_and_as_options(name, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(file_of("impala"))
    assert answered([str(file), f"--{name}=1"]).startswith(f"--{name}: no such option; --{name}")
    for table in ("algorithm", "schedule"):
        tree = {"task": {"env": "CartPole-v1"}, "schedule": {}, "algorithm": {"name": "impala"}}
        tree[table] = {**tree[table], name: 1}
        if table == "algorithm":
            [problem] = algorithm_problems(load_algorithm("impala").Settings, tree["algorithm"])
            line = problem.message
        else:
            [line] = problems_of(tree)
        assert "as it is called here" in line or "; there is no such key here: " in line
        assert "expected one of" not in line


def test_an_answer_keeps_what_can_be_known_of_an_unknown_file():
    found = answer("gamma", 0.9, written_in({}), spelt="0.9")
    assert found is not None
    assert found.on_line == "--set algorithm.discount=0.9"
    assert answer("never_heard_of", 1, written_in({})) is None


def test_a_wrapper_in_its_own_table_is_called_entry():
    for key, ours in (("wrapper", "entry"), ("class", "entry"), ("args", "kwargs")):
        tree = {"task": {"env": "CartPole-v1", "wrappers": [{key: "a.b:C", "entry": "a.b:C"}]}}
        [line] = problems_of(tree)
        assert f'got "a.b:C", expected {ours}, as it is called in an entry of task.wrappers' in line
