"""Start, watch and stop of real processes, with small stand-ins for the parts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pd_worker.config import ModelConfig
from pd_worker.errors import ConfigError, PdserveError
from pd_worker.local.cluster import running
from pd_worker.local.options import UpOptions
from pd_worker.local.process import PartDied

FAKE = str(Path(__file__).parent / "fake_part.py")

UP = """
import sys
from pd_worker.config import ModelConfig
from pd_worker.local.cluster import run
from pd_worker.local.options import UpOptions
model, log_dir = ModelConfig(model=sys.argv[3]), sys.argv[3]
options = UpOptions(model=model, port=0, log_dir=log_dir, stop_timeout_s=0.5)
sys.exit(run(options, command=(sys.executable, *sys.argv[1:3])))
"""

Up = subprocess.Popen[str]


def command(behaviour: str) -> tuple[str, ...]:
    return (sys.executable, FAKE, behaviour)


def options(tmp_path: Path, **changes: object) -> UpOptions:
    settings = {"port": 0, "log_dir": str(tmp_path), "stop_timeout_s": 0.5, **changes}
    return UpOptions(model=ModelConfig(model=str(tmp_path)), **settings)  # type: ignore[arg-type]


def left_over(log_dir: Path) -> list[psutil.Process]:
    """Processes that still hold a log file of this test's cluster."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(file.path.startswith(str(log_dir)) for file in process.open_files()):
                found.append(process)
    return found


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> bool:
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[str], Up]]:
    """Starts `pdserve up` over stand-ins in a process of its own and waits for its ready line."""
    started: list[Up] = []

    def start(behaviour: str) -> Up:
        words = [sys.executable, "-u", "-c", UP, FAKE, behaviour, str(tmp_path)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert any(line.startswith("ready http://") for line in started[-1].stdout or ())
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def test_cluster_is_ready_inside_the_block_and_gone_after_it(tmp_path: Path) -> None:
    lines: list[str] = []
    async with running(options(tmp_path), say=lines.append, command=command("ok")) as cluster:
        assert len(await asyncio.to_thread(left_over, tmp_path)) == 3
        assert cluster.url.startswith("http://127.0.0.1:")
    assert not left_over(tmp_path)
    assert [line.split()[0] for line in lines] == ["prefill-0", "decode-0", "router"]


async def test_each_worker_runs_on_its_own_cores(tmp_path: Path) -> None:
    async with running(options(tmp_path), say=lambda _: None, command=command("ok")) as cluster:
        for part in cluster.parts[:2]:
            assert f"cores {list(part.cores)}" in part.log.read_text()


@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
async def test_part_that_dies_is_reported_with_its_last_words(tmp_path: Path, role: str) -> None:
    with pytest.raises(PartDied, match=rf"{role}.* status 3(.|\n)*last words"):
        async with running(
            options(tmp_path), say=lambda _: None, command=command(f"dies-{role}")
        ) as cluster:
            await cluster.unless_one_dies(asyncio.Event().wait())
    assert not left_over(tmp_path)


async def test_part_that_never_gets_ready_ends_the_start(tmp_path: Path) -> None:
    slow = options(tmp_path, start_timeout_s=2)
    lines: list[str] = []
    with pytest.raises(PdserveError, match="not ready after 2 s"):
        async with running(slow, say=lines.append, command=command("loads")):
            pass
    assert lines.count("prefill-0   loading: weights") == 1


async def test_shared_memory_of_killed_workers_is_removed(tmp_path: Path) -> None:
    orphan = Path(f"/dev/shm/pdserve-{'0' * 32}.ctl")
    async with running(options(tmp_path), say=lambda _: None, command=command("ok")):
        await asyncio.to_thread(orphan.touch)
    assert not await asyncio.to_thread(orphan.exists)


async def test_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = options(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="--port"):
            async with running(busy, command=command("ok")):
                pass


@pytest.mark.parametrize("fetched", [True, False], ids=["comes", "fails"])
async def test_model_of_a_name_is_fetched_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    monkeypatch.setenv("PDSERVE_CACHE", str(tmp_path))
    fetch = f"import sys; sys.exit({not fetched} if sys.argv[1:] == ['fetch', 'm'] else 7)"
    expected = "-0 ended with status 7" if fetched else "there is no model m"
    named = dataclasses.replace(options(tmp_path), model=ModelConfig(model="m"))
    with pytest.raises(PdserveError, match=expected):
        async with running(named, say=lambda _: None, command=(sys.executable, "-c", fetch)):
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_signal_stops_all_with_status_0(
    up: Callable[[str], Up], tmp_path: Path, number: signal.Signals
) -> None:
    process = up("ok")
    process.send_signal(number)
    assert process.wait(10) == 0
    assert not left_over(tmp_path)


def test_part_deaf_to_sigterm_is_killed_with_its_children(
    up: Callable[[str], Up], tmp_path: Path
) -> None:
    process = up("deaf")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not left_over(tmp_path)


def test_parts_end_when_the_launcher_is_killed(up: Callable[[str], Up], tmp_path: Path) -> None:
    process = up("ok")
    process.kill()
    assert eventually(lambda: not left_over(tmp_path))
