"""Every attention backend against attention written out one query at a time."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pd_worker.core.batch import ForwardBatch, ForwardMode
from pd_worker.memory.kv_pool import KVPool
from pd_worker.memory.layout import KVLayout
from pd_worker.memory.pages import page_slots, pages_for
from pd_worker.model.attention import make_attention
from tests.worker.model.driver import sampling_batch

HEADS, KV_HEADS, WIDTH, LAYERS, LAYER = 6, 2, 64, 3, 1
NO_FLASHINFER = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="flashinfer is not installed"
)
BACKENDS = [
    pytest.param(("torch", "cpu", "float32"), id="torch-cpu-float32"),
    pytest.param(("torch", "cpu", "bfloat16"), id="torch-cpu-bfloat16"),
    pytest.param(("torch", "cuda", "float16"), id="torch-cuda", marks=pytest.mark.gpu),
    pytest.param(
        ("flashinfer", "cuda", "bfloat16"),
        id="flashinfer-cuda",
        marks=[pytest.mark.gpu, NO_FLASHINFER],
    ),
]
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


class Case:
    """Requests with random keys, values and queries; their prefix lies in the pool."""

    def __init__(
        self, backend: tuple[str, str, str], page_size: int, spans: list[tuple[int, int]]
    ) -> None:
        name, device, dtype = backend
        self.spans, self.page_size = spans, page_size
        random = torch.Generator().manual_seed(1)
        lengths = [prefix + new for prefix, new in spans]

        def noise(heads: int, count: int) -> torch.Tensor:
            values = torch.randn(count, heads, WIDTH, generator=random)
            return values.to(getattr(torch, dtype)).to(device)

        self.query = [noise(HEADS, new) for _, new in spans]
        self.key = [noise(KV_HEADS, length) for length in lengths]
        self.value = [noise(KV_HEADS, length) for length in lengths]
        counts = [pages_for(length, page_size) for length in lengths]
        numbers = np.random.default_rng(1).permutation(np.arange(1, sum(counts) + 1))
        self.pages = np.split(numbers.astype(np.int32), np.cumsum(counts)[:-1])
        layout = KVLayout(
            num_pages=sum(counts) + 1,
            num_layers=LAYERS,
            num_kv_heads=KV_HEADS,
            page_size=page_size,
            head_dim=WIDTH,
            dtype=dtype,
        )
        self.pool = KVPool(layout, device=device)
        self.attention = make_attention(name, self.pool)
        self._store_prefixes()

    def _store_prefixes(self) -> None:
        for pages, (prefix, _), key, value in zip(
            self.pages, self.spans, self.key, self.value, strict=True
        ):
            slots = torch.from_numpy(page_slots(pages, self.page_size, 0, prefix))
            at = slots // self.page_size, slots % self.page_size
            self.pool.k(LAYER)[at[0], :, at[1]] = key[:prefix]
            self.pool.v(LAYER)[at[0], :, at[1]] = value[:prefix]

    def batch(self) -> ForwardBatch:
        table = np.zeros((len(self.pages), max(map(len, self.pages)) + 1), np.int32)
        for line, pages in zip(table, self.pages, strict=True):
            line[: len(pages)] = pages
        new = np.array([new for _, new in self.spans])
        empty = np.empty(0, np.int64)
        decode = all(new == 1 for _, new in self.spans)
        return ForwardBatch(
            mode=ForwardMode.DECODE if decode else ForwardMode.EXTEND,
            rows=np.arange(len(self.spans)),
            prefix_lens=np.array([prefix for prefix, _ in self.spans]),
            extend_lens=new,
            input_ids=empty,
            out_slots=np.concatenate(
                [
                    page_slots(pages, self.page_size, prefix, prefix + new)
                    for pages, (prefix, new) in zip(self.pages, self.spans, strict=True)
                ]
            ),
            page_table=table,
            sampled=empty,
            sampling=sampling_batch([], 1),
            prompt_logprobs=empty,
            prompt_targets=[],
            prompt_num_logprobs=[],
        )

    def attend(self, **settings: Any) -> torch.Tensor:
        new = [slice(prefix, None) for prefix, _ in self.spans]
        return self.attention.plan(self.batch()).attend(
            LAYER,
            torch.cat(self.query),
            torch.cat([k[part] for k, part in zip(self.key, new, strict=True)]),
            torch.cat([v[part] for v, part in zip(self.value, new, strict=True)]),
            **{"scale": 0.2, "window": None, "softcap": None, **settings},
        )

    def expected(self, **settings: Any) -> torch.Tensor:
        return torch.cat(
            [
                one_query(q, key, value, prefix + i, **settings)
                for queries, key, value, (prefix, _) in zip(
                    self.query, self.key, self.value, self.spans, strict=True
                )
                for i, q in enumerate(queries)
            ]
        )


def one_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position: int,
    *,
    scale: float = 0.2,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """[1, heads, width] for one query [heads, width] at `position`."""
    first = 0 if window is None else max(0, position + 1 - window)
    keys, values = (
        part[first : position + 1].double().repeat_interleave(HEADS // KV_HEADS, 1)
        for part in (key, value)
    )
    scores = torch.einsum("hd,nhd->hn", query.double(), keys) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)[None].to(query.dtype)


SPANS = {
    "decode": [(0, 1), (5, 1), (15, 1), (16, 1), (77, 1)],
    "whole prompts": [(0, 3), (0, 40), (0, 1)],
    "chunks": [(16, 30), (0, 9), (33, 1), (7, 64)],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS.keys())
@pytest.mark.parametrize(
    "settings",
    [{}, {"window": 20}, {"window": 1}, {"softcap": 2.0}, {"softcap": 2.0, "window": 20}],
    ids=str,
)
def test_each_query_attends_to_what_it_may_see(
    backend: tuple[str, str, str],
    page_size: int,
    spans: list[tuple[int, int]],
    settings: dict[str, Any],
) -> None:
    case = Case(backend, page_size, spans)
    got, expected = case.attend(**settings).float(), case.expected(**settings).float()
    assert torch.allclose(got, expected, atol=TOLERANCE[backend[2]] * 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_writes_its_tokens_and_nothing_else(backend: tuple[str, str, str]) -> None:
    case = Case(backend, 16, [(5, 9), (0, 17)])
    before = case.pool.tensor.clone()
    case.attend()
    changed = (case.pool.tensor != before).any(-1)
    slots = case.batch().out_slots
    expected = torch.zeros_like(changed)
    expected[slots // 16, LAYER, :, :, slots % 16] = True
    assert torch.equal(changed, expected)


def test_what_lies_beyond_a_request_does_not_matter() -> None:
    case = Case(("torch", "cpu", "float32"), 16, SPANS["decode"])
    expected = case.attend()
    batch = case.batch()
    case.pool.poison(np.setdiff1d(np.arange(1, case.pool.num_pages), batch.page_table))
    wider = replace(batch, page_table=np.pad(batch.page_table, ((0, 0), (0, 3))))
    assert batch.page_table.shape != wider.page_table.shape
    assert torch.equal(case.attend(), expected)
