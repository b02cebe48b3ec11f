"""What the disaggregation mixins may use of the Scheduler that they extend.

The mixins see SchedulerHost and nothing else: for the type checker they derive from it, at run time
from `object`, so that the Scheduler behind them in the method resolution order is what they find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pd_worker.core.req import Req
    from pd_worker.messages import Finish, Output, TopLogprobs
    from pd_worker.scheduler.batch import ScheduleBatch
    from pd_worker.scheduler.request_memory import RequestMemory
    from pd_worker.scheduler.running import RunningBatch
    from pd_worker.scheduler.waiting import WaitingQueue

    class SchedulerHost:
        """The Scheduler as its mixins see it."""

        memory: RequestMemory
        waiting_queue: WaitingQueue
        running: RunningBatch
        vocab_size: int
        eos_ids: tuple[int, ...]

        def __init__(self, **parts: Any) -> None: ...
        def end(self, req: Req, finish: Finish) -> None: ...
        def send_output(self, req: Req, output: Output) -> None: ...
        def take_token(self, req: Req, token: int, logprob: float, top: TopLogprobs) -> None: ...
        def set_token(self, req: Req) -> None: ...
        def settle(self, req: Req) -> None: ...
        def new_batch(self, reqs: list[Req]) -> ScheduleBatch: ...
        def next_decode(self) -> ScheduleBatch | None: ...
        def busy(self) -> bool:
            raise NotImplementedError

        def gauges(self) -> dict[str, float]:
            raise NotImplementedError

        def counters(self) -> dict[str, float]:
            raise NotImplementedError

else:
    SchedulerHost = object
