"""The heartbeat of a scheduler process: a thread with a socket of its own.

It reports how long ago the event loop last came round, so that a long forward does not look like a
dead process, and a hanging loop does not look alive. It only reads numbers of the scheduler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import zmq

from pd_worker.messages import Heartbeat, encode
from pd_worker.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


class HeartbeatThread(threading.Thread):
    """Sends a Heartbeat every second until `stop`."""

    def __init__(
        self,
        from_scheduler: str,
        scheduler: Scheduler,
        *,
        registered: Callable[[], bool],
        log_interval_s: float,
    ) -> None:
        super().__init__(name="pdserve-heartbeat", daemon=True)
        self._endpoint, self._scheduler, self._registered = from_scheduler, scheduler, registered
        self._log_interval_s, self._logged_at = log_interval_s, time.monotonic()
        self._stop_event = threading.Event()

    def run(self) -> None:
        """Beat until stopped."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        with context.socket(zmq.PUSH) as socket:
            socket.linger = 0
            socket.connect(self._endpoint)
            while not self._stop_event.wait(INTERVAL_S):
                socket.send(encode(self._beat()))
                self._log_load()

    def stop(self) -> None:
        """End the thread; blocks for a moment."""
        self._stop_event.set()
        self.join()

    def _beat(self) -> Heartbeat:
        scheduler = self._scheduler
        return Heartbeat(
            loop_age_s=time.monotonic() - scheduler.loop_time,
            problem=scheduler.problem(),
            registered=self._registered(),
            gauges=scheduler.gauges(),
            counters=scheduler.counters(),
        )

    def _log_load(self) -> None:
        now = time.monotonic()
        if self._log_interval_s and now - self._logged_at >= self._log_interval_s:
            self._logged_at = now
            if self._scheduler.live:
                log.info("%r", self._scheduler)
