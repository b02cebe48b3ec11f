"""Credentials derived from the deployment's one secret, each for its own purpose."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Literal

import zmq
from zmq.utils import z85


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePair:
    """A CURVE key pair in ZMQ's Z85 text. All workers that share the secret share the pair."""

    public: bytes
    private: bytes = field(repr=False)


def _derive(secret: str, purpose: str) -> bytes:
    return hmac.digest(secret.encode(), f"pdserve {purpose}".encode(), hashlib.sha256)


def bootstrap_token(secret: str, right: Literal["read", "write"]) -> str:
    """Bearer token of the bootstrap registry; empty without a secret.

    Decode looks up whatever address a request names, so its token must not let whoever listens
    there register: it reads and nothing else. The token that writes also reads.
    """
    return _derive(secret, f"bootstrap token 1 {right}").hex() if secret else ""


def curve_pair(secret: str) -> CurvePair | None:
    """Key pair of the control sockets; None without a secret."""
    if not secret:
        return None
    private = z85.encode(_derive(secret, "control socket 1"))
    return CurvePair(public=zmq.curve_public(private), private=private)
