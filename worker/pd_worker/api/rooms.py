"""Bootstrap fields of a request → one room for every sample, the same on both legs.

Pure. A router sends one room for a request, or a list with one for each prompt; every sample needs
its own, since a room carries the KV of one. Both workers derive them here, so no router needs to
know how.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pd_worker.api.schema import MAX_PROMPTS, MAX_SAMPLES, BootstrapFields
from pd_worker.errors import InvalidRequest
from pd_worker.messages import Bootstrap

MAX_ROOM = 2**63 - 1
MASK64 = 2**64 - 1
MAX_HOST = 253
"""Length of the longest DNS name."""

FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


def sample_room(room: int, index: int) -> int:
    """The room of sample `index` of a request: `room` itself for 0, else a 63-bit hash, never 0.

    The hash is splitmix64's finaliser over room + index · golden ratio.
    """
    if index == 0:
        return room
    mixed = (room + index * 0x9E3779B97F4A7C15) & MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK64
    return ((mixed ^ (mixed >> 31)) & MAX_ROOM) or 1


def has_bootstrap(fields: BootstrapFields) -> bool:
    """True where the request carries any bootstrap field."""
    return any(getattr(fields, name) is not None for name in FIELDS)


def sample_bootstraps(
    fields: BootstrapFields, *, prompts: int, n: int, default_port: int
) -> list[Bootstrap]:
    """One Bootstrap for each sample, prompt by prompt; raises InvalidRequest naming the field.

    A scalar room is spread over all samples by their number; of a list with one room a prompt,
    room j over the samples of prompt j; a list with one room a sample is taken as it is.
    """
    hosts = _spread("bootstrap_host", fields.bootstrap_host, prompts, n)
    ports = _spread("bootstrap_port", fields.bootstrap_port, prompts, n)
    rooms = _rooms(fields.bootstrap_room, prompts, n)
    if len(set(rooms)) < len(rooms):
        raise InvalidRequest("bootstrap_room names one room twice", param="bootstrap_room")
    return [
        Bootstrap(_host(host), _port(port, default_port), room)
        for host, port, room in zip(hosts, ports, rooms, strict=True)
    ]


def recover_bootstraps(raw: dict[str, Any], default_port: int) -> list[Bootstrap]:
    """The rooms of a body that was refused, as far as they can be told; empty otherwise.

    Used to tell the other legs, so it guesses prompts and n the way a valid body would say them.
    """
    prompts = max(map(_batch_size, (raw.get("prompt"), raw.get("text"), raw.get("input_ids"))))
    params = raw.get("sampling_params")
    n = raw.get("n") or (params.get("n") if isinstance(params, dict) else 1)
    n = n if type(n) is int and 1 <= n <= MAX_SAMPLES else 1
    rooms = raw.get("bootstrap_room")
    if isinstance(rooms, list) and len(rooms) not in (prompts, prompts * n):
        prompts, n = len(rooms), 1
    try:
        fields = msgspec.convert({name: raw.get(name) for name in FIELDS}, BootstrapFields)
        return sample_bootstraps(fields, prompts=prompts, n=n, default_port=default_port)
    except (msgspec.ValidationError, InvalidRequest):
        return []


def _batch_size(value: object) -> int:
    """Prompts in a `prompt`, `text` or `input_ids` value: a list of strings or lists, else 1."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        return min(len(value), MAX_PROMPTS)
    return 1


def _spread(name: str, value: Any, prompts: int, n: int) -> list[Any]:
    """One value for each sample, of a scalar or of a list of one a prompt or one a sample."""
    if not isinstance(value, list):
        return [value] * (prompts * n)
    if len(value) == prompts:
        return [item for item in value for _ in range(n)]
    if len(value) != prompts * n:
        raise InvalidRequest(
            f"{name} has {len(value)} entries for {prompts} prompts with {n} samples", param=name
        )
    return value


def _rooms(value: int | str | list[int | str] | None, prompts: int, n: int) -> list[int]:
    bases = [_room(room) for room in _spread("bootstrap_room", value, prompts, n)]
    if not isinstance(value, list):
        return [sample_room(base, index) for index, base in enumerate(bases)]
    if len(value) == prompts:
        return [sample_room(base, index % n) for index, base in enumerate(bases)]
    return bases


def _room(value: int | str | None) -> int:
    room = _integer("bootstrap_room", value)
    if not 1 <= room <= MAX_ROOM:
        raise InvalidRequest(
            f"bootstrap_room must be between 1 and 2**63-1, got {room}", param="bootstrap_room"
        )
    return room


def _host(value: str | None) -> str:
    if not value or len(value) > MAX_HOST or not value.isprintable() or " " in value:
        raise InvalidRequest("bootstrap_host must be a host name", param="bootstrap_host")
    return value


def _port(value: int | str | None, default: int) -> int:
    port = default if value is None else _integer("bootstrap_port", value)
    if not 1 <= port <= 65535:
        raise InvalidRequest(
            f"bootstrap_port must be between 1 and 65535, got {port}", param="bootstrap_port"
        )
    return port


def _integer(name: str, value: int | str | None) -> int:
    if isinstance(value, int):
        return value
    if value is None or not (value.isascii() and value.isdigit() and len(value) < 20):
        raise InvalidRequest(f"{name} must be an integer", param=name)
    return int(value)
