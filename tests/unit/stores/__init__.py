"""Stores, without a server."""
