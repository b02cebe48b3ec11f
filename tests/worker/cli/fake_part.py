"""A stand-in for a worker or router: `fake_part.py BEHAVIOUR worker|router --port N …`.

ok answers /ready with 200, loads with 503; dies-<role> prints and exits 3 once
that role is asked; deaf ignores SIGTERM and starts a child that ignores it as well.
"""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if behaviour == f"dies-{role}":
            print("last words", flush=True)
            os._exit(3)
        self.send_response(503 if behaviour == "loads" else 200)
        self.end_headers()
        self.wfile.write(b'{"missing": ["loading: weights (5%)"]}')

    def log_message(self, format: str, *args: object) -> None:
        pass


behaviour, command = sys.argv[1:3]
role = sys.argv[sys.argv.index("--role") + 1] if "--role" in sys.argv else command
print("args", *sys.argv[2:], "cores", sorted(os.sched_getaffinity(0)), flush=True)
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    print("child", child.pid, flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
