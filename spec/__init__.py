"""The protocol as a model in Promela, and its checks: see README.md in this folder."""
