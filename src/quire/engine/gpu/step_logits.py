"""The end of a step, after its recorded part: logits processors with their sampling, and logprobs.

Owns their launches, and how their results get into the step's outcome. Few steps have any; they are
launched one by one, for the rows that need them. Nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from quire.array_types import Ints
from quire.core.messages import TokenLogprobs
from quire.engine.core.running_requests import RunningRequests
from quire.engine.gpu.step_work import StepTensors
from quire.sampling.device_logits import on_device
from quire.sampling.device_logits_processors import DeviceLogitsProcessors
from quire.sampling.device_logprobs import Scores, score, score_named
from quire.sampling.sampling_state import Need


@dataclass(frozen=True, slots=True)
class WantedScores:
    """Logprobs on their way to the host. counts: of the tokens that follow each sample's own."""

    samples: list[int]
    counts: list[int]
    scores: Scores

    def report(self) -> dict[int, TokenLogprobs]:
        """Logprobs by sample, once they have arrived."""
        return dict(zip(self.samples, self.scores.report(self.counts), strict=True))


class StepLogits:
    """Logits processors and logprobs of steps.

    last_tokens: int32 [R] on the device, where the next step reads the sampled tokens.
    """

    def __init__(
        self, running: RunningRequests, processors: DeviceLogitsProcessors, last_tokens: Tensor
    ) -> None:
        self._state = running.sampling
        self._batch = running.batch
        self._processors = processors
        self._last_tokens = last_tokens

    def draw(self, tensors: StepTensors, num_samples: int, rows: Ints, lengths: Ints) -> None:
        """Sample for those of the samples' rows [D] that the recorded part left out.

        lengths [D]: tokens that each row has after this step.
        """
        samples = np.flatnonzero(self._processors.among(rows))
        if not len(samples):
            return
        assert tensors.logits is not None
        index = on_device(np.stack([samples, samples + num_samples, rows[samples]]), tensors.logits)
        history = self._batch.history
        num_tokens = history.num_tokens.copy()
        num_tokens[rows] = lengths
        tokens, status = self._processors.draw(
            tensors.logits.index_select(0, index[0]).float(),
            rows[samples],
            history._replace(num_tokens=num_tokens),
        )
        tensors.outcome.index_copy_(0, index[0], tokens)
        tensors.outcome.index_copy_(0, index[1], status)
        self._last_tokens.index_copy_(0, index[2], tokens)

    def score(self, tensors: StepTensors, rows: Ints) -> list[WantedScores]:
        """Start the logprobs of sampled tokens for those of the samples' rows [D] that asked."""
        samples = np.flatnonzero(self._state.needs[rows] & Need.LOGPROBS)
        if not len(samples):
            return []
        named = np.array([row in self._state.logprob_tokens for row in rows[samples].tolist()])
        return [
            wanted(tensors, some, rows[some])
            for wanted, some in (
                (self._score_best, samples[~named]),
                (self._score_named, samples[named]),
            )
            if len(some)
        ]

    def _score_best(self, tensors: StepTensors, samples: Ints, rows: Ints) -> WantedScores:
        assert tensors.logits is not None
        counts = self._state.num_logprobs[rows]
        index = on_device(samples, tensors.logits)
        drawn = tensors.outcome.index_select(0, index)
        scores = score(tensors.logits, index, drawn, int(counts.max()))
        return WantedScores(samples.tolist(), counts.tolist(), scores.on_host())

    def _score_named(self, tensors: StepTensors, samples: Ints, rows: Ints) -> WantedScores:
        assert tensors.logits is not None
        tokens = [self._state.logprob_tokens[row] for row in rows.tolist()]
        counts = [len(ids) for ids in tokens]
        named = np.zeros((len(rows), max(counts)), np.int64)
        for line, ids in zip(named, tokens, strict=True):
            line[: len(ids)] = ids
        index = on_device(samples, tensors.logits)
        drawn = tensors.outcome.index_select(0, index)
        scores = score_named(tensors.logits, index, drawn, on_device(named, tensors.logits))
        return WantedScores(samples.tolist(), counts, scores.on_host())
