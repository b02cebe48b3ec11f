"""One node with everything that a pod needs: the end-to-end tests' cluster, and a newcomer's.

Root on Linux. etcd, API server and controllers as in control_plane.py, and with them scheduler,
containerd, kubelet, kube-proxy, CoreDNS and metrics-server, in a network namespace that reaches
nothing outside. From the machine, the API server is at a port of loopback: socat carries it
through a unix socket, and kubectl port-forward, exec and logs work through it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from string import Template

from pd_worker.config import cache_dir
from tests.cluster.binaries import ensure
from tests.cluster.client import Client
from tests.cluster.control_plane import SERVICES, ControlPlane
from tests.cluster.images import single_file
from tests.cluster.packages import MissingError, require
from tests.cluster.processes import Processes
from tests.cluster.sandbox import Sandbox

NAME = "pdserve"
STATE = Path("/var/lib/pdserve-cluster")
ADDRESS = "10.250.0.1"
PODS = "10.244.0.0/24"
DNS = f"{SERVICES}.10"
PAUSE = "localhost/pause:1"
OUTSIDE_PORT = 16443
SANDBOX = Sandbox(name=NAME, state=STATE, address=ADDRESS)
PROGRAMS = ("conntrack", "ip", "nft", "openssl", "runc", "socat", "/usr/lib/cni/ptp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Folders of executables."""

    kube: Path
    helm: Path
    node: Path
    dns: Path
    metrics: Path
    pause: Path

    @classmethod
    def ready(cls) -> Programs:
        """All of them, built where they are missing."""
        names = ("kube", "helm", "node", "dns", "metrics", "pause")
        return cls(**dict(zip(names, ensure(*names), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The cluster whose state lies in STATE; there is one of them on a machine."""

    programs: Programs

    @property
    def plane(self) -> ControlPlane:
        """Its control plane."""
        return ControlPlane(
            state=STATE,
            programs=self.programs.kube,
            address=ADDRESS,
            prefix=SANDBOX.enter,
        )

    @property
    def processes(self) -> Processes:
        """What runs beside the pods."""
        return Processes(folder=STATE, prefix=SANDBOX.enter)

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator, for use on the machine."""
        return STATE / "outside.conf"

    @property
    def client(self) -> Client:
        """kubectl and helm for it."""
        helm = self.programs.helm / "helm"
        return Client(kubeconfig=self.kubeconfig, programs=self.programs.kube, helm_program=helm)

    def healthy(self) -> bool:
        """True while it is up."""
        return self.kubeconfig.exists() and self._kubectl("get", "--raw=/readyz")

    def up(self) -> None:
        """Bring it up and return when pods can run; what a crash left is removed first."""
        if os.geteuid() != 0:
            raise MissingError("a node needs root, for containers and their network")
        require(*PROGRAMS)
        down()
        SANDBOX.create()
        self.plane.start()
        (STATE / "models").symlink_to(cache_dir() / "models")
        self.plane.write_kubeconfig(self.kubeconfig, "admin", port=OUTSIDE_PORT)
        self._open_door()
        self._accounts()
        self._start_scheduler()
        self._start_containerd()
        self._start_kubelet()
        self._start_services()

    def load(self, archive: Path) -> None:
        """Make the images of a docker-archive available to pods."""
        server = ("-a", str(STATE / "containerd.sock"), "-n", "k8s.io")
        command = (self.programs.node / "ctr", *server, "images", "import", archive)
        subprocess.run(command, check=True, capture_output=True)

    def _kubectl(self, *arguments: str) -> bool:
        """True where kubectl succeeds."""
        kubectl = (self.programs.kube / "kubectl", f"--kubeconfig={self.kubeconfig}")
        command: list[str | Path] = [*kubectl, *arguments]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _open_door(self) -> None:
        socket = STATE / "api.sock"
        inside = ("socat", f"UNIX-LISTEN:{socket},fork", "TCP:127.0.0.1:6443")
        self.processes.start("door-inside", *inside)
        listen = f"TCP-LISTEN:{OUTSIDE_PORT},bind=127.0.0.1,reuseaddr,fork"
        outside = ("socat", listen, f"UNIX-CONNECT:{socket}")
        self.processes.start("door-outside", *outside, prefix=SANDBOX.join)
        self.processes.wait("door-outside", lambda: self._kubectl("get", "--raw=/readyz"))

    def _accounts(self) -> None:
        pki = self.plane.pki
        pki.issue("scheduler", "/CN=system:kube-scheduler")
        pki.issue("proxy", "/CN=system:kube-proxy")
        node = "/O=system:nodes/CN=system:node:node"
        pki.issue("kubelet", node, "DNS:node", f"IP:{ADDRESS}")
        for user in ("scheduler", "proxy", "kubelet"):
            self.plane.write_kubeconfig(STATE / f"{user}.conf", user)

    def _start_scheduler(self) -> None:
        program, config = self.programs.kube / "kube-scheduler", STATE / "scheduler.conf"
        flags = (f"--kubeconfig={config}", "--leader-elect=false")
        self.processes.start("kube-scheduler", program, *flags)

    def _start_containerd(self) -> None:
        (STATE / "cni").mkdir()
        _render("cni.conflist", STATE / "cni" / "pdserve.conflist")
        config = _render("containerd.toml", STATE / "containerd.toml")
        # containerd looks for its shim, and the shim for runc, on PATH.
        path = f"PATH={self.programs.node}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin"
        command = ("env", path, self.programs.node / "containerd", "--config", config)
        self.processes.start("containerd", *command)
        self.processes.wait("containerd", (STATE / "containerd.sock").is_socket)
        self.load(single_file(PAUSE, self.programs.pause / "pause"))

    def _start_kubelet(self) -> None:
        self.processes.start(
            "kubelet",
            self.programs.kube / "kubelet",
            f"--config={_render('kubelet.yaml', STATE / 'kubelet.yaml')}",
            f"--kubeconfig={STATE / 'kubelet.conf'}",
            f"--root-dir={STATE / 'kubelet'}",
            f"--node-ip={ADDRESS}",
            "--hostname-override=node",
        )
        config = _render("proxy.yaml", STATE / "proxy.yaml")
        self.processes.start("kube-proxy", self.programs.kube / "kube-proxy", f"--config={config}")
        ready = ("wait", "--for=condition=Ready", "node/node", "--timeout=1s")
        self.processes.wait("kubelet", lambda: self._kubectl(*ready))

    def _start_services(self) -> None:
        self._kubectl("apply", "-f", str(_render("services.yaml", STATE / "services.yaml")))
        corefile = _render("Corefile", STATE / "Corefile")
        self.processes.start("coredns", self.programs.dns / "coredns", "-conf", corefile)
        admin = self.plane.kubeconfig
        self.processes.start(
            "metrics-server",
            self.programs.metrics / "metrics-server",
            *(f"--{what}kubeconfig={admin}" for what in ("", "authentication-", "authorization-")),
            "--secure-port=4443",
            f"--cert-dir={STATE / 'metrics-server'}",
            f"--kubelet-certificate-authority={STATE / 'pki' / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--metric-resolution=10s",
            "--kubelet-request-timeout=5s",
        )
        dns = ("get", "--raw=/api/v1/nodes/node:8181/proxy/ready")
        self.processes.wait("coredns", lambda: self._kubectl(*dns))
        self.processes.wait("metrics-server", lambda: self._kubectl("top", "node"))


def down() -> None:
    """Remove every trace of the cluster: pods, processes, network, mounts, state."""
    SANDBOX.remove()
    if STATE.exists():
        shutil.rmtree(STATE)


def _render(name: str, file: Path) -> Path:
    """Fill in a template of config/."""
    values = {"state": STATE, "address": ADDRESS, "pods": PODS, "dns": DNS}
    text = (Path(__file__).parent / "config" / name).read_text()
    file.write_text(Template(text).substitute(values, cgroup=NAME, pause=PAUSE))
    return file
