"""What the HTTP handlers of one worker share: its settings, its engine, its tokenizer, its metrics.

Built by server.py, read by every handler through the application's CONTEXT key.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from pd_worker.api.engine import Engine
from pd_worker.api.metrics import Metrics
from pd_worker.api.tokenizer import Tokenizer
from pd_worker.config import WorkerConfig
from pd_worker.errors import Unavailable
from pd_worker.messages import SchedulerReady


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One worker's API process."""

    config: WorkerConfig
    model_dir: str
    model_facts: dict[str, Any]
    """The model's config.json."""
    engine: Engine
    tokenizer: Tokenizer
    metrics: Metrics
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def ready(self) -> SchedulerReady:
        """What the scheduler said when it was ready; raises Unavailable before."""
        self.engine.check_open()
        ready = self.engine.vitals.ready
        if ready is None:
            raise Unavailable("the scheduler is not ready")
        return ready


CONTEXT = web.AppKey("context", Context)
