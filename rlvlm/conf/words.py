"""What settings are called in other libraries: the one table from their names to our keys, for suggestions.

Names are of verl, EasyR1, RLLaVA, TRL, OpenRLHF, AReaL and ms-swift. An entry may be a bare name or the end of a dotted one;
the longest that fits a wrong key counts. Only suggestions are made of it: no key is read under another name.
"""

from __future__ import annotations

OF_EPOCHS = "steps = epochs × records / data.prompts_per_step"
OF_MINI_BATCH = "a count of optimiser steps in an epoch, prompts_per_step / the mini-batch's prompts, not a size"
OF_MICRO_BATCH = "micro-batches are filled up to this many text tokens plus vision patches, not counted in rows"
OF_BATCH = "counted in prompts; each gives rollout.n rows"
OF_COLUMNS = "our names to the file's: {problem: …, answer: …, images: …}"
OF_KL = "the KL loss: {kl_to_reference: {weight: …, estimator: k3}}"
OF_FREEZE = "names the parts that train: [connector, language]"
OF_REWARD = "each rule with its weight; a reward function of another library: {mine: {weight: 1, path: …, function: …, style: …}}"


def _all(names: str, key: str, note: str = "") -> dict[str, tuple[str, str]]:
    return dict.fromkeys(names.split(), (key, note))


WORDS: dict[str, tuple[str, str]] = {
    # length of a run
    **_all("run.epochs run.total_epochs num_epochs num_train_epochs total_epochs total_train_epochs", "run.steps", OF_EPOCHS),
    **_all("trainer.epochs trainer.max_epochs num_episodes n_epochs", "run.steps", OF_EPOCHS),
    **_all("max_steps total_training_steps total_train_steps num_steps train_steps training_steps total_steps", "run.steps"),
    # the run
    **_all("trainer", "run", "and actor.optimizer, data, rollout for what is not of the whole run"),
    **_all("experiment_name trial_name run_name exp_name wandb_run_name", "run.name"),
    **_all("output_dir default_local_dir save_checkpoint_path save_path ckpt_path fileroot checkpoint_dir logging_dir", "run.dir"),
    **_all("save_freq save_steps saver.freq_steps saver.freq_epochs checkpoint_every", "run.save_every"),
    **_all("test_freq val_freq eval_steps evaluator.freq_steps evaluator.freq_epochs eval_interval", "run.eval_every"),
    **_all("save_total_limit save_limit max_actor_ckpt_to_keep max_ckpt_to_keep max_ckpt_num", "run.keep"),
    **_all("resume_mode resume_from_checkpoint resume_from_path load_checkpoint_path recover.mode", "run.resume"),
    **_all("trainer.logger report_to use_wandb wandb use_tensorboard stats_logger project_name wandb_project", "run.trackers"),
    **_all("log_completions num_completions_to_print log_val_generations val_generations_to_log", "run.sample_every"),
    **_all("val_batch_size per_device_eval_batch_size", "run.eval_batch"),
    **_all("data.seed actor.data_loader_seed trainer.seed rollout.seed random_seed", "run.seed"),
    # data
    **_all("train_files train_file train_data train_path data_path dataset dataset_name dataset_path", "data.train"),
    **_all("train_dataset prompt_data data.path data.files data.file train_dataset.path", "data.train"),
    **_all("val_files val_file val_data eval_dataset eval_data valid_dataset val_dataset test_files data.val data.test", "data.eval"),
    **_all("train_batch_size gen_batch_size rollout_batch_size batch_size global_batch_size", "data.prompts_per_step", OF_BATCH),
    **_all("generation_batch_size train_dataset.batch_size", "data.prompts_per_step", OF_BATCH),
    **_all("gradient_accumulation_steps", "data.prompts_per_step", "actor.token_budget sizes the micro-batches"),
    **_all("max_prompt_length prompt_max_len prompt_length max_prompt_len", "data.max_prompt_tokens"),
    **_all("prompt_key answer_key image_key images_key input_key label_key question_key data.keys", "data.columns", OF_COLUMNS),
    **_all("format_prompt prompt_template system_template apply_chat_template input_template", "data.template"),
    **_all("system_prompt", "data.system"),
    **_all("image_dir train_image_dir val_image_dir image_root image_path images_dir", "data.image_folder"),
    **_all("filter_overlong_prompts filter_overlong truncation", "data.over_long"),
    **_all("max_image_pixels", "data.max_pixels"),
    # model
    **_all("model_name_or_path model_name model.name pretrain model.model_path actor.path tokenizer_path", "model.path"),
    **_all("torch_dtype bf16 fp16 model.precision param_dtype mixed_precision", "model.dtype"),
    **_all("lora.r lora_r lora_rank peft.r model.lora_rank", "model.lora.rank"),
    **_all("lora.lora_alpha lora_alpha", "model.lora.alpha"),
    **_all("lora.target_modules target_modules lora_target_modules", "model.lora.targets"),
    **_all("use_peft peft peft_config use_lora", "model.lora"),
    **_all("freeze_vision_tower freeze_vit freeze_vision freeze_aligner freeze_llm tune_vision", "model.trainable", OF_FREEZE),
    **_all("enable_gradient_checkpointing activation_checkpointing", "model.gradient_checkpointing"),
    **_all("use_remove_padding padding_free packing padding_side", "model.layout"),
    # sampling
    **_all("num_generations n_samples_per_prompt n_samples group_size num_return_sequences num_samples rollout_n", "rollout.n"),
    **_all("max_response_length max_completion_length response_length generate_max_len max_tokens max_new_token", "rollout.max_new_tokens"),
    **_all("gconfig.max_new_tokens max_response_len max_length", "rollout.max_new_tokens"),
    **_all("gconfig.temperature sampling.temperature", "rollout.temperature"),
    **_all("gconfig.top_p sampling.top_p", "rollout.top_p"),
    **_all("gconfig.top_k sampling.top_k", "rollout.top_k"),
    **_all("gconfig.stop stop_words stop_strings", "rollout.stop"),
    **_all("gconfig.stop_token_ids stop_token_ids", "rollout.stop_ids"),
    **_all("use_vllm vllm rollout.name rollout.engine rollout_engine", "inference_engine"),
    **_all("gpu_memory_utilization tensor_model_parallel_size vllm_mode vllm_gpu_memory_utilization sglang", "inference_engine"),
    # batches and the optimiser
    **_all("ppo_mini_batch_size global_batch_size_per_update mini_batch_size minibatch_size", "actor.mini_batches", OF_MINI_BATCH),
    **_all("ppo_n_minibatches num_mini_batches", "actor.mini_batches"),
    **_all("ppo_epochs num_iterations max_epochs update_epochs", "actor.epochs"),
    **_all("ppo_micro_batch_size ppo_micro_batch_size_per_gpu micro_batch_size", "actor.token_budget", OF_MICRO_BATCH),
    **_all("micro_train_batch_size per_device_train_batch_size log_prob_micro_batch_size_per_gpu", "actor.token_budget", OF_MICRO_BATCH),
    **_all("micro_batch_size_per_device_for_update micro_batch_size_per_device_for_experience", "actor.token_budget", OF_MICRO_BATCH),
    **_all("ppo_max_token_len_per_gpu max_tokens_per_mb train_max_tokens_per_gpu log_prob_max_token_len_per_gpu", "actor.token_budget"),
    **_all("learning_rate lr actor_learning_rate optim.lr", "actor.optimizer.lr"),
    **_all("lr_scheduler_type lr_scheduler lr_warmup_style warmup_style", "actor.optimizer.schedule"),
    **_all("warmup_ratio lr_warmup_ratio lr_warmup_steps lr_warmup_steps_ratio warmup_steps_proportion", "actor.optimizer.warmup_steps"),
    **_all("min_lr min_lr_rate", "actor.optimizer.min_lr_ratio"),
    **_all("weight_decay", "actor.optimizer.weight_decay"),
    **_all("adam_beta1 adam_beta2 beta1 beta2", "actor.optimizer.betas"),
    **_all("adam_epsilon adam_eps", "actor.optimizer.eps"),
    **_all("max_grad_norm grad_clip gradient_clipping max_norm clip_grad", "actor.optimizer.max_grad_norm"),
    **_all("actor.optim optim", "actor.optimizer"),
    **_all("strategy deepspeed fsdp fsdp_config deepspeed_config", "train_engine"),
    # algorithm
    **_all("adv_estimator advantage_estimator algorithm.name adv_norm", "algorithm.advantage"),
    **_all("norm_adv_by_std_in_grpo scale_rewards", "algorithm.advantage.std", "of grpo: group, batch or none"),
    **_all("algorithm.gamma discount", "algorithm.advantage.gamma", "an option of gae"),
    **_all("algorithm.lam gae_lambda lambd", "algorithm.advantage.lam", "an option of gae"),
    **_all("clip_ratio eps_clip epsilon cliprange clip_eps clip_range", "algorithm.policy_loss.clip_low", "and clip_high"),
    **_all("clip_ratio_low epsilon_low", "algorithm.policy_loss.clip_low"),
    **_all("clip_ratio_high epsilon_high eps_clip_higher eps_clip_high", "algorithm.policy_loss.clip_high"),
    **_all("clip_ratio_c clip_ratio_dual c_clip delta dual_clip", "algorithm.policy_loss.dual_clip"),
    **_all("loss_mode policy_loss.loss_mode importance_sampling_level use_decoupled_loss", "algorithm.policy_loss"),
    **_all("loss_agg_mode loss_type loss_avg_mode", "algorithm.aggregation"),
    **_all("entropy_coeff entropy_coef entropy_loss_coef ent_coef entropy_bonus", "algorithm.regularizers.entropy"),
    **_all("beta kl_loss_coef kl_coef use_kl_loss kl_loss kl_ctl kl_weight disable_kl", "algorithm.regularizers.kl_to_reference", OF_KL),
    **_all("kl_loss_type kl_penalty kl_estimator", "algorithm.regularizers.kl_to_reference", OF_KL),
    **_all("use_kl_in_reward init_kl_coef kl_in_reward kl_target", "algorithm.kl_in_reward"),
    **_all("filter_groups dynamic_sampling online_filtering dynamic_filtering", "algorithm.filters"),
    **_all("mask_truncated_completions overlong_filter overlong_filtering", "algorithm.mask_truncated"),
    **_all("behav_imp_weight_cap tis_imp_ratio_cap vllm_importance_sampling_correction", "algorithm.correction"),
    # rewards
    **_all("reward_funcs reward_function reward_functions reward_fn reward_weights", "reward.rules", OF_REWARD),
    **_all("custom_reward_function reward_model reward_manager remote_rm_url reward.function reward_fn_key", "reward.rules", OF_REWARD),
    **_all("reward_scaling", "reward.scale"),
    **_all("reward_bias", "reward.bias"),
    **_all("worker.actor actor_rollout_ref.actor", "actor"),
    **_all("worker.rollout actor_rollout_ref.rollout", "rollout"),
    **_all("worker.reward", "reward"),
    **_all("actor_rollout_ref.model worker.actor.model", "model"),
}  # fmt: skip
"""Another library's name (or the end of its dotted name) to our key, and what to know when it is set."""


def translate(key: str) -> tuple[str, str] | None:
    """Our key and the note for a key of another library, by the longest end of its path that is known; else ``None``."""
    parts = key.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((WORDS[end] for end in ends if end in WORDS and WORDS[end][0] != key), None)


def hint(key: str) -> str:
    """The suggestion for a key of another library, worded; empty where it is none."""
    found = translate(key)
    if found is None:
        return ""
    target, note = found
    return f" (did you mean '{target}'?{' ' + note if note else ''})"
