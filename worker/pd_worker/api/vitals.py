"""What the API process knows of its scheduler process: alive, loaded, making progress.

Fed with messages by the engine, read by /health, /ready, /metrics and the engine's own watch. It
holds no sockets and takes its clock as an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pd_worker.messages import (
    FromScheduler,
    Heartbeat,
    LoadProgress,
    OutputBatch,
    SchedulerFailed,
    SchedulerReady,
)

HEARTBEAT_TIMEOUT_S = 10.0
"""Ten missed heartbeats: the scheduler process is stopped or starved, not merely busy."""

LOOP_TIMEOUT_S = 120.0
"""Longest plausible single step; beyond it the event loop hangs though the process lives."""

NO_HEARTBEAT = Heartbeat(loop_age_s=0.0)


class Vitals:
    """State of the scheduler process, from its messages and its exit code."""

    def __init__(
        self,
        exit_code: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`exit_code` is None while the scheduler process lives."""
        self._exit_code, self._clock = exit_code, clock
        self.ready: SchedulerReady | None = None
        self.heartbeat = NO_HEARTBEAT
        self.progress = LoadProgress(0.0, "starting")
        self.failure = ""
        """Why the scheduler gave up or a part of this process broke; never cleared."""
        self._seen = clock()

    def note(self, message: FromScheduler) -> None:
        """Take in one message; every kind is a sign of life."""
        self._seen = self._clock()
        match message:
            case Heartbeat():
                self.heartbeat = message
            case SchedulerReady():
                self.ready = message
            case LoadProgress():
                self.progress = message
            case SchedulerFailed():
                self.failure = message.message
            case OutputBatch():
                pass

    @property
    def exit_code(self) -> int | None:
        """Of the scheduler process; None while it lives."""
        return self._exit_code()

    def fault(self) -> str:
        """Why this worker cannot serve and will not by waiting; empty while it is well.

        A worker that loads is well: silence is held against it only once it was ready.
        """
        if self.failure:
            return self.failure
        if (code := self.exit_code) is not None:
            return f"the scheduler process ended with exit code {code}"
        if self.ready is None:
            return ""
        silent_s = self._clock() - self._seen
        if silent_s > HEARTBEAT_TIMEOUT_S:
            return f"the scheduler process has been silent for {silent_s:.0f} s"
        if self.heartbeat.loop_age_s > LOOP_TIMEOUT_S:
            return f"the scheduler loop has hung for {self.heartbeat.loop_age_s:.0f} s"
        return self.heartbeat.problem

    def missing(self) -> list[str]:
        """What stands between this worker and readiness; empty when it is ready."""
        if fault := self.fault():
            return [fault]
        if self.ready is None:
            return [f"loading: {self.progress.what} ({self.progress.fraction:.0%})"]
        if self.heartbeat is NO_HEARTBEAT:
            return ["waiting for the scheduler's first heartbeat"]
        if not self.heartbeat.registered:
            return ["not registered with the bootstrap server yet"]
        return []
