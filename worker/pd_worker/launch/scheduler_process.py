"""The scheduler process of a worker: load, say so, loop, shut down.

    python -m pd_worker.launch.scheduler_process TO FROM PARENT_PID   < config as JSON

Started by worker.py only. It ignores the terminal's signals: it ends by the API's Shutdown message,
and by SIGKILL should the parent die first.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys

import msgspec

from pd_worker.config import WorkerConfig
from pd_worker.errors import ConfigError, ModelError, TransferError
from pd_worker.launch.assembly import Assembly, assemble
from pd_worker.launch.logs import set_up_logging
from pd_worker.messages import LoadProgress, SchedulerFailed
from pd_worker.scheduler.channel import Channel
from pd_worker.scheduler.heartbeat import HeartbeatThread

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def main(to_scheduler: str, from_scheduler: str, parent: int) -> int:
    """Run until Shutdown; returns the exit status, 1 where it could not start or go on."""
    _follow_parent(parent)
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerConfig)
    set_up_logging(config.server.log_level, f"{config.role} scheduler")
    faulthandler.enable()
    channel = Channel(to_scheduler, from_scheduler)
    try:
        built = assemble(config, channel, lambda part, what: channel.send(LoadProgress(part, what)))
        _loop(config, built, channel, from_scheduler)
    except (ConfigError, ModelError, TransferError) as error:
        channel.send(SchedulerFailed(str(error)))
        return 1
    except Exception as error:
        log.exception("the scheduler process cannot go on")
        channel.send(SchedulerFailed(f"the scheduler process cannot go on: {error!r}"))
        return 1
    finally:
        channel.close()
    return 0


def _loop(config: WorkerConfig, built: Assembly, channel: Channel, from_scheduler: str) -> None:
    heartbeat = HeartbeatThread(
        from_scheduler,
        built.scheduler,
        registered=built.registered,
        log_interval_s=config.scheduler.log_interval_s,
    )
    channel.send(built.ready)
    heartbeat.start()
    try:
        if config.scheduler.overlap:
            built.scheduler.event_loop_overlap()
        else:
            built.scheduler.event_loop_normal()
    finally:
        heartbeat.stop()
        built.close()
        built.scheduler.grammars.close()


def _follow_parent(parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
