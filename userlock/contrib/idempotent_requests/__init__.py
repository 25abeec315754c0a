"""Requests that happen once, for the web integrations: `views`, and the `Flows` of each framework.

Each integration gives its `Flows` (`userlock.contrib.flask.Flows`), and imports it when it is used.
"""
