"""What both roles of a pair do alike: tell the other leg, own memory that it may still touch."""

from __future__ import annotations

from pd_worker.core.req import Req
from pd_worker.disagg.draining import Draining
from pd_worker.disagg.host import SchedulerHost
from pd_worker.errors import RequestError
from pd_worker.messages import RejectRoom
from pd_worker.transfer.base import BaseKVManager, BaseKVReceiver, BaseKVSender


class SchedulerDisaggregationMixin(SchedulerHost):
    """Hooks of the Scheduler on either role; a subclass sets both attributes."""

    kv_manager: BaseKVManager
    draining: Draining

    def give_up(self, req: Req, end: BaseKVSender | BaseKVReceiver | None) -> None:
        """Tell the other leg of an ended request: by its room, or ahead of it where this leg ends
        before it has opened its end of the room."""
        assert req.finish is not None
        if end is not None:
            end.abort(req.finish.message)
        elif req.message.bootstrap is not None:
            self.reject(RejectRoom(req.message.bootstrap, req.finish.message))

    def refused(self, req: Req, error: RequestError) -> None:
        """The other leg must not go on with a request that was refused here."""
        if req.message.bootstrap is not None:
            self.reject(RejectRoom(req.message.bootstrap, error.message))

    def reject(self, message: RejectRoom) -> None:
        """Tell the other leg that nobody comes for this room, unless a request here has it."""
        where = message.bootstrap
        self.kv_manager.reject(where.host, where.port, where.room, message.reason)

    def busy(self) -> bool:
        """Draining requests still hold memory."""
        return super().busy() or len(self.draining) > 0

    def gauges(self) -> dict[str, float]:
        """The KV manager's and the draining requests besides."""
        own = {"num_draining_reqs": len(self.draining)}
        return super().gauges() | self.kv_manager.gauges() | own

    def counters(self) -> dict[str, float]:
        """The KV manager's besides."""
        return super().counters() | self.kv_manager.counters()

    def problem(self) -> str:
        """A dead thread of the KV manager."""
        return self.kv_manager.problem()
