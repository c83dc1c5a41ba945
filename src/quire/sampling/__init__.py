"""Logits → token: what requests wish, the exact draw, and the report of probabilities."""

from quire.sampling.logprobs import prompt_logprobs
from quire.sampling.sampler import Sampler, SamplerOutput
from quire.sampling.state import SamplingState

__all__ = ["Sampler", "SamplerOutput", "SamplingState", "prompt_logprobs"]
