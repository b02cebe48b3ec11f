"""How KV moves between the roles: transport, RDMA devices, and who sits near whom."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pd_operator.api.markers import Name, Need, Part, Path, Port, Rule, SomeSeconds, at_most


class Transfer(Part, frozen=True, kw_only=True):
    """The KV transfer."""

    backend: Literal["Mooncake", "NIXL", "Mori", "Ascend", "Fake"] = "Mooncake"
    """Who moves the bytes. Mori and Ascend only with SGLang; Fake moves none (tests)."""
    bootstrap_port: Port = 8998
    """Port of a prefill worker's bootstrap server."""
    bootstrap_timeout_seconds: SomeSeconds = 120
    """Longest wait of one side for the other to appear."""
    waiting_timeout_seconds: SomeSeconds = 300
    """Longest wait of decode for the last byte, prefill's queue and forward included."""


class PortRange(Part, frozen=True, kw_only=True):
    """Ports of the host."""

    rules: ClassVar = (Rule("self.last - self.first >= 3", "hostPorts needs at least 4 ports"),)

    first: Port = 20000
    """The first."""
    last: Port = 29999
    """The last."""


class Rdma(Part, frozen=True, kw_only=True):
    """RDMA devices of the workers."""

    rules: ClassVar = (
        Rule(
            "self.mode != 'DevicePlugin' || has(self.resourceName)",
            "rdma.mode DevicePlugin needs rdma.resourceName",
        ),
        Rule(
            "self.mode != 'ResourceClaim' || has(self.claimTemplateName)",
            "rdma.mode ResourceClaim needs rdma.claimTemplateName",
        ),
        Rule(
            "self.mode != 'HostDevices' || self.allowPrivileged",
            "rdma.mode HostDevices runs privileged pods, which see every GPU of their node:"
            " set rdma.allowPrivileged to accept that",
        ),
        Rule(
            "self.mode == 'HostDevices' || !self.allowPrivileged",
            "rdma.allowPrivileged has no use without rdma.mode HostDevices",
        ),
    )

    mode: Literal["None", "DevicePlugin", "HostDevices", "ResourceClaim"] = "None"
    """None: TCP. DevicePlugin: a resource of a device plugin. HostDevices: the host's device
    files in a privileged pod. ResourceClaim: a claim of dynamic resource allocation."""
    resource_name: Name | None = None
    """DevicePlugin: the resource, such as rdma/hca_shared_devices_a."""
    count: Annotated[int, Meta(ge=1, le=64)] = 1
    """DevicePlugin: how many of it a pod gets."""
    devices: Annotated[tuple[Name, ...], at_most(32, set=True)] = ()
    """Devices that both roles use, such as mlx5_0; absent lets the engine choose by topology."""
    host_device_path: Path = "/dev/infiniband"
    """HostDevices: folder of the device files."""
    allow_privileged: bool = False
    """HostDevices: accept privileged pods."""
    networks: Annotated[tuple[Name, ...], at_most(16, set=True)] = ()
    """Multus networks, NAMESPACE/NAME."""
    claim_template_name: Name | None = None
    """ResourceClaim: the ResourceClaimTemplate."""
    gid_index: Annotated[int, Meta(ge=0, le=255)] | None = None
    """RoCE: index of the GID; absent lets the library choose."""
    host_network: bool = False
    """Workers use the host's network; their ports come from hostPorts."""
    host_ports: PortRange = PortRange()
    """hostNetwork: where a deployment's ports are chosen from."""
    required: bool = True
    """A worker without an ACTIVE port fails with RDMAUnavailable instead of using TCP."""


class Topology(Part, frozen=True, kw_only=True):
    """Placement of the roles to each other."""

    rules: ClassVar = (
        Rule("self.colocate == 'None' || has(self.key)", "topology.colocate needs topology.key"),
    )

    key: Name | None = None
    """Node label of a fast domain: rack, rail group, NVLink domain."""
    colocate: Need = "None"
    """Keep prefill and decode of a deployment in one domain of `key`."""
    separate_nodes: Need = "None"
    """Keep prefill and decode on different nodes."""
