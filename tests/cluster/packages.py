"""The machine's own programs: present, or installed where that is possible (root on Debian)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "nft": "nftables",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "runc": "runc",
    "socat": "socat",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
"""Program -> Debian package."""


class MissingError(Exception):
    """A program is not installed and cannot be; the message says what to do."""


def require(*programs: str) -> None:
    """Make sure that these are installed."""
    missing = sorted(PACKAGES[name] for name in programs if not shutil.which(name))
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingError(f"not installed: {', '.join(missing)} (apt-get install them as root)")
    print(f"cluster: installing {', '.join(missing)}", file=sys.stderr)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in ("update", "install --yes --no-install-recommends"):
        packages = missing if command != "update" else []
        run = ["apt-get", "-qq", *command.split(), *packages]
        subprocess.run(run, env=quiet, check=True, capture_output=True)
