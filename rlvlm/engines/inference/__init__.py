"""Inference engines: what samples responses, in this process or beside it."""

from __future__ import annotations

from rlvlm._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "SamplingParams": "rlvlm.engines.inference.config",
        "Capabilities": "rlvlm.engines.inference.config",
        "InferenceEngine": "rlvlm.engines.inference.base",
        "register_inference_engine": "rlvlm.engines.inference.base",
        "build_inference_engine": "rlvlm.engines.inference.base",
        "check_inference_engine": "rlvlm.engines.inference.base",
        "HfEngine": "rlvlm.engines.inference.hf",
    },
)
