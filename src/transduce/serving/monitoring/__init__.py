"""Metrics of a server, for Prometheus."""
