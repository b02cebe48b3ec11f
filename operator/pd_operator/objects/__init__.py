"""The manifests of a deployment's children, one kind of thing a file; all pure."""
