"""The CustomResourceDefinition, made from the classes in api/.

A field's type gives its schema, the text under it its description, its default the default; a
default object is written out whole, because the API server checks rules against it before it fills
in what is nested.
"""

from __future__ import annotations

import ast
import inspect as source
import sys
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import inspect

from pd_operator import names
from pd_operator.api.markers import Part, to_manifest
from pd_operator.api.spec import Spec
from pd_operator.api.status import Status

Schema = dict[str, Any]

NAME_RULE = {
    "rule": f"self.metadata.name.size() <= {names.MAX_NAME}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "message": f"metadata.name must have at most {names.MAX_NAME} characters, begin with a letter"
    " and hold only lower-case letters, digits and '-'",
}
COLUMNS = (
    ("Ready", "string", ".status.size", "Ready and wanted workers", 0),
    ("Phase", "string", ".status.phase", "Summary", 0),
    ("Rollout", "string", '.status.conditions[?(@.type=="RolloutComplete")].reason', "Rollout", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Age", 0),
    ("URL", "string", ".status.url", "Where it is served", 0),
    ("Model", "string", ".spec.model.source", "Model", 1),
    ("Revision", "string", ".status.updateRevision", "Wanted revision", 1),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why not ready", 1),
)


def definition() -> Schema:
    """The CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": names.CRD_NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": ["pdd"],
                "categories": ["inference"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in COLUMNS],
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, text: str, priority: int) -> Schema:
    column = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return column | ({"priority": priority} if priority else {})


def _root() -> Schema:
    return {
        "type": "object",
        "description": source.getdoc(Spec),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": part_schema(Spec),
            "status": part_schema(Status),
        },
        "x-kubernetes-validations": [NAME_RULE],
    }


def part_schema(part: type[msgspec.Struct]) -> Schema:
    """The structural schema of a class of the API."""
    info = inspect.type_info(part)
    assert isinstance(info, inspect.StructType)
    texts = _texts(part)
    required = [field.encode_name for field in info.fields if field.required]
    schema: Schema = {
        "type": "object",
        "description": source.getdoc(part),
        "properties": {
            field.encode_name: _field(field) | {"description": texts[field.name]}
            for field in info.fields
        },
    }
    if required:
        schema["required"] = required
    if issubclass(part, Part) and part.rules:
        schema["x-kubernetes-validations"] = [rule._asdict() for rule in part.rules]
    return schema


@cache
def _texts(part: type[msgspec.Struct]) -> dict[str, str]:
    """The text under each field of a class."""
    tree = ast.parse(source.getsource(sys.modules[part.__module__]))
    [body] = [
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == part.__name__
    ]
    return {
        field.target.id: source.cleandoc(text.value.value).replace("\n", " ")
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _field(field: inspect.Field) -> Schema:
    schema = _schema(field.type)
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT or default is None or default == {}:
        return schema
    return schema | {"default": to_manifest(default)}


def _schema(kind: inspect.Type, extra: dict[str, Any] | None = None) -> Schema:
    extra = extra or {}
    match kind:
        case inspect.Metadata():
            return _schema(kind.type, extra | (kind.extra or {}))
        case inspect.UnionType() if not extra.get("int_or_string"):
            [only] = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return _schema(only, extra)
        case inspect.UnionType():
            return _int_or_string(extra)
        case inspect.StructType():
            return part_schema(kind.cls)
        case inspect.VarTupleType():
            return _list(kind, extra)
        case inspect.DictType():
            return _map(kind, extra)
        case inspect.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return _bounded("integer", minimum=kind.ge, maximum=kind.le)
        case inspect.StrType():
            limits = {"minLength": kind.min_length, "maxLength": kind.max_length}
            return _bounded("string", **limits, pattern=kind.pattern)
    raise TypeError(f"no schema for {kind}")


def _bounded(kind: str, **limits: Any) -> Schema:
    return {"type": kind} | {name: value for name, value in limits.items() if value is not None}


def _int_or_string(extra: dict[str, Any]) -> Schema:
    schema: Schema = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 32,
    }
    return schema | ({"pattern": extra["pattern"]} if "pattern" in extra else {})


def _list(kind: inspect.VarTupleType, extra: dict[str, Any]) -> Schema:
    schema = _bounded("array", maxItems=kind.max_length) | {"items": _schema(kind.item_type)}
    if extra.get("keys"):
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [*extra["keys"]]}
    elif extra.get("set"):
        schema["x-kubernetes-list-type"] = "set"
    return schema


def _map(kind: inspect.DictType, extra: dict[str, Any]) -> Schema:
    if extra.get("preserve"):
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    values = {"additionalProperties": _schema(kind.value_type)}
    return _bounded("object", maxProperties=kind.max_length) | values
