"""Training in bf16 and fp16: small steps are kept, whatever the size of the weights, and nothing else is changed by that."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rlvlm.batch import Batch
from rlvlm.engines.inference.hf import HfEngine
from rlvlm.engines.train.config import OptimizerConfig
from rlvlm.engines.train.local import LocalEngine
from rlvlm.engines.train.master_weights import MasterWeights, round_into
from rlvlm.engines.train.optim import check_rounding
from rlvlm.errors import ConfigError, EngineError, SettingsError, TrainingStopped
from rlvlm.models.config import LoraConfig
from rlvlm.models.policy import Policy
from tests import tiny

needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="the extra torchao")
WAYS = ["master_weights", pytest.param("stochastic_rounding", marks=needs_torchao)]


def policy(dtype: torch.dtype, seed: int = 0, std: float = 0.05) -> Policy:
    """A model whose weights are bf16 numbers, in any dtype."""
    sizes = {"hidden": 32, "layers": 1, "ff": 64, "vision_hidden": 32, "vision_layers": 1}
    made = tiny.policy("llava", seed=seed, std=std, **sizes)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(weight.bfloat16())
    return made.to(dtype)


def engine(dtype: torch.dtype, seed: int = 0, std: float = 0.05, **options) -> LocalEngine:
    made = LocalEngine("cpu")
    made.prepare(policy(dtype, seed, std), OptimizerConfig(**{"lr": 1e-3, **options}), total_steps=50)
    return made


def scored(of: LocalEngine) -> tuple[Batch, Tensor]:
    """Answers with advantages [B, L] that are 0 in the mean of a group."""
    asked = tiny.prompts(of.policy, [[(20, 20)], []])
    batch = tiny.samples(of.policy, asked, [[6, 8, 7, 5], [6, 3, 8, 7]])
    drawn = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    advantages = (drawn - drawn.mean(1, keepdim=True)).flatten()[:, None]
    return batch, advantages * batch["loss_mask"]


def step(of: LocalEngine, batch: Batch, advantages: Tensor, budget: int = 10_000) -> dict:
    for rows, micro in of.micro_batches(batch, budget):
        of.backward(-(of.forward(micro, grad=True).logp * advantages[rows]).sum() / batch["loss_mask"].sum())
    return of.step()


def objective(of: LocalEngine, batch: Batch, advantages: Tensor) -> float:
    """Advantage-weighted log-prob a token, of the weights as they are, computed in fp32 so that it measures them alone."""
    exact = LocalEngine("cpu")
    exact.prepare(copy.deepcopy(of.policy).float(), None, 0)
    return float((exact.forward(batch, grad=False).logp * advantages).sum() / batch["loss_mask"].sum())


def gain(dtype: torch.dtype, std: float, lr: float, **options) -> float:
    made = engine(dtype, std=std, lr=lr, warmup_steps=10, **options)
    batch, advantages = scored(made)
    before = objective(made, batch, advantages)
    for _ in range(50):
        step(made, batch, advantages)
    return objective(made, batch, advantages) - before


@pytest.mark.parametrize(
    ("std", "lr", "way"),
    [
        (0.02, 2e-6, "master_weights"),
        (0.08, 1e-6, "master_weights"),  # most steps end far from the next bf16 number
        pytest.param(0.05, 2e-6, "stochastic_rounding", marks=needs_torchao),
    ],
)
def test_fifty_small_steps_in_bf16_gain_what_they_gain_in_fp32(std, lr, way):
    wanted = gain(torch.float32, std, lr)
    assert wanted > 0
    assert 0.9 < gain(torch.bfloat16, std, lr, low_precision=way) / wanted < 1.1


def test_gradients_of_micro_batches_add_up_in_fp32_and_the_norm_is_theirs():
    whole, split = engine(torch.bfloat16), engine(torch.bfloat16)
    exact = engine(torch.float32)
    batch, advantages = scored(whole)
    norms = [
        float(step(one, batch, advantages, budget)["mean/grad_norm"])
        for one, budget in ((exact, 10_000), (whole, 10_000), (split, 1))
    ]
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=0.03)
    values = torch.randn(400, generator=torch.Generator().manual_seed(0))
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    masters = MasterWeights([("weight", weight)])
    for value in values:
        with masters.collecting():
            (weight * value.bfloat16()).sum().backward()
    (master,) = masters.of([weight])
    assert weight.grad is None
    assert float(master.grad) == pytest.approx(float(values.bfloat16().double().sum()), abs=1e-3)


def test_a_backward_outside_of_the_engine_counts_too():
    inside, outside = engine(torch.bfloat16), engine(torch.bfloat16)
    batch, advantages = scored(inside)
    inside.backward((inside.forward(batch, grad=True).logp * advantages).sum())
    (outside.forward(batch, grad=True).logp * advantages).sum().backward()
    assert inside.step() == outside.step()
    assert same(inside, outside)


def test_clipping_bounds_the_step_by_the_gradient_of_all_micro_batches():
    plain = {"lr": 1.0, "betas": [0.0, 0.0], "eps": 1.0, "weight_decay": 0.0}  # near to SGD where gradients are small
    free, clipped = (engine(torch.bfloat16, max_grad_norm=bound, **plain) for bound in (None, 1e-3))
    batch, advantages = scored(free)
    before = [master(free), master(clipped)]
    norms = [float(step(one, batch, advantages * 100, 1)["mean/grad_norm"]) for one in (free, clipped)]
    assert norms[0] == norms[1] > 1
    assert float((master(clipped) - before[1]).double().norm()) == pytest.approx(1e-3, rel=1e-2)
    assert float((master(free) - before[0]).double().norm()) > 0.1


def master(of: LocalEngine) -> Tensor:
    return torch.cat([value.flatten() for value in of._masters.state_dict().values()])


def same(one: LocalEngine, other: LocalEngine) -> bool:
    pairs = zip(one.named_weights(), other.named_weights(), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs)


@pytest.mark.parametrize("way", WAYS)
def test_a_saved_engine_goes_on_to_the_bit(tmp_path: Path, way):
    straight, stopped = (engine(torch.bfloat16, lr=2e-6, low_precision=way) for _ in range(2))
    batch, advantages = scored(straight)
    for _ in range(6):
        step(straight, batch, advantages)
    for _ in range(3):
        step(stopped, batch, advantages)
    stopped.save(tmp_path)
    torch.manual_seed(99)  # a new process has other random numbers
    resumed = engine(torch.bfloat16, seed=7, lr=2e-6, low_precision=way)
    resumed.load(tmp_path)
    assert same(resumed, stopped)
    for _ in range(3):
        step(resumed, batch, advantages)
    assert same(resumed, straight)
    if way == "master_weights":
        assert torch.equal(master(resumed), master(straight))


def test_a_state_of_another_precision_is_refused(tmp_path):
    engine(torch.float32).save(tmp_path)
    with pytest.raises(EngineError, match="model.dtype and actor.optimizer.low_precision it was saved with"):
        engine(torch.bfloat16).load(tmp_path)


def test_a_gradient_that_is_not_finite_leaves_weights_and_masters():
    made = engine(torch.bfloat16)
    batch, advantages = scored(made)
    step(made, batch, advantages)
    before, weights = master(made), [w.clone() for _, w in made.named_weights()]
    with pytest.raises(TrainingStopped, match="gradient norm is nan"):
        step(made, batch, advantages * float("nan"))
    assert torch.equal(master(made), before)
    assert all(torch.equal(a, b) for a, (_, b) in zip(weights, made.named_weights(), strict=True))
    step(made, batch, advantages)
    assert master(made).isfinite().all()


def test_the_policy_stays_in_its_dtype_wherever_it_goes(tmp_path):
    made = engine(torch.bfloat16, lr=1e-2)
    batch, advantages = scored(made)
    own = HfEngine(copy.deepcopy(made.policy), shared=False)
    step(made, batch, advantages)
    own.update_weights(made.named_weights(), version=1)
    given = dict(own._policy.named_weights())
    assert all(torch.equal(value, given[name]) for name, value in made.named_weights())
    assert {value.dtype for value in given.values()} == {torch.bfloat16}
    made.policy.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    stored = load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    assert all(torch.equal(stored[name], value) for name, value in given.items() if name in stored)
    made.offload()
    made.onload()
    step(made, batch, advantages)
    assert {p.dtype for p in made.policy.parameters()} == {torch.bfloat16}


def test_weights_that_something_else_wrote_are_stepped_from_there():
    made = engine(torch.bfloat16, lr=1e-6)
    batch, advantages = scored(made)
    step(made, batch, advantages)
    before = master(made)
    name, weight = next((n, p) for n, p in made.policy.named_parameters() if p.dim() == 2)
    with torch.no_grad():
        weight[0] = 3.0
    after = made._masters.state_dict()
    assert torch.equal(after[name][0], torch.full_like(after[name][0], 3.0))
    assert int((master(made) != before).sum()) == weight.shape[1], "what was not written keeps its master"
    step(made, batch, advantages)
    assert (weight[0] - 3.0).abs().max() < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_adapters_train_in_fp32_and_come_out_in_the_models_dtype(dtype):
    made = LocalEngine("cpu")
    model = policy(dtype)
    model.add_adapters(LoraConfig(rank=4))
    made.prepare(model, OptimizerConfig(lr=2e-6), 10)
    trained = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in trained.values()} == {torch.float32}
    batch, advantages = scored(made)
    step(made, batch, advantages)
    moved = [(p != trained[name]).float().mean() for name, p in model.named_parameters() if name in trained]
    assert min(share for share, name in zip(moved, trained, strict=True) if "lora_B" in name) > 0.9
    assert {value.dtype for _, value in made.named_weights()} == {dtype}


def test_float16_takes_the_nearest_number_and_bf16_one_of_its_neighbours():
    exact = torch.randn(3000, 700, generator=torch.Generator().manual_seed(0))
    assert torch.equal(round_into(torch.empty_like(exact, dtype=torch.float16), exact), exact.half())
    rounded = round_into(torch.empty_like(exact, dtype=torch.bfloat16), exact)
    shares = (rounded.float() - exact) / (2.0 ** (exact.abs().log2().floor() - 7))  # of the distance between neighbours
    assert shares.abs().max() < 1
    assert abs(float(shares.mean())) < 1e-3, "right in the mean"
    assert float(shares.square().mean()) == pytest.approx(1 / 6, rel=0.01)
    kept = exact.bfloat16()
    assert torch.equal(round_into(torch.empty_like(kept), kept.float()), kept), "a bf16 number stays"
    transposed = torch.empty(700, 3000, dtype=torch.bfloat16).t()
    assert torch.equal(round_into(transposed, exact), rounded), "whatever its strides"
    odd = torch.tensor([float("inf"), float("-inf"), 0.0, -0.0, 1e-42, 3.4e38])
    assert torch.equal(round_into(torch.empty(6, dtype=torch.bfloat16), odd)[:4], odd.bfloat16()[:4])
    assert round_into(torch.empty(1, dtype=torch.bfloat16), torch.tensor([float("nan")])).isnan().all()


def test_a_weight_turns_once_as_its_master_moves_on():
    weight = torch.full((5000,), 1.0).bfloat16()
    far = float(torch.finfo(torch.bfloat16).eps)
    before = weight
    for share in (0.1, 0.4, 0.7, 1.0):
        now = round_into(torch.empty_like(weight), torch.full((5000,), 1.0 + share * far))
        assert (now >= before).all()
        assert float((now > 1).float().mean()) == pytest.approx(share, abs=0.03)
        before = now


def test_stochastic_rounding_is_refused_where_it_makes_no_sense():
    config = OptimizerConfig(low_precision="stochastic_rounding")
    for dtypes in (["float32"], ["float16"], ["bfloat16", "float32"]):
        with pytest.raises(ConfigError, match="for weights that train in bfloat16, but there are some in float"):
            check_rounding(config, dtypes)
    with pytest.raises(SettingsError, match="low_precision is one of master_weights, stochastic_rounding, got 'none'"):
        OptimizerConfig(low_precision="none")
    if importlib.util.find_spec("torchao") is None:
        with pytest.raises(ConfigError, match=r"needs the package 'torchao', .* pip install 'rlvlm\[torchao\]'"):
            check_rounding(config, ["bfloat16"])


@pytest.mark.parametrize(
    ("dtype", "way", "adapters", "expected"),
    [
        (torch.float32, "master_weights", False, 16),
        (torch.bfloat16, "master_weights", False, 18),
        (torch.bfloat16, "master_weights", True, 16),
        pytest.param(torch.bfloat16, "stochastic_rounding", False, 10, marks=needs_torchao),
    ],
)
def test_bytes_of_a_trained_parameter_are_those_of_the_documentation(dtype, way, adapters, expected):
    model = policy(dtype)
    if adapters:
        model.add_adapters(LoraConfig(rank=4))
    made = LocalEngine("cpu")
    made.prepare(model, OptimizerConfig(low_precision=way), 10)
    batch, advantages = scored(made)
    step(made, batch, advantages)
    made.backward((made.forward(batch, grad=True).logp * advantages).sum())  # gradients and state are there at once now
    trained = [p for p in model.parameters() if p.requires_grad]
    held = [*trained, *(p.grad for p in trained), *(m for m in made._masters.of(trained)), *_state_of(made)]
    held += [m.grad for m in made._masters.of(trained)]
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held if t is not None and t.numel() > 1
    }
    with_gradient = sum(
        p.numel() for p, m in zip(trained, made._masters.of(trained), strict=True) if m.grad is not None
    )
    unused = sum(p.numel() for p in trained) - with_gradient  # a norm that CLIP does not use
    assert unused < 0.01 * with_gradient
    assert sum(storages.values()) / with_gradient == pytest.approx(expected, rel=0.01)


def _state_of(made: LocalEngine) -> list[Tensor]:
    return [value for state in made._optimizer.state.values() for value in state.values()]


@needs_torchao
def test_stochastic_rounding_leaves_other_random_numbers_alone_and_its_second_moment_can_shrink():
    from rlvlm.engines.train.stochastic_rounding import StochasticAdamW

    weight = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = StochasticAdamW([{"params": [weight]}], lr=1e-5, betas=(0.9, 0.99), eps=1e-8)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for size in [1.0] * 20 + [0.01] * 400:
        weight.grad = torch.full_like(weight, size)
        optimizer.step()
    assert torch.equal(torch.rand(4), expected)
    assert float(optimizer.state[weight]["exp_avg_sq"].max()) < 0.01
