"""One request (one sample of one prompt) inside the scheduler, and when it ends.

A Req is made from a GenerateRequest and lives in exactly one place at a time: one queue, or the
running batch, or a list of requests whose memory a peer may still touch. Only the scheduler thread
changes it.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from pd_worker.core.sampling_params import SamplingParams
from pd_worker.errors import RequestError
from pd_worker.memory.pages import Pages, empty_pages
from pd_worker.messages import Finish, GenerateRequest, Output, Stage, TopLogprobs

if TYPE_CHECKING:
    from collections.abc import Container


class Matcher(Protocol):
    """State of one request's grammar."""

    def accept(self, token: int) -> bool:
        """Advance by a drawn token; False where the grammar does not allow it."""

    def fill_mask(self, row: npt.NDArray[np.int32]) -> None:
        """Write the bit mask of allowed tokens into `row` ([ceil(vocab / 32)])."""

    @property
    def terminated(self) -> bool:
        """True once the output is complete."""


class Req:
    """The mutable state of one request."""

    __slots__ = (
        "backup",
        "cached_tokens",
        "created",
        "finish",
        "first_token",
        "held_output",
        "in_flight",
        "matcher",
        "message",
        "metadata_slot",
        "node",
        "num_allocated",
        "num_computed",
        "num_sent",
        "output_ids",
        "private_pages",
        "prompt_logprobs",
        "prompt_top",
        "receiver",
        "row",
        "seed",
        "sender",
        "stage_name",
        "stage_start",
        "stages",
    )

    def __init__(self, message: GenerateRequest) -> None:
        self.message = message
        self.created = time.monotonic()
        self.seed = message.sampling.seed
        if self.seed is None:
            self.seed = secrets.randbits(62)
        self.output_ids: list[int] = []
        self.matcher: Matcher | None = None
        self.finish: Finish | None = None
        # memory: tokens whose KV is (or is being) computed, tokens that the held pages have room
        # for, the pages that belong to this request alone, and the locked prefix-cache node
        self.row = -1
        self.num_computed = 0
        self.num_allocated = 0
        self.private_pages: Pages = empty_pages()
        self.node: Any = None
        self.cached_tokens = 0
        self.backup: Any = None
        # batches that were launched with this request and whose result is not processed yet; the
        # request's memory is not given back before it is 0
        self.in_flight = 0
        # disaggregation
        self.sender: Any = None
        self.receiver: Any = None
        self.metadata_slot = -1
        self.first_token: Any = None
        self.num_sent = 0
        # results that wait for their Output
        self.prompt_logprobs: list[float | None] = []
        self.prompt_top: list[TopLogprobs] = []
        self.held_output: Output | None = None
        self.stages: list[Stage] = []
        self.stage_name = ""
        self.stage_start = 0.0

    def __repr__(self) -> str:
        return (
            f"Req(rid={self.rid} room={self.room} prompt={self.num_prompt} "
            f"computed={self.num_computed} out={len(self.output_ids)} finish={self.finish})"
        )

    @property
    def rid(self) -> str:
        """The request's id in this worker."""
        return self.message.rid

    @property
    def room(self) -> int:
        """bootstrap_room, 0 where there is none."""
        return self.message.bootstrap.room if self.message.bootstrap else 0

    @property
    def sampling(self) -> SamplingParams:
        """As the client asked."""
        return self.message.sampling

    @property
    def input_ids(self) -> list[int]:
        """The prompt."""
        return self.message.input_ids

    @property
    def num_prompt(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.message.input_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.message.input_ids) + len(self.output_ids)

    @property
    def prefilled(self) -> bool:
        """True once the KV of the whole prompt is computed or being computed."""
        return self.num_computed >= self.num_prompt

    @property
    def synchronous(self) -> bool:
        """True where the next step needs this step's token on the host."""
        return self.matcher is not None or self.sampling.penalised

    @property
    def ended_early(self) -> bool:
        """True where it was aborted or failed, rather than came to its end."""
        return self.finish is not None and self.finish.reason in ("abort", "error")

    def enter(self, stage: str) -> None:
        """Close the current stage of the timeline and start the next; "" only closes."""
        now = time.time()
        if self.stage_name:
            self.stages.append(Stage(self.stage_name, self.stage_start, now))
        self.stage_name, self.stage_start = stage, now


def failure(error: RequestError) -> Finish:
    """How a request ends that cannot be served."""
    return Finish("error", status=error.status, message=error.message, code=error.code)


def finish_after(
    token: int,
    sampling: SamplingParams,
    num_output: int,
    eos_ids: Container[int],
    terminated: bool = False,
) -> Finish | None:
    """Whether a request ends with `token`, its `num_output`-th output token (from 1).

    An end token ends it even as the last one allowed, so "stop" goes before "length". As in
    transformers and vLLM, min_new_tokens counts the tokens before the end token. `terminated`:
    the grammar is complete.
    """
    if terminated:
        return Finish("stop")
    if num_output > sampling.min_new_tokens:
        ends = token in sampling.stop_token_ids
        if ends or (not sampling.ignore_eos and token in eos_ids):
            return Finish("stop", matched=token)
    if num_output >= sampling.max_new_tokens:
        return Finish("length")
    return None
