"""The prefill role. Life of a request:

1. `enqueue`: create_sender opens the room; PrefillBootstrapQueue waits until decode has said where
   the KV is to go (KVPoll.WaitingForInput).
2. `pop_bootstrapped` takes a metadata slot (finalize_bootstrap) and moves it to the shared
   waiting_queue, where it is computed like any other request, with max_new_tokens = 1.
3. After each chunk `send_kv_chunk` sends its full pages while the next chunk is computed; the last
   one takes along the partly filled page and the metadata slot with the first token.
4. PrefillInflightQueue: on Success the held Output answers the prefill leg and memory goes back.

A room can fail anywhere on this way; every queue is polled for it. All on the scheduler thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pd_worker.core.req import Req
from pd_worker.disagg.checksum import Checksum
from pd_worker.disagg.consensus import RankGroup, poll_and_all_reduce
from pd_worker.disagg.draining import Draining
from pd_worker.disagg.metadata import FirstToken, MetadataBuffers, ReqToMetadataIdxAllocator
from pd_worker.disagg.mixin import SchedulerDisaggregationMixin
from pd_worker.errors import InvalidRequest
from pd_worker.messages import Finish, GenerateRequest, Output
from pd_worker.scheduler.request_memory import RequestMemory
from pd_worker.transfer.base import BaseKVManager
from pd_worker.transfer.poll import KVPoll


class PrefillBootstrapQueue:
    """Requests whose decode side has not said yet where their KV is to go."""

    def __init__(
        self,
        manager: BaseKVManager,
        memory: RequestMemory,
        slots: ReqToMetadataIdxAllocator,
        group: RankGroup,
    ) -> None:
        self._manager, self._memory, self._slots, self._group = manager, memory, slots, group
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def add(self, req: Req) -> None:
        """Open the room; raises InvalidRequest where there is none or it is taken."""
        if req.message.bootstrap is None:
            raise InvalidRequest("a prefill worker needs bootstrap_room", param="bootstrap_room")
        req.sender = self._manager.create_sender(req.room)
        self._reqs.append(req)
        req.enter("bootstrap")

    def pop_bootstrapped(self) -> tuple[list[Req], list[Req]]:
        """Requests that can be computed, and those whose room failed; oldest first."""
        polls = poll_and_all_reduce([req.sender for req in self._reqs], self._group)
        ready: list[Req] = []
        failed: list[Req] = []
        kept: list[Req] = []
        for req, poll in zip(self._reqs, polls, strict=True):
            if poll == KVPoll.Failed:
                failed.append(req)
            elif poll >= KVPoll.WaitingForInput and self._finalize_bootstrap(req):
                ready.append(req)
            else:
                kept.append(req)
        self._reqs = kept
        return ready, failed

    def _finalize_bootstrap(self, req: Req) -> bool:
        slot = self._slots.alloc()
        if slot is None:
            return False
        req.metadata_slot = slot
        req.sender.init(self._memory.num_pages(req.num_prompt), slot)
        return True

    def withdraw(self, req: Req) -> None:
        """Take an ended request out, if it is here."""
        if req in self._reqs:
            self._reqs.remove(req)


class PrefillInflightQueue:
    """Requests that are computed and whose KV is on its way."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def add(self, req: Req) -> None:
        """Wait for the transfer of this request's last chunk."""
        self._reqs.append(req)
        req.enter("transfer")

    def pop_transferred(self) -> tuple[list[Req], list[Req]]:
        """Requests whose KV has arrived, and those whose transfer failed."""
        polls = poll_and_all_reduce([req.sender for req in self._reqs], self._group)
        by_poll: dict[int, list[Req]] = {KVPoll.Success: [], KVPoll.Failed: []}
        for req, poll in zip(list(self._reqs), polls, strict=True):
            if poll in by_poll:
                by_poll[poll].append(req)
                self._reqs.remove(req)
        return by_poll[KVPoll.Success], by_poll[KVPoll.Failed]

    def withdraw(self, req: Req) -> None:
        """Take an ended request out, if it is here."""
        if req in self._reqs:
            self._reqs.remove(req)


class SchedulerDisaggregationPrefillMixin(SchedulerDisaggregationMixin):
    """Hooks of the Scheduler on the prefill role."""

    def __init__(
        self,
        *,
        manager: BaseKVManager,
        metadata: MetadataBuffers,
        group: RankGroup,
        checksum: Checksum,
        **scheduler: Any,
    ) -> None:
        super().__init__(**scheduler)
        slots = ReqToMetadataIdxAllocator(metadata)
        self.kv_manager, self.disagg_metadata_buffers = manager, metadata
        self.disagg_prefill_bootstrap_queue = PrefillBootstrapQueue(
            manager, self.memory, slots, group
        )
        self.disagg_prefill_inflight_queue = PrefillInflightQueue(group)
        self.draining = Draining(self.memory, slots)
        self._group, self._checksum = group, checksum

    def prepare(self, message: GenerateRequest) -> GenerateRequest:
        """Prefill computes the KV and one token; decode goes on from there."""
        sampling = message.sampling
        cut = msgspec.structs.replace(
            sampling,
            max_new_tokens=min(sampling.max_new_tokens, 1),
            min_new_tokens=min(sampling.min_new_tokens, 1),
        )
        return msgspec.structs.replace(message, sampling=cut)

    def enqueue(self, req: Req) -> None:
        """Accepted requests wait for their decode side first."""
        self.disagg_prefill_bootstrap_queue.add(req)

    def advance(self) -> None:
        """Move requests between queues by the state of their rooms.

        What gives slots back comes before what takes them.
        """
        self.draining.free_drained()
        arrived, failed = self.disagg_prefill_inflight_queue.pop_transferred()
        self._fail(failed)
        for req in arrived:
            assert req.held_output is not None
            self.send_output(req, req.held_output)
            self.settle(req)
        waiting = list(self.waiting_queue)
        polls = poll_and_all_reduce([req.sender for req in waiting], self._group)
        pairs = zip(waiting, polls, strict=True)
        self._fail([req for req, poll in pairs if poll == KVPoll.Failed])
        ready, failed = self.disagg_prefill_bootstrap_queue.pop_bootstrapped()
        self._fail(failed)
        for req in ready:
            req.enter("queue")
            self.waiting_queue.add(req)

    def _fail(self, reqs: Iterable[Req]) -> None:
        for req in reqs:
            reason = req.sender.failure()
            self.end(req, Finish("error", status=500, message=reason, code="transfer_failed"))

    def extended(self, req: Req, end: int) -> None:
        """Send what has just been computed."""
        last_chunk = end == req.num_prompt
        if last_chunk:
            self.memory.remember(req, req.input_ids)
            if req.sampling.max_new_tokens == 0:
                self.take_token(req, 0, 0.0, [])
        self.send_kv_chunk(req, end, last_chunk)
        if last_chunk:
            self.disagg_prefill_inflight_queue.add(req)

    def send_kv_chunk(self, req: Req, end: int, last_chunk: bool) -> None:
        """Queue the KV of prompt tokens num_sent … end − 1; only full pages before the last chunk,
        because the rest of a page is still to be computed."""
        if last_chunk:
            self.disagg_metadata_buffers.set_buf(req.metadata_slot, req.room, self._first(req))
        else:
            end -= end % self.memory.allocator.page_size
        if end > req.num_sent:
            pages = self.memory.pages(req, req.num_sent, end)
            req.sender.send(pages, num_kv_tokens=end - req.num_sent)
            req.num_sent = end

    def _first(self, req: Req) -> FirstToken:
        output = req.held_output
        assert output is not None
        return FirstToken(
            token=output.token_ids[0] if output.token_ids else 0,
            cached_tokens=req.cached_tokens,
            logprob=output.logprobs[0] if output.logprobs else float("nan"),
            top=output.top_logprobs[0] if output.top_logprobs else [],
            checksum=self._checksum(self.memory.pages(req, 0, req.num_prompt)),
        )

    def deliver(self, req: Req, output: Output) -> None:
        """The first token goes to decode; the prefill leg is answered when it has arrived."""
        req.held_output = output

    def withdraw(self, req: Req) -> None:
        """An ended request leaves our queues, and its decode side hears of it."""
        self.disagg_prefill_bootstrap_queue.withdraw(req)
        self.disagg_prefill_inflight_queue.withdraw(req)
        self.give_up(req, req.sender)

    def retire(self, req: Req) -> None:
        """Memory goes back once no writer thread reads it."""
        self.draining.add(req, req.sender)

    def gauges(self) -> dict[str, float]:
        """The role's own queues besides."""
        return super().gauges() | {
            "num_prefill_bootstrap_queue_reqs": len(self.disagg_prefill_bootstrap_queue),
            "num_prefill_inflight_queue_reqs": len(self.disagg_prefill_inflight_queue),
        }
