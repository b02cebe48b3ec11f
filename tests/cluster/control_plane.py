"""etcd, kube-apiserver and kube-controller-manager: the real API without any node.

Objects are validated, defaulted and collected, StatefulSets make pods and HPAs act; pods stay
Pending. It runs as any user, on free ports of loopback, and is up in a few seconds. The node
(node.py) puts the same three into a network namespace and adds the rest.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.pki import Pki
from tests.cluster.processes import Processes

SERVICES = "10.96.0"
"""The first three bytes of Service addresses."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the parts listen."""

    etcd: int = 2379
    etcd_peer: int = 2380
    api: int = 6443
    manager: int = 10257

    @classmethod
    def free(cls) -> Ports:
        """Ports of loopback that nobody uses now."""
        etcd, etcd_peer, api, manager = free_ports(4)
        return cls(etcd=etcd, etcd_peer=etcd_peer, api=api, manager=manager)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """The three processes with all that they keep, under `state`."""

    state: Path
    programs: Path
    """The folder with etcd, kube-apiserver, ..."""
    ports: Ports = field(default_factory=Ports)
    address: str = "127.0.0.1"
    """Where the API server says it is; pods reach it there."""
    prefix: Sequence[str] = ("setpriv", "--pdeathsig", "KILL")
    """Put before each command. By default they end with the process that started them."""
    api_flags: Sequence[str] = ()
    """Further ones of kube-apiserver."""
    manager_flags: Sequence[str] = ()
    """Further ones of kube-controller-manager."""

    @property
    def processes(self) -> Processes:
        """What runs."""
        return Processes(folder=self.state, prefix=self.prefix)

    @property
    def pki(self) -> Pki:
        """The certificates."""
        return Pki(folder=self.state / "pki")

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator."""
        return self.state / "admin.conf"

    def start(self) -> None:
        """Start all and return when the API answers and the controllers run."""
        self.pki.folder.mkdir(parents=True)
        self._certificates()
        self.write_kubeconfig(self.kubeconfig, "admin")
        self.write_kubeconfig(self.state / "manager.conf", "manager")
        self._start_etcd()
        self._start_api()
        ready = ("get", "--raw=/readyz")
        self.processes.wait("kube-apiserver", lambda: self._answers(*ready))
        self._start_manager()
        account = ("get", "serviceaccount", "default")  # made by a controller
        manager = "kube-controller-manager"
        self.processes.wait(manager, lambda: self._answers(*account))

    def stop(self) -> None:
        """End all processes."""
        self.processes.stop_all()

    def admit(self, user: str) -> Path:
        """Make a further administrator, whose requests can be told from others'; its kubeconfig."""
        self.pki.issue(user, f"/O=system:masters/CN={user}")
        file = self.state / f"{user}.conf"
        self.write_kubeconfig(file, user)
        return file

    def write_kubeconfig(self, file: Path, user: str, *, port: int = 0) -> None:
        """A kubeconfig with the certificate of `user`."""
        pki = self.pki
        server = {
            "server": f"https://127.0.0.1:{port or self.ports.api}",
            "certificate-authority-data": pki.base64("ca"),
        }
        client = {
            "client-certificate-data": pki.base64(user),
            "client-key-data": pki.base64(user, key=True),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": user, "user": client}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        file.write_text(json.dumps(config))
        file.chmod(0o600)

    def _certificates(self) -> None:
        pki = self.pki
        pki.authority("ca")
        pki.authority("front-proxy")
        hosts = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        addresses = ("127.0.0.1", self.address, f"{SERVICES}.1")
        names = [*(f"DNS:{host}" for host in hosts), *(f"IP:{one}" for one in addresses)]
        pki.issue("apiserver", "/CN=kube-apiserver", *names)
        pki.issue("admin", "/O=system:masters/CN=admin")
        pki.issue("manager", "/CN=system:kube-controller-manager")
        pki.issue("aggregator", "/CN=aggregator", authority="front-proxy")
        pki.signing_key("accounts")

    def _start_etcd(self) -> None:
        clients = f"http://127.0.0.1:{self.ports.etcd}"
        peers = f"http://127.0.0.1:{self.ports.etcd_peer}"
        self.processes.start(
            "etcd",
            self.programs / "etcd",
            *("--data-dir", self.state / "etcd", "--unsafe-no-fsync", "--log-level=warn"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        )

    def _start_api(self) -> None:
        pki, accounts = self.pki, self.pki.key("accounts")
        self.processes.start(
            "kube-apiserver",
            self.programs / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            f"--secure-port={self.ports.api}",
            f"--advertise-address={self.address}",
            *(("--endpoint-reconciler-type=none",) if self.address == "127.0.0.1" else ()),
            f"--service-cluster-ip-range={SERVICES}.0/16",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            f"--tls-cert-file={pki.crt('apiserver')}",
            f"--tls-private-key-file={pki.key('apiserver')}",
            f"--client-ca-file={pki.crt('ca')}",
            f"--service-account-key-file={accounts.with_suffix('.pub')}",
            f"--service-account-signing-key-file={accounts}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--kubelet-client-certificate={pki.crt('admin')}",
            f"--kubelet-client-key={pki.key('admin')}",
            f"--kubelet-certificate-authority={pki.crt('ca')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki.crt('front-proxy')}",
            "--requestheader-allowed-names=aggregator",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki.crt('aggregator')}",
            f"--proxy-client-key-file={pki.key('aggregator')}",
            *self.api_flags,
        )

    def _start_manager(self) -> None:
        config = self.state / "manager.conf"
        self.processes.start(
            "kube-controller-manager",
            self.programs / "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--secure-port={self.ports.manager}",
            f"--cert-dir={self.state / 'manager'}",
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.pki.key('accounts')}",
            f"--root-ca-file={self.pki.crt('ca')}",
            "--horizontal-pod-autoscaler-sync-period=5s",
            "--controllers=*,-nodeipam,-cloud-node-lifecycle",
            *self.manager_flags,
        )

    def _answers(self, *question: str) -> bool:
        """True where kubectl gets an answer."""
        kubectl = (self.programs / "kubectl", f"--kubeconfig={self.kubeconfig}")
        command: list[str | Path] = [*self.prefix, *kubectl, *question]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
