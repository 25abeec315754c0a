"""Values that anyone with access to a lease store may leave under a lock's key."""

from __future__ import annotations

import json

from hypothesis import settings
from hypothesis import strategies as st

from tests.property.test_record_garbage import records

#: Texts that have an effect if they are not escaped.
TEXTS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "</code></td></tr></table><form action=//evil.example>",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b]0;owned\x07\x1b[2J\x1b[31m",
    "\x9b2J",
    "GET /\r\nWARNING userlock: lock 'bob' broken by ops",
    "\u202eevil\u2066\u200b",
    "%s %d %(lock_id)s {0}",
    "\ud800",
    "\0",
]

_texts = st.sampled_from(TEXTS) | st.text(max_size=20)
_times = st.one_of(st.just(1.0), st.floats(), st.floats().map(str))


@st.composite
def ours(draw: st.DrawFn) -> bytes:
    """Draw a record in our format, with malicious texts and times."""
    token = draw(st.just("4f01") | _texts)
    lines = [
        [token, draw(_texts), draw(_times), draw(_times), draw(_texts), draw(_texts)],
        [draw(_texts), draw(_times), draw(_texts)],
        [draw(_texts), draw(_texts)],
    ]
    holder, blocked, waiter = (json.dumps(each).encode() for each in lines)
    word = token.encode("utf-8", "surrogatepass")
    since = str(draw(st.floats())).encode()
    parts = [holder, b"! " + word + b" " + blocked, b"+i 4f02 " + since + b" " + waiter]
    if draw(st.booleans()):
        parts.append(b"= " + word + b" " + json.dumps(draw(_texts)).encode())
    return b"\n".join(parts)


#: All possible values, ours or not.
values = st.one_of(
    ours(),
    records,
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(TEXTS).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [
            b"",
            b"\x80\x04\x95.",
            b"9" * 100_000,
            '["4f01","interactive",1e999,-1,"\u202eweb\\u001b[31m","GET /\\n"]'.encode(),
        ]
    ),
)

unhurried = settings(deadline=None, max_examples=30)
