"""The certificates of one test cluster, made by openssl in one folder."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pki:
    """A folder of NAME.crt and NAME.key."""

    folder: Path

    def crt(self, name: str) -> Path:
        """Path of a certificate."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Path of a private key."""
        return self.folder / f"{name}.key"

    def base64(self, name: str, *, key: bool = False) -> str:
        """A certificate, or its key, as kubeconfigs and webhooks hold it."""
        file = self.key(name) if key else self.crt(name)
        return base64.b64encode(file.read_bytes()).decode()

    def authority(self, name: str) -> None:
        """A certificate authority."""
        subject = ("-subj", f"/CN={name}", "-days", "365")
        out = ("-keyout", self.key(name), "-out", self.crt(name))
        _openssl("req", "-x509", *_NEW_KEY, *subject, *out)

    def issue(self, name: str, subject: str, *names: str, authority: str = "ca") -> None:
        """A certificate for servers and clients; `names` such as DNS:localhost, IP:127.0.0.1."""
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(
            "extendedKeyUsage=serverAuth,clientAuth\n"
            + (f"subjectAltName={','.join(names)}\n" if names else "")
        )
        out = ("-keyout", self.key(name), "-out", request)
        _openssl("req", *_NEW_KEY, "-subj", subject, *out)
        signer = ("-CA", self.crt(authority), "-CAkey", self.key(authority), "-CAcreateserial")
        out = ("-extfile", extensions, "-out", self.crt(name))
        _openssl("x509", "-req", "-days", "365", "-in", request, *signer, *out)

    def signing_key(self, name: str) -> None:
        """An RSA pair, NAME.key and NAME.pub, for service account tokens."""
        _openssl("genrsa", "-out", self.key(name), "2048")
        public = self.folder / f"{name}.pub"
        _openssl("rsa", "-in", self.key(name), "-pubout", "-out", public)
