"""Runs whose executors differentiate: `[schedule] gradients = "executors"`."""

import pytest
from killed_learners import LIVES
from killed_offers import OFFERED
from killed_pushers import PUSHING
from killed_workers import TOGETHER
from test_killed_learners import PLAIN, TABLES, told

from mlxe_async.errors import SettingsError, StepsDiffer
from mlxe_async.ipc.shared import weights
from mlxe_async.ipc.shared.kept import _Slot as KeptSlot
from mlxe_async.ipc.shared.meeting import Meeting
from mlxe_async.ipc.shared.pushes import PushPlaces
from mlxe_async.ipc.shared.weights import WeightsWriter
from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory
from mlxe_async.settings import load_settings

STOP = {"env_steps": 900}
TABULAR = ("q_learning", "sarsa")


def run(live, case, name=None, *, stop=STOP, learner=None, **schedule):
    tables = {key: dict(table) for key, table in TABLES[case].items()}
    tables["algorithm"]["name"] = name or PLAIN[case]
    tables["learner"] = {"fast": False, **(learner or {})}
    together = {"kind": "is", "executors": 2, "gradients": "executors"}
    tables["schedule"] = {**together, **tables.get("schedule", {}), **schedule}
    return live(stop=stop, **tables)


@pytest.fixture(scope="module")
def undisturbed():
    """Runs in which all goes well, by case; each is made once."""
    return {}


def of(live, undisturbed, case, **how):
    key = (case, repr(how))
    if key not in undisturbed:
        undisturbed[key] = run(live, case, **how)
    return undisturbed[key]


QUICK = ("ppo",)
EVERY = [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in TABLES if case not in TABULAR]


@pytest.mark.long
@pytest.mark.parametrize("case", EVERY)
def test_processes_and_one_process_come_to_the_same_weights_and_twice(live, undisturbed, case):
    result, lines = of(live, undisturbed, case)
    again, _ = run(live, case)
    serial, others = run(live, case, kind="serial")
    assert result.updates > 2
    assert again.weights_hash == result.weights_hash == serial.weights_hash
    assert told(lines) == told(others)
    assert result.weights_hash != run(live, case, gradients="learner")[0].weights_hash


@pytest.mark.long
def test_twins_learn_together_alike_in_processes_and_in_one(live, undisturbed):
    result, lines = run(live, "ppo", "ppo", learner={"fast": True})
    serial, _ = run(live, "ppo", "ppo", learner={"fast": True}, kind="serial")
    assert [line["fast"] for line in lines.all("updates")] == [True]
    assert result.weights_hash == serial.weights_hash


@pytest.mark.long
def test_the_audit_of_workers_changes_nothing(live):
    how = {"learner": {"fast": True, "audit_every": 1}}
    audited, lines = run(live, "ppo", "ppo", **how)
    plain, _ = run(live, "ppo", "ppo", learner={"fast": True, "audit_every": 0})
    assert [line["fast"] for line in lines.all("updates")] == [True]
    assert audited.weights_hash == plain.weights_hash


@pytest.mark.long
def test_with_one_executor_it_is_what_the_learner_alone_does(live):
    one, _ = run(live, "ppo", executors=1)
    other, _ = run(live, "ppo", executors=1, gradients="learner")
    assert one.weights_hash == other.weights_hash


@pytest.mark.long
def test_three_executors_learn_together(live):
    result, lines = run(live, "ppo", executors=3)
    serial, _ = run(live, "ppo", executors=3, kind="serial")
    assert result.weights_hash == serial.weights_hash
    rows = [line["rows"] for line in lines.all("phase", phase="learn")]
    assert set(rows) == {3 * 2 * 32}


MOMENTS = ("giving", "given", "taken", "updating", "updated", "noting")
OF_THE_LEARNER = (*MOMENTS, "keeping", "kept", "publishing", "published", "settled", "drawn")
KILLED = [
    (case, who, moment)
    for case in ("ppo", "sac", "td", "a2c", "reinforce", "mlxe rich", "ppo remembering")
    for who, moments in (("worker", MOMENTS), ("learner", OF_THE_LEARNER))
    for moment in moments
    if moment != "noting" or case == "td"
]
FEW = {("ppo", "worker", "given"), ("sac", "learner", "published")}


@pytest.mark.parametrize("moments", [TOGETHER, PUSHING, OFFERED], ids=["together", "pushing", "offered"])
def test_what_brings_death_about_is_still_there(monkeypatch, moments):
    changed = [KeptSlot, WeightsWriter, Meeting, PushPlaces, Bookkeeping, ReplayMemory, RolloutMemory, weights]
    for one in changed:
        for name, value in dict(vars(one)).items():
            if callable(value) and not name.startswith("__"):
                monkeypatch.setattr(one, name, value)
    for moment, arm in moments.items():
        before = [dict(vars(one)) for one in changed]
        arm()
        assert [dict(vars(one)) for one in changed] != before, moment


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "who", "moment"), [pytest.param(*one, marks=() if one in FEW else pytest.mark.slow) for one in KILLED]
)
def test_a_worker_or_learner_that_is_killed_changes_nothing(live, undisturbed, case, who, moment):
    result, lines = run(live, case, f"killed_workers:{case.split()[0]}_{who}_{moment}")
    deaths = [line for line in lines.all("proc_exit", expected=False) if line["signal"] == "SIGKILL"]
    assert len(deaths) == LIVES
    expected, others = of(live, undisturbed, case)
    assert result.weights_hash == expected.weights_hash
    assert told(lines) == told(others)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"schedule.kind": "ia"}, 'with schedule.kind = "ia": executors make updates together'),
        ({"schedule.kind": "istb"}, 'with schedule.kind = "istb"'),
        ({"learner.promote_best": 3}, "expected \"learner\" with learner.promote_best = 3"),
        ({"learner.device": "cuda"}, 'with learner.device = "cuda": executors differentiate on the CPU'),
        ({"schedule.simulated_lag": 1, "schedule.max_policy_lag": 2}, "with schedule.max_policy_lag = 2"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_with_it_are_refused(written, said):
    file = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "ppo"}}
    with pytest.raises(SettingsError) as refused:
        load_settings(file, {"schedule.kind": "is", "schedule.gradients": "executors", **written})
    assert said in str(refused.value)


@pytest.mark.parametrize("name", TABULAR)
def test_a_table_is_refused_before_anything_starts(live, name):
    with pytest.raises(
        SettingsError, match=r'schedule\.gradients: got "executors", expected "learner": this algorithm learns without'
    ):
        run(live, name)


@pytest.mark.long
def test_own_state_that_each_worker_counts_for_itself_is_told(live):
    with pytest.raises(StepsDiffer, match="after an update the workers' weights have the norms"):
        run(live, "ppo", "counting_alone:CountingAlone")
