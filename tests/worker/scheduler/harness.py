"""A scheduler over a FakeRunner, stepped by hand, with everything but the sockets real."""

from __future__ import annotations

from dataclasses import dataclass, field

from pd_worker.config import SchedulerConfig
from pd_worker.core.sampling_params import SamplingParams
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.pools import ReqToTokenPool
from pd_worker.memory.prefix_cache import BasePrefixCache, NoPrefixCache, PrefixCache
from pd_worker.messages import (
    FromScheduler,
    GenerateRequest,
    Output,
    OutputBatch,
    Shutdown,
    ToScheduler,
)
from pd_worker.model.runner_fake import FakeKVPool, FakeRunner, fake_geometry
from pd_worker.scheduler.grammar_queue import GrammarQueue
from pd_worker.scheduler.request_memory import RequestMemory
from pd_worker.scheduler.scheduler import Scheduler


class ListChannel:
    """The scheduler's Channel without sockets: what is put in, and what came out by request."""

    def __init__(self) -> None:
        self.inbox: list[ToScheduler] = []
        self.outputs: dict[str, list[Output]] = {}

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        messages, self.inbox = self.inbox, []
        return messages

    def send(self, message: FromScheduler) -> None:
        assert isinstance(message, OutputBatch)
        for output in message.outputs:
            self.outputs.setdefault(output.rid, []).append(output)

    def wake(self) -> None:
        pass


@dataclass(kw_only=True)
class Answer:
    """All Outputs of one request, joined."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] = field(default_factory=list)
    reason: str = ""
    cached_tokens: int = 0


def joined(outputs: list[Output]) -> Answer:
    """Check that exactly the last Output finishes, and join them."""
    assert [output.finish is not None for output in outputs] == [False] * (len(outputs) - 1) + [
        True
    ]
    answer = Answer(reason=outputs[-1].finish.reason, cached_tokens=outputs[-1].cached_tokens)
    for output in outputs:
        answer.token_ids += output.token_ids
        answer.logprobs += output.logprobs
        answer.prompt_logprobs += output.prompt_logprobs
    return answer


def make_memory(
    num_pages: int, page_size: int, num_rows: int, cache: type[PrefixCache] | type[NoPrefixCache]
) -> tuple[RequestMemory, FakeRunner]:
    """Memory and runner over a FakeKVPool of `num_pages` usable pages; freed ones are poisoned."""
    geometry = fake_geometry()
    pool = FakeKVPool(geometry.kv_layout(num_pages + 1, page_size))
    allocator = PageAllocator(num_pages + 1, page_size, on_free=pool.poison)
    tree: BasePrefixCache = cache(allocator) if cache is PrefixCache else NoPrefixCache()
    rows = ReqToTokenPool(num_rows, (num_pages + 1) * page_size)
    memory = RequestMemory(rows, allocator, tree, pool)
    return memory, FakeRunner(geometry, pool, num_rows=num_rows + 1)


class Harness:
    """A unified Scheduler and its channel."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        chunk: int = 16,
        max_running: int = 8,
        max_queued: int = 1000,
        reserved: int = 0,
        cache: type[PrefixCache] | type[NoPrefixCache] = PrefixCache,
    ) -> None:
        self.memory, self.runner = make_memory(num_pages, page_size, max_running, cache)
        self.channel = ListChannel()
        self.grammars = GrammarQueue(lambda grammar: None, self.channel.wake)
        self.scheduler = Scheduler(
            config=SchedulerConfig(
                chunked_prefill_size=chunk,
                max_running_requests=max_running,
                max_queued_requests=max_queued,
            ),
            runner=self.runner,
            memory=self.memory,
            channel=self.channel,
            grammars=self.grammars,
            eos_ids=self.runner.geometry.eos_ids,
            vocab_size=self.runner.geometry.vocab_size,
            max_request_tokens=num_pages * page_size,
            reserved_decode_tokens=reserved,
        )

    def add(self, *messages: GenerateRequest) -> None:
        """Requests reach the scheduler."""
        for message in messages:
            self.scheduler.add(message)

    def run(self, max_steps: int = 5000) -> dict[str, Answer]:
        """Step until all requests have ended; then nothing may be held any more."""
        for _ in range(max_steps):
            self.scheduler.step()
            if not self.scheduler.busy():
                break
        assert not self.scheduler.busy(), self.scheduler
        self.check_baseline()
        return self.answers()

    def run_overlapped(self) -> dict[str, Answer]:
        """As run, in the overlapped event loop; Shutdown comes once all have ended."""
        take = self.channel.receive

        def receive(timeout_s: float) -> list[ToScheduler]:
            return take(timeout_s) + ([] if self.scheduler.busy() else [Shutdown()])

        self.channel.receive = receive  # type: ignore[method-assign]
        self.scheduler.event_loop_overlap()
        self.check_baseline()
        return self.answers()

    def answers(self) -> dict[str, Answer]:
        """The answers of all requests, which must have ended."""
        return {rid: joined(outputs) for rid, outputs in self.channel.outputs.items()}

    def check_baseline(self) -> None:
        """No request holds a page or row."""
        self.memory.check_integrity([])


def request(rid: str, input_ids: list[int], **sampling: object) -> GenerateRequest:
    """A greedy request."""
    extras = {
        name: sampling.pop(name) for name in ("num_logprobs", "prompt_logprobs") if name in sampling
    }
    params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 8, **sampling})
    return GenerateRequest(rid=rid, input_ids=input_ids, sampling=params, **extras)


def alone(message: GenerateRequest, page_size: int = 4) -> Answer:
    """What a request gets on a roomy scheduler of its own."""
    harness = Harness(num_pages=1024, page_size=page_size, chunk=100_000, cache=NoPrefixCache)
    harness.add(message)
    return harness.run()[message.rid]
