"""What a user of another package writes is answered with one line that names the key to write instead."""

import pytest
from settings_tools import minimal, problems_of

from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.errors import SettingsError
from mlxe_async.settings import algorithm_problems, settings_schema
from mlxe_async.settings.synonyms import ABSENT, SYNONYMS

# Table in which it is written, the key as it is called there, and the key to write.
ELSEWHERE = [
    # stable-baselines3: the arguments of PPO, A2C, DQN, `learn`, `make_vec_env` and `EvalCallback`
    ("stop", "total_timesteps", "stop.env_steps"),
    ("ppo", "n_steps", "schedule.rollout_steps"),
    ("ppo", "batch_size", "algorithm.minibatch"),
    ("ppo", "n_epochs", "algorithm.epochs"),
    ("ppo", "gamma", "algorithm.discount"),
    ("ppo", "clip_range", "algorithm.clip"),
    ("ppo", "ent_coef", "algorithm.entropy"),
    ("ppo", "vf_coef", "algorithm.value_coefficient"),
    ("ppo", "max_grad_norm", "algorithm.max_gradient_norm"),
    ("ppo", "target_kl", "algorithm.max_kl"),
    ("ppo", "tensorboard_log", "logs.export"),
    ("ppo", "policy_kwargs", "algorithm.policy"),
    ("ppo", "verbose", "logs.progress"),
    ("ppo", "seed", "run.seed"),
    ("ppo", "device", "learner.device"),
    ("schedule", "n_envs", "schedule.envs_per_executor"),
    ("dqn", "buffer_size", "memory.capacity_rows"),
    ("dqn", "learning_starts", "algorithm.start_rows"),
    ("dqn", "batch_size", "algorithm.batch"),
    ("dqn", "tau", "algorithm.target_rate"),
    ("dqn", "train_freq", "algorithm.train_every"),
    ("dqn", "target_update_interval", "algorithm.target_every"),
    ("dqn", "exploration_fraction", "algorithm.epsilon_steps"),
    ("dqn", "exploration_initial_eps", "algorithm.epsilon_first"),
    ("dqn", "exploration_final_eps", "algorithm.epsilon_last"),
    ("dqn", "policy_kwargs", "algorithm.layers"),
    ("mlxe", "vf_coef", "algorithm.value_coefficient"),
    # SAC, TD3 and DDPG
    ("sac", "buffer_size", "memory.capacity_rows"),
    ("sac", "learning_starts", "algorithm.start_rows"),
    ("sac", "tau", "algorithm.target_rate"),
    ("sac", "train_freq", "algorithm.train_every"),
    ("sac", "gradient_steps", "algorithm.updates_each"),
    ("sac", "ent_coef", "algorithm.temperature"),
    ("sac", "policy_kwargs", "algorithm.layers"),
    ("sac", "gamma", "algorithm.discount"),
    ("td3", "target_policy_noise", "algorithm.target_noise"),
    ("td3", "action_noise", "algorithm.noise"),
    ("ddpg", "action_noise", "algorithm.noise"),
    ("evaluation", "n_eval_episodes", "evaluation.episodes"),
    ("evaluation", "eval_freq", "evaluation.interval_steps"),
    ("checkpoint", "save_freq", "checkpoint.interval_steps"),
    ("task", "env_id", "task.env"),
    ("task", "env_kwargs", "task.kwargs"),
    ("task", "wrapper_class", "task.wrappers"),
    ("task", "use_action_mask", "task.action_mask"),
    ("task.atari", "terminal_on_life_loss", "task.atari.life_loss_ends"),
    # CleanRL: the arguments of ppo.py, dqn.py and c51.py
    ("run", "exp_name", "run.name"),
    ("run", "total-timesteps", "stop.env_steps"),
    ("schedule", "num_envs", "schedule.envs_per_executor"),
    ("schedule", "num_steps", "schedule.rollout_steps"),
    ("ppo", "anneal_lr", "algorithm.anneal_steps"),
    ("ppo", "num_minibatches", "algorithm.minibatch"),
    ("ppo", "update_epochs", "algorithm.epochs"),
    ("ppo", "clip_coef", "algorithm.clip"),
    ("dqn", "start_e", "algorithm.epsilon_first"),
    ("dqn", "end_e", "algorithm.epsilon_last"),
    ("dqn", "target_network_frequency", "algorithm.target_every"),
    ("dqn", "train_frequency", "algorithm.train_every"),
    ("mlxe", "n_atoms", "algorithm.atoms"),
    ("c51", "vmin", "algorithm.v_min"),
    ("rainbow", "use_per", "algorithm.prioritised"),
    ("rainbow", "noisy_net", "algorithm.noisy"),
    ("dqn", "use_dueling", "algorithm.dueling"),
    ("mlxe", "prioritized_replay", "algorithm.priorities"),
    ("td3", "noise_sigma", "algorithm.noise_first"),
    ("mlxe", "v_min", "algorithm.value_low"),
    ("mlxe", "v_max", "algorithm.value_high"),
    ("learner", "cuda", "learner.device"),
    ("sac", "q_lr", "algorithm.critic_learning_rate"),
    ("sac", "policy_lr", "algorithm.learning_rate"),
    ("sac", "alpha", "algorithm.temperature"),
    ("sac", "autotune", "algorithm.temperature_learning_rate"),
    ("td3", "policy_frequency", "algorithm.policy_delay"),
    ("td3", "policy_noise", "algorithm.target_noise"),
    ("td3", "noise_clip", "algorithm.target_noise_clip"),
    ("td3", "exploration_noise", "algorithm.noise_first"),
    ("ddpg", "weight_decay", "algorithm.critic_decay"),
    # Tianshou: the arguments of its policies, collectors and trainers
    ("mlxe", "discount_factor", "algorithm.discount"),
    ("dqn", "estimation_step", "algorithm.n_step"),
    ("ppo", "eps_clip", "algorithm.clip"),
    ("ppo", "repeat_per_collect", "algorithm.epochs"),
    ("schedule", "step_per_collect", "schedule.rollout_steps"),
    ("evaluation", "episode_per_test", "evaluation.episodes"),
    ("dqn", "hidden_sizes", "algorithm.layers"),
    ("dqn", "target_update_freq", "algorithm.target_every"),
    ("dqn", "lr", "algorithm.learning_rate"),
    ("evaluation", "reward_threshold", "evaluation.threshold"),
    # sample-factory: the options of its configuration
    ("stop", "train_for_env_steps", "stop.env_steps"),
    ("stop", "train_for_seconds", "stop.seconds"),
    ("schedule", "num_workers", "schedule.executors"),
    ("schedule", "num_envs_per_worker", "schedule.envs_per_executor"),
    ("schedule", "async_rl", "schedule.kind"),
    ("ppo", "exploration_loss_coeff", "algorithm.entropy"),
    ("ppo", "value_loss_coeff", "algorithm.value_coefficient"),
    ("ppo", "ppo_clip_ratio", "algorithm.clip"),
    ("ppo", "nonlinearity", "algorithm.activation"),
    ("ppo", "normalize_input", "algorithm.normalise"),
    ("mlxe", "with_vtrace", "algorithm.correction"),
    ("mlxe", "vtrace_rho", "algorithm.ratio_clip"),
    ("mlxe", "optimizer", "algorithm.optimiser"),
    ("task.atari", "env_framestack", "task.atari.stack"),
    ("checkpoint", "save_every_sec", "checkpoint.interval_s"),
    ("checkpoint", "keep_checkpoints", "checkpoint.keep"),
    ("run", "train_dir", "run.dir"),
    ("ppo", "rnn_size", "algorithm.cell_size"),
    ("ppo", "recurrence", "algorithm.sequence_steps"),
    # RLlib: the arguments of `env_runners`, `training`, `evaluation` and `resources`, and what stops a run
    ("schedule", "num_env_runners", "schedule.executors"),
    ("schedule", "num_envs_per_env_runner", "schedule.envs_per_executor"),
    ("schedule", "rollout_fragment_length", "schedule.rollout_steps"),
    ("ppo", "vf_clip_param", "algorithm.value_clip"),
    ("ppo", "kl_target", "algorithm.kl_penalty_target"),
    ("ppo", "use_lstm", "algorithm.cell"),
    ("ppo", "lstm_cell_size", "algorithm.cell_size"),
    ("ppo", "fcnet_hiddens", "algorithm.policy"),
    ("ppo", "grad_clip_by", "algorithm.max_gradient_norm"),
    ("dqn", "hiddens", "algorithm.layers"),
    ("dqn", "sigma0", "algorithm.noise_sigma"),
    ("sac", "initial_alpha", "algorithm.temperature"),
    ("evaluation", "evaluation_interval", "evaluation.interval_steps"),
    ("learner", "num_gpus", "learner.device"),
    ("task", "env_config", "task.kwargs"),
    ("stop", "training_iteration", "stop.updates"),
    ("stop", "time_total_s", "stop.seconds"),
    ("checkpoint", "checkpoint_freq", "checkpoint.interval_steps"),
    # and further ones of stable-baselines3 and CleanRL
    ("ppo", "clip_range_vf", "algorithm.value_clip"),
    ("ppo", "clip_vloss", "algorithm.value_clip"),
    ("ppo", "norm_reward", "algorithm.reward_scaling"),
    ("run", "capture_video", "evaluation.video"),
    ("run", "track", "logs.export"),
]
# Table in which it is written, a name elsewhere that has no key here, and what is said of it.
ABSENT_HERE = [
    ("ppo", "use_sde", "noise is drawn for each step alone"),
    ("ppo", "norm_adv", "ppo and reinforce normalise advantages"),
    ("ppo", "dropout", "no network here drops out"),
    ("ppo", "adam_eps", "each algorithm has its own"),
    ("ppo", "int_coef", "a wrapper that adds to the reward"),
    ("ppo", "train_batch_size", "the rollouts of all executors"),
    ("dqn", "optimize_memory_usage", "as [memory] says"),
    ("dqn", "handle_timeout_termination", "bootstrapped from, always"),
    ("sac", "n_critics", "two critics"),
    ("schedule", "async_envs", "task.vectorize decide that"),
    ("task", "clip_actions", "clipped to the bounds"),
    ("task", "render_mode", "play latest --render"),
    ("checkpoint", "checkpoint_at_end", "is saved"),
    ("evaluation", "deterministic", "best actions"),
    ("run", "torch-deterministic", "bit for bit"),
    ("stop", "patience", "a sweep prunes those"),
]


def lines_for(table: str, key: str) -> list[str]:
    if table in REGISTRY:
        found = algorithm_problems(load_algorithm(table).Settings, {"name": table, key: 1})
        return [problem.message for problem in found]
    if table == "task.atari":
        return problems_of({"task": {"env": "ALE/Pong-v5", "atari": {key: 1}}})
    if table == "task":
        return problems_of({"task": {"env": "CartPole-v1", key: 1}})
    return problems_of(minimal(**{table: {key: 1}}))


def test_there_are_sixty_mistakes_and_more():
    assert len(set(ELSEWHERE)) == len(ELSEWHERE) >= 60


@pytest.mark.parametrize(("table", "key", "meant"), ELSEWHERE, ids=[f"{t}.{k}" for t, k, _ in ELSEWHERE])
def test_a_key_of_another_package_leads_to_ours(table, key, meant):
    [line] = lines_for(table, key)
    assert line.rpartition(": ")[2].startswith(f"got 1, expected {meant}"), line
    assert "as it is called here" in line
    assert len(line) < 160


@pytest.mark.parametrize(("table", "key", "said"), ABSENT_HERE, ids=[f"{t}.{k}" for t, k, _ in ABSENT_HERE])
def test_of_what_has_no_key_here_no_key_is_offered(table, key, said):
    [line] = lines_for(table, key)
    assert "got 1; there is no such key here: " in line
    assert said in line
    assert "did you mean" not in line


def test_what_is_absent_is_no_key_and_no_synonym():
    assert not ABSENT.keys() & SYNONYMS.keys()
    ours = {key for name in REGISTRY for key in load_algorithm(name).Settings.model_fields}
    assert not ABSENT.keys() & ours


@pytest.mark.parametrize("table", ["memory", "learner", "schedule"])
def test_an_algorithms_key_in_another_table_is_offered_in_its_own(table):
    [line] = lines_for(table, "gae_lambda" if table == "schedule" else "n_step")
    assert "algorithm.gae_lambda" in line or line.endswith('did you mean "algorithm.n_step"?'), line


def test_every_synonym_leads_to_a_key_that_there_is():
    schema = settings_schema({name: load_algorithm(name).Settings for name in REGISTRY})
    known = {
        f"{table}.{key}"
        for table, node in schema["properties"].items()
        for variant in node.get("oneOf", [node])
        for key in schema["$defs"][variant["$ref"].rpartition("/")[2]].get("properties", ())
    }
    known.add("algorithm.name")
    known |= {f"algorithm.{key}" for name in REGISTRY for key in load_algorithm(name).Settings.model_fields}
    known |= {f"task.atari.{key}" for key in schema["$defs"]["Atari"]["properties"]}
    assert {key for keys in SYNONYMS.values() for key in keys} <= known


def test_a_key_of_ours_is_no_synonym_of_another_in_its_own_table():
    for name in REGISTRY:
        fields = load_algorithm(name).Settings.model_fields
        assert algorithm_problems(load_algorithm(name).Settings, {"name": name}) == []
        assert not [key for key in fields if key in SYNONYMS and f"algorithm.{key}" not in SYNONYMS[key]]


def test_what_belongs_to_a_key_of_another_meaning_is_said():
    [line] = lines_for("ppo", "num_minibatches")
    assert "(the rows of each, not how many there are)" in line


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("PPO", "ppo"),
        ("A2C", "a2c"),
        ("A3C", "a2c"),
        ("VPG", "reinforce"),
        ("APPO", "ppo"),
        ("DQN", "dqn"),
        ("DDQN", "dqn"),
        ("PG", "reinforce"),
        ("SimpleQ", "dqn"),
        ("QR-DQN", "c51"),
    ],
)
def test_names_of_algorithms_lead_to_ours(typed, meant):
    with pytest.raises(SettingsError, match=f'did you mean "{meant}"'):
        load_algorithm(typed)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("A3C", 'did you mean "a2c", with schedule.kind = "oa" and schedule.gradients = "executors"?'),
        ("RecurrentPPO", 'did you mean "ppo", with cell = "lstm"?'),
        ("MaskablePPO", 'did you mean "ppo", with task.action_mask = true?'),
        ("APPO", 'did you mean "ppo", with schedule.kind = "oa"?'),
        ("R2D2", 'did you mean "dqn", with cell = "lstm", prioritised = true and value_rescaling = true?'),
        ("DDQN", 'did you mean "dqn", with double = true, which it has when left out?'),
        ("D4PG", 'did you mean "ddpg", with n_step = 5, whose critic learns means and no distributions?'),
        ("QR-DQN", 'did you mean "c51", which learns distributions by atoms?'),
        ("PPO-LSTM", 'did you mean "ppo", with cell = "lstm"?'),
        ("ARS", "none here searches without gradients"),
        ("DreamerV3", "none here learns a model of the world"),
        ("MADDPG", "none here trains several agents"),
        ("TRPO", "no trpo is built in; ppo with max_kl or kl_penalty_target bounds its steps too"),
        ("random", "advise ENV tells what random play comes to"),
    ],
)
def test_names_of_another_kind_are_not_taken_for_one_that_is_spelt_alike(typed, said):
    with pytest.raises(SettingsError) as refusal:
        load_algorithm(typed)
    [line] = refusal.value.problems
    assert line.endswith(said), line


@pytest.mark.parametrize(("typed", "meant"), [("Tanh", "tanh"), ("nn.ReLU", "relu"), ("torch.nn.Tanh", "tanh")])
def test_activations_in_other_words_lead_to_ours(typed, meant):
    [problem] = algorithm_problems(load_algorithm("ppo").Settings, {"name": "ppo", "activation": typed})
    assert f'did you mean "{meant}"?' in problem.message


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("ppo", "n_steps", "of each environment, executors x envs_per_executor"),
        ("schedule", "num_steps", "of each environment, executors x"),
        ("schedule", "num_envs_per_env_runner", "for each of schedule.executors"),
        ("evaluation", "eval_freq", "with evaluation.enabled = true"),
        ("ppo", "tensorboard_log", '["tensorboard"]'),
        ("dqn", "target_network_frequency", "in updates, not in steps"),
        ("ppo", "best_model_save_path", 'load_policy(RUN, checkpoint="best")'),
    ],
)
def test_what_else_is_other_than_elsewhere_is_told_with_the_key(table, key, said):
    [line] = lines_for(table, key)
    assert said in line


@pytest.mark.parametrize(("name", "meant"), [("PPO", "algorithm.entropy"), ("SAC", "algorithm.temperature")])
def test_of_several_keys_the_one_is_told_that_the_algorithm_has(name, meant):
    for tree in ({"algo": name, "ent_coef": 0.1}, minimal(algorithm={"name": name}, run={"ent_coef": 0.1})):
        [line] = [line for line in problems_of(tree) if "ent_coef" in line]
        assert f"expected {meant}, as it is called here" in line
