"""The load generator: its numbers, and what it sends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pd_worker.bench.load import InterferenceShape, LoadShape
from pd_worker.bench.serve import ServeBench, run
from pd_worker.bench.stats import Record, quantile, ratios, row, summarise
from pd_worker.errors import ConfigError
from tests.worker.cli.conftest import StubServer


def record(*arrivals: float, sent: float = 0.0, tokens: int = 0, error: str = "") -> Record:
    return Record(
        sent=sent,
        arrivals=list(arrivals),
        output_tokens=tokens or len(arrivals),
        error=error,
    )


def small(tmp_path: Path, url: str, **changes: object) -> ServeBench:
    settings: dict[str, object] = {
        "json": str(tmp_path / "out.json"),
        "plot": str(tmp_path / "out.png"),
        "load": LoadShape(requests=6, concurrency=2, prompt_tokens=7, output_tokens=4),
        "interference": InterferenceShape(
            streams=2, stream_output_tokens=5, arrivals=1, arrival_delay_s=0
        ),
        **changes,
    }
    return ServeBench(url=url, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("q", "value"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)], ids=str
)
def test_quantile_is_linear_between_values(q: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], q) == pytest.approx(value)


def test_row_is_in_milliseconds_and_empty_without_values() -> None:
    assert row([0.002])["p99.9"] == pytest.approx(2.0)
    assert row([]) == {}


def test_summary_counts_tokens_time_and_latencies() -> None:
    summary = summarise([[record(1.0, 1.1, 1.5), record(2.0, 2.1, sent=1.0)]])
    assert summary.tokens_per_s == pytest.approx(5 / 2.1)
    assert summary.latencies["TTFT"]["p50"] == pytest.approx(1000)
    assert summary.latencies["ITL"]["max"] == pytest.approx(400)
    assert summary.latencies["worst ITL"]["p50"] == pytest.approx(250)
    assert summary.latencies["TPOT"]["max"] == pytest.approx(250)


def test_failed_requests_count_as_errors_only() -> None:
    summary = summarise([[record(1.0, tokens=1), record(0.1, error="gone")]])
    assert (summary.requests, summary.errors, summary.output_tokens) == (2, 1, 1)
    assert summary.latencies["TTFT"]["p50"] == pytest.approx(1000)


def test_time_between_rounds_does_not_count() -> None:
    rounds = [[record(1.0)], [record(101.0, sent=100.0)]]
    assert summarise(rounds).seconds == pytest.approx(2.0)


def test_ratio_says_how_many_times_lower() -> None:
    fast, slow = summarise([[record(1.0, 1.1)]]), summarise([[record(1.0, 1.4)]])
    assert ratios(slow, fast)["ITL"]["p50"] == pytest.approx(4.0)


async def test_load_sends_fresh_prompts_of_the_asked_length(
    stub: StubServer, tmp_path: Path
) -> None:
    assert await asyncio.to_thread(run, small(tmp_path, stub.url)) == 0
    prompts = [body["prompt"] for body in stub.asked[1:]]
    assert len({tuple(prompt) for prompt in prompts}) == 6
    assert all(len(p) == 7 and min(p) >= 1000 and max(p) <= 20_000 for p in prompts)


async def test_interference_reports_streams_with_and_without_arrivals(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(run, small(tmp_path, stub.url, scenario="interference"))
    out = capsys.readouterr().out
    assert "streams alone: 2 requests, 0 errors, 10 tokens" in out
    assert "arrivals: 1 requests, 0 errors, 8 tokens" in out
    assert "p99.9" in out


async def test_baseline_meets_the_same_prompts_and_is_compared(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = stub.url.replace("127.0.0.1", "localhost")
    options = small(tmp_path, stub.url, baseline_url=other, rounds=2, seed=5)
    assert await asyncio.to_thread(run, options) == 0
    assert "how many times lower than the baseline" in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert list(written["servers"]) == [stub.url, other]
    assert written["settings"]["seed"] == 5
    assert sorted(b["prompt"] for b in stub.asked[:7]) == sorted(
        b["prompt"] for b in stub.asked[7:14]
    )


async def test_plot_is_written_where_matplotlib_is(stub: StubServer, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    await asyncio.to_thread(run, small(tmp_path, stub.url))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


async def test_errors_are_printed_and_make_the_status_1(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.break_after = 2
    assert await asyncio.to_thread(run, small(tmp_path, stub.url)) == 1
    assert "6 errors" in capsys.readouterr().out


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: LoadShape(requests=0), id="requests"),
        pytest.param(lambda: LoadShape(rate=-1), id="rate"),
        pytest.param(lambda: InterferenceShape(streams=0), id="streams"),
        pytest.param(lambda: ServeBench(rounds=0), id="rounds"),
        pytest.param(lambda: ServeBench(first_id=5, last_id=4), id="ids"),
    ],
)
def test_wrong_options_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
