"""Start, stop and talk to a peer_process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


class PeerProcess:
    """A worker that can be killed and stopped."""

    def __init__(self, role: str, **settings: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'worker'}:{ROOT}"}
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.worker.transfer.peer_process",
                role,
                json.dumps(settings),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.port: int = self.read()["port"]

    def tell(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peer process has ended"
        return json.loads(line)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def close(self) -> None:
        """End it in order; it may be dead or stopped already."""
        if self._process.poll() is None:
            self.resume()
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
