"""What the client's answer takes from prefill's: prompt log-probabilities and timeline stages.

Decode never saw the prompt, so it answers null for the log-probability of every prompt position.
Prefill's own answer to the same request has the values at the same positions. For a stream they
belong into the first chunk of each choice.
"""

from __future__ import annotations

from typing import Any

from pd_worker.router import sse

Json = dict[str, Any]
PROMPT_LISTS = ("token_logprobs", "top_logprobs")
"""Of an OpenAI completion's `logprobs`: parallel lists, one entry a position."""
INPUT_LISTS = ("input_token_logprobs", "input_top_logprobs")
"""Of a native answer's `meta_info`."""


class PrefillPart:
    """Prefill's answer, taken apart by choice (or batch) index."""

    def __init__(self) -> None:
        self.stages: list[Json] = []
        self._choices: dict[int, Json] = {}
        self._inputs: dict[int, Json] = {}

    @classmethod
    def read(cls, body: bytes) -> PrefillPart:
        """From the whole body of prefill's answer, a JSON value or a stream of events."""
        part = cls()
        values = [sse.payload(event) for event in sse.Framer().feed(body)]
        for value in values or [sse.payload(body)]:
            part._absorb(value)
        return part

    def _absorb(self, value: Any) -> None:
        for index, item in enumerate(_items(value)):
            self.stages += _stages(item)
            for choice in _choices(item):
                self._absorb_choice(choice)
            meta = _inputs(item)
            if meta:
                self._inputs[_index(item, index)] = meta

    def _absorb_choice(self, choice: Json) -> None:
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            known = self._choices.setdefault(_index(choice, 0), {})
            for name in PROMPT_LISTS:
                known[name] = [*known.get(name, []), *(logprobs.get(name) or [])]

    def complete(self, value: Any) -> Any:
        """Put what prefill knows into one value of decode's answer, in place."""
        for index, item in enumerate(_items(value)):
            for choice in _choices(item):
                self._complete_choice(choice)
            meta = item.get("meta_info")
            if isinstance(meta, dict) and any(name in meta for name in INPUT_LISTS):
                meta.update(self._inputs.get(_index(item, index), {}))
        return value

    def _complete_choice(self, choice: Json) -> None:
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, dict):
            return
        known = self._choices.pop(_index(choice, 0), {})
        for name, values in known.items():
            given = logprobs.get(name)
            if isinstance(given, list):
                logprobs[name] = _fill(given, values)


def add_stages(value: Any, stages: list[Json]) -> Any:
    """Merge `stages` into the value's own list, by start, in place; without a list nothing."""
    for item in _items(value):
        if isinstance(item.get("pdserve"), dict):
            own = [{**stage, "leg": "decode"} for stage in _stages(item)]
            item["pdserve"]["stages"] = sorted(own + stages, key=lambda stage: stage["start"])
    return value


def _fill(given: list[Any], values: list[Any]) -> list[Any]:
    """Decode's nulls replaced by prefill's values at the same positions."""
    head = [value if own is None else own for own, value in zip(given, values, strict=False)]
    return head + given[len(head) :]


def _items(value: Any) -> list[Json]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def _choices(item: Json) -> list[Json]:
    choices = item.get("choices")
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def _inputs(item: Json) -> Json:
    meta = item.get("meta_info")
    if not isinstance(meta, dict):
        return {}
    return {name: meta[name] for name in INPUT_LISTS if meta.get(name)}


def _stages(item: Json) -> list[Json]:
    own = item.get("pdserve")
    stages = own.get("stages") if isinstance(own, dict) else None
    found = stages if isinstance(stages, list) else []
    return [s for s in found if isinstance(s, dict) and isinstance(s.get("start"), int | float)]


def _index(item: Json, default: int) -> int:
    index = item.get("index")
    return index if isinstance(index, int) else default
