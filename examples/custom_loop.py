"""The training loop by hand, with the parts that you choose: ``python examples/custom_loop.py [model folder] [steps]``.

Without a folder it starts from random weights, which learn little but to be brief; give it the ``policy/`` of a quickstart
run, or a real model, to see more.
"""

import sys

from rlvlm import Actor, Algorithm, AlgorithmConfig, Loader, Reward, Rollout, load_policy, register_reward
from rlvlm.data.config import DataConfig
from rlvlm.engines.inference.hf import HfEngine
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.models.config import ModelConfig
from rlvlm.rewards.config import RewardConfig
from rlvlm.roles.config import ActorConfig, RolloutConfig


@register_reward("brief")
def brief(completion: str) -> float:
    """1 for an empty answer, less for a longer one: a rule that even random weights can learn from."""
    return 1.0 / (1.0 + len(completion))


def main(folder: str | None, steps: int) -> list[float]:
    """Trains for some steps and returns the mean reward of each."""
    policy = load_policy(ModelConfig(path=folder) if folder else ModelConfig(build="toy_llava"))
    algorithm = Algorithm(AlgorithmConfig(advantage="rloo", policy_loss={"name": "ppo_clip", "clip_high": 0.28}))
    optimizer = OptimizerConfig(lr=1e-3, max_grad_norm=1.0)

    engine = LocalEngine()  # shards or places the policy first, and builds the optimiser on what is there
    engine.prepare(policy, optimizer, total_steps=2 * steps)
    actor = Actor(engine, algorithm, ActorConfig(mini_batches=2, optimizer=optimizer))
    rollout = Rollout(HfEngine(policy, shared=True), RolloutConfig(n=8, max_new_tokens=8))
    reward = Reward(RewardConfig(rules={"number": 1.0, "brief": 0.5}))
    loader = Loader(DataConfig(train="shapes", template=None, prompts_per_step=16), policy.family)

    rewards = []
    for step, prompts in zip(range(steps), loader):
        batch = rollout.generate(prompts, step)  # behav_logp, versions
        batch = reward.score(batch)  # rows whose reward failed are taken out and counted
        batch = actor.compute_logp(batch)  # prox_logp
        batch = algorithm.estimate_advantages(batch)
        metrics = actor.update(batch)  # two optimiser steps here
        rollout.update_weights(actor.weights(), version=actor.version)

        rewards.append(float(batch["rewards"].mean()))
        print(f"step {step + 1}: reward {rewards[-1]:.3f}, grad norm {metrics['mean/grad_norm']:.3f}")
    reward.close()
    loader.close()
    return rewards


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else 30)
