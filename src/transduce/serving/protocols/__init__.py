"""Protocols of other services: each module has PREFIXES, routes and error (see app.py)."""
