"""The `pdserve` command line: what is found, what is refused, and how."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pd_worker import cli
from pd_worker.errors import ModelError


def fake_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A command `broken` that raises `error`."""

    def run(options: object) -> int:
        raise error

    module = type(sys)("broken_command")
    module.run, module.Options = run, cli.Command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broken_command", module)
    command = cli.Command(
        summary="", options="pd_worker.chat:ChatOptions", run="broken_command:run"
    )
    monkeypatch.setitem(cli.COMMANDS, "broken", command)


@pytest.mark.parametrize("args", [["--help"], ["-h"], [], ["bench", "--help"]], ids=" ".join)
def test_overview_lists_commands(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(args) == 0
    assert "bench serve" in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([*name.split(), "--help"])
    assert exit_.value.code == 0
    assert f"usage: pdserve {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(["wörker"], "no command 'wörker'", id="unknown"),
        pytest.param(["bench", "disk"], "no command 'bench disk'", id="unknown-in-group"),
        pytest.param(
            ["worker", "--model", "m", "--page-size", "7"],
            "--page-size: 7 is not supported; use 1, 16 or 64",
            id="config",
        ),
        pytest.param(
            ["up", "--model", "m", "--decode", "0"], "--prefill: a pair needs", id="half-a-pair"
        ),
    ],
)
def test_wrong_command_line_is_one_line_and_status_2(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(args) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        pytest.param(ModelError("no such model"), 1, "error: no such model\n", id="ours"),
        pytest.param(KeyboardInterrupt(), 130, "", id="ctrl-c"),
        pytest.param(
            ModuleNotFoundError("", name="torch"),
            1,
            "error: torch is not installed; pip install 'pdserve[worker]' brings it\n",
            id="extra-missing",
        ),
        pytest.param(
            ModuleNotFoundError("", name="yaml"),
            1,
            "error: yaml is not installed; pip install 'pdserve[operator]' brings it\n",
            id="other-extra-missing",
        ),
    ],
)
def test_errors_end_as_one_line_and_a_status(
    error: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_command(monkeypatch, error)
    assert cli.main(["broken"]) == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("name", ["router", "up", "chat", "worker"])
def test_help_needs_no_torch(name: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"from pd_worker import cli; cli.main(['{name}', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
