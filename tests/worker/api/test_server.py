"""The API as a process: ports, signals, the scheduler's end, extra sites."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from pd_worker.messages import Shutdown
from tests.worker.api.conftest import until
from tests.worker.api.scripted import ScriptedScheduler, say, silent

PROGRAM = """
import asyncio, logging, pathlib, sys
from aiohttp import web
from pd_worker.api.server import Site, bound_socket, serve
from pd_worker.config import ModelConfig, ServerConfig, WorkerConfig

model_dir, to, from_, mark = sys.argv[1:]
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
config = WorkerConfig(
    model=ModelConfig(model=model_dir), server=ServerConfig(port=0, drain_timeout_s=5)
)
extra = web.Application()
extra.add_routes([web.get("/extra", lambda request: _ok())])
async def _ok():
    return web.Response(text="extra")
sock = bound_socket("127.0.0.1", 0)
print("extra http://127.0.0.1:%d" % sock.getsockname()[1], flush=True)

def exit_code():
    mark_ = pathlib.Path(mark)
    return int(mark_.read_text()) if mark_.exists() else None

status = asyncio.run(serve(
    config, model_dir=pathlib.Path(model_dir), to_scheduler=to, from_scheduler=from_,
    exit_code=exit_code, sites=[Site(app=extra, socket=sock)],
))
print("torch imported:", "torch" in sys.modules)
sys.exit(status)
"""


class Process:
    """A worker's API process; its scheduler is scripted in the test."""

    def __init__(self, process: asyncio.subprocess.Process, scheduler: ScriptedScheduler) -> None:
        self.process, self.scheduler = process, scheduler
        self.lines: list[str] = []

    async def line(self, start: str) -> str:
        """The rest of the first output line with that start."""
        assert self.process.stdout
        async for raw in self.process.stdout:
            self.lines.append(raw.decode().strip())
            if self.lines[-1].startswith(start):
                return self.lines[-1].removeprefix(start)
        raise AssertionError(f"no line {start!r} in {self.lines}")

    async def log(self) -> str:
        """All output until the process ends."""
        assert self.process.stdout
        return "\n".join(self.lines) + (await self.process.stdout.read()).decode()


@asynccontextmanager
async def api_process(model_dir: Path, tmp_path: Path) -> AsyncIterator[tuple[Process, Path]]:
    endpoints = [f"ipc://{tmp_path}/to", f"ipc://{tmp_path}/from"]
    mark = tmp_path / "exit"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(model_dir), *endpoints, str(mark)),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": "worker", "OMP_NUM_THREADS": "1"},
    )
    try:
        async with ScriptedScheduler(*endpoints) as scheduler:
            yield Process(process, scheduler), mark
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def start(api: Process) -> tuple[str, str]:
    """URLs of the API and the extra site, once ready."""
    extra = await api.line("extra ")
    url = (await api.line("listening on ")).split()[0]
    await api.scheduler.get_ready()
    async with aiohttp.ClientSession() as session, asyncio.timeout(10):
        while True:
            async with session.get(f"{url}/ready") as response:
                if response.status == 200:
                    return url, extra
            await asyncio.sleep(0.02)


async def test_sigterm_drains_shuts_the_scheduler_down_and_exits_0(
    model_dir: Path, tmp_path: Path
) -> None:
    async with api_process(model_dir, tmp_path) as (api, mark), aiohttp.ClientSession() as http:
        url, extra = await start(api)
        async with http.get(f"{extra}/extra") as response:
            assert await response.text() == "extra"
        api.scheduler.pause_s = 0.1
        api.scheduler.script = lambda request: say(request, [40] * 6)
        async with http.post(f"{url}/generate", json={"text": "a", "stream": True}) as response:
            await response.content.readline()
            api.process.send_signal(signal.SIGTERM)
            assert (await response.text()).endswith("data: [DONE]\n\n")
        await until(lambda: api.scheduler.got(Shutdown))
        mark.write_text("0")
        assert await asyncio.wait_for(api.process.wait(), 10) == 0
        log = await api.log()
        assert "endpoint=generate prompt_tokens=1 completion_tokens=6 finish=stop ttft_ms=" in log
        assert "torch imported: False" in log


async def test_a_second_sigterm_ends_at_once(model_dir: Path, tmp_path: Path) -> None:
    async with api_process(model_dir, tmp_path) as (api, _), aiohttp.ClientSession() as http:
        url, _ = await start(api)
        api.scheduler.script = silent
        call = asyncio.create_task(http.post(f"{url}/generate", json={"text": "a"}).__aenter__())
        await until(lambda: api.scheduler.running)
        api.process.send_signal(signal.SIGTERM)
        await api.line("draining")
        api.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(api.process.wait(), 2) == -signal.SIGTERM
        with pytest.raises(aiohttp.ClientError):
            await call


async def test_when_the_scheduler_dies_clients_hear_and_the_process_exits_1(
    model_dir: Path, tmp_path: Path
) -> None:
    async with api_process(model_dir, tmp_path) as (api, mark), aiohttp.ClientSession() as http:
        url, _ = await start(api)
        api.scheduler.script = silent
        call = asyncio.create_task(http.post(f"{url}/generate", json={"text": "a"}).__aenter__())
        await until(lambda: api.scheduler.running)
        mark.write_text("-9")
        response = await asyncio.wait_for(call, 5)
        assert response.status == 503
        response.release()
        assert await asyncio.wait_for(api.process.wait(), 10) == 1
