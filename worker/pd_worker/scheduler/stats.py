"""Running totals of one scheduler, by metric name."""

from __future__ import annotations

from pd_worker.core.req import Req
from pd_worker.messages import Output


class Stats:
    """Counters that only go up; read by the heartbeat thread, written by the scheduler's.

    `busy_seconds` is the time that steps of the model took; its rate is the worker's utilization.
    """

    def __init__(self) -> None:
        self.counters: dict[str, float] = {
            "busy_seconds": 0.0,
            "requests": 0,
            "prompt_tokens": 0,
            "cached_tokens": 0,
            "generation_tokens": 0,
            "aborted_requests": 0,
            "failed_requests": 0,
        }

    def received(self, req: Req) -> None:
        """Count an accepted request."""
        self.counters["requests"] += 1
        self.counters["prompt_tokens"] += req.num_prompt

    def generated(self, req: Req, output: Output) -> None:
        """Count what an Output brings."""
        self.counters["generation_tokens"] += len(output.token_ids)
        if output.finish is None:
            return
        self.counters["cached_tokens"] += req.cached_tokens
        if output.finish.reason == "abort":
            self.counters["aborted_requests"] += 1
        elif output.finish.reason == "error":
            self.counters["failed_requests"] += 1
