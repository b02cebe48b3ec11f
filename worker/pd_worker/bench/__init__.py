"""Measurements: `pdserve bench transfer` of the transports, `pdserve bench serve` of a server."""
