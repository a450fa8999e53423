"""Names that other libraries give to options, for suggestions in error messages."""

_THEIRS = {
    "lr lr_actor lr_critic": "learning_rate step_size",
    "lr_actor": "actor_lr policy_lr pi_lr",
    "lr_critic": "critic_lr q_lr vf_lr",
    "gamma": "discount discount_factor",
    "target_tau": "tau polyak",
    "target_every": "target_update_interval target_network_frequency target_update_freq",
    "batch_size minibatch_size": "batch_size mini_batch_size minibatch_size",
    "buffer_size": "replay_size replay_buffer_size buffer_capacity memory_size",
    "frames_per_update": "train_freq train_frequency gradient_steps updates_per_step utd",
    "learning_starts": "warmup_steps start_steps",
    "steps_per_batch": "n_steps num_steps rollout_length rollout_steps horizon",
    "n_step": "n_steps",
    "epochs": "n_epochs num_epochs update_epochs",
    "clip": "clip_range clip_ratio clip_coef clip_epsilon eps_clip",
    "clip_value": "clip_range_vf",
    "gae_lambda td_lambda": "lam lambda lmbda",
    "entropy_coefficient alpha": "ent_coef entropy_coef entropy_weight entropy_coeff",
    "value_coefficient": "vf_coef value_coef critic_coef",
    "max_grad_norm max_grad_norm_actor max_grad_norm_critic": "grad_clip clip_grad max_gradient_norm",
    "epsilon": "eps exploration_fraction exploration_final_eps",
    "noise": "action_noise exploration_noise",
    "actor_every": "policy_delay policy_frequency",
    "hidden": "net_arch hidden_sizes hidden_layers hidden_dim layers",
    "activation": "activation_fn",
    "normalize_observations": "norm_obs normalize_obs",
    "normalize_rewards": "norm_reward normalize_reward",
    "normalize_advantage": "norm_adv",
    "num_worlds num_envs": "num_worlds num_envs n_envs num_env nenvs",
    "max_steps": "max_episode_steps episode_length time_limit",
    "action_repeat": "frame_skip",
    "frame_stack": "n_stack num_stack",
    "id": "env_id",
    "total_frames": "total_timesteps total_steps num_timesteps timesteps frames steps",
    "log_every": "log_interval log_freq",
    "run_dir": "log_dir logdir save_dir output_dir",
    "agent": "algo algorithm model",
    "env": "environment env_name game task",
}
"""Our names, and the names elsewhere."""


def synonyms(name: str) -> list[str]:
    """Returns the names here of an option that other libraries call ``name``, the usual one first."""
    return list(
        dict.fromkeys(ours for keys, known in _THEIRS.items() if name in known.split() for ours in keys.split())
    )
