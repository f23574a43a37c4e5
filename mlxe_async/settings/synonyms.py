"""Names of our keys in other packages: stable-baselines3, CleanRL, Tianshou, sample-factory, RLlib.

Each name leads to our keys, the likelier first: of those of `[algorithm]` the first is meant that the algorithm has.
"""

from __future__ import annotations

from typing import Any

_KEYS = {
    # how long
    "stop.env_steps": (
        "num_env_steps_sampled_lifetime total_timesteps timesteps total_steps n_timesteps num_timesteps "
        "max_steps steps env_frames "
        "train_for_env_steps max_timesteps step_per_epoch stop_timesteps"
    ),
    "stop.seconds": "time_total_s train_for_seconds max_seconds timeout time_limit",
    "stop.episodes": "n_episodes num_episodes max_episodes total_episodes",
    "stop.updates": "training_iteration total_iters num_updates n_updates total_updates num_iterations stop_iters",
    # what
    "task.env": "env_id env_name gym_id environment",
    "task.kwargs": "env_config env_kwargs env_args make_kwargs",
    "task.max_episode_steps": "max_episode_length horizon episode_length max_ep_len",
    "task.wrappers": "wrapper wrapper_class env_wrapper",
    "task.clip_rewards": "clip_reward reward_clip rew_clip reward_clipping",
    "task.observe": "obs_keys observation_keys filter_keys",
    "task.action_mask": "action_masking mask_actions use_action_mask use_action_masking",
    "task.atari.frame_skip": "frameskip env_frameskip action_repeat frame_skip frames_skip",
    "task.atari.stack task.history": "frame_stack env_framestack frames_stack n_stack num_stack stack_num",
    "task.history": "history_length obs_history num_history observation_history obs_stack",
    "task.atari.noop_max": "noops max_noops",
    "task.atari.sticky": "repeat_action_probability sticky_actions",
    "task.atari.life_loss_ends": "terminal_on_life_loss episodic_life",
    "task.atari.fire": "fire_reset use_fire_reset fire_on_reset press_fire",
    "task.atari.actions": "action_set reduced_actions action_meanings",
    "task.atari.height task.atari.width": "screen_size frame_size resize image_size",
    "task.atari.height": "img_height",
    "task.atari.width": "img_width",
    "task.atari.colour": "color rgb grayscale grayscale_obs grey",
    # who
    "schedule.kind": "async_rl asynchronous mode serial_mode",
    "schedule.executors": (
        "num_env_runners num_rollout_workers num_workers n_workers num_actors actors workers n_proc "
        "num_processes training_num"
    ),
    "schedule.envs_per_executor": "num_envs_per_env_runner n_envs num_envs num_envs_per_worker nenvs envs",
    "schedule.rollout_steps": (
        "rollout_fragment_length n_steps num_steps rollout rollout_length step_per_collect nsteps rollout_len "
        "unroll_length"
    ),
    "schedule.max_policy_lag": "max_policy_lag max_lag policy_lag",
    "schedule.simulated_lag": "actor_lag lag_versions stale_versions",
    "schedule.max_owed_updates": "num_batches_to_accumulate",
    # how
    "algorithm.name": "algo agent algorithm_name",
    "algorithm.discount": "gamma discount_factor discounting",
    "algorithm.learning_rate": "lr learning_rate step_size pi_lr policy_lr actor_lr lr_actor actor_learning_rate",
    "algorithm.critic_learning_rate": "q_lr critic_lr lr_critic qf_lr",
    "algorithm.temperature_learning_rate algorithm.learning_rate": "alpha_lr alpha_learning_rate ent_coef_lr",
    "algorithm.learning_rate_last": "lr_final final_lr learning_rate_final",
    "algorithm.anneal_steps algorithm.learning_rate_decay": (
        "anneal_lr lr_decay lr_schedule linear_lr_decay use_linear_lr_decay"
    ),
    "algorithm.gae_lambda": "lambda lam gae_lam gae lambda_ lambda_gae gae_lambda",
    "algorithm.cell": "use_lstm use_rnn rnn_type recurrent lstm",
    "algorithm.cell_size": "lstm_cell_size rnn_size lstm_hidden_size",
    "algorithm.cell_layers": "rnn_num_layers n_lstm_layers",
    "algorithm.sequence_steps": "recurrence max_seq_len bptt_truncation seq_len sequence_length",
    "algorithm.common": "share_features_extractor actor_critic_share_weights vf_share_layers shared_layers",
    "algorithm.value_clip": "clip_range_vf vf_clip_param clip_vloss ppo_clip_value",
    "algorithm.kl_penalty_target": "use_kl_loss kl_target",
    "algorithm.reward_scaling algorithm.return_scale": "normalize_returns norm_reward rew_norm normalize_reward",
    "algorithm.log_std": "log_std_init initial_stddev init_log_std",
    "algorithm.temperature": "initial_alpha init_temperature",
    "algorithm.noise_sigma": "sigma0 noisy_sigma",
    "algorithm.loss": "td_error_loss_fn use_huber huber_loss loss_fn",
    "algorithm.n_step": "estimation_step n_steps_return td_steps multi_step",
    "algorithm.clip algorithm.ratio_clip": (
        "clip_range clip_coef eps_clip ppo_clip_ratio clip_param cliprange clip_ratio clip_epsilon"
    ),
    "algorithm.ratio_clip algorithm.rho_clip": "vtrace_rho rho_bar clip_rho_threshold",
    "algorithm.c_clip": "vtrace_c c_bar clip_c_threshold clip_pg_rho_threshold",
    "algorithm.correction algorithm.name": "with_vtrace vtrace use_vtrace",
    "algorithm.max_kl": "target_kl",
    "algorithm.epochs": "n_epochs update_epochs num_epochs repeat_per_collect noptepochs ppo_epochs num_sgd_iter",
    "algorithm.minibatch algorithm.batch": (
        "batch_size minibatch_size sgd_minibatch_size mini_batch_size num_minibatches nminibatches"
    ),
    "algorithm.entropy algorithm.temperature": (
        "ent_coef entropy_coef entropy_coeff entropy_coefficient exploration_loss_coeff ent_weight"
    ),
    "algorithm.temperature_learning_rate": "autotune auto_alpha learn_temperature automatic_entropy_tuning",
    "algorithm.target_entropy": "target_entropy_scale entropy_target",
    "algorithm.policy_delay": "policy_frequency policy_freq update_actor_freq actor_delay delayed_policy_update",
    "algorithm.target_noise": "smooth_target_policy target_policy_noise policy_noise",
    "algorithm.target_noise_clip": "noise_clip target_policy_noise_clip",
    "algorithm.noise": "action_noise noise_type exploration_noise_type",
    "algorithm.noise_first": "exploration_noise noise_std expl_noise act_noise",
    "algorithm.noise_sigma algorithm.noise_first": "noise_sigma noisy_std",
    "algorithm.noise_pull": "ou_theta noise_theta",
    "algorithm.critic_decay": "critic_weight_decay critic_l2 weight_decay l2_reg critic_l2_reg",
    "algorithm.updates_each": (
        "utd_ratio updates_per_step num_updates_per_step replay_ratio gradient_steps update_per_step"
    ),
    "algorithm.replay_ratio": "replay_ratio training_intensity samples_per_insert",
    "algorithm.value_coefficient": "vf_coef value_loss_coeff vf_loss_coeff value_coef vf_weight",
    "algorithm.max_gradient_norm": "grad_clip_by max_grad_norm grad_clip gradient_clip clip_grad_norm max_gradient",
    "algorithm.optimiser": "optimizer optimizer_class optim optimizer_type",
    "algorithm.normalise": "normalize_input norm_obs obs_norm normalize normalise_observations",
    "algorithm.input_scale": "obs_scale",
    "algorithm.return_scale": "reward_scale rew_scale",
    "algorithm.body": "cnn encoder_conv_architecture features_extractor_class",
    "algorithm.policy algorithm.layers": (
        "fcnet_hiddens hiddens actor_hiddens policy_kwargs net_arch hidden_sizes hidden_units "
        "encoder_mlp_layers decoder_mlp_layers pi hidden_size hidden_layers"
    ),
    "algorithm.value": "critic_hiddens vf critic critic_layers",
    "algorithm.activation": "fcnet_activation activation_fn nonlinearity activation_function",
    "algorithm.start_rows": (
        "num_steps_sampled_before_learning_starts random_warmup_timesteps learning_starts start_timesteps "
        "warmup_steps start_steps"
    ),
    "algorithm.train_every algorithm.min_updates": "train_freq train_frequency update_every",
    "algorithm.target_every": (
        "target_update_interval target_network_frequency target_update_freq target_network_update_freq"
    ),
    "algorithm.target_rate": "tau polyak target_tau soft_target_tau",
    "algorithm.epsilon_first algorithm.epsilon": "exploration_initial_eps start_e eps_train eps_start epsilon_start",
    "algorithm.epsilon_last algorithm.epsilon_min": (
        "exploration_final_eps end_e eps_train_final epsilon_end final_epsilon"
    ),
    "algorithm.epsilon_steps algorithm.epsilon_factor": "exploration_fraction epsilon_decay eps_decay",
    "algorithm.double": "double_dqn is_double use_double",
    "algorithm.dueling": "dueling_dqn is_dueling use_dueling",
    "algorithm.noisy": "noisy_net noisy_nets is_noisy use_noisy",
    "algorithm.prioritised algorithm.priorities": "prioritized_replay prioritized per use_per",
    "algorithm.temperature algorithm.priority_exponent": "alpha",
    "algorithm.priority_exponent": "per_alpha prioritized_replay_alpha",
    "algorithm.priority_correction": "beta per_beta prioritized_replay_beta0",
    "algorithm.atoms": "n_atoms num_atoms",
    "algorithm.v_min algorithm.value_low": "v_min vmin",
    "algorithm.v_max algorithm.value_high": "v_max vmax",
    "memory.capacity_rows": "buffer_size replay_size memory_size replay_buffer_size capacity buffer_capacity",
    # where, and what is kept and told
    "learner.device": "num_gpus num_gpus_per_learner cuda device use_cuda gpu",
    "learner.threads": "num_threads n_threads torch_threads",
    "run.seed": "seed random_seed random_state",
    "run.name": "exp_name experiment run_name experiment_name tb_log_name",
    "run.dir": "local_dir storage_path logdir log_dir train_dir save_dir log_path output_dir",
    "run.init_from": "load resume_path pretrained load_checkpoint",
    "checkpoint.interval_s": "save_every_sec save_interval checkpoint_interval",
    "checkpoint.interval_steps": "checkpoint_freq checkpoint_frequency save_freq save_frequency save_every",
    "checkpoint.keep": "keep_checkpoints max_checkpoints",
    "evaluation.episodes": (
        "evaluation_duration evaluation_num_episodes n_eval_episodes eval_episodes test_num episode_per_test "
        "num_eval_episodes"
    ),
    "evaluation.interval_steps": "evaluation_interval eval_freq eval_frequency eval_interval eval_every",
    "evaluation.threshold": (
        "episode_reward_mean episode_return_mean reward_threshold solved_reward stop_reward stop_value"
    ),
    "evaluation.video": "capture_video record_video save_video video record",
    "logs.export": "track wandb with_wandb use_wandb tensorboard tensorboard_log use_tensorboard wandb_project_name",
    "logs.progress": "verbose progress_bar show_progress",
}
REMARKS = {
    **dict.fromkeys(
        ("n_steps", "num_steps", "nsteps", "rollout_fragment_length", "unroll_length"),
        "of each environment, executors x envs_per_executor",
    ),
    **dict.fromkeys(
        ("target_network_frequency", "target_update_interval", "target_update_freq", "target_network_update_freq"),
        "in updates, not in steps",
    ),
    "training_iteration": "updates of the learner, not iterations",
    "total_iters": "updates of the learner, not iterations",
    "num_minibatches": "the rows of each, not how many there are",
    "nminibatches": "the rows of each, not how many there are",
    "autotune": "0 leaves it as it is",
    "automatic_entropy_tuning": "0 leaves it as it is",
    "exploration_fraction": "in steps, not in shares of the run",
    "polyak": "the share that targets move, which is 1 - polyak",
    "initial_stddev": "its logarithm",
    "obs_scale": "a factor, which is 1 / obs_scale",
    **dict.fromkeys(
        ("num_envs", "n_envs", "nenvs", "envs", "num_envs_per_worker", "num_envs_per_env_runner"),
        "for each of schedule.executors",
    ),
}
"""By what a key is other than what has the name elsewhere."""

OTHER_UNIT = frozenset(
    (
        *("exploration_fraction", "target_entropy_scale", "polyak", "initial_stddev", "obs_scale"),
        *("num_minibatches", "nminibatches"),
    )
)
"""Names whose values mean something else here, so that none of them is repeated."""

CORRECTED = frozenset(["with_vtrace", "vtrace", "use_vtrace"])
_VALUES: tuple[tuple[str, str, Any, Any], ...] = (
    ("schedule.kind", "async_rl asynchronous mode", "oa", "is"),
    ("schedule.kind", "serial_mode", "serial", "is"),
    ("algorithm.cell", "use_lstm use_rnn rnn_type recurrent lstm", "lstm", "none"),
    ("algorithm.correction", "with_vtrace vtrace use_vtrace", "vtrace", "none"),
    ("algorithm.name", "with_vtrace vtrace use_vtrace", "impala", None),
    ("algorithm.loss", "use_huber huber_loss", "huber", "square"),
    ("algorithm.priorities", "prioritized_replay prioritized per use_per", ["td"], []),
    ("learner.device", "num_gpus num_gpus_per_learner cuda device use_cuda gpu", "cuda", "cpu"),
    ("task.atari.colour", "grayscale grayscale_obs grey", False, True),
    ("logs.export", "track tensorboard tensorboard_log use_tensorboard", ["tensorboard"], []),
    ("logs.export", "wandb with_wandb use_wandb wandb_project_name", ["wandb"], []),
)
VALUES = {(name, key): (yes, no) for key, names, yes, no in _VALUES for name in names.split()}
"""The value of a key where a name is true, and where it is false; None: nothing is to be written."""

TEXTS: dict[str, dict[str, Any]] = {
    "schedule.kind": {"async": "oa", "asynchronous": "oa", "sync": "is", "synchronous": "is"},
    "learner.device": {"gpu": "cuda"},
    "algorithm.cell": {"rnn": "gru"},
    "logs.export": {"tensorboard": ["tensorboard"], "wandb": ["wandb"]},
}
"""Our values, by those that others have for them."""

ALWAYS: dict[str, tuple[frozenset[str], str]] = {
    **dict.fromkeys(CORRECTED, (frozenset({"impala"}), "impala always corrects by V-trace: leave it out")),
}
"""Names of what an algorithm does without a key."""

FIXED_ELSEWHERE = frozenset(["ent_coef", "entropy_coef", "entropy_coeff", "entropy_coefficient", "alpha"])
"""Names of SAC's temperature where a number stays as it is."""

INSTEAD = (
    (
        "gradient_steps update_per_step",
        "train_every",
        "algorithm.train_every of {algorithm} is new rows per update: those of train_freq divided by these updates",
    ),
    (
        "batch_size minibatch_size sgd_minibatch_size mini_batch_size num_minibatches nminibatches",
        "rows_per_update",
        "{algorithm} has no minibatches: executors, envs_per_executor and rollout_steps of [schedule] make an update",
    ),
    (
        "optimizer optimizer_class optim optimizer_type",
        "max_gradient_norm",
        "{algorithm} always takes Adam: algorithm.optimiser is a key of a2c, impala and mlxe",
    ),
    (
        "reward_scale rew_scale",
        "reward_scaling",
        "{algorithm} has no factor of rewards: algorithm.reward_scaling = true divides them by their deviation",
    ),
    (
        "reward_scale rew_scale normalize_returns norm_reward rew_norm normalize_reward",
        "",
        "{algorithm} scales no rewards: a wrapper that multiplies them can do that",
    ),
)
"""Names, a key that the algorithm must have, and what is said where it has none of the keys that the name leads to."""


_ABSENT = {
    "kl_coeff kl_coef kl_loss_coeff": "the penalty's weight begins with 1 and adapts to algorithm.kl_penalty_target",
    "use_sde sde_sample_freq use_sde_at_warmup gsde": "noise is drawn for each step alone",
    "norm_adv normalize_advantage advantage_normalization normalize_advantages": (
        "ppo and reinforce normalise advantages, a2c and impala do not"
    ),
    "ortho_init orthogonal_init": "weights begin as the algorithm's file says",
    "adam_eps adam_beta1 adam_beta2 rmsprop_eps": "each algorithm has its own",
    "dropout dropout_rate": "no network here drops out",
    "int_coef ext_coef use_rnd rnd curiosity intrinsic_reward_coeff": "a wrapper that adds to the reward does that",
    "n_critics num_critics twin_q top_quantiles_to_drop_per_net": "sac and td3 have two critics, ddpg has one",
    "handle_timeout_termination bootstrap_timestep use_proper_time_limits": (
        "what is truncated is bootstrapped from, always"
    ),
    "optimize_memory_usage replay_buffer_class replay_buffer_kwargs store_buffer_in_checkpoints save_replay_buffer": (
        "rows are kept, saved and resumed as [memory] says"
    ),
    "use_gae use_critic": "gae_lambda and value decide that",
    "train_batch_size train_batch_size_per_learner batch_mode": (
        "an update takes the rollouts of all executors: executors, envs_per_executor and rollout_steps of [schedule]"
    ),
    "num_learners framework backend": "there is one learner, in torch",
    "set_workers_cpu_affinity worker_num_splits batched_sampling remote_worker_envs vec_env_cls async_envs": (
        "executors, envs_per_executor and memorizer of [schedule], and task.vectorize decide that"
    ),
    "clip_actions normalize_actions rescale_actions squash_output": "actions are clipped to the bounds of their space",
    "action_space observation_space disable_env_checking check_env": "the environment says that, and is checked",
    "monitor_wrapper autoreset record_statistics": "episodes are counted and reset without a wrapper",
    "render render_env render_mode": "python -m mlxe_async play latest --render shows what was learned",
    "deterministic": 'tests take the best actions; under schedule.kind = "is" the same seed gives the same run',
    "torch_deterministic cudnn_deterministic": 'schedule.kind = "is" repeats itself bit for bit',
    "best_model_save_path callback_on_new_best save_best_every_sec save_best checkpoint_at_end save_vecnormalize": (
        'the last version is saved, and the best tested one: load_policy(RUN, checkpoint="best")'
    ),
    "evaluation_num_env_runners evaluation_num_workers evaluation_parallel_to_training": (
        "tests have one process; evaluation.in_flight is how many versions it tests at a time"
    ),
    "lr_schedule_kl_threshold": "learning rates go down by steps; algorithm.max_kl ends an update early",
    "num_seeds n_seeds": "python -m mlxe_async FILE.toml --seeds 5 runs five",
    "log_level": "log.jsonl has everything",
    "patience max_no_improvement_evals": "no run ends for lack of progress; a sweep prunes those",
    "mixed_precision amp fp16 bf16": "algorithm.precision is the key, of networks for pictures",
    "munchausen": "no algorithm here does that",
    "multiagent policies policy_mapping_fn num_policies": "one agent learns, by one policy",
    "policy_workers_per_policy": "executors act by weights of their own, and no other process acts for them",
    "with_pbt pbt_mix_policies_in_one_env pbt_period_env_steps population_size": (
        "no population is trained; python -m mlxe_async sweep FILE.toml searches values"
    ),
    "decorrelate_envs_on_one_worker decorrelate_experience_max_seconds": (
        "environments begin with seeds of their own, and none of them is delayed"
    ),
    "num_batches_per_epoch": (
        "an update takes all rows of its rollouts; executors, envs_per_executor and rollout_steps of [schedule] say "
        "how many"
    ),
    "exploration_loss": "algorithm.entropy, the weight of the entropy, is the only one of its kind",
    "save_best_metric save_best_after": "the version with the best mean return of its tests is kept, by [evaluation]",
    "load_checkpoint_kind": "play and eval take --checkpoint best, last, solved or a number",
    "eval_deterministic": "tests, play and eval take the best actions; play and eval draw them with --sampled",
    "restart_behavior resume_from": "python -m mlxe_async --resume latest goes on with a run",
    "no_cuda": "the learner is on the CPU where learner.device is left out",
    "save_model": "the run's folder keeps checkpoints",
    "upload_model hf_entity": "python -m mlxe_async export latest --to card makes a folder for a hub",
    "wandb_entity": "python -m mlxe_async export latest --to wandb writes offline files",
    "config conf config_file conf_file": "one file says all; --set a.b=VALUE overrides a key of it",
    "no_render": "nothing is shown while a run learns",
    "quiet silent": "the option --no-progress does that",
    "dry_run": "the option --check does that",
    "hyperparams hyperparameters params": "each has a key of its own; --help settings lists them",
    "experiment_suffix": "run.name is the whole name",
}
"""Names of what has no key here, and why, in words."""
ABSENT = {name: why for names, why in _ABSENT.items() for name in names.split()}


def _by_name() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for ours, theirs in _KEYS.items():
        for name in theirs.split():
            found[name] = (*found.get(name, ()), *ours.split())
    return found


SYNONYMS = _by_name()
"""Our keys by the names that others have for them."""
