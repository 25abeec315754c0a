"""The emulator, memcached and the site, started and stopped together.

with Stack() as stack:
    urllib.request.urlopen(stack.app_url)
    stack.memcached.kill()
    stack.memcached.restart()
"""

from sample_app.stack.children import Child, ChildDied
from sample_app.stack.ports import PortTaken
from sample_app.stack.stack import Stack

__all__ = ["Child", "ChildDied", "PortTaken", "Stack"]
