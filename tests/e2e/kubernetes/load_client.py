"""Runs in a pod with nothing but Python: chat clients that go on until the file STOP is there.

python load_client.py URL MODEL CLIENTS PROMPT_WORDS MAX_TOKENS KINDS

One line of JSON an answer goes to stdout: `seconds`, and `error` where it was not complete or not
the one that the same question got before. A client of even number keeps its connection, as pools
do; one of odd number opens a new one each time. KINDS is the number of different questions.
"""

import http.client
import json
import pathlib
import sys
import threading
import time
import urllib.parse

STOP = pathlib.Path("/tmp/stop")
ENDED = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)

url, model = sys.argv[1:3]
clients, words, tokens, kinds = map(int, sys.argv[3:])
host = urllib.parse.urlsplit(url).netloc
known: dict[int, str] = {}
lock = threading.Lock()


class Client:
    """One user, who asks one question after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        asked = self.number * kinds // clients
        while not STOP.exists():
            began = time.time()
            error = self.ask(asked % kinds)
            line = {"at": time.time(), "seconds": round(time.time() - began, 3), "error": error}
            with lock:
                print(json.dumps(line), flush=True)
            asked += 1

    def ask(self, kind: int) -> str:
        """What was wrong; empty if nothing."""
        try:
            text = self.answer(kind)
        except Exception as error:
            self.connection = None
            return f"{type(error).__name__}: {error}"
        with lock:
            first = known.setdefault(kind, text)
        return "" if text == first else f"{text!r}, before {first!r}"

    def answer(self, kind: int) -> str:
        question = f"{kind}. Tell me about " + " ".join(f"number {n + kind}" for n in range(words))
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self.number % 3 != 0,
        }
        response = self.post(json.dumps(body))
        try:
            if response.status != 200:
                raise ValueError(f"status {response.status}: {response.read()[:300]!r}")
            return streamed(response) if body["stream"] else whole(response)
        finally:
            if self.number % 2:
                response.close()
                self.connection = None

    def post(self, body: str) -> http.client.HTTPResponse:
        """A kept connection may have been closed meanwhile: then once more, as all pools do."""
        kept = self.connection is not None
        try:
            return self.post_once(body)
        except ENDED:
            if not kept:
                raise
            self.connection = None
            return self.post_once(body)

    def post_once(self, body: str) -> http.client.HTTPResponse:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(host, timeout=180)
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", "/v1/chat/completions", body, headers)
        return self.connection.getresponse()


def whole(response: http.client.HTTPResponse) -> str:
    answer = json.loads(response.read())
    [choice] = answer["choices"]
    if choice["finish_reason"] != "length" or answer["usage"]["completion_tokens"] != tokens:
        raise ValueError(f"not complete: {answer}")
    return choice["message"]["content"]


def streamed(response: http.client.HTTPResponse) -> str:
    text, finish, last = "", None, ""
    for line in response:
        last = line.decode().strip() or last
        if not last.startswith("data: {") or not line.strip():
            continue
        event = json.loads(last.removeprefix("data: "))
        if "error" in event:
            raise ValueError(event["error"])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    if last != "data: [DONE]" or finish != "length":
        raise ValueError(f"the stream ended early, with {last!r}")
    return text


threads = [threading.Thread(target=Client(number).run) for number in range(clients)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
