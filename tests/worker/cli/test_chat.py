"""The terminal chat against a server with known answers."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterable

import pytest

from pd_worker import chat
from tests.worker.cli.conftest import StubServer

ANSWER = "The cache saves work."


async def talk(
    monkeypatch: pytest.MonkeyPatch, lines: Iterable[str | type[BaseException]], url: str
) -> int:
    """Run the chat over these input lines."""
    typed = iter([*lines, EOFError])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)
    options = chat.ChatOptions(url=url, max_tokens=5, system="Be brief.")
    return await asyncio.to_thread(chat.run, options)


async def test_answer_is_printed_and_remembered(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await talk(monkeypatch, ["why?", "and then?"], stub.url) == 0
    assert capsys.readouterr().out.count(ANSWER) == 2
    roles = [message["role"] for message in stub.asked[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert stub.asked[1]["messages"][2]["content"] == ANSWER


async def test_clear_forgets_all_but_the_system_message(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(monkeypatch, ["one", "/clear", "two"], stub.url)
    assert [message["content"] for message in stub.asked[1]["messages"]] == ["Be brief.", "two"]


async def test_ctrl_c_at_the_prompt_does_not_end_the_chat(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await talk(monkeypatch, [KeyboardInterrupt, "hello", "/quit", "never"], stub.url) == 0
    assert len(stub.asked) == 1


async def test_ctrl_c_stops_an_answer_and_not_the_chat(stub: StubServer) -> None:
    stub.hold_after = 2
    words = [sys.executable, "-u", "-m", "pd_worker.cli", "chat", "--url", stub.url]
    process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"one\n")
    await process.stdout.readuntil(b"cache")
    process.send_signal(signal.SIGINT)
    await process.stdout.readuntil(b"[stopped]")
    stub.hold_after = 10**9
    rest, _ = await process.communicate(b"two\n")
    assert process.returncode == 0
    assert rest.startswith(b"\n\n> The cache")
    assert stub.left == 1
    assert stub.asked[1]["messages"][1]["content"].startswith("The cache")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param({"status": 429}, "error: HTTP 429: no", id="refused"),
        pytest.param({"break_after": 0}, "the answer broke off", id="broken-off"),
    ],
)
async def test_failed_question_is_not_remembered(
    fault: dict[str, int],
    message: str,
    stub: StubServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in fault.items():
        monkeypatch.setattr(stub, name, value)
    await talk(monkeypatch, ["one", "two"], stub.url)
    assert message in capsys.readouterr().out
    assert [m["content"] for m in stub.asked[1]["messages"]] == ["Be brief.", "two"]


async def test_server_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await talk(monkeypatch, ["hello"], "http://127.0.0.1:9")
    assert "error: http://127.0.0.1:9" in capsys.readouterr().out
