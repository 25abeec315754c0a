"""Requests that happen once, for the web integrations.

views.py             keys and parameters of HTTP requests, options of views
flask.py, django.py, wsgi.py    each framework's `Flows`

Each integration gives its `Flows` (`userlock.contrib.flask.Flows`), and imports it when it is used.
"""
