"""Credentials derived from the deployment's one secret, each for its own purpose."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePair:
    """A CURVE key pair in ZMQ's Z85 text. All workers that share the secret share the pair."""

    public: bytes
    private: bytes = field(repr=False)


def _derive(secret: str, purpose: str) -> bytes:
    return hmac.digest(secret.encode(), f"pdserve {purpose}".encode(), hashlib.sha256)


def bootstrap_token(secret: str) -> str:
    """Bearer token of the bootstrap registry; empty without a secret."""
    return _derive(secret, "bootstrap token 1").hex() if secret else ""


def curve_pair(secret: str) -> CurvePair | None:
    """Key pair of the control sockets; None without a secret."""
    if not secret:
        return None
    private = z85.encode(_derive(secret, "control socket 1"))
    return CurvePair(public=zmq.curve_public(private), private=private)
