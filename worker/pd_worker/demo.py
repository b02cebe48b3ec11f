"""`pdserve demo`: the whole path once, visible: a local cluster, one question, one timeline."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pd_worker.client import model_name, open_session, stream
from pd_worker.config import ModelConfig
from pd_worker.errors import PdserveError
from pd_worker.local.cluster import Cluster, running
from pd_worker.local.options import UpOptions
from pd_worker.timeline import Step, Timeline, draw

MODEL = "smollm2-135m"
PROMPT = "Explain in three sentences why an LLM server keeps a KV cache."


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Start a local cluster, ask a question through its router, draw where the time went, stop."""

    prompt: str = PROMPT
    """The question."""
    max_tokens: int = 96
    """Longest answer in tokens."""
    up: UpOptions = field(default_factory=lambda: UpOptions(model=ModelConfig(model=MODEL), port=0))


@dataclass(slots=True)
class Answer:
    """What one streamed answer brought."""

    sent: float
    first_token: float = 0.0
    output_tokens: int = 0
    steps: list[Step] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> str:
        """Keep what `event` says and return its text."""
        text = "".join(c["delta"].get("content") or "" for c in event.get("choices", ()))
        if text and not self.first_token:
            self.first_token = time.time()
        if event.get("usage"):
            self.output_tokens = event["usage"]["completion_tokens"]
        if "pdserve" in event:
            self.steps = msgspec.convert(event["pdserve"]["stages"], list[Step])
        return text

    def timeline(self) -> Timeline:
        now = time.time()
        return Timeline(
            sent=self.sent,
            first_token=self.first_token or now,
            end=max([now, *(step.end for step in self.steps)]),
            output_tokens=self.output_tokens,
            steps=self.steps,
        )


def run(options: DemoOptions) -> int:
    """The demo; status 130 where Ctrl-C ended it."""
    try:
        asyncio.run(_demo(options))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return 0


async def _demo(options: DemoOptions) -> None:
    print(f"starting {' + '.join([*options.up.roles, 'router'])} with {options.up.model.name}")
    async with running(options.up) as cluster:
        print(f"ready {cluster.url}\n")
        answer = await cluster.unless_one_dies(_ask(cluster, options))
        if not answer.steps:
            raise PdserveError("the answer came without a timeline")
        columns = min(shutil.get_terminal_size((100, 24)).columns, 120)
        print(f"\n\n{draw(answer.timeline(), columns)}\n")


async def _ask(cluster: Cluster, options: DemoOptions) -> Answer:
    """Print the answer to the prompt as it arrives."""
    print(f"> {options.prompt}\n")
    async with open_session() as session:
        body = _body(await model_name(session, cluster.url), options)
        answer = Answer(sent=time.time())
        async for event in stream(session, f"{cluster.url}/v1/chat/completions", body):
            print(answer.take(event), end="", flush=True)
    return answer


def _body(model: str, options: DemoOptions) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": options.prompt}],
        "max_tokens": options.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "pdserve_timeline": True,
    }
