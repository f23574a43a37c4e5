"""What the algorithms' files say under "What do I change to make ...": done in a copy, it is what is learned."""

import importlib.util
import sys
from functools import partial

import numpy as np
import pytest
import torch
from made_rows import SPACES, agent, batch
from nasty import DQN, PPO, MLxE, logits
from papers import PACKAGE, text_of
from proof import take, update

from mlxe_async.algorithms import Acting, Clock
from mlxe_async.algorithms.mlxe import paper
from mlxe_async.fast import updates

FLAT = {"ppo": {"epochs": 1, "minibatch": 1000, "max_gradient_norm": 0}, "mlxe": {}, "dqn": {"max_gradient_norm": 0}}
KINDS = {"ppo": PPO, "mlxe": MLxE, "dqn": DQN}
# the line of the header -> the file, and what is replaced by what
RECIPES = {
    "another loss": (
        "ppo",
        {"return 0.5 * error.mean()": "return (1 + error).sqrt().mean()"},
    ),
    "a constant KL penalty": (
        "ppo",
        {'- self.now["entropy"] * entropy': '- self.now["entropy"] * entropy + 2.0 * divergence'},
    ),
    "other advantages": ("ppo", {"self.with_advantages(batch)": "self.with_advantages(batch, 0.0)"}),
    "another loss of mlxe": ("mlxe", {"weighted_advantage.detach()": "weighted_advantage.detach().clamp(-0.1, 0.1)"}),
    "another return": ("mlxe", {"return stored(split, ": "return stored(split._replace(partial=2 * split.partial), "}),
    "another correction": ("mlxe", {"weight * (expected - value)": "weight.square() * (expected - value)"}),
    "a slower target": (
        "mlxe",
        {"polyak(self.target, self.learned, 1.0)": "polyak(self.target, self.learned, 0.1)"},
    ),
    "another loss or target": ("dqn", {"return 0.5 * error.square().where(": "return 3.0 * error.square().where("}),
    "other priorities of dqn": ("dqn", {"self.judged(error, rows)": "error.square().numpy() + 0.25"}),
    "another network": (
        "dqn",
        {
            "streams(s, self.spaces, actions, dueling=s.dueling, sigma=s.noise_sigma if s.noisy else None)": (
                "torch.nn.Sequential("
                "torch.nn.Linear(self.spaces.entries, 8), torch.nn.ELU(), torch.nn.Linear(8, actions))"
            ),
            "from typing import TYPE_CHECKING": "from typing import TYPE_CHECKING\n\nimport torch",
        },
    ),
}
SWITCHES = {"other priorities of dqn": {"prioritised": True}}


LATER = {
    "a constant KL penalty": {"epochs": 5, "learning_rate": 0.01},
    "a slower target": {"target": "every_k", "target_every": 1, "learning_rate": 0.05},
}
"""Recipes that show only once weights have moved, and settings by which they do."""


@pytest.fixture
def copied(tmp_path):
    """Make the class of a copy of a built-in file with other text in it."""
    made = []

    def copy(name, changes):
        text = text_of(name)
        for before, after in changes.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        path = tmp_path / f"my_{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
        made.append(path.stem)
        spec.loader.exec_module(module)
        return getattr(module, KINDS[name].__name__)

    yield copy
    for name in made:
        del sys.modules[name]


def gradient(algorithm, rows):
    taken = []
    way = updates(algorithm)
    _, _ = update(algorithm, way.update, rows, Clock(), partial(take, taken))
    return taken[0], way


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_learned_from_as_it_is_printed(recipe, copied):
    name, changes = RECIPES[recipe]
    kind = copied(name, changes)
    before = agent(name, **FLAT[name])
    mine = agent(name, kind=kind, **FLAT[name], **SWITCHES.get(recipe, {}))
    rows = batch(mine, scale=2.0)
    found, way = gradient(mine, rows)
    assert way.twin is None
    if recipe == "another network":
        acted = mine.act(rows["obs"], np.random.default_rng(0), Acting())
        assert acted["action"].shape == (len(rows["obs"]),)
        values = mine.network(torch.from_numpy(rows["obs"])).detach().numpy()
        np.testing.assert_array_equal(mine.greedy(rows["obs"]), values.argmax(-1))
    elif recipe == "other priorities of dqn":
        asked = FLAT[name] | SWITCHES[recipe]
        (_, changed), (_, own) = (agent(name, kind=one, **asked).update(rows, Clock()) for one in (kind, None))
        np.testing.assert_allclose(changed, (own - 0.001) ** 2 + 0.25, rtol=1e-4, atol=1e-5)
    elif recipe in LATER:
        ends = []
        for one in (kind, None):
            learner = agent(name, kind=one, **FLAT[name] | LATER[recipe])
            for number in range(3):
                updates(learner).update(batch(learner, scale=2.0), Clock(updates=number))
            ends.append(learner.weights())
        assert not np.allclose(*ends, atol=1e-4)
    else:
        theirs, _ = gradient(before, batch(before, scale=2.0))
        assert (found - theirs).norm() > 1e-3 * theirs.norm()


def test_another_exploration_is_a_case_of_the_mixture(monkeypatch):
    def flat(log_probs, behaviour, share):
        assert (behaviour, share) == ("reversed", 0.5)
        return np.full_like(log_probs, -np.log(log_probs.shape[-1]))

    algorithm = agent("mlxe", behaviour="reversed", epsilon=0.5)
    monkeypatch.setattr(paper, "mixture", flat)
    algorithm.load(algorithm.weights())
    obs = batch(algorithm)["obs"]
    acted = algorithm.act(obs, np.random.default_rng(0), Acting())
    np.testing.assert_allclose(acted["log_prob"], -np.log(3), rtol=1e-6)
    way = updates(algorithm)
    assert (way.twin, "mixture" in way.reason) == (None, True)


def test_another_scale_of_values_is_a_case_of_the_critic_and_its_loss(copied, tmp_path):
    """Values as ten times the critic's output, as a copy of `critics.py` and of the algorithm say."""
    text = (PACKAGE / "algorithms" / "mlxe" / "critics.py").read_text()
    for before, after in {
        'Literal["return", "survival", "categorical"]': 'Literal["return", "survival", "categorical", "tens"]',
        'return outputs.sigmoid() if self.scale == "survival" else outputs': 'if self.scale == "tens":\n'
        "            return 10 * outputs\n"
        '        return outputs.sigmoid() if self.scale == "survival" else outputs',
    }.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    spec = importlib.util.spec_from_loader("my_critics", loader=None)
    sys.modules["my_critics"] = module = importlib.util.module_from_spec(spec)
    try:
        exec(compile(text, str(tmp_path / "my_critics.py"), "exec"), module.__dict__)  # noqa: S102 - our own, changed
        kind = copied(
            "mlxe",
            {
                "from mlxe_async.algorithms.mlxe.critics import": "from my_critics import",
                '    if scale == "return":': '    if scale == "tens":\n'
                "        return 0.5 * (target.detach() / 10 - value).square()\n"
                '    if scale == "return":',
            },
        )
        settings = kind.Settings.model_validate({"value_scale": "tens", "entropy": 0})
        mine = kind(settings, SPACES, seed=1, learns=True)
        rows = batch(mine, scale=2.0)
        found, way = gradient(mine, rows)
        assert way.twin is None
        tenth = {"partial": rows["partial"] / 10}
        theirs, _ = gradient(agent("mlxe", entropy=0), rows | tenth)
        critic, start = {}, 0
        for name, leaf in mine.learned.named_parameters():
            critic[name], start = slice(start, start + leaf.numel()), start + leaf.numel()
        of_values = [place for name, place in critic.items() if name.startswith("critic")]
        assert of_values
        for place in of_values:  # a tenth of the target is learned by a tenth of the value
            torch.testing.assert_close(found[place], theirs[place], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(found, theirs, rtol=1e-2)  # advantages are ten times as large
    finally:
        del sys.modules["my_critics"]


def test_other_priorities_are_what_appraise_says(copied):
    kind = copied("mlxe", {'return {"return": target, "td_error": target - value}': 'return {"return": target, '
                          '"td_error": (target - value) ** 2}'})  # fmt: skip
    asked = {"priorities": ["td"]}
    mine, theirs = (agent("mlxe", kind=one, **asked) for one in (kind, None))
    rows = batch(mine)
    for one in (mine, theirs):
        one.load(theirs.weights())
    np.testing.assert_allclose(mine.appraise(rows)["td_error"], theirs.appraise(rows)["td_error"] ** 2, rtol=1e-5)


def test_a2c_is_ppo_with_one_epoch_over_the_whole_rollout():
    """At ratio 1 the clipped surrogate's gradient is that of -log pi times the advantage."""
    algorithm = agent("ppo", **FLAT["ppo"], entropy=0, value_coefficient=0, normalise=False)
    rows = batch(algorithm)
    flat = rows["obs"].reshape(-1, 4)
    stored = algorithm.policy(flat).log_prob(rows["action"].reshape(-1))
    rows["log_prob"] = stored.reshape(rows["action"].shape)
    found, _ = gradient(algorithm, rows)
    other = agent("ppo", **FLAT["ppo"], entropy=0, value_coefficient=0, normalise=False)
    (some,) = other.minibatches(rows, 1)
    log_probs = logits(other, some["obs"]).log_softmax(-1)
    chosen = log_probs.gather(-1, some["action"][:, None])[:, 0]
    advantage = (some["advantage"] - some["advantage"].mean()) / (some["advantage"].std(correction=0) + 1e-8)
    other.optimiser.zero_grad()
    (-(chosen * advantage).mean()).backward()
    torch.testing.assert_close(found, other.optimiser.gradient, rtol=1e-4, atol=1e-6)
