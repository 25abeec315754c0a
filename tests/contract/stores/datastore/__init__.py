"""Leases in Datastore."""
