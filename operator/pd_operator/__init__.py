"""The operator: PDDeployment resources become prefill and decode workers with a router."""
