"""The algorithms, each in one readable file, found by name; and the class that one's own is derived from.

An author writes four verbs, and says with a few attributes what the engine must know:

    class Mine(Algorithm):
        Settings = MineSettings                  # pydantic: the keys of [algorithm], validated before anything starts
        memory, off_policy = "replay", "learns"  # or "rollouts"; what rows of an older policy are to it

        def build(self):                         # everywhere: the torch modules that act; they are what is published
            self.actor = nn.Sequential(...)

        def build_learner(self):                 # in the learner alone: critics, targets, optimisers, numbers
            self.optimiser = torch.optim.Adam(self.actor.parameters(), self.settings.learning_rate)

        def policy(self, obs, acting=None):      # a distribution of actions, from `algorithms.distributions`
            return Categorical(self.actor(obs))

        def update(self, batch, clock):          # one step: loss, zero_grad, backward, step; what was measured
            ...

Who calls what: each executor `load`s the newest weights, and calls `begin_rollout`, `act`, and `at_stop` for what a
rollout or an episode stops at, so that it can value its rows by the weights it acted with. The memorizer asks for
columns, `window`, `batch_rows`, `rows_per_update` and `priorities`, and calls `derive` and `updates_due`. The learner
calls `update` and `weights`, and after a death `restore`, or `set_weights`. The evaluator and a loaded policy call
`greedy`. All of these have defaults that follow from the four verbs; `interface.Algorithm` says what each does.

Each file beside this one is a paper, but for `interface`, `optional_verbs` and `distributions`:

    reinforce, a2c, ppo, impala                 from rollouts: policy gradients, and V-trace
    dqn, c51, rainbow, apex                     from replay: values of discrete actions
    ddpg, td3, sac                              from replay: actions within bounds; `td3` is `ddpg` with three changes
    q_learning, sarsa                           tables
    mlxe                                        its paper is `mlxe/paper.py`; beside it, what no other algorithm uses
    parts, state                                what several papers share; what is published and kept of an object
    interface, optional_verbs, distributions    what the engine calls; verbs that one may have; distributions of actions

The papers are written by the same verbs, on plain torch modules of `networks.bodies` and `networks.heads`: a copy of a
file is a template, and learns the same bits. One class stands between most of them and `Algorithm`: `parts.on_policy`
for rollouts, `parts.value_based` for values of actions, `parts.continuous` for bounded actions, `parts.tabular` for
tables. `parts.layers` makes layers as the settings say, `parts.replay` has what a replay memory asks for, and
`parts.fields` the keys that several algorithms have. In executors numpy evaluates these modules (`takes_arrays`).

What is kept without a word: every module, parameter, tensor, optimiser, scheduler, generator, array and number that is
an attribute of the learner's object, so that a run goes on exactly, also after its learner was killed. So are the
global generators of numpy and Python, which follow from the seed. See `state.snapshot`. What changes and cannot be
kept, such as a list that grows, is told in the log by name (`state.unkept`). What an environment carries from step to
step, such as the state of a recurrent cell, is declared in `carry`.
"""

from __future__ import annotations

import difflib
import importlib
import traceback

from mlxe_async.algorithms.interface import Acting, Algorithm, Clock, Priorities
from mlxe_async.errors import SettingsError, raised_at

__all__ = [
    "NAMES_ELSEWHERE",
    "REGISTRY",
    "Acting",
    "Algorithm",
    "Clock",
    "Priorities",
    "is_algorithm",
    "load_algorithm",
    "meant_by",
    "unknown_algorithm",
]

REGISTRY = {
    "a2c": "mlxe_async.algorithms.a2c:A2C",
    "apex": "mlxe_async.algorithms.apex:ApeX",
    "c51": "mlxe_async.algorithms.c51:C51",
    "ddpg": "mlxe_async.algorithms.ddpg:DDPG",
    "dqn": "mlxe_async.algorithms.dqn:DQN",
    "impala": "mlxe_async.algorithms.impala:Impala",
    "mlxe": "mlxe_async.algorithms.mlxe.paper:MLxE",
    "ppo": "mlxe_async.algorithms.ppo:PPO",
    "q_learning": "mlxe_async.algorithms.q_learning:QLearning",
    "rainbow": "mlxe_async.algorithms.rainbow:Rainbow",
    "reinforce": "mlxe_async.algorithms.reinforce:Reinforce",
    "sac": "mlxe_async.algorithms.sac:SAC",
    "sarsa": "mlxe_async.algorithms.sarsa:Sarsa",
    "td3": "mlxe_async.algorithms.td3:TD3",
}
"""Built-in algorithms; the module is imported only when its name is asked for."""

NAMES_ELSEWHERE = {
    "a3c": "a2c",
    "actor_critic": "a2c",
    "policy_gradient": "reinforce",
    "vpg": "reinforce",
    "pg": "reinforce",
    "appo": "ppo",
    "async_ppo": "ppo",
    "a3c_lstm": "a2c",
    "vtrace": "impala",
    "d4pg": "ddpg",
    "d3qn": "dqn",
    "gorila": "dqn",
    "dppo": "ppo",
    "ppo2": "ppo",
    "recurrentppo": "ppo",
    "recurrent_ppo": "ppo",
    "ppo_lstm": "ppo",
    "maskableppo": "ppo",
    "maskable_ppo": "ppo",
    "ppo_continuous": "ppo",
    "ppocontinuous": "ppo",
    "ape_x": "apex",
    "apex_dqn": "apex",
    "ddqn": "dqn",
    "simpleq": "dqn",
    "simple_q": "dqn",
    "drqn": "dqn",
    "r2d2": "dqn",
    "qrdqn": "c51",
    "qr_dqn": "c51",
    "iqn": "c51",
    "qlearning": "q_learning",
    "watkins": "q_learning",
    "n_step_sarsa": "sarsa",
    "double_dqn": "dqn",
    "dueling_dqn": "dqn",
    "noisy_dqn": "dqn",
    "prioritised_dqn": "dqn",
    "categorical_dqn": "c51",
    "distributional_dqn": "c51",
    "rainbow_dqn": "rainbow",
    "discrete_sac": "sac",
    "sac_discrete": "sac",
    "soft_actor_critic": "sac",
    "twin_delayed_ddpg": "td3",
    "deep_deterministic_policy_gradient": "ddpg",
}
"""Built-in algorithms by the names that others have for them."""

_WITH = {
    **dict.fromkeys(("appo", "async_ppo"), ', with schedule.kind = "oa"'),
    "dppo": ', with schedule.gradients = "executors"',
    "gorila": ', with schedule.kind = "oa" and schedule.gradients = "executors"',
    "a3c_lstm": ', with schedule.kind = "oa", schedule.gradients = "executors" and cell = "lstm"',
    "d4pg": ", with n_step = 5, whose critic learns means and no distributions",
    **dict.fromkeys(("ddqn", "double_dqn"), ", with double = true, which it has when left out"),
    **dict.fromkeys(("dueling_dqn", "d3qn"), ", with dueling = true"),
    "noisy_dqn": ", with noisy = true",
    "prioritised_dqn": ", with prioritised = true",
    "a3c": ', with schedule.kind = "oa" and schedule.gradients = "executors"',
    **dict.fromkeys(("recurrentppo", "recurrent_ppo", "ppo_lstm", "drqn"), ', with cell = "lstm"'),
    "r2d2": ', with cell = "lstm", prioritised = true and value_rescaling = true',
    **dict.fromkeys(("maskableppo", "maskable_ppo"), ", with task.action_mask = true"),
    **dict.fromkeys(("qrdqn", "qr_dqn", "iqn"), ", which learns distributions by atoms"),
}
"""Words behind the name that was meant, so that it is what the other name stands for."""

_OF_ANOTHER_KIND = {
    "none here searches without gradients": "ars es cem cma_es openai_es evolution genetic",
    "none here learns from data of others": "bc marwil iql cql bcq td3_bc gail airl dagger",
    "none here learns a model of the world": "dreamer dreamerv2 dreamerv3 muzero alphazero mbpo",
    "none here trains several agents": "maddpg mappo qmix ippo vdn coma",
    "none here learns from goals that were missed": "her",
    "no trpo is built in; ppo with max_kl or kl_penalty_target bounds its steps too": "trpo",
    "no such one is built in": "mpo acer acktr ppg rpo pqn tqc redq droq crossq",
    "advise ENV tells what random play comes to": "random",
}
"""Names that are not to be taken for one that is merely spelt alike, after what is said of them."""


def load_algorithm(name: str) -> type[Algorithm]:
    """The class behind a built-in name or behind the user's own `"package.module:Class"`.

    Raises:
        SettingsError: there is no such algorithm, its module cannot be imported (with the line), or the class is no
            algorithm.
    """
    path = REGISTRY.get(name, name)
    module_name, colon, class_name = path.partition(":")
    if not colon:
        raise _problem(unknown_algorithm(name))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        place = f" ({at})" if (at := raised_at(error)) else ""
        raise _problem(f'got "{name}", but importing {module_name} failed: {last}{place}') from error
    algorithm = getattr(module, class_name, None)
    if not isinstance(algorithm, type):
        here = "; a class of a notebook or script is unknown in the run's processes: write it into a file"
        where = here if module_name == "__main__" else ""
        raise _problem(f'got "{name}", but {module_name} has no class {class_name}{where}')
    missing = [member for member in _MEMBERS if not hasattr(algorithm, member)]
    if missing:
        advice = "; derive it from mlxe_async.algorithms.Algorithm"
        raise _problem(f'got "{name}", but {class_name} is no algorithm: it lacks {", ".join(missing)}{advice}')
    own = [verb for verb in _OWN if all(getattr(algorithm, part, None) is getattr(Algorithm, part) for part in verb)]
    if own:
        words = ", ".join(" or ".join(verb) for verb in own)
        raise _problem(f'got "{name}", but {class_name} is not finished: it has no {words} of its own')
    return algorithm


def is_algorithm(name: str) -> bool:
    """Tell if a name is that of a built-in algorithm, or has the form of one of the user's own."""
    return name in REGISTRY or ":" in name


def meant_by(name: str) -> tuple[str, str]:
    """Return the built-in algorithm that a name of another package means, and with what; empty where there is none."""
    plain = name.lower().replace("-", "_")
    if any(plain in names.split() for names in _OF_ANOTHER_KIND.values()):
        return "", ""
    near = difflib.get_close_matches(NAMES_ELSEWHERE.get(plain, plain), REGISTRY, 1)
    return (near[0], _WITH.get(plain, "").removeprefix(", ")) if near else ("", "")


def unknown_algorithm(name: str) -> str:
    """Say that there is no such algorithm, which there are, and which one was probably meant."""
    plain = name.lower().replace("-", "_")
    meant, beside = meant_by(name)
    hint = f'; did you mean "{meant}"{", " * bool(beside)}{beside}?' if meant else ""
    for told, names in _OF_ANOTHER_KIND.items():
        hint = f"; {told}" if plain in names.split() else hint
    return f'got "{name[:200]}", expected one of {", ".join(sorted(REGISTRY))} or "package.module:Class"{hint}'


def _problem(text: str) -> SettingsError:
    return SettingsError([f"algorithm.name: {text}"])


_MEMBERS = (
    *("Settings", "memory", "load", "act", "greedy", "greedy_many"),
    *("derive", "updates_due", "update", "weights", "set_weights"),
)
_OWN = (("policy", "act"), ("update",))
