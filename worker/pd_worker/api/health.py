"""What others ask a worker about itself: health, readiness, metrics, load, configuration.

/health is liveness (the scheduler process and its threads are well, also while it loads), /ready is
readiness, /health_generate both. None needs a peer, a tokenizer or a turn of the scheduler.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp import web

from pd_worker.api.context import CONTEXT, Context
from pd_worker.api.failures import json_response


async def health(request: web.Request) -> web.Response:
    """GET /health: 200 while the worker can serve, or will once it has loaded."""
    fault = request.app[CONTEXT].engine.vitals.fault()
    return json_response({"healthy": not fault, "problem": fault}, status=503 if fault else 200)


async def ready(request: web.Request) -> web.Response:
    """GET /ready and /health_generate: 200 when a request sent now would be served."""
    missing = request.app[CONTEXT].engine.missing()
    return json_response({"ready": not missing, "missing": missing}, status=503 if missing else 200)


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics, Prometheus' text format."""
    context = request.app[CONTEXT]
    return web.Response(
        body=context.metrics.text(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def server_info(request: web.Request) -> web.Response:
    """GET /server_info: what a router needs to pair this worker and to size requests for it."""
    context = request.app[CONTEXT]
    config, ready = context.config, context.engine.vitals.ready
    info: dict[str, Any] = {
        "version": _version(),
        "model_path": config.model.model,
        "served_model_name": config.model.name,
        "tokenizer_path": context.model_dir,
        "disaggregation_mode": "null" if config.role == "unified" else config.role,
        "role": config.role,
        "bootstrap_port": config.disagg.bootstrap_port if config.role == "prefill" else None,
        "advertise_host": config.disagg.advertise_host or None,
        "tp_size": 1,
        "dp_size": 1,
        "load_balance_method": "round_robin",
        "max_running_requests": config.scheduler.max_running_requests,
        "pairing_key": ready.pairing_key if ready else None,
        "kv_transports": ready.kv_transports if ready else [],
        "page_size": ready.page_size if ready else config.memory.page_size,
        "max_total_num_tokens": ready.max_total_tokens if ready else None,
        "max_request_tokens": ready.max_request_tokens if ready else None,
        "internal_states": [context.engine.vitals.heartbeat.gauges],
    }
    return json_response((ready.facts if ready else {}) | info)


async def model_info(request: web.Request) -> web.Response:
    """GET /model_info."""
    context = request.app[CONTEXT]
    facts = context.model_facts
    return json_response(
        {
            "model_path": context.config.model.model,
            "tokenizer_path": context.model_dir,
            "is_generation": True,
            "model_type": facts.get("model_type"),
            "architectures": facts.get("architectures", []),
            "weight_version": context.config.model.revision or "default",
            "preferred_sampling_params": None,
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }
    )


async def get_load(request: web.Request) -> web.Response:
    """GET /get_load: one entry a rank."""
    return json_response([_load(request.app[CONTEXT])])


async def loads(request: web.Request) -> web.Response:
    """GET /v1/loads: the same, in an object."""
    return json_response({"loads": [_load(request.app[CONTEXT])]})


def _load(context: Context) -> dict[str, Any]:
    gauges = context.engine.vitals.heartbeat.gauges
    return {
        "dp_rank": 0,
        "num_reqs": context.engine.num_samples,
        "num_waiting_reqs": int(gauges.get("num_waiting_reqs", 0)),
        "num_tokens": int(gauges.get("kv_used_tokens", 0)),
    }


def _version() -> str:
    try:
        return version("pdserve")
    except PackageNotFoundError:
        return "source"
