"""Every flag that is rendered for SGLang exists there, with the value that it gets.

The definitions are read from the sources of the packages, which are fetched once and kept; nothing
of them is imported.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pd_operator.desired import Choices, desired_state
from pd_operator.engines.pdserve import POLICIES
from pd_operator.engines.sglang import BACKENDS
from pd_operator.resource import Manifest, Resource
from pd_worker.config import cache_dir

pytestmark = pytest.mark.timeout(600)  # for the first time

EXAMPLE = Path(__file__).parents[2] / "examples/pddeployment-sglang.yaml"
SERVER, ROUTER = "sglang==0.5.23", "sglang-router==0.3.2"
KEPT = {
    SERVER: ("sglang/srt/arg_groups", "sglang/srt/environ.py"),
    ROUTER: ("sglang_router/router_args.py",),
}


def source(requirement: str) -> Path:
    """The kept files of a package; skips where it cannot be had."""
    place = cache_dir() / "sources" / requirement
    if not place.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            install(requirement, folder)
            half = place.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            for name in KEPT[requirement]:
                (half / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(Path(folder) / name, half / name)
            half.rename(place)
    return place


def install(requirement: str, folder: str) -> None:
    uv = shutil.which("uv") or str(cache_dir() / "uv" / "bin" / "uv")
    tool = [uv, "pip", "install", "--python", sys.executable]
    if not Path(uv).exists():
        tool = [f"{sys.base_prefix}/bin/python3", "-m", "pip", "install"]
    command = [*tool, "-q", "--no-deps", "--target", folder, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be fetched: {done.stderr.strip()[-200:]}")


def strings(node: ast.AST) -> list[str]:
    return [
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


def server_flags(tree: ast.Module) -> Iterator[str]:
    """Of classes whose annotated fields become flags."""
    for field in ast.walk(tree):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield "--" + field.target.id.replace("_", "-")
            for keyword in ast.walk(field.annotation):
                if isinstance(keyword, ast.keyword) and keyword.arg in ("aliases", "cli_name"):
                    yield from strings(keyword.value)


@pytest.fixture(scope="module")
def known_to_server() -> set[str]:
    files = (source(SERVER) / "sglang/srt/arg_groups/fields").glob("*.py")
    return {flag for path in files for flag in server_flags(ast.parse(path.read_text()))}


@pytest.fixture(scope="module")
def router_tree() -> ast.Module:
    return ast.parse((source(ROUTER) / "sglang_router/router_args.py").read_text())


def arguments(tree: ast.Module) -> dict[str, list[str]]:
    """Flags of add_argument calls, f"--{prefix}name" among them, with their choices."""
    found = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            flag = "".join(strings(call.args[0]))
            choices = [k.value for k in call.keywords if k.arg == "choices"]
            found["--" + flag.removeprefix("--")] = strings(choices[0]) if choices else []
    return found


def rendered(**spec: object) -> dict[str, Manifest]:
    """The first container of each workload, by component."""
    body = yaml.safe_load(EXAMPLE.read_text())
    body["spec"] |= spec
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"][
            "containers"
        ][0]
        for each in desired_state(Resource.parse(body), Choices())
        if each["kind"] in ("StatefulSet", "Deployment")
    }


def flags(container: Manifest) -> set[str]:
    words = [*container["args"], *(" ".join(container["command"])).split()]
    return {word.partition("=")[0] for word in words if word.startswith("--")}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_server_knows_every_flag(known_to_server: set[str], role: str) -> None:
    used = flags(rendered(**{role: {"gpus": 8, "nodesPerWorker": 2}})[role])
    assert {"--disaggregation-mode", "--node-rank", "--dist-init-addr"} <= used
    assert used <= known_to_server


def test_server_knows_every_backend() -> None:
    tree = ast.parse((source(SERVER) / "sglang/srt/arg_groups/choices.py").read_text())
    [choices] = [
        strings(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "DISAGG_TRANSFER_BACKEND_CHOICES"  # type: ignore[attr-defined]
    ]
    assert set(BACKENDS.values()) <= set(choices)


def test_server_knows_every_variable() -> None:
    known = (source(SERVER) / "sglang/srt/environ.py").read_text()
    names = [each["name"] for each in rendered()["decode"]["env"]]
    used = [name for name in names if name.startswith("SGLANG_")]
    assert len(used) == 3
    assert [name for name in used if f" {name} = " not in known] == []


def test_router_knows_every_flag_and_policy(router_tree: ast.Module) -> None:
    known = arguments(router_tree)
    assert flags(rendered()["router"]) <= set(known)
    for flag in ("--policy", "--decode-policy"):
        assert set(POLICIES.values()) <= set(known[flag])
