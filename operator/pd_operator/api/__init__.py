"""The PDDeployment resource: the one source of its schema, defaults, limits and rules.

What a field means stands under it; crd.py turns all of this into the CustomResourceDefinition.
"""
