"""The probe writes an algorithm's settings out; every role, a resumed run and a loaded policy are made from that."""

import pytest

from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.workers.probe import Probe

LIMITS = {"reset_timeout_s": 60.0, "step_timeout_s": 60.0, "update_timeout_s": 60.0}


def probed(name, **keys):
    settings = {
        "algorithm": {"name": f"odd_settings:{name}", **keys},
        "learner": {"device": "cpu"},
        "task": {"env": "CartPole-v1"},
        "memory": {"capacity_rows": None},
        "schedule": LIMITS,
    }
    probe = Probe(settings, ProgressPage(bytearray(PAGE_BYTES)))
    try:
        return probe.probe()
    finally:
        probe.close()


@pytest.mark.parametrize(
    ("name", "keys", "path", "words"),
    [
        ("Halves", {"rate": 1.0}, ["algorithm", "rate"], "got 0.5, which is read as 0.25 once Settings has written it"),
        ("Hides", {"discount": 0.5}, ["algorithm", "discount"], "got 0.5, which is read as 0.9 once Settings"),
        ("Forgets", {"bound": 3}, ["algorithm", "bound"], "got nothing, which is read as 0.5 once Settings"),
        ("HoldsCode", {}, ["algorithm"], "cannot be made again from its own values as they are written: "),
    ],
)
def test_what_would_be_another_value_in_another_role_is_refused_by_its_key(name, keys, path, words):
    (problem,) = probed(name, **keys)["problems"]
    assert problem["path"] == path
    assert words in problem["message"]


def test_what_follows_from_other_keys_is_not_written():
    assert probed("Computes", width=3)["algorithm"] == {"width": 3}


def test_defaults_that_a_validator_does_not_see_are_no_problem():
    assert probed("Hides")["algorithm"] == {}
    assert probed("Forgets")["algorithm"] == {"bound": 0.5}
