"""What the scheduler hands to the model runner for one step, and what it gets back.

Both are snapshots: nothing in them is shared with state that the scheduler goes on changing, so
the runner may work on another thread (event_loop_overlap). Arrays are numpy on the host; the runner
moves them to its device.

    B requests, T new tokens of all of them laid end to end, S requests that get a token sampled.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pd_worker.messages import TopLogprobs

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class ForwardMode(enum.Enum):
    """EXTEND computes new prompt tokens, DECODE one token of each request.

    PREBUILT is a batch whose KV came from a peer: it never reaches the model runner's forward.
    """

    EXTEND = "extend"
    DECODE = "decode"
    PREBUILT = "prebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """How the S sampled rows are sampled; row s of every field belongs to the same request."""

    temperature: Floats
    """[S]; 0 is greedy."""
    top_k: Ints
    """[S]; the vocabulary size where not asked for."""
    top_p: Floats
    min_p: Floats
    seeds: Ints
    """[S]; row s draws with the counter-based uniform of (seeds[s], positions[s])."""
    positions: Ints
    """[S]; index of the token to draw among the request's output tokens."""
    num_logprobs: Ints
    """[S]; -1 none, 0 the chosen token's, n also the n most probable."""
    repetition: Floats
    presence: Floats
    frequency: Floats
    history: list[tuple[list[int], list[int]] | None]
    """[S]; (prompt ids, output ids so far) of penalised rows, None for the others."""
    bias: list[dict[int, float]]
    """[S]; added to the logits."""
    banned: list[tuple[int, ...]]
    """[S]; token ids that cannot be drawn now (end tokens before min_new_tokens)."""
    mask: npt.NDArray[np.int32] | None
    """[S, ceil(vocab / 32)] bit mask of the tokens a grammar allows; None: no row has one.
    Rows without a grammar are all ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """One step."""

    mode: ForwardMode
    rows: Ints
    """[B]; the requests' rows in the ReqToTokenPool. The runner keeps each row's last sampled
    token on the device (`token_buffer[rows]`): a DECODE step reads its input there."""
    prefix_lens: Ints
    """[B]; tokens whose KV is already in the pool."""
    extend_lens: Ints
    """[B]; new tokens; all ones for DECODE."""
    input_ids: Ints
    """[T] for EXTEND, empty for DECODE."""
    out_slots: Ints
    """[T]; page * page_size + offset where the KV of each new token is written."""
    page_table: npt.NDArray[np.int32]
    """[B, P]; pages of each request in order, covering prefix + new tokens; 0-padded."""
    sampled: Ints
    """[S]; which of the B requests get a token (a chunk that is not the last gets none)."""
    sampling: SamplingBatch
    prompt_logprobs: Ints
    """Which of the B requests want log-probabilities of their new prompt tokens."""
    prompt_targets: list[list[int]]
    """For each of prompt_logprobs: the prompt tokens that follow the new tokens, i.e. those that
    are scored; one fewer than extend_lens in the last chunk, else equal."""
    prompt_num_logprobs: list[int]
    """For each of prompt_logprobs: how many most probable tokens besides."""

    @property
    def seq_lens(self) -> Ints:
        """[B]; tokens whose KV is in the pool after the step."""
        return self.prefix_lens + self.extend_lens


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Scores of prompt tokens, aligned with ForwardBatch.prompt_targets."""

    logprobs: list[float]
    top: list[TopLogprobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Result of one step, on the host. Log-probabilities are natural logs of the softmax of the
    raw logits (before bias, penalties, temperature and masks), as in transformers and vLLM."""

    tokens: Ints
    """[S]."""
    logprobs: Floats
    """[S]; NaN where not asked for."""
    top: list[TopLogprobs]
    """[S]; empty lists where not asked for."""
    prompt: list[PromptLogprobs] = field(default_factory=list)
    """One for each of ForwardBatch.prompt_logprobs."""
