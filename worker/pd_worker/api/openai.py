"""What completions and chat completions share: the envelope of answers, usage, /v1/models.

The extension `pdserve` carries the stages of a request whose client asks for its timeline.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from aiohttp import web

from pd_worker.api.choice import Choice, Delta
from pd_worker.api.context import CONTEXT
from pd_worker.api.failures import json_response
from pd_worker.api.generation import Generation
from pd_worker.api.schema import OpenAIFields


class OpenAICodec(ABC):
    """Writes answers in OpenAI's form; a subclass knows one kind of choice."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, body: OpenAIFields) -> None:
        self._model = model
        self._created = int(time.time())
        options = body.stream_options
        self._usage_at_end = bool(options and options.include_usage)
        self._usage_always = bool(options and options.continuous_usage_stats)

    @abstractmethod
    def choice_chunks(self, generation: Generation, delta: Delta) -> Iterable[dict[str, Any]]:
        """Entries of `choices` for one delta, each a chunk of its own."""

    @abstractmethod
    def choice(self, generation: Generation, choice: Choice) -> dict[str, Any]:
        """The entry of `choices` for a whole sample."""

    def chunks(self, generation: Generation, deltas: list[Delta]) -> Iterator[dict[str, Any]]:
        """See sse.Codec."""
        for delta in deltas:
            for entry in self.choice_chunks(generation, delta):
                chunk = self._envelope(generation, self.chunk_object) | {"choices": [entry]}
                if self._usage_at_end or self._usage_always:
                    chunk["usage"] = generation.usage() if self._usage_always else None
                yield chunk

    def tail(self, generation: Generation) -> Iterator[dict[str, Any]]:
        """The chunk without choices: usage and timeline, where they are wanted."""
        extra = timeline(generation)
        if self._usage_at_end:
            extra["usage"] = generation.usage()
        if extra:
            yield self._envelope(generation, self.chunk_object) | {"choices": []} | extra

    def answer(self, generation: Generation) -> dict[str, Any]:
        """See sse.Codec."""
        return (
            self._envelope(generation, self.whole_object)
            | {"choices": [self.choice(generation, choice) for choice in generation.choices]}
            | {"usage": generation.usage()}
            | timeline(generation)
        )

    def _envelope(self, generation: Generation, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{generation.job.rid}",
            "object": kind,
            "created": self._created,
            "model": self._model,
        }


def timeline(generation: Generation) -> dict[str, Any]:
    """The `pdserve` extension, where the client wants it."""
    if not generation.job.timeline:
        return {}
    return {"pdserve": {"stages": msgspec.to_builtins(generation.stages)}}


def finish_reason(choice: Choice) -> str | None:
    """stop, length or abort; None while the sample runs."""
    finish = choice.tally.finish
    return None if finish is None else finish.reason


async def models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    context = request.app[CONTEXT]
    ready = context.engine.vitals.ready
    name = context.config.model.name
    entry = {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": "pdserve",
        "root": name,
        "max_model_len": ready.max_request_tokens if ready else None,
    }
    return json_response({"object": "list", "data": [entry]})
