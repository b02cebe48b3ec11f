"""Who is in the fleet and who may be used: discovery, health, pairing, the list's endpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from pd_worker.errors import ConfigError
from pd_worker.router.app import make_app
from pd_worker.router.options import RouterOptions
from pd_worker.router.worker import WorkerSpec
from tests.worker.router.conftest import Stub, until


async def get(f, path: str) -> tuple[int, dict]:
    async with f.session.get(path) as response:
        return response.status, await response.json()


async def test_only_workers_with_equal_keys_serve_a_request_together(front):
    f = await front(
        prefill=[Stub("prefill", pairing_key=key) for key in "aab"],
        decode=[Stub("decode", pairing_key=key) for key in "abc"],
    )
    key_of = {stub.url: stub.facts["pairing_key"] for stub in f.stubs}
    pairs = [(await f.ask())[1]["x-pdserve-pair"].split("|") for _ in range(40)]
    assert {key_of[prefill] for prefill, _ in pairs} == {"a", "b"}
    assert all(key_of[prefill] == key_of[decode] for prefill, decode in pairs)


async def test_400_requests_over_two_by_two_workers_use_all_pairs_without_a_failure(front):
    f = await front(prefill=2, decode=2)
    answers = []
    for _ in range(20):
        answers += await asyncio.gather(*(f.ask() for _ in range(20)))
    assert {status for status, _, _ in answers} == {200}
    assert len({headers["x-pdserve-pair"] for _, headers, _ in answers}) == 4


async def test_the_router_is_not_ready_when_no_keys_match_and_says_which_differ(front):
    f = await front(
        prefill=[Stub("prefill", pairing_key="aa")], decode=[Stub("decode", pairing_key="bb")]
    )
    status, report = await get(f, "/ready")
    assert status == 503
    assert f"prefill has aa ({f.prefill[0].url})" in report["reason"]
    assert f"decode has bb ({f.decode[0].url})" in report["reason"]
    status, headers, body = await f.ask()
    assert status == 503
    assert headers["Retry-After"]
    assert body["error"]["message"] == report["reason"]


@pytest.mark.parametrize(
    ("role", "change", "reason"),
    [
        pytest.param("decode", {"role": "prefill"}, "says that it is prefill", id="other role"),
        pytest.param("decode", {"pairing_key": None}, "no pairing_key", id="no key"),
        pytest.param("prefill", {"bootstrap_port": None}, "no bootstrap_port", id="no port"),
        pytest.param("decode", {"role": None, "disaggregation_mode": "null"}, "unified", id="null"),
    ],
)
async def test_a_worker_that_is_not_what_is_listed_is_reported_and_not_used(
    front, role, change, reason
):
    stubs = {"prefill": [Stub("prefill")], "decode": [Stub("decode")]}
    stubs[role][0].facts.update(change)
    f = await front(**stubs)
    status, report = await get(f, "/ready")
    assert status == 503
    assert reason in report["reason"]
    assert (await f.ask())[0] == 503
    assert not any(stub.calls for stub in f.stubs)


async def test_a_listed_bootstrap_port_goes_before_the_workers_own():
    assert WorkerSpec.parse("prefill", "http://h:1,77").bootstrap_port == 77
    assert WorkerSpec.parse("prefill", "http://h:1/").url == "http://h:1"
    assert WorkerSpec.parse("decode", "http://[::1]:1").url == "http://[::1]:1"


@pytest.mark.parametrize(
    "text", ["", "h:1", "ftp://h:1", "http://h:1,", "http://h:1,0", "http://h:1,x", "http://:1"]
)
async def test_a_wrong_worker_url_is_a_config_error(text):
    if text.endswith(","):
        assert WorkerSpec.parse("prefill", text).bootstrap_port is None
        return
    with pytest.raises(ConfigError, match="--prefill"):
        make_app(RouterOptions(prefill=((text,),)))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param('{"ready": false, "missing": ["draining"]}', "draining", id="draining"),
        pytest.param('{"ready": false, "missing": ["loading"]}', "not_ready", id="loading"),
    ],
)
async def test_a_worker_that_is_not_ready_gets_nothing_and_its_state_is_told(front, text, state):
    f = await front(decode=2, health_interval_s=0.05)
    f.decode[0].ready = (503, text)
    await until(lambda: state in {worker.state for worker in f.router.registry})
    for _ in range(10):
        assert (await f.ask())[0] == 200
    assert not f.decode[0].calls
    f.decode[0].ready = (200, "{}")
    await until(lambda: all(worker.usable for worker in f.router.registry))


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_request_waits_for_the_only_worker_while_it_restarts(front, role):
    f = await front(health_interval_s=0.05, worker_wait_s=30)
    [worker] = getattr(f, role)
    worker.ready = (503, '{"ready": false, "missing": ["loading"]}')
    await until(lambda: not all(each.usable for each in f.router.registry))
    assert (await get(f, "/ready"))[0] == 200
    asked = asyncio.create_task(f.ask())
    await until(lambda: f.router.dispatcher.admission.inflight == 1)
    done, _ = await asyncio.wait({asked}, timeout=0.3)
    assert not done
    worker.ready = (200, "{}")
    assert (await asked)[0] == 200


async def test_a_fleet_that_stays_incomplete_refuses_and_is_not_ready(front):
    f = await front(health_interval_s=0.05, worker_wait_s=0.5)
    f.decode[0].ready = (503, '{"ready": false, "missing": ["loading"]}')
    await until(lambda: not all(each.usable for each in f.router.registry))
    start = time.monotonic()
    status, *_ = await f.ask()
    assert status == 503
    assert time.monotonic() - start < 5
    assert (await get(f, "/ready"))[0] == 503
    start = time.monotonic()
    assert (await f.ask())[0] == 503
    assert time.monotonic() - start < 0.3


async def test_a_fleet_that_was_never_complete_makes_nobody_wait(front):
    f = await front(decode=0, worker_wait_s=30)
    assert (await get(f, "/ready"))[0] == 503
    start = time.monotonic()
    assert (await f.ask())[0] == 503
    assert time.monotonic() - start < 5


async def test_a_dead_first_worker_breaks_no_get_route(front):
    f = await front(prefill=2, decode=2, health_interval_s=0.05)
    await f.stop(f.prefill[0])
    await f.stop(f.decode[0])
    states = {f.prefill[0].url: "unreachable", f.decode[0].url: "unreachable"}
    await until(lambda: {w.spec.url: w.state for w in f.router.registry}.items() >= states.items())
    status, models = await get(f, "/v1/models")
    assert status == 200
    assert [model["id"] for model in models["data"]] == ["m"]
    for path in ("/ready", "/health", "/server_info", "/get_model_info", "/workers"):
        assert (await get(f, path))[0] == 200
    async with f.session.post("/tokenize", json={"prompt": "a"}) as response:
        assert (await response.json())["by"] in {f.prefill[1].url, f.decode[1].url}
    async with f.session.post("/flush_cache") as response:
        assert response.status == 200


async def test_models_are_merged_with_the_shortest_limit(front):
    f = await front(
        prefill=[Stub("prefill", max_request_tokens=100)],
        decode=[Stub("decode", max_request_tokens=50)],
        unified=[Stub("unified", served_model_name="other", max_request_tokens=7)],
    )
    _, models = await get(f, "/v1/models")
    found = {model["id"]: model["max_model_len"] for model in models["data"]}
    assert found == {"m": 50, "other": 7}


async def test_a_request_goes_to_the_workers_of_its_model(front):
    f = await front(
        prefill=0, decode=0, unified=[Stub("unified", served_model_name=name) for name in "xy"]
    )
    for name, stub in zip("xy", f.unified, strict=True):
        _, headers, _ = await f.ask(model=name, messages=[])
        assert headers["x-pdserve-pair"] == stub.url
    status, _, body = await f.ask(model="z", messages=[])
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_server_info_has_what_each_worker_says(front):
    f = await front(prefill=2)
    _, info = await get(f, "/get_server_info")
    assert [worker["role"] for worker in info["prefill"]] == ["prefill"] * 2
    assert info["decode"] == [f.decode[0].facts]
    assert "unified" not in info


async def test_flush_and_abort_reach_every_worker(front):
    f = await front(prefill=2, decode=2)
    async with f.session.post("/flush_cache") as response:
        assert await response.json() == {"workers": 4, "failed": []}
    async with f.session.post("/abort_request", json={"rid": "r"}) as response:
        assert response.status == 200
    assert all(
        stub.other == ["POST /flush_cache ", 'POST /abort_request {"rid": "r"}'] for stub in f.stubs
    )


async def test_workers_are_added_and_removed_while_the_router_runs(front):
    f = await front(decode=0)
    assert (await get(f, "/ready"))[0] == 503
    decode = await f.stub(Stub("decode"))
    async with f.session.post("/workers", json={"url": decode.url, "role": "decode"}) as response:
        assert response.status == 202
    await until(lambda: all(w.usable for w in f.router.registry) and len(f.router.registry) == 2)
    assert (await f.ask())[0] == 200
    _, listed = await get(f, "/workers")
    assert {(w["url"], w["state"], w["breaker"], w["pairing_key"]) for w in listed["workers"]} == {
        (stub.url, "healthy", "closed", "k") for stub in f.stubs
    }
    async with f.session.delete("/workers", params={"url": decode.url}) as response:
        assert response.status == 200
    await until(lambda: len(f.router.registry) == 1)
    assert (await f.ask())[0] == 503
    async with f.session.delete("/workers", params={"url": decode.url}) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"url": "http://h:1"},
        {"url": "http://h:1", "role": "boss"},
        {"url": "nonsense", "role": "decode"},
        {"url": "http://h:1", "role": "decode", "bootstrap_port": 1},
        {"url": "http://h:1", "role": "prefill", "bootstrap_port": "x"},
    ],
)
async def test_a_wrong_worker_form_is_400(front, form):
    f = await front()
    async with f.session.post("/workers", json=form) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"]


async def test_with_a_secret_only_its_holder_changes_the_list(front, monkeypatch):
    monkeypatch.setenv("PDSERVE_SECRET", "s3cret")
    f = await front()
    form = {"url": "http://127.0.0.1:1", "role": "decode"}
    for headers, status in (
        ({}, 403),
        ({"Authorization": "Bearer no"}, 403),
        ({"Authorization": "Bearer s3cret"}, 202),
    ):
        async with f.session.post("/workers", json=form, headers=headers) as response:
            assert response.status == status
    async with f.session.delete("/workers", params={"url": form["url"]}) as response:
        assert response.status == 403


async def test_another_process_behind_the_address_starts_with_a_closed_breaker(front):
    f = await front(health_interval_s=0.05)
    worker = next(w for w in f.router.registry if w.spec.role == "decode")
    for _ in range(5):
        worker.breaker.begin()
        worker.blame()
    assert worker.breaker.state == "open"
    f.decode[0].facts["incarnation"] = "2"
    await until(lambda: worker.breaker.state == "closed")
    assert worker.identity.endswith("#2")


async def metrics(f) -> Callable[..., float]:
    """A function that sums up the samples of a name with given labels."""
    async with f.session.get("/metrics") as response:
        text = await response.text()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"pdserve_router_{name}" and labels.items() <= sample.labels.items()
        )

    return total


async def test_a_client_that_leaves_with_its_whole_answer_was_served(front):
    async def lingers(stub: Stub, request: web.Request) -> web.StreamResponse:
        await stub.meet()
        await asyncio.Event().wait()
        return web.Response()

    f = await front()
    f.prefill[0].script = lingers
    leaves = {"Connection": "close"}
    async with f.session.post("/generate", json={"text": "hi"}, headers=leaves) as response:
        await response.read()
    await f.idle()
    total = await metrics(f)
    assert total("requests_total") == total("requests_total", status="200") == 1


async def test_metrics_add_up(front):
    f = await front(prefill=2)
    for _ in range(20):
        await f.ask()
    await f.ask(messages=[], bootstrap_room=1)
    total = await metrics(f)
    assert total("requests_total", path="/v1/chat/completions", status="200") == 20
    assert total("requests_total", status="400") == 1
    assert total("requests_total") == total("request_seconds_count") == 21
    assert total("attempts_total") == total("ttft_seconds_count") == 20
    assert total("worker_legs_total", role="prefill") == 20
    assert total("worker_legs_total", role="decode") == len(f.decode[0].calls) == 20
    assert total("worker_healthy") == 3
    assert total("inflight") == total("queued") == total("worker_requests") == 0


async def test_unknown_paths_and_methods_are_error_objects(front):
    f = await front()
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/generate", 405)):
        async with f.session.request(method, path) as response:
            assert response.status == status
            assert (await response.json())["error"]["message"]
