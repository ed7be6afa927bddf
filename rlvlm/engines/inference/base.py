"""What every inference engine offers, and the registry that engines are named in. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlvlm.engines.inference.config import Capabilities, SamplingParams, check_params
from rlvlm.registry import Part, Registry

if TYPE_CHECKING:
    from torch import Tensor

    from rlvlm.batch import Batch

READABLE = ("policy", "shared", "autocast")
"""What a factory may read: the policy to generate with, whether that very module is the trainer's, and the dtype that
the trainer's forward computes in under autocast, ``None`` without it."""

INFERENCE_ENGINES = Registry(
    "inference engine",
    "inference_engines",
    builtins=("rlvlm.engines.inference.hf",),
    readable=lambda: READABLE,
    traits={"capabilities": Capabilities()},
)
register_inference_engine = INFERENCE_ENGINES.register


@runtime_checkable
class InferenceEngine(Protocol):
    """Samples responses to prompts, and reports the log-prob of each token under the weights that sampled it.

    A row of the result is the expanded prompt and the sampled ids, never re-tokenised; placeholders of pictures are
    never sampled. An engine runs what it declares in ``capabilities``; asking for more raises ``EngineError``.
    """

    capabilities: Capabilities

    @property
    def version(self) -> int:
        """The version of the weights that the next token will be sampled with."""

    def check(self, params: SamplingParams) -> None:
        """Raises ``EngineError`` if this setting can't be honoured as it is defined."""

    def generate(self, prompts: Batch, params: SamplingParams, step: int) -> Batch:
        """Draws ``params.n`` samples for each row of ``prompts``, side by side, and waits for all of them.

        The noise of a token is keyed by (seed, step, prompt uid, sample, token), so that neither the batch a prompt
        comes in nor its place there changes what is drawn.

        Args:
            prompts: one row for each prompt; each uid once.
            step: the trainer's step.

        Returns rows with ``input_ids``, ``attention_mask``, ``loss_mask``, ``versions``, ``behav_logp``, ``turn_ids``
        [P * n, L], ``group_ids``, ``truncated``, ``temperature`` [P * n], and the objects ``completions``.
        """

    async def generate_async(self, prompts: Batch, params: SamplingParams, step: int) -> Batch:
        """``generate`` that lets its caller go on meanwhile; needs the capability ``asynchronous``."""

    def pause(self) -> AbstractContextManager[None]:
        """Context in which no token is sampled; released however it is left."""

    def abort(self) -> int:
        """Ends what is being generated; returns how many samples were cut short."""

    def sleep(self) -> None:
        """Gives the device's memory back until ``wake``; needs the capability ``sleeps``."""

    def wake(self) -> None:
        """Takes the memory again; the weights are those from before ``sleep``."""

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes new weights, drops every cache made with old ones, and sets ``version``."""


def build_inference_engine(node: str | Mapping[str, Any], **available: Any) -> InferenceEngine:
    """Makes the engine that a config node names, of what its factory reads (see ``READABLE``)."""
    return INFERENCE_ENGINES.build(node)(available)


def check_inference_engine(
    node: str | Mapping[str, Any], *, needs: Iterable[str] = (), params: SamplingParams | None = None
) -> Part:
    """Checks a config node without building anything: the name, its options, and what is asked of the engine.

    Args:
        needs: capabilities that the pipeline relies on (``"asynchronous"``, ``"sleeps"`` …).
        params: a setting that the engine must report log-probs for.

    Raises ``RegistryError`` for a wrong name or option, ``EngineError`` for what the engine does not declare.
    """
    part = INFERENCE_ENGINES.build(node)
    capabilities: Capabilities = part.traits["capabilities"]
    capabilities.require(part.name, *needs)
    if params is not None:
        check_params(part.name, capabilities, params)
    return part
