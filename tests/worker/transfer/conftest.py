"""Fixtures of the transfer tests: factories whose products are closed at the end of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings

from tests.worker.transfer.harness import Decode, Prefill

Factory = Callable[..., Any]

settings.register_profile("transfer", deadline=None)  # a shared machine has no steady clock
settings.load_profile("transfer")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


@pytest.fixture
def start_prefill(stack: ExitStack) -> Factory:
    def start(**changes: Any) -> Prefill:
        prefill = Prefill(**changes)
        stack.callback(prefill.close)
        return prefill

    return start


@pytest.fixture
def start_decode(stack: ExitStack) -> Factory:
    def start(**changes: Any) -> Decode:
        decode = Decode(**changes)
        stack.callback(decode.close)
        return decode

    return start


@pytest.fixture
def prefill(start_prefill: Factory) -> Prefill:
    return start_prefill()


@pytest.fixture
def decode(start_decode: Factory) -> Decode:
    return start_decode()
