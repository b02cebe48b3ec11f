"""One thread that does one peer's jobs in order, so that a stalled peer delays nobody else.

The thread starts with the first job and ends when there has been none for a while.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

IDLE_S = 5.0
Job = TypeVar("Job")


class Writer(Generic[Job]):
    """A queue of jobs and the thread that does them. `work` must not raise."""

    def __init__(self, name: str, work: Callable[[Job], None]) -> None:
        self._name, self._work = name, work
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def alive(self) -> bool:
        """Whether the thread exists now."""
        return self._thread is not None

    def put(self, job: Job) -> bool:
        """Queue a job and start the thread if there is none; False after `stop`."""
        with self._changed:
            if self._stopped:
                return False
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return True

    def discard(self, doomed: Callable[[Job], bool]) -> int:
        """Take waiting jobs out; returns how many. One in progress is not touched."""
        with self._changed:
            kept = deque(job for job in self._jobs if not doomed(job))
            discarded = len(self._jobs) - len(kept)
            self._jobs = kept
        return discarded

    def stop(self) -> threading.Thread | None:
        """Take no more jobs and let the thread end after those that are queued, so that each is
        reported; returns it, to be joined."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
            return self._thread

    def _run(self) -> None:
        while (job := self._take()) is not None:
            try:
                self._work(job)
            except Exception:  # the thread's edge: `work` reports its failures itself
                logger.exception("%s: a job failed", self._name)
            del job

    def _take(self) -> Job | None:
        with self._changed:
            if not self._jobs and not self._stopped:
                self._changed.wait(IDLE_S)
            if not self._jobs:
                self._thread = None
                return None
            return self._jobs.popleft()
