"""`pdserve fetch`: brings a small model onto this machine, once, with progress."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import tyro

from pd_worker.model.store import fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Download a small model by name and convert it; a model that is there stays as it is."""

    name: tyro.conf.Positional[str]
    """smollm2-135m (instruct, 98 MB to download) or gemma3-270m (base model, 238 MB)."""


class Progress:
    """Progress on stderr: one line that is written over on a terminal, else a line a step."""

    def __init__(self) -> None:
        self._shown = ""

    def __call__(self, fraction: float, what: str) -> None:
        if sys.stderr.isatty():
            end = "\n" if fraction >= 1 else ""
            print(f"\r\x1b[K{fraction:4.0%} {what}", end=end, file=sys.stderr, flush=True)
        elif what != self._shown:
            self._shown = what
            print(f"{fraction:4.0%} {what}", file=sys.stderr, flush=True)


def run(options: FetchOptions) -> int:
    """Fetch and print the folder."""
    print(fetch(options.name, Progress()))
    return 0
