"""The control thread: one asyncio loop with the ZMQ mailbox, the HTTP client and all timers.

Other threads reach it through `call`, which never blocks. No message and no exception in a handler
ends the loop; if it ends or hangs all the same, `problem` says so.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from pd_worker.errors import TransferError, WireError
from pd_worker.transfer import wire
from pd_worker.transfer.keys import curve_pair
from pd_worker.transfer.mailbox import Endpoint, Mailbox, resolve
from pd_worker.transfer.tally import LogLimiter, Tally

logger = logging.getLogger(__name__)

TICK_S = 0.5
HUNG_S = 15.0
FAREWELL_MS = 300


class Control:
    """Runs `on_message` for every message and `on_tick` twice a second, on a thread of its own."""

    def __init__(self, host: str, secret: str, token: str, tally: Tally) -> None:
        """`token`: of the bootstrap servers that are asked; empty for none."""
        self._host = resolve(host)
        self._pair, self._token = curve_pair(secret), token
        self._tally = tally
        self._limiter = LogLimiter(logger)
        self._turned = time.monotonic()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kv-control", daemon=True)

    def start(
        self, on_message: Callable[[wire.Message], None], on_tick: Callable[[float], None]
    ) -> None:
        """Bind and turn; raises TransferError where the address is not ours."""
        self._on_message, self._on_tick = on_message, on_tick
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise TransferError(str(self._failed)) from self._failed

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Run `function` on the control thread: at once if this is it, else soon. From any thread;
        nothing after `close`."""
        if threading.current_thread() is self._thread:
            self._guarded(function, *args)
            return
        try:
            self._loop.call_soon_threadsafe(self._guarded, function, *args)
        except RuntimeError:
            self._tally.add("kv_calls_after_close")

    def wait(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Run a coroutine on the control thread and wait for it, no longer than `timeout_s`."""
        if not self._thread.is_alive():
            work.close()
            return
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
            future.result(timeout_s)

    # The rest is for the control thread only.

    def later(self, delay_s: float, function: Callable[..., None], *args: Any) -> asyncio.Handle:
        """Run `function` after `delay_s` unless the handle is cancelled."""
        return self._loop.call_later(delay_s, self._guarded, function, *args)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine; an exception in it is logged."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def send(self, peer: Endpoint, message: wire.Message) -> None:
        """Queue a message for a peer."""
        if not self.mailbox.send(peer, wire.encode(message)):
            self._tally.add("kv_messages_dropped")
            self._limiter.warning("peer=%s queue full, message dropped", peer)

    def problem(self) -> str:
        """Empty, or why this thread does not work. From any thread."""
        if not self._thread.is_alive():
            return "the KV control thread has ended"
        age = time.monotonic() - self._turned
        return f"the KV control loop hangs for {age:.0f} s" if age > HUNG_S else ""

    def close(self) -> None:
        """Stop the thread; queued messages get a moment to leave. From another thread."""
        if self._thread.is_alive():
            self.call(self._stop.set)
            self._thread.join(5.0)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # the thread's edge: kept for start() and problem()
            self._failed = error
            logger.exception("the KV control thread ended")
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.mailbox = Mailbox(self._host, self._pair)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        timeout = aiohttp.ClientTimeout(total=5.0, connect=2.0)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as self.http:
            loops = [self.spawn(self._receive(), "receive"), self.spawn(self._tick(), "tick")]
            self._ready.set()
            stop = self._loop.create_task(self._stop.wait())
            await asyncio.wait([*loops, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in [*self._tasks, stop]:
                task.cancel()
            await asyncio.gather(*self._tasks, stop, return_exceptions=True)
        self.mailbox.close(FAREWELL_MS)

    async def _receive(self) -> None:
        while True:
            self._guarded(self._handle, await self.mailbox.receive())

    def _handle(self, frames: list[bytes]) -> None:
        try:
            self._on_message(wire.decode(frames))
        except WireError as error:
            self._tally.add("kv_bad_messages")
            self._limiter.warning("ignored a bad message: %s", error)

    async def _tick(self) -> None:
        while True:
            self._turned = time.monotonic()
            self._guarded(self._on_tick, self._turned)
            await asyncio.sleep(TICK_S)

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception:  # the loop's edge: one message must not end the loop
            self._tally.add("kv_handler_errors")
            logger.exception("KV control handler failed")

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._tally.add("kv_handler_errors")
            logger.error("KV control task %s failed", task.get_name(), exc_info=task.exception())
