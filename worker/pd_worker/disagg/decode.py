"""The decode role. Life of a request:

1. `enqueue`: create_receiver and its handshake with the prefill worker (KVPoll.Bootstrapping);
   DecodePreallocQueue waits for it.
2. `pop_preallocated`: row, pages for the prompt and a metadata slot are taken (`_pre_alloc`), and
   send_metadata tells prefill where to write. First come first served among those that are ready;
   one that waits for its peer holds back nobody.
3. DecodeTransferQueue: nothing to do but poll, prefill writes. On Success
   `_commit_transfer_to_req` checks the metadata slot and takes the first token.
4. A PREBUILT batch makes them running requests (batch_mixin.py); from there on all is as on the
   unified role.

Memory that a writer may still touch after a failure stays in Draining. All on the scheduler thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from pd_worker.core.req import Req
from pd_worker.disagg.batch_mixin import DecodeScheduleBatch
from pd_worker.disagg.checksum import Checksum
from pd_worker.disagg.consensus import RankGroup, poll_and_all_reduce
from pd_worker.disagg.draining import Draining
from pd_worker.disagg.metadata import FirstToken, MetadataBuffers, ReqToMetadataIdxAllocator
from pd_worker.disagg.mixin import SchedulerDisaggregationMixin
from pd_worker.errors import InvalidRequest, TransferError
from pd_worker.memory.pools import DecodeReqToTokenPool
from pd_worker.messages import Finish
from pd_worker.scheduler.batch import ScheduleBatch
from pd_worker.scheduler.request_memory import RequestMemory
from pd_worker.scheduler.running import RunningBatch
from pd_worker.transfer.base import BaseKVManager
from pd_worker.transfer.poll import KVPoll


class DecodePreallocQueue:
    """Requests that shake hands with their prefill worker or wait for memory."""

    def __init__(
        self,
        manager: BaseKVManager,
        memory: RequestMemory,
        rows: DecodeReqToTokenPool,
        slots: ReqToMetadataIdxAllocator,
        group: RankGroup,
    ) -> None:
        self._manager, self._memory, self._rows = manager, memory, rows
        self._slots, self._group = slots, group
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def add(self, req: Req) -> None:
        """Start the handshake; raises InvalidRequest where the room is missing or taken."""
        where = req.message.bootstrap
        if where is None:
            raise InvalidRequest("a decode worker needs bootstrap_room", param="bootstrap_room")
        req.receiver = self._manager.create_receiver(where.host, where.port, where.room)
        req.receiver.init()
        self._reqs.append(req)
        req.enter("prealloc")

    def pop_preallocated(self, running: RunningBatch) -> tuple[list[Req], list[Req]]:
        """Requests whose pages are promised to their writer, and those whose room failed."""
        polls = poll_and_all_reduce([req.receiver for req in self._reqs], self._group)
        moved: list[Req] = []
        failed: list[Req] = []
        kept: list[Req] = []
        blocked = bool(running.retracted)
        for req, poll in zip(self._reqs, polls, strict=True):
            if poll == KVPoll.Failed:
                failed.append(req)
            elif poll < KVPoll.WaitingForInput or blocked:
                kept.append(req)
            elif self._pre_alloc(req, running.reserve):
                moved.append(req)
            else:
                blocked = True
                kept.append(req)
        self._reqs = kept
        return moved, failed

    def _pre_alloc(self, req: Req, reserve: int) -> bool:
        """Take memory for the prompt and tell prefill; False, and nothing taken, if there is none.

        `reserve` pages stay free for the growth of running requests.
        """
        slot = self._slots.alloc()
        if slot is None:
            return False
        if not self._memory.admit(req, reserve=reserve, take_row=self._rows.pre_alloc):
            self._slots.free(slot)
            return False
        req.metadata_slot = slot
        req.receiver.send_metadata(self._memory.pages(req, 0, req.num_prompt), slot)
        return True

    def withdraw(self, req: Req) -> None:
        """Take an ended request out, if it is here."""
        if req in self._reqs:
            self._reqs.remove(req)


class DecodeTransferQueue:
    """Requests whose KV is being written by their prefill worker."""

    def __init__(
        self,
        memory: RequestMemory,
        metadata: MetadataBuffers,
        slots: ReqToMetadataIdxAllocator,
        group: RankGroup,
        checksum: Checksum,
    ) -> None:
        self._memory, self._metadata, self._slots = memory, metadata, slots
        self._group, self._checksum = group, checksum
        self._reqs: list[Req] = []

    def __len__(self) -> int:
        return len(self._reqs)

    def add(self, req: Req) -> None:
        """Wait for the KV of this request."""
        self._reqs.append(req)
        req.enter("transfer")

    def pop_transferred(self) -> tuple[list[Req], list[tuple[Req, str]]]:
        """Requests whose KV is here, and those that failed with the reason."""
        polls = poll_and_all_reduce([req.receiver for req in self._reqs], self._group)
        arrived: list[Req] = []
        failed: list[tuple[Req, str]] = []
        for req, poll in zip(list(self._reqs), polls, strict=True):
            if poll not in (KVPoll.Success, KVPoll.Failed):
                continue
            self._reqs.remove(req)
            if poll == KVPoll.Failed:
                failed.append((req, req.receiver.failure()))
                continue
            try:
                self._commit_transfer_to_req(req)
            except TransferError as error:
                failed.append((req, str(error)))
            else:
                arrived.append(req)
        return arrived, failed

    def _commit_transfer_to_req(self, req: Req) -> None:
        """Take the first token out of the metadata slot; raises TransferError where slot or KV
        are not this request's."""
        first = self._metadata.get_buf(req.metadata_slot, req.room)
        if first.checksum != self._checksum(self._memory.pages(req, 0, req.num_prompt)):
            raise TransferError(f"room {req.room}: the KV that arrived has another checksum")
        req.first_token, req.cached_tokens = first, first.cached_tokens
        req.num_computed = req.num_prompt
        self._slots.free(req.metadata_slot)
        req.metadata_slot = -1
        req.receiver.clear()
        req.receiver = None

    def withdraw(self, req: Req) -> None:
        """Take an ended request out, if it is here."""
        if req in self._reqs:
            self._reqs.remove(req)


class SchedulerDisaggregationDecodeMixin(SchedulerDisaggregationMixin):
    """Hooks of the Scheduler on the decode role."""

    def __init__(
        self,
        *,
        manager: BaseKVManager,
        metadata: MetadataBuffers,
        rows: DecodeReqToTokenPool,
        group: RankGroup,
        checksum: Checksum,
        **scheduler: Any,
    ) -> None:
        super().__init__(**scheduler)
        slots = ReqToMetadataIdxAllocator(metadata)
        self.kv_manager = manager
        self.disagg_decode_prealloc_queue = DecodePreallocQueue(
            manager, self.memory, rows, slots, group
        )
        self.disagg_decode_transfer_queue = DecodeTransferQueue(
            self.memory, metadata, slots, group, checksum
        )
        self.prebuilt_queue: deque[Req] = deque()
        self.draining = Draining(self.memory, slots)
        self._rows = rows

    def enqueue(self, req: Req) -> None:
        """Accepted requests shake hands with their prefill worker first."""
        self.disagg_decode_prealloc_queue.add(req)

    def advance(self) -> None:
        """Move requests between queues by the state of their rooms."""
        self.process_decode_queue()

    def process_decode_queue(self) -> None:
        """Transfers are looked at before memory is promised anew: they free slots."""
        self.draining.free_drained()
        arrived, failures = self.disagg_decode_transfer_queue.pop_transferred()
        self._fail(failures)
        for req in arrived:
            req.enter("queue")
        self.prebuilt_queue.extend(arrived)
        moved, failed = self.disagg_decode_prealloc_queue.pop_preallocated(self.running)
        self._fail((req, req.receiver.failure()) for req in failed)
        for req in moved:
            self.disagg_decode_transfer_queue.add(req)

    def _fail(self, failures: Iterable[tuple[Req, str]]) -> None:
        for req, reason in failures:
            self.end(req, Finish("error", status=500, message=reason, code="transfer_failed"))

    def next_batch(self) -> ScheduleBatch | None:
        """New arrivals join, then everybody decodes."""
        return self.get_next_disagg_decode_batch_to_run()

    def get_next_disagg_decode_batch_to_run(self) -> ScheduleBatch | None:
        """A PREBUILT batch is processed on the spot; it costs no forward.

        Retracted requests go first, unless nothing runs: then the memory that they wait for may be
        held by those who wait here.
        """
        if self.prebuilt_queue and not (self.running.retracted and len(self.running)):
            # a row outlives its request by the step that was launched with it
            count = min(self.running.room, self._rows.available, len(self.prebuilt_queue))
            batch = self.new_batch([self.prebuilt_queue.popleft() for _ in range(count)])
            batch.prepare_for_prebuilt(self._rows.start)
            batch.process_prebuilt(self._take_first)
        return self.next_decode()

    def _take_first(self, req: Req, first: FirstToken) -> None:
        self.take_token(req, first.token, first.logprob, first.top)
        if req.finish is None:
            self.set_token(req)
            self.running.add(req)
        self.settle(req)

    def new_batch(self, reqs: list[Req]) -> DecodeScheduleBatch:
        """Batches that can be PREBUILT."""
        return DecodeScheduleBatch(reqs, self.memory, self.vocab_size, self.eos_ids)

    def withdraw(self, req: Req) -> None:
        """An ended request leaves our queues; prefill hears of it unless it is done with it."""
        self.disagg_decode_prealloc_queue.withdraw(req)
        self.disagg_decode_transfer_queue.withdraw(req)
        if req in self.prebuilt_queue:
            self.prebuilt_queue.remove(req)
        if req.first_token is None:
            self.give_up(req, req.receiver)

    def retire(self, req: Req) -> None:
        """Memory goes back once no writer can reach it."""
        self.draining.add(req, req.receiver)

    def gauges(self) -> dict[str, float]:
        """The role's own queues besides."""
        return super().gauges() | {
            "num_decode_prealloc_queue_reqs": len(self.disagg_decode_prealloc_queue),
            "num_decode_transfer_queue_reqs": len(self.disagg_decode_transfer_queue),
            "num_decode_prebuilt_queue_reqs": len(self.prebuilt_queue),
        }
