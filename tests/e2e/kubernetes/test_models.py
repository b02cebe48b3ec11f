"""Where models come from on a real node: here an image that is mounted as a volume."""

from __future__ import annotations

import pytest

from tests.cluster.target import Target
from tests.e2e.kubernetes.conftest import Space, example, load

pytestmark = [pytest.mark.node, pytest.mark.model, pytest.mark.timeout(600)]


def test_a_model_from_an_image_volume(operator: Target, space: Space) -> None:
    if not operator.model_image:
        pytest.skip("PDSERVE_E2E_MODEL_IMAGE names no image that holds the model")
    made = example(operator)
    made["metadata"]["name"] = "from-image"
    made["spec"]["model"] = {
        "source": f"oci://{operator.model_image}",
        "servedName": "smollm2-135m",
    }
    operator.client.apply(made, namespace=space.name)
    space.size("1P1D", "from-image")
    url = space.kubectl("get", "pdd", "from-image", "-o=jsonpath={.status.url}")
    with load(space, url) as clients:
        clients.more(2)
    space.kubectl("delete", "pdd", "from-image")
