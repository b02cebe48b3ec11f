"""Manifests without a cluster: `python -m pd_operator render`, `crd` and the golden files."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from pd_operator import names
from pd_operator.crd import definition
from pd_operator.desired import Choices, desired_state
from pd_operator.errors import InvalidSpec
from pd_operator.objects.access import secret
from pd_operator.options import CrdOptions, RenderOptions
from pd_operator.resource import Manifest, Resource

GENERATED = "# Made by `python -m pd_operator crd` from operator/pd_operator/api; do not edit.\n"


def render(options: RenderOptions) -> int:
    """Print the children of every PDDeployment of a file. Raises InvalidSpec."""
    text = sys.stdin.read() if str(options.file) == "-" else options.file.read_text()
    choices = Choices(
        optional_kinds=frozenset(options.kinds), operator_namespace=options.operator_namespace
    )
    for body in yaml.safe_load_all(text):
        if body and body.get("kind") == names.KIND:
            manifests = list(rendered(body, options.namespace, choices))
            sys.stdout.write(yaml_of(manifests))
    return 0


def rendered(body: Manifest, namespace: str, choices: Choices) -> Iterator[Manifest]:
    """The children of one deployment, the Secret included. There is no owner to refer to yet, so
    that whoever applies them owns them. Raises InvalidSpec, also for unknown fields."""
    refuse_unknown(body)
    meta = {"namespace": namespace} | (body.get("metadata") or {})
    resource = Resource.parse(body | {"metadata": meta})
    for manifest in [
        secret(resource, resource.secret, secrets.token_hex(32)),
        *desired_state(resource, choices),
    ]:
        if not resource.uid:
            del manifest["metadata"]["ownerReferences"]
        yield manifest


def refuse_unknown(body: Manifest) -> None:
    """Raises InvalidSpec where the spec has a field that the API server would drop."""
    unknown = list(unknown_fields(body.get("spec") or {}, _spec_schema(), "spec"))
    if unknown:
        raise InvalidSpec(f"unknown field {', '.join(unknown)}")


def unknown_fields(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths in `value` that the schema does not have."""
    if schema.get("type") == "array" and isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_fields(item, schema["items"], f"{path}[{index}]")
    known = schema.get("properties")
    if known is None or not isinstance(value, dict):
        return
    for name, item in value.items():
        if name in known:
            yield from unknown_fields(item, known[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}"


def _spec_schema() -> dict[str, Any]:
    [version] = definition()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def crd(options: CrdOptions) -> int:
    """Print or write the CustomResourceDefinition."""
    text = crd_text()
    for path in options.write:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if not options.write:
        sys.stdout.write(text)
    return 0


def crd_text() -> str:
    """The file's text."""
    return GENERATED + yaml_of([definition()])


class _Dumper(yaml.SafeDumper):
    """Block style, lists indented, long texts of several lines as blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_of(manifests: list[Manifest]) -> str:
    """YAML documents, fields in the order in which they were made."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=100, explicit_start=True)
