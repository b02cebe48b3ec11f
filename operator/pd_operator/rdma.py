"""How RDMA devices reach a worker pod, and the check that they are there."""

from __future__ import annotations

from dataclasses import dataclass, field

from pd_operator.api.fabric import Rdma
from pd_operator.engines.base import variable
from pd_operator.resource import Manifest

NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
CHECK = "rdma-check"
"""Name of the init container; its termination message is the reason shown in the status."""
# Without privileges: device files say what this pod may open, sysfs what state the ports are in.
SCRIPT = """\
fail() { echo "$1" | tee /dev/termination-log; exit 1; }
ls "$RDMA_DEVICES"/uverbs* >/dev/null 2>&1 ||
  fail "no RDMA device in $RDMA_DEVICES: the device plugin gave none to this pod"
names=${RDMA_NAMES:-$(ls /sys/class/infiniband 2>/dev/null)}
for name in $names; do
  for state in /sys/class/infiniband/"$name"/ports/*/state; do
    grep -q ACTIVE "$state" 2>/dev/null && exit 0
  done
done
fail "no RDMA port is ACTIVE among: ${names:-none}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What RDMA adds to a pod and its worker container."""

    resources: dict[str, int | str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    env: tuple[Manifest, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    claims: tuple[Manifest, ...] = ()
    """Of the pod; the container uses all of them."""
    checked: bool = False
    """An init container looks for an ACTIVE port first."""


def bind(rdma: Rdma) -> Binding:
    """The binding for the resource's `rdma` part."""
    if rdma.mode == "None":
        return Binding()
    host = rdma.mode == "HostDevices"
    return Binding(
        resources={str(rdma.resource_name): rdma.count} if rdma.mode == "DevicePlugin" else {},
        # Memory that a NIC writes to must be locked; that is allowed to root with IPC_LOCK only.
        capabilities=("IPC_LOCK",),
        privileged=host,
        volumes=({"name": "rdma", "hostPath": {"path": rdma.host_device_path}},) if host else (),
        mounts=({"name": "rdma", "mountPath": "/dev/infiniband"},) if host else (),
        env=tuple(_environment(rdma)),
        annotations={NETWORKS_ANNOTATION: ",".join(rdma.networks)} if rdma.networks else {},
        claims=_claims(rdma),
        checked=rdma.required,
    )


def _environment(rdma: Rdma) -> list[Manifest]:
    env = []
    if rdma.gid_index is not None:
        names = ("MC_GID_INDEX", "NCCL_IB_GID_INDEX")
        env += [variable(name, str(rdma.gid_index)) for name in names]
    if rdma.devices:
        env.append(variable("NCCL_IB_HCA", ",".join(rdma.devices)))
    return env


def _claims(rdma: Rdma) -> tuple[Manifest, ...]:
    if rdma.mode != "ResourceClaim":
        return ()
    return ({"name": "rdma", "resourceClaimTemplateName": rdma.claim_template_name},)


def check_environment(rdma: Rdma) -> list[Manifest]:
    """What SCRIPT reads."""
    return [
        variable("RDMA_DEVICES", "/dev/infiniband"),
        variable("RDMA_NAMES", " ".join(rdma.devices)),
    ]
