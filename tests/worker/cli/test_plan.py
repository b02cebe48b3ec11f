"""Which processes `pdserve up` starts, and with which command lines."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import tyro

from pd_worker.config import DisaggConfig, MemoryConfig, ModelConfig, WorkerConfig
from pd_worker.errors import ConfigError
from pd_worker.local.options import UpOptions
from pd_worker.local.plan import Part, plan, ports_needed, split_cores
from pd_worker.local.ports import free_ports, is_free

PORTS = range(20_000, 20_100)


def options(**changes: object) -> UpOptions:
    return UpOptions(model=ModelConfig(model="m"), **changes)  # type: ignore[arg-type]


def planned(opts: UpOptions, cores: tuple[int, ...] = (0, 1)) -> list[Part]:
    return plan(opts, ports=PORTS[: ports_needed(opts)], cores=cores, log_dir=Path("/logs"))


def worker_config(part: Part) -> WorkerConfig:
    return tyro.cli(WorkerConfig, args=part.args[1:], config=(tyro.conf.OmitArgPrefixes,))


def test_a_pair_is_prefill_decode_router() -> None:
    assert [part.name for part in planned(options())] == ["prefill-0", "decode-0", "router"]


def test_unified_workers_replace_the_pairs() -> None:
    parts = planned(options(unified=2))
    assert [part.name for part in parts] == ["unified-0", "unified-1", "router"]
    assert parts[-1].args[-4:] == ("--worker", parts[0].url, "--worker", parts[1].url)


def test_router_is_told_each_bootstrap_port() -> None:
    prefill, decode, router = planned(options())
    bootstrap = worker_config(prefill).disagg.bootstrap_port
    assert ("--prefill", f"{prefill.url},{bootstrap}") in pairwise(router.args)
    assert ("--decode", decode.url) in pairwise(router.args)


def test_no_port_is_given_twice() -> None:
    parts = planned(options(prefill=3, decode=2, port=0))
    ports = [word for part in parts for word in part.args if word.isdigit()]
    assert len(ports) == len(set(ports)) == ports_needed(options(prefill=3, decode=2))


def test_workers_get_the_options_of_the_cluster() -> None:
    memory = MemoryConfig(page_size=64, prefix_cache=False, mem_fraction=0.25)
    disagg = DisaggConfig(kv_transport="mooncake", kv_checksum=True)
    for part in planned(options(memory=memory, disagg=disagg))[:2]:
        config = worker_config(part)
        assert config.memory == memory
        assert config.disagg.kv_transport == "mooncake"
        assert config.disagg.kv_checksum


def test_options_at_their_default_stay_off_the_command_line() -> None:
    assert "--page-size" not in planned(options())[0].args


@pytest.mark.parametrize(
    ("cores", "workers", "shares"),
    [
        pytest.param([4, 5], 2, {0: [4], 1: [5]}, id="one-each"),
        pytest.param([0, 1, 2, 3, 4], 2, {0: [0, 1, 2], 1: [3, 4]}, id="rest-to-the-first"),
        pytest.param([7], 2, {0: [7], 1: [7]}, id="shared"),
        pytest.param([0, 1], 3, {0: [0], 1: [1], 2: [0]}, id="in-turn"),
    ],
)
def test_cores_are_split(cores: list[int], workers: int, shares: dict[int, list[int]]) -> None:
    assert split_cores(cores, workers) == shares


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"prefill": 0}, "--prefill", id="half-a-pair"),
        pytest.param({"decode": -1}, "--decode", id="negative"),
        pytest.param({"port": 70_000}, "--port", id="port"),
        pytest.param({"stop_timeout_s": 0}, "--stop-timeout-s", id="timeout"),
    ],
)
def test_wrong_options_are_named(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        options(**changes)


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free("127.0.0.1", port) for port in ports)
