"""A fake payment provider: a process of its own, with faults that people choose.

ledger.py   charges by key, and the moods. Pure
server.py   HTTP on the loopback interface: `python -m sample_app.payment_provider --port 8124`
client.py   the site's side
"""
