"""Liveness, readiness, draining and the information routes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pd_worker.api import vitals
from pd_worker.api.vitals import Vitals
from pd_worker.messages import (
    Heartbeat,
    LoadProgress,
    OutputBatch,
    SchedulerFailed,
    Shutdown,
)
from tests.worker.api.conftest import StartWorker, Worker, until
from tests.worker.api.scripted import READY, silent


async def test_a_loading_worker_is_alive_but_not_ready(start_worker: StartWorker) -> None:
    async with start_worker(ready=False) as worker:
        await worker.scheduler.send(LoadProgress(0.5, "weights"))
        await until(lambda: worker.context.engine.vitals.progress.fraction == 0.5)
        assert (await worker.get("/health"))[0] == 200
        assert await worker.get("/ready") == (
            503,
            {"ready": False, "missing": ["loading: weights (50%)"]},
        )
        assert (await worker.get("/health_generate"))[0] == 503
        status, reply = await worker.post("/v1/completions", {"prompt": "a"})
        assert (status, reply["error"]["code"]) == (503, "unavailable")


async def test_a_prefill_that_is_not_registered_is_not_ready(start_worker: StartWorker) -> None:
    async with start_worker("prefill", ready=False) as worker:
        await worker.scheduler.send(READY)
        await worker.scheduler.send(Heartbeat(loop_age_s=0.0, registered=False))
        await until(lambda: worker.context.engine.vitals.ready)
        status, reply = await worker.get("/ready")
        assert status == 503
        assert "not registered" in reply["missing"][0]


async def test_ready(worker: Worker) -> None:
    assert await worker.get("/ready") == (200, {"ready": True, "missing": []})
    assert (await worker.get("/health"))[0] == 200
    assert (await worker.get("/health_generate"))[0] == 200


BREAKS = {
    "process exit": lambda scheduler: setattr(scheduler, "exit_code", -9),
    "dead thread": Heartbeat(loop_age_s=0.0, problem="the receiver thread died"),
    "hung loop": Heartbeat(loop_age_s=999.0),
    "gave up": SchedulerFailed("out of memory"),
}


@pytest.mark.parametrize("fault", BREAKS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_broken_scheduler_turns_health_red_and_ends_requests(
    worker: Worker, fault: str, stream: bool
) -> None:
    worker.scheduler.script = silent
    call = asyncio.create_task(
        worker.post("/v1/completions", {"prompt": "a"})
        if not stream
        else worker.events("/v1/completions", {"prompt": "a"})
    )
    await until(lambda: worker.scheduler.running)
    await asyncio.sleep(0.3)  # past the grace for the status line, so that the stream has begun
    broken: Any = BREAKS[fault]
    if callable(broken):
        broken(worker.scheduler)
    else:
        await worker.scheduler.send(broken)
    result = await asyncio.wait_for(call, 5)
    if stream:
        *_, error, done = result
        assert (error["error"]["code"], done) == ("unavailable", "[DONE]")
    else:
        assert result[0] == 503
    assert (await worker.get("/health"))[0] == 503
    assert (await worker.get("/ready"))[0] == 503


def test_silence_is_a_fault_only_after_ready() -> None:
    now = [0.0]
    watched = Vitals(lambda: None, lambda: now[0])
    now[0] = 100.0
    assert watched.fault() == ""
    watched.note(READY)
    now[0] += vitals.HEARTBEAT_TIMEOUT_S
    assert watched.fault() == ""
    now[0] += 1
    assert "silent for 11 s" in watched.fault()
    watched.note(OutputBatch([]))
    assert watched.fault() == ""


async def test_garbage_from_the_scheduler_is_dropped(worker: Worker) -> None:
    for data in (b"", b"\xff" * 100, b"\x81\xa4type\xa1x"):
        await worker.scheduler.send(data)
    status, _ = await worker.post("/v1/completions", {"prompt": "a"})
    assert status == 200


async def test_draining_refuses_new_requests_and_finishes_old_ones(worker: Worker) -> None:
    worker.scheduler.pause_s = 0.1
    call = asyncio.create_task(worker.post("/v1/completions", {"prompt": [40, 41, 42]}))
    await until(lambda: worker.scheduler.running)
    drain = asyncio.create_task(worker.context.engine.drain(10))
    await until(lambda: worker.context.engine.draining)
    async with worker.session.post(f"{worker.url}/generate", json={"text": "a"}) as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0
    assert (await worker.get("/ready"))[1]["missing"] == ["draining"]
    assert (await worker.get("/health"))[0] == 200
    assert (await call)[0] == 200
    await drain
    await until(lambda: worker.scheduler.got(Shutdown))


async def test_draining_has_an_end(worker: Worker) -> None:
    worker.scheduler.script = silent
    call = asyncio.create_task(worker.post("/v1/completions", {"prompt": "a"}))
    await until(lambda: worker.scheduler.running)
    began = time.monotonic()
    await worker.context.engine.drain(0.2)
    assert time.monotonic() - began < 1
    assert (await call)[0] == 503


async def test_a_full_worker_answers_429(worker: Worker) -> None:
    worker.scheduler.script = silent
    body = {"prompt": ["a"] * 250, "max_tokens": 1}
    calls = [asyncio.create_task(worker.post("/v1/completions", body)) for _ in range(2)]
    await until(lambda: worker.context.engine.num_samples == 500)
    async with worker.session.post(f"{worker.url}/v1/completions", json=body) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) > 0
    for call in calls:
        call.cancel()
    await until(lambda: worker.context.engine.num_samples == 0)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_server_info_is_what_routers_read(start_worker: StartWorker, path: str) -> None:
    async with start_worker("prefill") as worker:
        status, info = await worker.get(path)
    assert status == 200
    assert info["disaggregation_mode"] == info["role"] == "prefill"
    assert info["served_model_name"] == "tiny"
    assert (info["pairing_key"], info["kv_transports"]) == ("key-1", ["shm"])
    assert (info["bootstrap_port"], info["max_request_tokens"]) == (8998, 256)
    assert info["dtype"] == "float32"
    for name in ("model_path", "tokenizer_path", "tp_size", "dp_size", "version"):
        assert info[name] is not None
    assert isinstance(info["internal_states"], list)


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_model_info(worker: Worker, path: str) -> None:
    _, info = await worker.get(path)
    assert info["is_generation"] is True
    assert (info["model_type"], info["architectures"]) == ("llama", ["LlamaForCausalLM"])


async def test_models(worker: Worker) -> None:
    _, reply = await worker.get("/v1/models")
    assert reply["data"][0]["id"] == "tiny"
    assert reply["data"][0]["max_model_len"] == 256


async def test_load(worker: Worker) -> None:
    _, load = await worker.get("/get_load")
    _, loads = await worker.get("/v1/loads?include=core,disagg,queues,memory")
    assert load[0].keys() == {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"}
    assert loads["loads"] == load


async def test_metrics_count_what_happened(worker: Worker) -> None:
    await worker.post("/v1/completions", {"prompt": [40, 41, 42]})
    await worker.post("/v1/completions", {"prompt": "a", "top_p": 9})
    async with worker.session.get(f"{worker.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    labels = 'model="tiny",role="unified"'
    assert values[f"pdserve_ttft_seconds_count{{{labels}}}"] == "1.0"
    assert values[f"pdserve_itl_seconds_count{{{labels}}}"] == "2.0"
    assert values[f'pdserve_finished_requests_total{{finish="stop",{labels}}}'] == "1.0"
    assert (
        values[f'pdserve_finished_requests_total{{finish="invalid_request_error",{labels}}}']
        == "1.0"
    )
    assert values[f"pdserve_running{{{labels}}}"] == "1.0"
    assert values[f"pdserve_steps_total{{{labels}}}"] == "2.0"


async def test_metrics_answer_head(worker: Worker) -> None:
    async with worker.session.head(f"{worker.url}/metrics") as response:
        assert response.status == 200
