"""Keys that somebody wrote and that other keys switch off: refused by name, or told where `--set` switched them off."""

import importlib.util
import itertools
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, Field
from settings_tools import minimal, problems_of, write

from mlxe_async.algorithms.interface import needs
from mlxe_async.errors import SettingsError
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.settings import dump_settings, load_settings
from mlxe_async.settings.effects import idle_in
from mlxe_async.settings.resuming import changes
from mlxe_async.supervisor.startup import probe as startup
from mlxe_async.workers import Probe

FOLDER = Path(__file__).parents[2] / "settings"
GAME = {"env": "ALE/Pong-v5"}
IDLE = [
    ({"stop": {"steps_after_solved": 1000}}, "stop.steps_after_solved", "stop.solved = false"),
    ({"evaluation": {"rule": "cap", "threshold": 1.0}}, "evaluation.threshold", 'evaluation.rule = "cap"'),
    ({"evaluation": {"interval_steps": 9}}, "evaluation.interval_steps", "evaluation.enabled = false"),
    ({"evaluation": {"passes": 2}}, "evaluation.passes", "evaluation.enabled = false"),
    ({"evaluation": {"in_flight": 2}}, "evaluation.in_flight", "evaluation.enabled = false"),
    (
        {"schedule": {"sync": "episode", "rollout_steps": 9}},
        "schedule.rollout_steps",
        'schedule.sync = "episode"',
    ),
    ({"schedule": {"kind": "serial", "memorizer": "own"}}, "schedule.memorizer", 'schedule.kind = "serial"'),
    ({"schedule": {"kind": "istb"}, "learner": {"own_core": True}}, "learner.own_core", 'schedule.kind = "istb"'),
    ({"learner": {"threads": 2, "own_core": True}}, "learner.own_core", "learner.threads = 2"),
    ({"learner": {"graphs": True}}, "learner.graphs", 'learner.device = "cpu"'),
    ({"learner": {"products": "numpy", "fast": False}}, "learner.products", "learner.fast = false"),
    ({"learner": {"products": "torch", "device": "cuda"}}, "learner.products", 'learner.device = "cuda"'),
    ({"algorithm": {"name": "ppo", "precision": "tf32"}}, "algorithm.precision", 'learner.device = "cpu"'),
    (
        {"schedule": {"kind": "istb"}, "supervision": {"max_executor_rss_mb": 500}},
        "supervision.max_executor_rss_mb",
        'schedule.kind = "istb"',
    ),
    (
        {"schedule": {"envs_per_executor": 256}, "memory": {"block_rows": 64}},
        "memory.block_rows",
        "schedule.envs_per_executor = 256",
    ),
    ({"algorithm": {"name": "ppo"}, "memory": {"keep_rows": 9}}, "memory.keep_rows", 'algorithm.name = "ppo"'),
    (
        {"algorithm": {"name": "ppo"}, "schedule": {"kind": "oa", "updates_per_publish": 9}},
        "schedule.updates_per_publish",
        'algorithm.name = "ppo"',
    ),
    (
        {"supervision": {"restart_limit": 0, "restart_window_s": 9.0}},
        "supervision.restart_window_s",
        "supervision.restart_limit = 0",
    ),
    (
        {"supervision": {"restart_limit": 0, "backoff_s": 0.2}},
        "supervision.backoff_s",
        "supervision.restart_limit = 0",
    ),
    (
        {"supervision": {"restart_limit": 0, "backoff_max_s": 9.0}},
        "supervision.backoff_max_s",
        "supervision.restart_limit = 0",
    ),
    (
        {"supervision": {"env_fault_limit": 0, "env_fault_window_s": 9.0}},
        "supervision.env_fault_window_s",
        "supervision.env_fault_limit = 0",
    ),
    ({"task": {"env": "CartPole-v1", "atari": {"stack": 3}}}, "task.atari.stack", 'task.env = "CartPole-v1"'),
    (
        {"task": {**GAME, "atari": {"preprocess": False, "sticky": 0.25}}},
        "task.atari.sticky",
        "task.atari.preprocess = false",
    ),
    (
        {"task": {"env": "CartPole-v1", "mirror": True}, "algorithm": {"name": "ppo"}},
        "task.mirror",
        'algorithm.name = "ppo"',
    ),
    (
        {"task": {"env": "CartPole-v1", "mirror": True}, "algorithm": {"mirror": False}},
        "task.mirror",
        "algorithm.mirror = false",
    ),
    (
        {"task": {"env": "CartPole-v1", "mirror": True}, "algorithm": {"name": "dqn", "cell": "gru"}},
        "task.mirror",
        'algorithm.cell = "gru"',
    ),
]


def judged(source, overrides=()):
    """Settings and remarks as the probe leaves them."""
    settings = load_settings(source, overrides)
    page = ProgressPage(bytearray(PAGE_BYTES))
    found = startup.judged(settings, Probe(settings.model_dump(mode="json"), page, settings.said).probe())
    return found.settings, found.cautions


def refusal(source, overrides=()):
    with pytest.raises(SettingsError) as refused:
        judged(source, overrides)
    return refused.value.problems


@pytest.mark.parametrize(("tables", "key", "switch"), IDLE, ids=[f"{key}, {switch}" for _, key, switch in IDLE])
def test_a_key_that_another_one_switches_off_is_refused_with_that(tables, key, switch):
    lines = problems_of(minimal(**tables))
    assert [line for line in lines if line.split(": ")[1] == key and f"has no effect with {switch}" in line], lines
    assert all("take it out" in line for line in lines)


@pytest.mark.parametrize(("tables", "key", "switch"), IDLE, ids=[f"{key}, {switch}" for _, key, switch in IDLE])
def test_such_a_key_is_no_part_of_what_a_run_writes_and_not_missed_when_it_goes_on(tables, key, switch, tmp_path):
    *tables_of, name = key.split(".")
    without = {**minimal(), **{table: dict(keys) for table, keys in tables.items()}}
    holder = without
    for part in tables_of:
        holder = holder[part]
    del holder[name]
    settings = load_settings(without)
    text = dump_settings(settings)
    written = tomllib.loads(text)
    for part in tables_of:
        written = written[part]
    assert name not in written
    again = load_settings(write(tmp_path, text))
    assert again == settings
    assert list(changes(again, settings)) == []


def test_of_a_file_the_line_and_the_line_of_what_switches_it_off_are_told(tmp_path):
    text = '[task]\nenv = "A-v0"\n[schedule]\nsync = "episode"\n\nrollout_steps = 3\n'
    assert problems_of(write(tmp_path, text)) == [
        'run.toml:6: schedule.rollout_steps: has no effect with schedule.sync = "episode"; take it out, or set '
        'schedule.sync = "rollout" (run.toml:4)'
    ]


def test_all_are_told_at_once_and_beside_other_mistakes():
    lines = problems_of(minimal(run={"seed": "x"}, learner={"graphs": True}, evaluation={"passes": 2}))
    assert sorted(line.split(": ")[1] for line in lines) == ["evaluation.passes", "learner.graphs", "run.seed"]


def test_defaults_are_never_refused():
    assert load_settings(minimal()).schedule.rollout_steps == 128


def test_what_an_algorithm_recommends_counts_before_a_key_is_judged():
    """PPO delivers rollouts where nothing else is said, which only the probe knows."""
    settings, remarks = judged(minimal(schedule={"rollout_steps": 32}, algorithm={"name": "ppo"}))
    assert settings.schedule.rollout_steps == 32
    assert remarks == []
    (line,) = refusal(minimal(schedule={"rollout_steps": 32}))
    assert line.startswith("settings: schedule.rollout_steps: has no effect with schedule.sync")


def test_a_memory_of_rollouts_has_no_capacity(tmp_path):
    (line,) = refusal(minimal(memory={"capacity_rows": 5000}, algorithm={"name": "ppo"}))
    assert 'memory.capacity_rows: has no effect with algorithm.name = "ppo"' in line


# -- where it was written --

IS = FOLDER / "is.toml"


def test_a_key_of_the_file_that_set_switches_off_is_tolerated_and_told(tmp_path):
    _, remarks = judged(IS, ["algorithm.correction=none"])
    assert 'algorithm.ratio_clip has no effect with correction = "none": what switches it off was set' in remarks
    _, remarks = judged(IS, ["evaluation.enabled=false", "stop.solved=false"])
    assert remarks == ["evaluation.passes has no effect with evaluation.enabled = false: what switches it off was set"]


def test_keys_of_another_schedule_are_tolerated_where_set_chose_this_one():
    settings, remarks = judged(FOLDER / "fast.toml", ["schedule.kind=is"])
    assert settings.schedule.kind == "is"
    assert [remark.split()[0] for remark in remarks] == ["schedule.max_owed_updates", "schedule.max_policy_lag"]
    lines = problems_of(FOLDER / "fast.toml", ["schedule.kind=is", "schedule.max_policy_lag=8"])
    assert [line.split(": ")[0] for line in lines] == ["--set schedule.max_policy_lag"]


def test_a_key_of_set_that_is_switched_off_is_refused_whoever_switched_it_off():
    (line,) = refusal(IS, ["algorithm.n_step=77"])
    (written,) = [n for n, text in enumerate(IS.read_text().splitlines(), 1) if text.startswith("returns = ")]
    assert line == (
        f'--set algorithm.n_step: algorithm.n_step: has no effect with returns = "steps_to_end"; take it out, or set '
        f'returns = "n_step" ({IS}:{written})'
    )
    (line,) = refusal(IS, ["algorithm.correction=none", "algorithm.ratio_clip=2.0"])
    assert line.startswith("--set algorithm.ratio_clip: algorithm.ratio_clip: has no effect with correction")


def test_a_value_that_is_the_default_is_refused_too_if_it_was_written(tmp_path):
    (line,) = refusal(minimal(algorithm={"noise_every": 0}))
    assert line == (
        "settings: algorithm.noise_every: has no effect with noisy = false; take it out, or set noisy = true"
    )


def test_all_keys_of_the_reproduction_are_refused_at_once():
    keys = ["discount=0.5", "n_step=77", "epsilon=0.9", "noise_every=3", "atoms=7", "target_every=3"]
    lines = refusal(IS, [f"algorithm.{key}" for key in (*keys, "priority_exponent=0.9")])
    assert {line.split(": ")[1] for line in lines} == {
        f"algorithm.{key.split('=')[0]}" for key in (*keys, "priority_exponent=")
    }
    beside = refusal(IS, ["algorithm.n_step=77", "algorithm.entropy=-1.0"])
    assert {line.split(": ")[1] for line in beside} == {"algorithm.n_step", "algorithm.entropy"}


def of(name, schedule=(), env="CartPole-v1", **keys):
    return {"task": {"env": env}, "schedule": dict(schedule), "algorithm": {"name": name, **keys}}


ROLLOUTS = {"kind": "is", "sync": "rollout", "executors": 2, "envs_per_executor": 4, "rollout_steps": 16}
APART = {"kind": "is", "executors": 2, "temperature_by_executor": [1.0, 3.0]}
NO_OLDER = {
    "temperatures of 1": of("a2c", {**APART, "temperature_by_executor": [1.0, 1.0]}, clip=0.2),
    "is has no older rows": of("a2c", {"kind": "is"}, clip=0.2),
    "nor has serial": of("a2c", {"kind": "serial"}, clip=0.2),
    "nor ia": of("a2c", {"kind": "ia"}, clip=0.2),
    "nor istb": of("a2c", {"kind": "istb"}, clip=0.2),
    "nor oa where they are left out": of("a2c", {"kind": "oa", "max_policy_lag": 0}, clip=0.2),
    "where IMPALA leaves them out": of("impala", {"kind": "oa", "max_policy_lag": 0}, rho_clip=2.0),
    "ratios of 1 are below 2": of("impala", {"kind": "is"}, rho_clip=2.0),
    "carried, too": of("impala", {"kind": "is"}, c_clip=1.0),
    "a step by all rows": of("ppo", ROLLOUTS, epochs=1, minibatch=128, clip=0.3),
    "has no KL": of("ppo", ROLLOUTS, epochs=1, minibatch=200, max_kl=0.1),
    "nor a penalty": of("ppo", ROLLOUTS, epochs=1, minibatch=200, kl_penalty_target=0.1),
    "values do not move": of("ppo", ROLLOUTS, epochs=1, minibatch=128, value_clip=0.3),
    "nor where they are asked again": of("ppo", ROLLOUTS, minibatches="sequences", value_clip=0.3),
    "by the algorithm's own rollouts": of("ppo", {"kind": "is", "executors": 1}, epochs=1, minibatch=512, clip=0.3),
    "choices have no deviation": of("ppo", log_std=0.0),
    "however it is made": of("reinforce", deviation="free"),
}
OLDER = {
    "temperatures": of("a2c", APART, clip=0.2),
    "temperatures, corrected": of("impala", APART, rho_clip=2.0, c_clip=2.0),
    "oa": of("a2c", {"kind": "oa"}, clip=0.2),
    "on purpose": of("a2c", {"kind": "is", "simulated_lag": 2}, clip=0.2),
    "below 1": of("impala", {"kind": "is"}, rho_clip=0.9, c_clip=0.5),
    "later minibatches": of("ppo", ROLLOUTS, epochs=1, minibatch=127, clip=0.3, value_clip=0.1, max_kl=0.1),
    "ia may finish more": of("ppo", ROLLOUTS | {"kind": "ia"}, epochs=1, minibatch=128, clip=0.3, value_clip=0.1),
    "below 1 where none is": of("impala", {"kind": "oa", "max_policy_lag": 0}, rho_clip=0.9),
    "rollouts of episodes": of("ppo", {"kind": "is", "sync": "episode"}, epochs=1, minibatch=4096, clip=0.3),
    "the algorithm's own": of("ppo", {"kind": "is", "executors": 1}, epochs=1, minibatch=511, clip=0.3),
    "numbers": of("ppo", env="Pendulum-v1", log_std=0.0, deviation="free"),
}


@pytest.mark.parametrize("source", NO_OLDER.values(), ids=NO_OLDER)
def test_what_corrects_for_older_rows_is_refused_where_there_are_none(source):
    (line,) = refusal(source)
    assert "has no effect with" in line
    assert list(source["algorithm"])[-1] in line


@pytest.mark.parametrize("source", OLDER.values(), ids=OLDER)
def test_where_there_are_it_is_taken(source):
    assert judged(source)


def test_a_push_gathers_whole_episodes_and_no_rollouts_of_fixed_length():
    pushing = {"kind": "oa", "gradients": "executors"}
    (line,) = refusal(of("a2c", {**pushing, "sync": "rollout"}, rows_per_update=500))
    assert 'algorithm.rows_per_update: has no effect with schedule.gradients = "executors"' in line
    assert judged(of("reinforce", pushing | {"sync": "episode"}, rows_per_update=500))
    assert judged(of("a2c", pushing | {"kind": "is"}, rows_per_update=500))
    assert judged(of("impala", {"kind": "oa"}, rows_per_update=500))


def test_what_the_actions_switch_off_is_told_by_the_task():
    (line,) = refusal(of("ppo", log_std=0.0))
    why = 'has no effect with task.env = "CartPole-v1" (its actions are discrete, not box); take it out'
    assert line.endswith(f"algorithm.log_std: {why}")


def test_a_run_goes_on_by_a_file_with_all_keys_but_not_with_a_dead_key_of_set(tmp_path):
    complete = write(tmp_path, '[task]\nenv = "CartPole-v1"\n[algorithm]\nn_step = 5\nreturns = "steps_to_end"\n')
    settings = load_settings(complete, of_run=True)
    assert (
        startup.judged(
            settings, Probe(settings.model_dump(mode="json"), ProgressPage(bytearray(PAGE_BYTES))).probe()
        ).cautions
        == []
    )
    settings = load_settings(complete, ["algorithm.noise_every=3"], of_run=True)
    with pytest.raises(SettingsError, match=r"algorithm\.noise_every"):
        startup.judged(settings, Probe(settings.model_dump(mode="json"), ProgressPage(bytearray(PAGE_BYTES))).probe())


# -- what is shipped --

BASES = {"ia-drop": "ia", "oa-leads": "oa", "retention": "oa", "ablation": "is"}
OPTIONAL = {"LunarLander": "Box2D", "BipedalWalker": "Box2D", "HalfCheetah": "mujoco", "Hopper": "mujoco"}


def shipped():
    for path in sorted((*FOLDER.glob("*.toml"), *FOLDER.glob("study/*.toml"))):
        if task := tomllib.loads(path.read_text()).get("task"):
            package = OPTIONAL.get(task["env"].partition("-")[0])
            package = "minatar" if path.stem.startswith("minatar") else package
            package = "envpool" if task.get("vectorize") == "envpool" else package
            if package is None or importlib.util.find_spec(package):
                yield path, []
        else:
            yield from ((FOLDER / f"{BASES[path.stem]}.toml", o) for o in tomllib.loads(path.read_text()).values())


@pytest.mark.long
def test_no_shipped_file_and_no_variation_has_a_key_without_effect():
    pytest.importorskip("ale_py")
    told = list(itertools.chain(*(_told(*each) for each in shipped())))
    assert len(list(shipped())) > 40
    assert told == []


def _told(path, overrides):
    """Keys of a file, or of the variation, that are without effect; but not those it switches off."""
    try:
        _, remarks = judged(path, overrides)
    except SettingsError as error:
        return [f"{path.name} {overrides}: {line}" for line in error.problems]
    return [] if overrides else [remark for remark in remarks if "has no effect" in remark]


# -- an algorithm of one's own --


class Own(BaseModel):
    kind: str = "slow"
    speed: float = Field(1.0, json_schema_extra=needs('kind in ("fast", "quick")'))
    limits: tuple[float, ...] = ()
    rest: float = Field(0.0, json_schema_extra=needs("limits and speed > 0"))
    ends: float = Field(0.0, json_schema_extra=needs('kind == "fast" or rest > speed'))
    image: bool = Field(True, json_schema_extra=needs("task.mirror"))
    foreign: int = Field(0, json_schema_extra=needs("no_such_field == 1"))
    either: int = Field(0, json_schema_extra=needs("speed > 0 and plain == 0 or plain > 1"))
    falls: tuple[str, ...] = Field((), json_schema_extra=needs({"speed": 'kind == "fast"'}))
    plain: int = 0


def told(table, beside=None):
    return {problem.path[1]: problem.message for problem in idle_in(Own, table, beside)}


def test_an_own_algorithm_gets_the_same_by_declaring_it():
    assert told({}) == {
        "speed": 'has no effect with kind = "slow"; take it out, or set kind = "fast" or "quick"',
        "rest": "has no effect with limits = []; take it out, or set limits = a list that is not empty",
        "ends": 'has no effect with kind = "slow"; take it out, or set kind = "fast"',
    }
    assert told({"kind": "fast", "limits": [1.0]}) == {}
    assert set(told({"kind": "quick", "limits": [1.0], "speed": 0.0})) == {"rest", "ends", "either"}
    assert set(told({"kind": "quick", "limits": [1.0], "rest": 2.0})) == set()
    assert "image" in told({}, {"task": {"mirror": False}})
    assert "image" not in told({}, {"task": {"mirror": True}})


def test_one_of_several_may_itself_ask_for_more_than_one():
    said = "has no effect with plain = 1; take it out, or set plain = 0"
    assert told({"plain": 1})["either"] == said
    assert told({"speed": 0.0})["either"].startswith("has no effect with speed = 0.0;")
    assert not {"either"} & (set(told({})) | set(told({"plain": 2})) | set(told({"plain": 2, "speed": 0.0})))


def test_single_entries_of_a_list_may_have_no_effect():
    said = 'has no effect with kind = "slow"; take it out, or set kind = "fast"'
    assert told({"falls": ["rest", "speed"]})["falls"] == f'"speed" in it {said}'
    assert "falls" not in told({"falls": ["rest"]})
    assert "falls" not in told({"falls": ["speed"], "kind": "fast"})
    assert "falls" not in told({"falls": 3})


def test_a_value_of_another_type_is_left_to_who_judges_types():
    assert "rest" not in told({"limits": [1.0], "speed": "fast"})


@pytest.mark.parametrize("words", ["speed >", "speed > 0 > plain", "speed + 1 > 0", "f(speed)", "3 > speed", ["speed"]])
def test_what_is_no_condition_is_refused_with_its_words(words):
    class Odd(BaseModel):
        speed: float = 1.0
        plain: int = Field(0, json_schema_extra={"needs": words})

    with pytest.raises(ValueError, match=r"^needs: got .*speed.*, expected a co"):
        list(idle_in(Odd, {}))


@pytest.mark.parametrize(
    ("condition", "table", "instead"),
    [
        ("not flag", {"flag": True}, "false"),
        ("flag", {"flag": False}, "true"),
        ("rate != 1.0", {"rate": 1.0}, "something other than 1.0"),
        ("rate <= most", {"rate": 3.0}, "at most 2.0"),
        ("rate < most", {"rate": 2.0}, "a number below 2.0"),
        ("rate == most", {"rate": 1.0}, "2.0"),
        ("rate > -1", {"rate": -1.0}, "a number above -1"),
    ],
)
def test_what_a_condition_asks_for_is_told(condition, table, instead):
    class Asking(BaseModel):
        flag: bool = False
        rate: float = 1.0
        most: float = 2.0
        asks: int = Field(0, json_schema_extra=needs(condition))

    (problem,) = idle_in(Asking, table)
    assert problem.message.endswith(f"; take it out, or set {problem.other[1]} = {instead}")


def test_settings_of_pydantic_alone_declare_nothing():
    class Plain(BaseModel):
        rate: float = 1.0
        steps: list[int] = Field(default_factory=list, json_schema_extra={"unit": "rows"})

    assert list(idle_in(Plain, {"rate": 2.0})) == []


def test_what_is_switched_off_anyway_may_be_written_so():
    class Own(BaseModel):
        mirror: bool = Field(False, json_schema_extra=needs("task.mirror"))

    beside = {"task": {"mirror": False}}
    assert not list(idle_in(Own, {"mirror": False}, beside))
    assert [problem.path for problem in idle_in(Own, {"mirror": True}, beside)] == [("algorithm", "mirror")]
