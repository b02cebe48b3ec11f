"""PREBUILT batches: requests whose KV came from a peer enter decoding as if just prefilled.

Such a batch never reaches the model. Preparing it turns the pre-allocated rows into running ones;
processing it hands on the token that prefill sampled, exactly as the result of an EXTEND step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pd_worker.core.batch import ForwardMode
from pd_worker.core.req import Req
from pd_worker.disagg.metadata import FirstToken
from pd_worker.scheduler.batch import ScheduleBatch

if TYPE_CHECKING:

    class BatchHost:
        """ScheduleBatch as the mixin sees it."""

        reqs: list[Req]
        mode: ForwardMode

else:
    BatchHost = object


class ScheduleBatchDisaggregationDecodeMixin(BatchHost):
    """PREBUILT mode of a ScheduleBatch."""

    def prepare_for_prebuilt(self, start_row: Callable[[int], bool]) -> None:
        """Count the requests as running; their KV is in place, so nothing is computed."""
        self.mode = ForwardMode.PREBUILT
        for req in self.reqs:
            started = start_row(req.row)
            assert started, "more requests were popped than may run"

    def process_prebuilt(self, take_first: Callable[[Req, FirstToken], None]) -> None:
        """Hand on each request's first token."""
        for req in self.reqs:
            assert req.first_token is not None
            take_first(req, req.first_token)


class DecodeScheduleBatch(ScheduleBatchDisaggregationDecodeMixin, ScheduleBatch):
    """The batches of a decode worker."""
