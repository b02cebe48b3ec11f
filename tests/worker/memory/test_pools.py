"""Rows have budgets; the KV pool is page-major."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pd_worker.config import MemoryConfig
from pd_worker.errors import ConfigError, IntegrityError
from pd_worker.memory.kv_pool import KVPool
from pd_worker.memory.layout import KVLayout
from pd_worker.memory.pools import DecodeReqToTokenPool, ReqToTokenPool


def layout(dtype: str = "float32", page_size: int = 4, num_pages: int = 6) -> KVLayout:
    return KVLayout(
        num_pages=num_pages,
        num_layers=3,
        num_kv_heads=2,
        page_size=page_size,
        head_dim=8,
        dtype=dtype,
    )


def test_rows_run_out_and_come_back() -> None:
    pool = ReqToTokenPool(2, 16)
    rows = [pool.alloc(), pool.alloc()]
    assert sorted(rows) == [1, 2]
    assert pool.alloc() is None
    pool.free(rows[0])
    assert pool.alloc() == rows[0]
    pool.check_integrity(rows)


def test_a_row_is_freed_once() -> None:
    pool = ReqToTokenPool(2, 16)
    row = pool.alloc()
    pool.free(row)
    with pytest.raises(IntegrityError):
        pool.free(row)


def test_a_lost_row_is_noticed() -> None:
    pool = ReqToTokenPool(2, 16)
    pool.alloc()
    with pytest.raises(IntegrityError):
        pool.check_integrity([])


def test_pre_allocation_never_takes_a_running_row() -> None:
    pool = DecodeReqToTokenPool(2, 3, 16)
    assert pool.req_to_token.shape[0] == 2 + 3 + 1
    waiting = [pool.pre_alloc() for _ in range(4)]
    assert waiting[3] is None
    assert [pool.start(row) for row in waiting[:3]] == [True, True, False]
    assert pool.available == 0
    more = [pool.pre_alloc(), pool.pre_alloc()]
    assert None not in more
    pool.free(waiting[0])
    assert pool.alloc() is not None
    pool.check_integrity([*waiting[1:3], waiting[0], *more])


def test_running_requests_never_take_a_pre_allocated_row() -> None:
    pool = DecodeReqToTokenPool(2, 3, 16)
    assert [pool.alloc() is None for _ in range(3)] == [False, False, True]
    assert [pool.pre_alloc() is None for _ in range(4)] == [False, False, False, True]


def test_a_pre_allocated_row_can_be_given_up() -> None:
    pool = DecodeReqToTokenPool(1, 1, 16)
    pool.free(pool.pre_alloc())
    assert pool.pre_alloc_available == 1
    pool.check_integrity([])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_page_of_all_layers_is_one_block(dtype: str) -> None:
    pool = KVPool(layout(dtype))
    pool.k(0)[2] = 1
    pool.v(2)[2] = 2
    block = pool.tensor.view(-1).view(torch.uint8).view(pool.num_pages, pool.page_nbytes)
    assert block[2].any()
    assert not block[[0, 1, 3, 4, 5]].any()
    assert pool.nbytes == pool.num_pages * pool.page_nbytes == pool.tensor.nbytes


def test_a_pool_lies_over_shared_memory() -> None:
    shared = bytearray(layout().nbytes + 64)
    pool = KVPool(layout(), buffer=memoryview(shared))
    pool.k(1)[3, 1, 2, 5] = 7.5
    seen = np.frombuffer(shared, np.float32, layout().nbytes // 4).reshape(layout().shape)
    assert seen[3, 1, 0, 1, 2, 5] == 7.5
    assert pool.data_ptr == np.frombuffer(shared, np.uint8).ctypes.data


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_are_saved_and_loaded_whole(dtype: str) -> None:
    pool = KVPool(layout(dtype))
    pool.tensor.copy_(torch.randn(pool.layout.shape))
    before = pool.tensor[[1, 4]].clone()
    data = pool.save(np.array([1, 4], np.int32))
    pool.load(np.array([5, 2], np.int32), data)
    assert torch.equal(pool.tensor[[5, 2]], before)


def test_poison_and_clear_touch_only_their_pages() -> None:
    pool = KVPool(layout())
    pool.poison(np.array([2, 3], np.int32))
    pool.clear(np.array([3], np.int32))
    assert pool.tensor.isnan().flatten(1).all(1).tolist() == [False, False, True, *[False] * 3]
    assert not pool.tensor[3].any()


@pytest.mark.parametrize(
    ("memory", "pages"),
    [
        (MemoryConfig(max_total_tokens=40), 11),
        (MemoryConfig(max_total_tokens=41), 12),
        (MemoryConfig(mem_fraction=0.5), 50),
        (MemoryConfig(), 20),
    ],
    ids=["tokens", "begun page", "fraction", "default"],
)
def test_the_pool_is_sized_by_tokens_or_by_fraction(memory: MemoryConfig, pages: int) -> None:
    one = layout()
    assert one.sized(memory, 100 * one.page_nbytes, 0.2).num_pages == pages


@pytest.mark.parametrize("memory", [MemoryConfig(max_total_tokens=4000), MemoryConfig()])
def test_a_pool_that_cannot_be_is_refused(memory: MemoryConfig) -> None:
    with pytest.raises(ConfigError, match="--m"):
        layout().sized(memory, 2 * layout().page_nbytes, 0.5)
