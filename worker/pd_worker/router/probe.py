"""One look at a worker over HTTP: is it ready, and is it what it is listed as?"""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from pd_worker.router.worker import Facts, Look, State, WorkerSpec

REASON_CHARS = 300


async def look_at(session: aiohttp.ClientSession, spec: WorkerSpec, timeout_s: float) -> Look:
    """Ask /ready, then /server_info. Never raises for what a worker does or fails to do."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        ready, text = await _get(session, f"{spec.url}/ready", timeout)
        info_status, info = await _get(session, f"{spec.url}/server_info", timeout)
    except TimeoutError:
        return Look(state="unreachable", reason=f"no answer in {timeout_s:g} s", silent=True)
    except (aiohttp.ClientError, OSError) as error:
        return Look(state="unreachable", reason=str(error) or type(error).__name__)
    if ready != 200:
        return Look(state=_unready(text), reason=text[:REASON_CHARS])
    if info_status != 200:
        return Look(state="refused", reason=f"/server_info answers {info_status}")
    return judge(spec, read_facts(info))


async def _get(
    session: aiohttp.ClientSession, url: str, timeout: aiohttp.ClientTimeout
) -> tuple[int, str]:
    async with session.get(url, timeout=timeout, allow_redirects=False) as response:
        return response.status, await response.text(errors="replace")


def _unready(text: str) -> State:
    return "draining" if "draining" in text.lower() else "not_ready"


def read_facts(text: str) -> Facts | None:
    """What /server_info says; None where it is no JSON object. Wrong types read as absent."""
    try:
        raw = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None
    port = raw.get("bootstrap_port")
    longest = raw.get("max_request_tokens")
    return Facts(
        role=_role(raw),
        model=_text(raw, "served_model_name"),
        pairing_key=_text(raw, "pairing_key"),
        incarnation=_text(raw, "incarnation"),
        bootstrap_host=_text(raw, "advertise_host"),
        bootstrap_port=port if isinstance(port, int) and 0 < port < 65536 else None,
        max_request_tokens=longest if isinstance(longest, int) else 0,
        raw=raw,
    )


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def _role(raw: dict[str, Any]) -> str:
    """`role`, else the older name of the same thing, where null means both phases in one."""
    if isinstance(raw.get("role"), str):
        return str(raw["role"])
    mode = raw.get("disaggregation_mode", "")
    return "unified" if mode in (None, "null") else str(mode)


def judge(spec: WorkerSpec, facts: Facts | None) -> Look:
    """A ready worker is used only when it is what it is listed as and can be paired."""
    if facts is None:
        return Look(state="refused", reason="/server_info is no JSON object")
    problem = _misfit(spec, facts)
    return Look(state="refused" if problem else "healthy", reason=problem, facts=facts)


def _misfit(spec: WorkerSpec, facts: Facts) -> str:
    if facts.role != spec.role:
        return f"listed as {spec.role}, but says that it is {facts.role or 'nothing'}"
    if spec.role != "unified" and not facts.pairing_key:
        return "publishes no pairing_key"
    if spec.role == "prefill" and not (spec.bootstrap_port or facts.bootstrap_port):
        return "publishes no bootstrap_port, and none is listed"
    return ""
