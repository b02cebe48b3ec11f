"""The kinds of objects that the operator reads and writes, and their URL paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pd_operator import names


class Kind(NamedTuple):
    """A kind of API object."""

    api_version: str
    name: str
    plural: str

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of one object, or of all where parts are empty."""
        root = "/apis" if self.group else "/api"
        parts = [root, self.api_version]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, name, subresource]
        return "/".join(part for part in parts if part)


PDDEPLOYMENT = Kind(names.API_VERSION, names.KIND, names.PLURAL)
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
POD = Kind("v1", "Pod", "pods")
SECRET = Kind("v1", "Secret", "secrets")
CONTROLLER_REVISION = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
EVENT = Kind("events.k8s.io/v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
ACCESS_REVIEW = Kind(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"
)
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")

ALWAYS = (
    STATEFUL_SET,
    DEPLOYMENT,
    Kind("v1", "Service", "services"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
)
OPTIONAL = (POD_MONITOR, SCALED_OBJECT)
"""Children only where the cluster knows them."""
_BY_NAME = {
    (kind.api_version, kind.name): kind for kind in (*ALWAYS, *OPTIONAL, SECRET, PDDEPLOYMENT)
}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """The kind of a manifest that the operator applies."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]
