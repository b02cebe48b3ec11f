"""A prefill or decode worker in a process of its own, driven by JSON lines.

    python -m tests.worker.transfer.peer_process prefill '{"kind": "shm", "port": 0}'

It prints {"port": …} when it is ready. A command {"room": r, "pages": […], "slot": s, …} starts a
request that then runs by itself; {"room": r, "state": …, "reason": …} is printed when it ends.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from typing import Any

from pd_worker.transfer.base import BaseKVReceiver, BaseKVSender
from pd_worker.transfer.engines.fake import TamperedEngine
from pd_worker.transfer.poll import KVPoll
from tests.worker.transfer.harness import Decode, Prefill, indices, options


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


class Commands:
    """Lines of standard input, without blocking."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put('{"op": "exit"}')

    def take(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._lines.get(timeout=0.001))
        except queue.Empty:
            return None


class PrefillRole:
    def __init__(self, settings: dict[str, Any]) -> None:
        delay_s = settings.pop("delay_s", 0.0)

        def slow(session: str) -> bool:
            time.sleep(delay_s)
            return True

        self.worker = Prefill(
            **settings, link=options(), wrap=lambda engine: TamperedEngine(engine, slow)
        )
        self.port = self.worker.port

    def start(self, command: dict[str, Any]) -> BaseKVSender:
        self.worker.pool.fill(command["pages"], command["value"])
        self.worker.pool.write_slot(command["slot"], command["room"])
        return self.worker.manager.create_sender(command["room"])

    def step(self, end: BaseKVSender, command: dict[str, Any]) -> None:
        if end.poll() == KVPoll.WaitingForInput:
            end.init(len(command["pages"]), command["slot"])
            for page in command["pages"]:
                end.send(indices(page), num_kv_tokens=16)


class DecodeRole:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.worker = Decode(**settings, link=options())
        self.port = 0

    def start(self, command: dict[str, Any]) -> BaseKVReceiver:
        manager = self.worker.manager
        receiver = manager.create_receiver("127.0.0.1", command["port"], command["room"])
        receiver.init()
        return receiver

    def step(self, end: BaseKVReceiver, command: dict[str, Any]) -> None:
        if end.poll() == KVPoll.WaitingForInput:
            end.send_metadata(indices(*command["pages"]), command["slot"])


def main() -> None:
    role: Any = {"prefill": PrefillRole, "decode": DecodeRole}[sys.argv[1]](json.loads(sys.argv[2]))
    commands = Commands()
    say(port=role.port)
    live: list[tuple[Any, dict[str, Any]]] = []
    while True:
        command = commands.take()
        if command is not None and command.get("op") == "exit":
            break
        if command is not None:
            live.append((role.start(command), command))
        for end, request in list(live):
            if end.poll() in (KVPoll.Failed, KVPoll.Success) and end.drained:
                say(room=request["room"], state=end.poll(), reason=end.failure())
                end.clear()
                live.remove((end, request))
            else:
                role.step(end, request)
    role.worker.close()


if __name__ == "__main__":
    main()
