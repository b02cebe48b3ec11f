"""One client request as the router handles it, and the bodies that it becomes.

Both legs of an attempt get the same bytes: the client's JSON object with three fields added, lists
of them where the request is a batch. Rooms are drawn anew for every attempt.
"""

from __future__ import annotations

import re
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pd_worker.errors import InvalidRequest
from pd_worker.router.pairing import Route
from pd_worker.router.prompt import Prompt, read_prompt

PD_FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
OTHER_PD_FIELDS = ("bootstrap_pair_key", "kv_transfer_params", "room")
MAX_BATCH = 4096
"""Prompts in one request; bounds the rooms that a small body can make the router draw."""
FORWARDED = ("Authorization", "traceparent", "tracestate")
"""Client headers that workers get; anything else could steer them and stays here."""
REQUEST_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
TIMELINE = "X-Pdserve-Timeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One client request."""

    path: str
    request_id: str
    body: dict[str, Any]
    prompt: Prompt
    headers: dict[str, str]
    """What workers get beside the body."""
    wants_timeline: bool
    received_at: float
    """Unix time, seconds."""

    @property
    def model(self) -> str:
        model = self.body.get("model")
        return model if isinstance(model, str) else ""

    @property
    def wants_prompt_logprobs(self) -> bool:
        """The answer has numbers that only prefill knows."""
        if self.path == "/v1/completions":
            return bool(self.body.get("echo")) and self.body.get("logprobs") is not None
        return self.path == "/generate" and bool(self.body.get("return_logprob"))

    @property
    def needs_prefill(self) -> bool:
        """The answer cannot be made from decode's alone."""
        return self.wants_prompt_logprobs or self.wants_timeline

    @property
    def has_own_room(self) -> bool:
        """A trusted client chose the room, which can be used only once."""
        return self.body.get("bootstrap_room") is not None

    @property
    def has_own_rid(self) -> bool:
        """The client named the request: a worker takes that name again once it is free."""
        return self.body.get("rid") is not None

    @property
    def is_single(self) -> bool:
        """One prompt, one sample."""
        sampling = self.body.get("sampling_params")
        inner = sampling.get("n") if isinstance(sampling, dict) else None
        counts = (self.body.get("n"), inner, self.prompt.batch)
        return all(count in (None, 1) for count in counts)

    def encode(self, route: Route) -> bytes:
        """The body for both legs of one attempt."""
        if route.prefill is None or self.has_own_room:
            return msgspec.json.encode(self.body)
        host, port = route.prefill.bootstrap
        fields: dict[str, Any] = {"bootstrap_host": host, "bootstrap_port": port}
        batch = self.prompt.batch
        if batch is None:
            return msgspec.json.encode({**self.body, **fields, "bootstrap_room": draw_room()})
        lists: dict[str, list[Any]] = {name: [value] * batch for name, value in fields.items()}
        lists["bootstrap_room"] = [draw_room() for _ in range(batch)]
        return msgspec.json.encode({**self.body, **lists})


def draw_room() -> int:
    """1 … 2**63 - 1, unpredictable: whoever knows a room can claim its KV."""
    return secrets.randbelow(2**63 - 1) + 1


def read_call(
    path: str, headers: Mapping[str, str], data: bytes, request_id: str, *, trust_pd_fields: bool
) -> Call:
    """Check and take apart a client's request; raises InvalidRequest."""
    body = _json_object(data)
    if not trust_pd_fields:
        _refuse_pd_fields(body)
    prompt = read_prompt(body)
    if prompt.batch is not None and not 1 <= prompt.batch <= MAX_BATCH:
        raise InvalidRequest(f"a batch has 1 to {MAX_BATCH} prompts, not {prompt.batch}")
    kept = {name: headers[name] for name in FORWARDED if name in headers}
    asked = headers.get(TIMELINE, "").lower() in ("1", "true")
    if asked:
        kept[TIMELINE] = "true"
    return Call(
        path=path,
        request_id=request_id,
        body=body,
        prompt=prompt,
        headers={**kept, "X-Request-ID": request_id},
        wants_timeline=asked or body.get("pdserve_timeline") is True,
        received_at=time.time(),
    )


def choose_request_id(headers: Mapping[str, str]) -> str:
    """The client's X-Request-ID where it is one, else a new one."""
    given = headers.get("X-Request-ID", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    return body


def _refuse_pd_fields(body: dict[str, Any]) -> None:
    """A client that could choose these would choose whom workers connect to."""
    for name in (*PD_FIELDS, *OTHER_PD_FIELDS):
        if body.get(name) is not None:
            raise InvalidRequest(f"{name} is set by the router, not by clients", param=name)
