"""Sampling on the host and on a device: logits processors, the exact draw, log-probabilities."""

from quire.sampling.sampler import Sampler, SamplerOutput
from quire.sampling.sampling_state import SamplingState
from quire.sampling.token_logprobs import prompt_logprobs

__all__ = ["Sampler", "SamplerOutput", "SamplingState", "prompt_logprobs"]
