"""What all parts of a deployment logged about one request. Pure.

The request's id is in the router's line and in the ids that workers give. Lines about its transfer
name its room only, so the rooms of the lines that name the id are looked for as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ROOM = re.compile(r"\broom=(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One line of a pod's log."""

    time: str
    """RFC 3339, in UTC; sorts as text."""
    pod: str
    text: str


def parse(pod: str, log: str) -> list[Line]:
    """A log that was read with timestamps."""
    found = []
    for line in log.splitlines():
        time, _, text = line.partition(" ")
        if text:
            found.append(Line(time, pod, text))
    return found


def trace(logs: Mapping[str, str], request: str) -> list[Line]:
    """The lines about a request, in order of time; `logs` by pod."""
    lines = [line for pod, log in logs.items() for line in parse(pod, log)]
    named = [line for line in lines if request in line.text]
    rooms = {room for line in named for room in ROOM.findall(line.text) if room != "0"}
    return sorted(
        line
        for line in lines
        if request in line.text or rooms.intersection(ROOM.findall(line.text))
    )
