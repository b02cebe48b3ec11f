"""What the API's classes are made of: their base, their rules, and the types that fields share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, to_builtins


class Rule(NamedTuple):
    """A CEL expression that must hold for an object, and what the user reads where it does not."""

    rule: str
    message: str


class Part(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the resource; the API server checks its `rules`."""

    rules: ClassVar[tuple[Rule, ...]] = ()


def at_most(count: int, **extra: Any) -> Meta:
    """A list of at most `count` items; `keys` or `set` in `extra` is its list type."""
    return Meta(max_length=count, extra=extra)


OPAQUE = Meta(extra={"preserve": True})
"""An object of Kubernetes' own, which Kubernetes itself checks where it is used."""

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Text = Annotated[str, Meta(max_length=1024)]
Path = Annotated[str, Meta(max_length=1024, pattern=r"^/.*")]
ImageName = Annotated[str, Meta(min_length=1, max_length=1024)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=0, le=10000)]
Seconds = Annotated[int, Meta(ge=0, le=86400)]
SomeSeconds = Annotated[int, Meta(ge=1, le=86400)]
Quantity = Annotated[
    str | int,
    Meta(
        extra={
            "int_or_string": True,
            "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?$",
        }
    ),
]
IntOrPercent = Annotated[
    str | int, Meta(extra={"int_or_string": True, "pattern": r"^(100|[1-9]?[0-9])%$"})
]
Labels = Annotated[dict[str, Text], Meta(max_length=64)]
Quantities = Annotated[dict[str, Quantity], Meta(max_length=32)]
Opaque = Annotated[dict[str, Any], OPAQUE]
Need = Literal["None", "Preferred", "Required"]
"""How much a wish about placement counts."""


class EnvVar(Part, frozen=True, kw_only=True):
    """An environment variable, as in a container."""

    name: Name
    """Its name."""
    value: Annotated[str, Meta(max_length=32768)] | None = None
    """Its value; $(NAME) of an earlier variable is filled in."""
    value_from: Opaque | None = None
    """Where its value comes from: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef."""


class LocalRef(Part, frozen=True, kw_only=True):
    """The name of an object in the same namespace."""

    name: Name
    """Its name."""


class Resources(Part, frozen=True, kw_only=True):
    """Resources of a container, as in a container."""

    requests: Quantities = {}
    """What the scheduler sets aside."""
    limits: Quantities = {}
    """What it may use at most."""


Env = Annotated[tuple[EnvVar, ...], at_most(100, keys=("name",))]


def refuse_flags(path: str, *names: str) -> Rule:
    """No item of the list at `path` may be one of these flags, in any spelling."""
    flags = "|".join(name.replace("-", "[-_]") for name in names)
    return Rule(
        f"{path}.all(a, !a.matches('^--({flags})(=.*)?$'))",
        f"{path.removeprefix('self.')} has a flag that other fields set ({', '.join(names)})",
    )


def to_manifest(value: Any) -> Any:
    """A part as plain JSON values, without what is absent or an empty object."""
    return _present(to_builtins(value))


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        inner = {name: _present(item) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item is not None and item != {}}
    return [_present(item) for item in value] if isinstance(value, list | tuple) else value
