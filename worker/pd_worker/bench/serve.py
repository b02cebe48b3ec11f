"""`pdserve bench serve`: what a client of a running server sees under load.

With a baseline the two servers take turns, round by round, so that both meet the same machine.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from pd_worker.bench.load import Groups, InterferenceShape, LoadShape, Shape, Target, errors
from pd_worker.bench.report import table, write_json, write_plot
from pd_worker.bench.stats import Record, summarise
from pd_worker.client import model_name, open_session
from pd_worker.errors import ConfigError

Rounds = dict[str, dict[str, list[list[Record]]]]
"""URL, group, round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBench:
    """Measure TTFT, ITL and throughput of a running server with an OpenAI API."""

    url: str = "http://127.0.0.1:8000"
    """The server to measure."""
    baseline_url: str = ""
    """A second server, measured in turn, that the first is compared with."""
    model: str = ""
    """Name of the model; empty takes the first that the server lists."""
    scenario: Literal["load", "interference"] = "load"
    """load: equal requests. interference: what long prompts do to running streams."""
    rounds: int = 1
    """Times that each server is measured."""
    seed: int = 0
    """Of the random prompts; 0 draws a new one, so that no server knows a prompt from before."""
    first_id: int = 1000
    """Smallest token id in prompts; the ids below are often special tokens."""
    last_id: int = 20_000
    """Largest token id in prompts; must be in the model's vocabulary."""
    json: str = "bench-serve.json"
    """File for the numbers."""
    plot: str = "bench-serve.png"
    """File for the picture (needs matplotlib)."""
    load: LoadShape = field(default_factory=LoadShape)
    interference: InterferenceShape = field(default_factory=InterferenceShape)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError("--rounds", "must be at least 1", "give a larger number")
        if not 0 <= self.first_id <= self.last_id:
            raise ConfigError("--last-id", "is below --first-id", "give a range of token ids")

    @property
    def shape(self) -> Shape:
        """The scenario that was chosen."""
        return self.load if self.scenario == "load" else self.interference

    @property
    def urls(self) -> list[str]:
        """The servers, the measured one first."""
        return [url.rstrip("/") for url in (self.url, self.baseline_url) if url]


def run(options: ServeBench) -> int:
    """Measure, print, write; status 1 where a request failed."""
    seed = options.seed or random.SystemRandom().randrange(1, 2**32)
    rounds = asyncio.run(_measure(options, seed))
    results = {
        url: {group: summarise(parts) for group, parts in groups.items()}
        for url, groups in rounds.items()
    }
    print(table(results))
    write_json(Path(options.json), {**asdict(options), "seed": seed}, results)
    flat = _flat(rounds)
    plotted = write_plot(Path(options.plot), flat)
    print(f"\nwritten: {options.json}" + (f", {options.plot}" if plotted else ""))
    failures = errors([record for records in flat.values() for record in records])
    for text in failures:
        print(f"error: {text}")
    return 1 if failures else 0


async def _measure(options: ServeBench, seed: int) -> Rounds:
    """All rounds; the servers take turns and get equal prompts in a round."""
    results: Rounds = {url: defaultdict(list) for url in options.urls}
    async with open_session() as session:
        for number, url in product(range(options.rounds), options.urls):
            target = Target(
                session=session,
                url=url,
                model=options.model or await model_name(session, url),
                rng=random.Random(f"{seed} {number}"),
                ids=range(options.first_id, options.last_id + 1),
            )
            await target.send(prompt_tokens=16, output_tokens=2)  # connects, warms up
            for group, records in (await options.shape.run(target)).items():
                results[url][group].append(records)
    return results


def _flat(rounds: Rounds) -> Groups:
    """All records of each group of each server, by a name for the picture."""
    return {
        f"{url} {group}": [record for records in parts for record in records]
        for url, groups in rounds.items()
        for group, parts in groups.items()
    }
