"""A whole API process in the test: real sockets, a real small tokenizer, a scripted scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from pd_worker.api.context import Context
from pd_worker.api.metrics import Metrics
from pd_worker.api.server import bound_socket, listening, make_app, make_engine
from pd_worker.api.tokenizer import Tokenizer, load_tokenizer
from pd_worker.config import (
    DisaggConfig,
    ModelConfig,
    Role,
    SchedulerConfig,
    ServerConfig,
    WorkerConfig,
)
from tests.worker.api.scripted import Script, ScriptedScheduler, reverse

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a byte-level BPE tokenizer of 400 tokens and a chat template."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "the quick brown fox jumps over the lazy dog, hello world, how are you today? assistant "
    backend.train_from_iterator([text * 4], trainer)
    folder = tmp_path_factory.mktemp("model")
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return load_tokenizer(model_dir)


@dataclass(slots=True)
class Worker:
    """A running API with its scripted scheduler, and a client session on it."""

    url: str
    scheduler: ScriptedScheduler
    context: Context
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of a POST; bytes are sent as they are."""
        data = body if isinstance(body, bytes | io.IOBase) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        async with self.session.get(self.url + path) as response:
            return response.status, await response.json(content_type=None)

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The payloads of a streamed answer, [DONE] as a string."""
        async with self.session.post(self.url + path, json=body | {"stream": True}) as response:
            assert response.status == 200, await response.text()
            return parse_events(await response.read())


def parse_events(data: bytes) -> list[Any]:
    """Payloads of server-sent events; comments are dropped."""
    lines = [line for line in data.decode().split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines), lines
    return [
        payload if payload == "[DONE]" else json.loads(payload)
        for payload in (line.removeprefix("data: ") for line in lines)
    ]


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for a condition on this loop; fails the test after timeout_s."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110, conditions are of any kind
            await asyncio.sleep(0.005)


StartWorker = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def start_worker(model_dir: Path, tokenizer: Tokenizer, tmp_path: Path) -> StartWorker:
    """Starts an API process of a role; ready unless told not to be."""

    @contextlib.asynccontextmanager
    async def start(
        role: Role = "unified", script: Script = reverse, *, ready: bool = True, **server: float
    ) -> AsyncIterator[Worker]:
        config = WorkerConfig(
            role=role,
            model=ModelConfig(model=str(model_dir), served_model_name="tiny"),
            scheduler=SchedulerConfig(max_running_requests=16, max_queued_requests=600),
            disagg=DisaggConfig(bootstrap_port=8998),
            server=ServerConfig(**server),  # type: ignore[arg-type]
        )
        endpoints = [f"ipc://{tmp_path}/{role}-{name}" for name in ("to", "from")]
        scheduler = ScriptedScheduler(*endpoints, script)
        engine = make_engine(config, *endpoints, lambda: scheduler.exit_code)
        context = Context(
            config=config,
            model_dir=str(model_dir),
            model_facts={"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            engine=engine,
            tokenizer=tokenizer,
            metrics=Metrics("tiny", role, lambda: engine.vitals.heartbeat),
        )
        sock = bound_socket("127.0.0.1", 0)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with engine, scheduler, listening(make_app(context), sock):
            if ready:
                await scheduler.get_ready()
                await until(lambda: not engine.missing())
            async with aiohttp.ClientSession() as session:
                yield Worker(url, scheduler, context, session)

    return start


@pytest.fixture
async def worker(start_worker: StartWorker) -> AsyncIterator[Worker]:
    """A ready unified worker."""
    async with start_worker() as started:
        yield started
        assert started.context.engine.num_samples == 0, "samples leaked"
