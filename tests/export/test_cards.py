"""A model card's folder can be loaded again, says what the run measured, and gives away nothing of this machine."""

import numpy as np
import pytest
from policies_to_export import policy_of

from mlxe_async import load_policy, load_settings
from mlxe_async.errors import SettingsError
from mlxe_async.export import card, onnx_file

MISSING = SettingsError(["export --to onnx: needs a package that is not installed"])


def judged(version, mean, *, failed_at=None, least=1.0):
    return {
        "event": "evaluation",
        "version": version,
        "episodes": 10,
        "steps": 500,
        "return_mean": mean,
        "return_min": least,
        "failed_at": failed_at,
        "passed": True,
    }


@pytest.fixture(autouse=True)
def _without_onnx(monkeypatch):
    def write(policy, path):
        raise MISSING

    monkeypatch.setattr(onnx_file, "write", write)


@pytest.fixture
def policy():
    found = policy_of({"env": "CartPole-v1"})
    found.counters = {"env_steps": 12_800, "episodes": 90, "updates": 12}
    return found


def test_the_folder_is_a_policy_that_can_be_loaded(policy, tmp_path):
    told = card.write(policy, tmp_path / "card", [])
    assert told == "2 files and the weights; without policy.onnx: --to onnx: needs a package that is not installed"
    found = load_policy(tmp_path / "card")
    assert found.version == 7
    obs = np.random.default_rng(0).normal(0, 1, (50, 4)).astype(np.float32)
    np.testing.assert_array_equal(found.act(obs), policy.act(obs))
    assert [one.name for one in tmp_path.iterdir()] == ["card"]


def test_results_are_those_of_this_version_tested_whole(policy, tmp_path):
    lines = [judged(7, 321.5), judged(7, 9.0, failed_at=3), judged(8, 500.0)]
    card.write(policy, tmp_path / "card", lines)
    text = (tmp_path / "card" / "README.md").read_text()
    assert "    - type: mean_reward\n      value: 321.50\n" in text
    assert "| 7 | 10 | 321.50 | 1.00 | 500 |" in text
    assert "500.00" not in text
    assert "Saved after 12,800 environment steps, 90 episodes, 12 updates" in text


def test_without_a_test_there_are_no_results(policy, tmp_path):
    card.write(policy, tmp_path / "card", [judged(8, 500.0)])
    text = (tmp_path / "card" / "README.md").read_text()
    assert "model-index" not in text
    assert "Version 7 was not tested whole" in text


def test_nothing_of_this_machine_and_no_secret_is_given_away(tmp_path):
    found = policy_of({"env": "CartPole-v1"})
    run = found.settings.run.model_copy(update={"python_path": ("/home/me/secret-place",), "dir": "/home/me/runs"})
    run = run.model_copy(update={"init_from": "/home/me/runs/before"})
    items = {"reset_options": "/home/me/items", "test_options": "/home/me/more", "shuffle_options": True}
    task = found.settings.task.model_copy(update={"kwargs": {"api_key": "abc-123-xyz"}, **items})
    found.settings = found.settings.model_copy(update={"run": run, "task": task})
    card.write(found, tmp_path / "card", [])
    for path in (tmp_path / "card").rglob("*"):
        if path.is_file():
            assert b"/home/me" not in path.read_bytes(), path
            assert b"abc-123-xyz" not in path.read_bytes(), path
    assert load_settings(tmp_path / "card" / "settings.toml").task.env == "CartPole-v1"


def test_what_is_there_is_not_replaced(policy, tmp_path):
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "mine.txt").write_text("mine")
    with pytest.raises(SettingsError, match="expected a new or an empty folder"):
        card.write(policy, tmp_path / "card", [])
    assert [one.name for one in (tmp_path / "card").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ['x"\n---\nlicense: other', "a`b|c<script>"])
def test_a_name_cannot_write_into_the_card(policy, tmp_path, name):
    task = policy.settings.task.model_copy(update={"env": name})
    policy.settings = policy.settings.model_copy(update={"task": task})
    text = card.text(policy, [judged(7, 1.0)], [], None)
    head = text.split("---")[1]
    assert "\nlicense" not in head
    body = text.split("## Results")[0]
    assert "<script>" not in body
    assert "`" not in body


def test_the_hub_reads_the_header(policy, tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    card.write(policy, tmp_path / "card", [judged(7, 321.5)])
    found = hub.ModelCard.load(tmp_path / "card" / "README.md").data
    assert found.library_name == "mlxe_async"
    assert found.pipeline_tag == "reinforcement-learning"
    assert "CartPole-v1" in found.tags
    (result,) = found.eval_results
    assert (result.task_type, result.dataset_name) == ("reinforcement-learning", "CartPole-v1")
    assert (result.metric_type, result.metric_value) == ("mean_reward", 321.5)
