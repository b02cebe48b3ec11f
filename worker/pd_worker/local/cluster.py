"""Runs a planned cluster: start all, wait until ready, watch, stop all.

One asyncio loop on the main thread. Nothing outlives the block of `running`: it ends every part
on success, failure, Ctrl-C and SIGTERM alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from pd_worker.config import cache_dir
from pd_worker.errors import ConfigError, PdserveError
from pd_worker.local.options import UpOptions
from pd_worker.local.plan import Part, plan, ports_needed
from pd_worker.local.ports import free_ports, is_free
from pd_worker.local.process import PartProcess, own_command
from pd_worker.transfer.engines.segments import sweep

POLL_S = 0.1
SHARED_MEMORY = Path("/dev/shm")

T = TypeVar("T")
Say = Callable[[str], None]
"""Takes one line for the user."""


class Cluster:
    """The parts and their processes; `parts` ends with the router."""

    def __init__(self, parts: Sequence[Part], *, stop_timeout_s: float) -> None:
        self.parts = parts
        self._stop_timeout_s = stop_timeout_s
        self._processes: list[PartProcess] = []

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return self.parts[-1].url

    async def start(self, command: Sequence[str]) -> None:
        """Start all parts with `command`, the beginning of every command line."""
        for part in self.parts:
            self._processes.append(await PartProcess.start(part, command))

    async def wait_ready(self, timeout_s: float, say: Say) -> None:
        """Return when every part answers /ready with 200; `say` hears what they wait for.

        Raises PartDied as soon as one ends, PdserveError after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.unless_one_dies(_all_ready(self.parts, say))
        except TimeoutError:
            logs = ", ".join(str(part.log) for part in self.parts)
            raise PdserveError(f"not ready after {timeout_s:g} s; see {logs}") from None

    async def unless_one_dies(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises PartDied, and gives `work` up, when a part ends first."""
        task = asyncio.ensure_future(work)
        deaths = [asyncio.ensure_future(process.died()) for process in self._processes]
        try:
            await asyncio.wait([task, *deaths], return_when=asyncio.FIRST_COMPLETED)
            for death in deaths:
                if death.done():
                    raise death.result()
            return task.result()
        finally:
            for future in (task, *deaths):
                future.cancel()
            await asyncio.gather(task, *deaths, return_exceptions=True)

    async def stop(self) -> None:
        """End all parts: requests may finish for the stop timeout. Shared memory that a killed
        worker could not remove is removed."""
        await asyncio.gather(*(p.stop(self._stop_timeout_s) for p in self._processes))
        sweep(SHARED_MEMORY)

    def kill(self) -> None:
        """End all parts at once; `stop` still has to be awaited."""
        for process in self._processes:
            process.kill()


@contextlib.asynccontextmanager
async def running(
    options: UpOptions,
    *,
    say: Say = print,
    command: Sequence[str] = own_command(),
) -> AsyncIterator[Cluster]:
    """A ready cluster; `say` gets a line for each part.

    The first Ctrl-C or SIGTERM cancels the calling task, which ends the block; a second one does
    not wait for running requests any more.
    """
    await _fetch_model(options.model.model, command)
    cluster = Cluster(_parts(options), stop_timeout_s=options.stop_timeout_s)
    with _signals_end(cluster):
        try:
            await cluster.start(command)
            for part in cluster.parts:
                say(_line(part))
            await cluster.wait_ready(options.start_timeout_s, say)
            yield cluster
        finally:
            await cluster.stop()


def run(options: UpOptions, *, command: Sequence[str] = own_command()) -> int:
    """`pdserve up`: serve until Ctrl-C or SIGTERM (status 0); PartDied when a part ends."""
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve(options, command))
    return 0


async def _serve(options: UpOptions, command: Sequence[str]) -> None:
    async with running(options, say=_say, command=command) as cluster:
        _say(f"ready {cluster.url}")
        await cluster.unless_one_dies(_for_ever())


async def _for_ever() -> None:
    await asyncio.Event().wait()


def _say(line: str) -> None:
    print(line, flush=True)


def _parts(options: UpOptions) -> list[Part]:
    if options.port and not is_free(options.host, options.port):
        raise ConfigError("--port", f"{options.port} is in use", "choose another, or 0 for any")
    log_dir = Path(options.log_dir or tempfile.mkdtemp(prefix="pdserve-"))
    log_dir.mkdir(parents=True, exist_ok=True)
    return plan(
        options,
        ports=free_ports(ports_needed(options)),
        cores=sorted(os.sched_getaffinity(0)),
        log_dir=log_dir,
    )


async def _fetch_model(name: str, command: Sequence[str]) -> None:
    """Bring a model that `pdserve fetch` knows once, before all workers want it, showing how far
    it is. Raises PdserveError."""
    if _is_here(name):
        return
    process = await asyncio.create_subprocess_exec(*command, "fetch", name)
    if await process.wait():
        raise PdserveError(f"there is no model {name}")


def _is_here(name: str) -> bool:
    """True where workers find the model themselves: a path, a hub id, or fetched before."""
    return "/" in name or Path(name).exists() or (cache_dir() / "models" / name).exists()


def _line(part: Part) -> str:
    cores = f"cores {','.join(map(str, part.cores))}" if part.cores else "all cores"
    return f"{part.name:<11} {part.url:<28} {cores:<12} log {part.log}"


async def _all_ready(parts: Sequence[Part], say: Say) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        await asyncio.gather(*(_ready(session, part, say) for part in parts))


async def _ready(session: aiohttp.ClientSession, part: Part, say: Say) -> None:
    told = ""
    while (missing := await _missing(session, part.url)) is not None:
        step = missing.partition(" (")[0]  # without the percentage, which changes all the time
        if step and step != told:
            say(f"{part.name:<11} {step}")
        told = step or told
        await asyncio.sleep(POLL_S)


async def _missing(session: aiohttp.ClientSession, url: str) -> str | None:
    """What a part says it still waits for; None when it is ready."""
    try:
        async with session.get(f"{url}/ready") as response:
            if response.status == 200:
                return None
            report = msgspec.json.decode(await response.read())
            return "; ".join(report.get("missing", ()))
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return ""


@contextlib.contextmanager
def _signals_end(cluster: Cluster) -> Iterator[None]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def interrupt() -> None:
        if task.cancelling():
            cluster.kill()
        else:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
