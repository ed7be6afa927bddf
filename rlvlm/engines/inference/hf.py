"""The in-process engine: generates with a policy in this process, the trainer's own where that is possible."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvlm.batch import Batch
from rlvlm.engines.inference.base import register_inference_engine
from rlvlm.engines.inference.config import Capabilities, SamplingParams, check_params
from rlvlm.engines.inference.decode_loop import decode
from rlvlm.engines.inference.responses import Responses, check_prompts, to_batch
from rlvlm.engines.inference.sampling import noise_keys, uniforms
from rlvlm.engines.inference.stopping import StopTable
from rlvlm.errors import ConfigError, EngineError, nearest
from rlvlm.models.decoding import GenerationCache, prefill_rows

if TYPE_CHECKING:
    from rlvlm.models.policy import Policy

CAPABILITIES = Capabilities(sleeps=True, logp_before_cut=True)


class HfEngine:
    """Generates with a policy in this process; nothing that depends on weights outlives a call.

    It works in its caller's thread, so between two calls nothing is in flight: ``pause`` refuses new work, ``abort``
    finds nothing to end.

    Args:
        policy: the policy to generate with.
        shared: whether it is the trainer's own module, so that new weights are there already and only have a new version.
        cache_tokens: keys and values at a time, in tokens, counted as if every sample were as long as allowed; prompts
            beyond it wait for the next round. One prompt always fits.
        prefill_tokens: prompt tokens of one prefill forward.
        autocast: the dtype that the trainer's forward computes in under autocast, so that log-probs agree.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        policy: Policy,
        *,
        shared: bool = True,
        cache_tokens: int = 262_144,
        prefill_tokens: int = 16_384,
        autocast: torch.dtype | None = None,
    ) -> None:
        for name, value in (("cache_tokens", cache_tokens), ("prefill_tokens", prefill_tokens)):
            if value < 1:
                raise ConfigError(f"option '{name}' of inference engine 'hf' is at least 1, got {value}.")
        if not shared and policy.has_adapters:
            raise EngineError(
                "inference engine 'hf' was given a copy of a policy with adapters, but new weights come with them merged in; "
                "share the trainer's module, or copy the policy before its adapters are added."
            )
        self._policy, self._shared, self._autocast = policy, shared, autocast
        self._cache_tokens, self._prefill_tokens = cache_tokens, prefill_tokens
        self._version = 0
        self._paused = False
        self._work = threading.Lock()
        self._home: torch.device | None = None  # where the weights were before sleep
        self._stop_tables: dict[tuple[Any, ...], StopTable] = {}

    @property
    def version(self) -> int:
        """The version of the weights that the next token will be sampled with."""
        return self._version

    def check(self, params: SamplingParams) -> None:
        """Accepts every setting: log-probs are taken before any cut."""
        check_params("hf", self.capabilities, params)

    def generate(self, prompts: Batch, params: SamplingParams, step: int) -> Batch:
        """See :class:`~rlvlm.engines.inference.base.InferenceEngine`."""
        if self._paused:
            raise EngineError("inference engine 'hf' was asked to generate, but it is paused; leave its pause() first.")
        if self._home is not None:
            raise EngineError("inference engine 'hf' was asked to generate, but it sleeps; wake() it first.")
        with self._alone("generate"), self._eval_mode():
            groups = check_prompts(prompts)
            parts = [self._draw(prompts, wave, params, step) for wave in self._waves(prompts, groups, params)]
            return to_batch(
                prompts,
                Responses.concat(parts),
                params,
                version=self._version,
                step=step,
                tokenizer=self._policy.tokenizer,
                end_ids=end_ids(self._policy),
            )

    async def generate_async(self, prompts: Batch, params: SamplingParams, step: int) -> Batch:
        """Refused: the engine works in its caller's thread."""
        raise self.capabilities.refusal("hf", "asynchronous")

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Context in which ``generate`` is refused; released however it is left."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def abort(self) -> int:
        """Ends nothing and returns 0, since nothing is in flight; from another thread during a call, ``EngineError``."""
        if self._work.locked():
            raise self.capabilities.refusal("hf", "interrupts")
        return 0

    def sleep(self) -> None:
        """Moves its own copy of the weights to host memory; a shared module is its trainer's to move."""
        with self._alone("sleep"):
            if self._home is None:
                self._home = self._device
                if not self._shared:
                    self._policy.to("cpu")

    def wake(self) -> None:
        """Moves its own copy of the weights back."""
        with self._alone("wake"):
            if self._home is not None:
                if not self._shared:
                    self._policy.to(self._home)
                self._home = None

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Sets the version; copies the weights into a copy of its own, and never reads them for a shared module.

        Raises ``EngineError`` for no weights, an unknown name, or another shape; what came before is copied by then.
        """
        with self._alone("take new weights"):
            if not self._shared:
                self._copy(weights)
            self._version = version

    @property
    def _device(self) -> torch.device:
        return next(self._policy.parameters()).device

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """A block that no other call may run beside."""
        if not self._work.acquire(blocking=False):
            raise EngineError(
                f"inference engine 'hf' was asked to {what} while another call is at work; it takes one call at a time."
            )
        try:
            yield
        finally:
            self._work.release()

    @contextlib.contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """A block in which every module is in eval mode; each is put back as it was, however the block is left."""
        training = [module for module in self._policy.modules() if module.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def _waves(self, prompts: Batch, groups: list[int], params: SamplingParams) -> Iterator[list[int]]:
        """Consecutive prompts whose keys and values fit at the same time."""
        wave: list[int] = []
        longest = 0
        for group in groups:
            longest = max(longest, len(prompts.prompts[group].ids))
            cost = (len(wave) + 1) * (longest + params.n * params.max_new_tokens)
            if wave and cost > self._cache_tokens:
                yield wave
                wave, longest = [], len(prompts.prompts[group].ids)
            wave.append(group)
        yield wave

    def _draw(self, prompts: Batch, groups: list[int], params: SamplingParams, step: int) -> Responses:
        """Draws the samples of some prompts, from prefill to the last token."""
        device, policy = self._device, self._policy
        lengths = [len(prompts.prompts[group].ids) for group in groups]
        keys = noise_keys(params.seed, step, [prompts.prompts[group].uid for group in groups], params.n)
        noise = uniforms(keys.reshape(-1), 0, params.max_new_tokens).to(device)
        cache = GenerationCache(lengths, params.n, params.max_new_tokens, device)
        # rows are made outside inference mode: pixels made here are kept with the picture, and training reads them too
        pieces = [
            prefill_rows(prompts, groups[piece], policy.family, cache, piece.start)
            for piece in _pieces(lengths, self._prefill_tokens)
        ]
        with torch.inference_mode(), self._precision():
            logits = torch.cat([policy(rows.to(device)) for rows, _ in pieces])
            positions = torch.cat([after for _, after in pieces]).to(device)
            stop = self._stop_table(params, logits.shape[-1])
            return decode(policy, cache, logits, positions, noise, params, stop)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)

    def _stop_table(self, params: SamplingParams, vocab_size: int) -> StopTable:
        key = (params.stop, params.stop_ids, params.ignore_eos, vocab_size, self._device)
        if key not in self._stop_tables:
            ends = set() if params.ignore_eos else {index for index in end_ids(self._policy) if index < vocab_size}
            self._stop_tables[key] = StopTable(
                self._policy.tokenizer,
                vocab_size,
                stop_ids=ends | set(params.stop_ids),
                stop=params.stop,
                device=self._device,
            )
        return self._stop_tables[key]

    @torch.no_grad()
    def _copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        own = dict(self._policy.named_weights())
        count = 0
        for name, tensor in weights:
            if name not in own:
                raise EngineError(f"inference engine 'hf' has no weight '{name}'{nearest(name, own)}.")
            if own[name].shape != tensor.shape:
                raise EngineError(
                    f"weight '{name}' has shape {list(own[name].shape)} in inference engine 'hf', got {list(tensor.shape)}."
                )
            own[name].copy_(tensor)
            count += 1
        if not count:
            raise EngineError(
                "update_weights got no weights for the engine's own copy; pass the train engine's weights."
            )


@register_inference_engine("hf", capabilities=CAPABILITIES)
def hf(
    policy: Policy,
    shared: bool,
    autocast: torch.dtype | None = None,
    *,
    cache_tokens: int = 262_144,
    prefill_tokens: int = 16_384,
) -> HfEngine:
    """In this process, with the trainer's own module where it can be shared, else with a copy of it."""
    own = policy if shared else copy.deepcopy(policy)
    return HfEngine(own, shared=shared, cache_tokens=cache_tokens, prefill_tokens=prefill_tokens, autocast=autocast)


def end_ids(policy: Policy) -> set[int]:
    """The ids that end a text, by the tokenizer and by the model's generation config."""
    told = getattr(getattr(policy.model, "generation_config", None), "eos_token_id", None)
    several = told if isinstance(told, (list, tuple)) else [told]
    return {int(index) for index in (*several, policy.tokenizer.eos_token_id) if index is not None}


def _pieces(lengths: list[int], budget: int) -> Iterator[slice]:
    """Consecutive prompts of at most ``budget`` tokens together; a longer one stands alone."""
    start, total = 0, 0
    for number, length in enumerate(lengths):
        if number > start and total + length > budget:
            yield slice(start, number)
            start, total = number, 0
        total += length
    yield slice(start, len(lengths))
