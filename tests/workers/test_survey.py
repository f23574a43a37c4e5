"""A survey measures each part of a run for each kind of algorithm, and takes little time."""

import contextlib
import time

import pytest

from mlxe_async.settings import load_settings
from mlxe_async.tasks.vector import VectorTask
from mlxe_async.workers.probe import Probe
from mlxe_async.workers.survey import survey


class Page:
    def enter(self, limit_s, call):
        pass

    def leave(self):
        pass


def surveyed(file, **more):
    settings = load_settings(file, more).model_dump(mode="json")
    probe = Probe(settings, Page())
    try:
        facts = probe.probe()
        assert "problems" not in facts
        whole = {**settings, "algorithm": {**settings["algorithm"], **facts["algorithm"]}}
        return probe.survey(whole)
    finally:
        probe.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "file",
    ["ppo-cartpole", "dqn-cartpole", "sac-pendulum", "oa", "q-learning-frozenlake", "ppo-lstm-cartpole-hidden", "fast"],
)
def test_each_part_has_a_cost(file):
    found = surveyed(f"settings/{file}.toml")
    assert "failed" not in found, found
    assert all(found[name] > 0 for name in ("step_s", "act_s", "update_s", "updates_per_row", "rows"))
    assert all(is_kept for _, is_kept, _ in found["conformance"]), found["conformance"]


def test_an_environment_that_raises_later_has_no_costs_and_says_why(monkeypatch):
    def broken(self, actions, only=None):
        raise RuntimeError("the end of the world")

    settings = load_settings("settings/ppo-cartpole.toml").model_dump(mode="json")
    probe = Probe(settings, Page())
    try:
        facts = probe.probe()
        whole = {**settings, "algorithm": {**settings["algorithm"], **facts["algorithm"]}}
        monkeypatch.setattr(VectorTask, "step", broken)
        assert "the end of the world" in probe.survey(whole)["failed"]
    finally:
        probe.close()


@pytest.mark.long
def test_a_slow_environment_is_stepped_only_a_little(monkeypatch):
    step, waited = VectorTask.step, []

    def slow(self, actions, only=None):
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            pass
        waited.append(0.3)
        return step(self, actions, only)

    settings = load_settings("settings/ppo-cartpole.toml").model_dump(mode="json")
    probe = Probe(settings, Page())
    try:
        facts = probe.probe()
        whole = {**settings, "algorithm": {**settings["algorithm"], **facts["algorithm"]}}
        monkeypatch.setattr(VectorTask, "step", slow)
        waited.clear()
        found = survey(whole, probe._made[0], lambda call: contextlib.nullcontext())
    finally:
        probe.close()
    assert len(waited) <= 4
    assert found["step_s"] >= 0.3 / 8
