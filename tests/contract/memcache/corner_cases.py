"""Conversations in which memcached's reply is surprising.

Each starts with the items of `PREPARED` in the cache.
"""

from __future__ import annotations

LONG_KEY = b"k" * 251

PREPARED = b"set a 0 0 1\r\n1\r\nset b 5 0 1\r\nx\r\nset c 0 100 1\r\n9\r\nset n 0 0 2\r\n10\r\n"

CORNER_CASES = [
    (b"set " + LONG_KEY + b" 0 0 1\r\na\r\n"),
    (b"set a 0 0 -1\r\n\r\n"),
    (b"set a 0 0 1\r\nabc\r\n"),
    (b"set a 0 0 3\r\na\r\nversion\r\n"),
    (b"set a b 0 1\r\na\r\n"),
    (b"set a 0 0 1 noreply\r\nabcdefg\r\nversion\r\n"),
    (b"set a -1 0 1\r\na\r\n"),
    (b"set a 4294967296 0 1\r\na\r\n"),
    (b"set a 4294967295 0 1\r\na\r\nget a\r\n"),
    (b"set a 0 0 1 norepl\r\na\r\n"),
    (b"set a 0 0 1 x noreply\r\na\r\n"),
    (b"set a 0 0 2\r\n10\r\ndecr a 1\r\nget a\r\n"),
    (b"set a 0 0 2\r\n10\r\nmg a v\r\ndecr a 1\r\nget a\r\n"),
    (
        b"gets a\r\nset a 0 0 1\r\n1\r\ngets a\r\nset b 0 0 1\r\n1\r\ngets b\r\n"
        b"add a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\ngets b\r\nappend a 0 0 1\r\nx\r\n"
        b"gets a\r\n"
    ),
    (b"decr n 15\r\nget n\r\nincr n 4\r\nget n\r\n"),
    (b"append b 0 0 1\r\n>\r\nprepend b 0 0 1\r\n<\r\nget b\r\n"),
    (b"cas b 0 0 1 @2\r\ny\r\ncas b 0 0 1 @2\r\nz\r\nget b\r\n"),
    (b"cas b 0 -1 0 @2\r\n\r\nget b\r\nadd b 0 0 1\r\nx\r\ncas b 0 -1 0 @2\r\n\r\nget b\r\n"),
    (b"cas a 0 0 1 0\r\nz\r\ngets a\r\n"),
    (b"ms a 1\r\nx\r\n"),
    (b"ms a S1\r\nx\r\n"),
    (b"ms a 1 c\r\nx\r\n"),
    (b"ms a 1 ME c\r\nx\r\n"),
    (b"ms b 1 MX\r\nx\r\nmn\r\n"),
    (b"ms b 1 M\r\nx\r\nmn\r\n"),
    (b"ms b 1 MEE\r\nx\r\nmn\r\n"),
    (b"ms b 1 C1 c k O1\r\nx\r\n"),
    (b"ms nonex 1 C1 c k O1\r\nx\r\n"),
    (b"ms b 1 q\r\nx\r\nmn\r\n"),
    (b"ms b 1 ME q k\r\nx\r\nmn\r\n"),
    (b"ms b abc\r\nx\r\nmn\r\n"),
    (b"ms b 1 Z\r\nx\r\nmn\r\n"),
    (b"ms b 1 c c\r\nx\r\nmn\r\n"),
    (b"ms b 1 q\r\nxyz\r\nmn\r\n"),
    (b"ms b 1 T\r\nx\r\nmg b t\r\n"),
    (b"ms b 1 Tabc\r\nx\r\n"),
    (b"ms b 1 Fabc\r\nx\r\nmn\r\n"),
    (b"ms b 1 F5\r\nx\r\nmg b f s v c t k Oabc q\r\n"),
    (b"mg b\r\nmg b v\r\n"),
    (b"mg\r\n"),
    (b"mg " + LONG_KEY + b" v\r\n"),
    (b"mg nope v k O5\r\nmg nope q\r\nmn\r\n"),
    (b"md nope q\r\nmn\r\n"),
    (b"md nope\r\nmd nope k O9\r\n"),
    (b"md b C99999 q\r\nmd b C99999 O1\r\n"),
    (b"md b Cabc\r\n"),
    (b"md b C\r\nmd b z\r\n"),
    (b"md b I T30\r\nmg b v c t\r\nmg b v\r\nms b 1 C1 I c\r\nq\r\nmg b v\r\n"),
    (b"mg aaa N30 v c t\r\nmg aaa v t\r\nmg aaa R60 t\r\n"),
    (
        b"ma nope\r\nma nope N0 J13 v t c\r\nma nope v t c k O1\r\nma nope MD D5 v\r\n"
        b"ma nope D-1\r\nma nope MX\r\nma nope C1\r\nma nope q\r\nmn\r\n"
    ),
    (
        b"ma b\r\nincr b 1\r\nincr nope2 1\r\nincr nope 1\r\nincr nope abc\r\n"
        b"incr nope -1\r\nincr nope 18446744073709551615\r\n"
        b"incr nope 18446744073709551616\r\n"
    ),
    (b"me b\r\nme\r\nme nope3\r\n"),
    (b"mn x\r\nm\r\nmx\r\n"),
    (b"foo\r\n"),
    (b"\r\n"),
    (b"\n"),
    (b"version\n"),
    (b"get\r\n"),
    (b"get a b c nope\r\n"),
    (b"get " + b"a " * 30 + b"\r\n"),
    (b"get a " + LONG_KEY + b"\r\n"),
    (b"gat 0 a\r\ngats 0 a b\r\ngat\r\ngat x a\r\ngat 0\r\n"),
    (b"touch a 0\r\ntouch nope9 0\r\ntouch a b\r\ntouch a\r\ntouch a 0 noreply\r\nmn\r\n"),
    (
        b"delete a 0\r\ndelete a 1\r\ndelete a noreply\r\ndelete a 0 noreply\r\ndelete\r\n"
        b"delete a b c d\r\n"
    ),
    (
        b"verbosity\r\nverbosity 0\r\nverbosity a b\r\nverbosity a\r\n"
        b"verbosity 0 noreply\r\nverbosity 1 2 3\r\n"
    ),
    (
        b"flush_all noreply\r\nflush_all 0\r\nflush_all abc\r\nflush_all -1\r\n"
        b"flush_all 0 noreply\r\nflush_all 1 2 3\r\nflush_all 1 2\r\n"
    ),
    (b"version x\r\n"),
    (b"quit\r\nversion\r\n"),
    (b"quit noreply\r\n"),
    (b"set big 0 0 1048576\r\n" + b"x" * 1048576 + b"\r\nversion\r\n"),
    (b"ms big 1048576 q O2\r\n" + b"x" * 1048576 + b"\r\nmn\r\n"),
    (b"set big 0 0 1048576 noreply\r\n" + b"x" * 1048576 + b"\r\nversion\r\n"),
    (b"x" * 3000),
    (b"x" * 1500 + b"\r\n"),
    (b"get " + b"k " * 3000 + b"\r\n"),
    (b"set x 0 -1 1\r\na\r\nget x\r\n"),
    (b"set x 0 2592001 1\r\na\r\nget x\r\n"),
    (b"set x 0 0 0\r\n\r\nget x\r\n"),
    (b"set x\r\n"),
    (b"get a\tb\r\n"),
    (b"get  a \r\n"),
    (b" get a\r\n"),
    (b"GET a\r\n"),
    (b"gets\r\n"),
    (b"cas x 0 0 1\r\n"),
    (b"cas x 0 0 1 abc\r\na\r\n"),
    (b"cas nonexist 0 0 1 5\r\na\r\n"),
    (b"mg b " + b"a " * 25 + b"\r\n"),
    (b"mg b O11111111111111111111111111111111\r\nmg b O1111111111111111111111111111111\r\n"),
    (b"ms Zm9v 1 b k c\r\nx\r\nmg Zm9v b k v\r\nmg foo k v\r\n"),
    (b"mg ! b\r\n"),
    (b"md Zm9v b k\r\n"),
    (b"shutdown\r\n"),
    (b"bget a\r\n"),
    (b"watch foo\r\n"),
    (b"stats foo\r\n"),
    (b"stats reset\r\n"),
    (b"stats detail\r\n"),
    (b"set a 0 0 1\r\na\nversion\r\n"),
    (b"set a 0 0 1\na\r\nversion\n"),
    (b"get \x00a\r\n"),
    (b"ge\x00t a\r\n"),
    (b"mg b v \x80\r\n"),
    (b"set a 0 0 1\r\n1\r\n"),
    (b"version\r\nget a " + LONG_KEY + b"\r\nversion\r\n"),
    (b"mg a v\r\nversion\r\nget a " + LONG_KEY + b"\r\n"),
    (b"version\r\n" + b"x" * 3000),
    (b"version\r\nset a 0 0 5\r\nhe"),
    (b"version\r\nset big 0 0 5000000\r\nhe"),
    (b"version\r\nge"),
    (b"mg a q v\r\nversion\r\n"),
    (b"mg a q\r\nset a 0 0 1\r\n1\r\n"),
    (b"set a 0 0 1\r\nabc\r\nget a\r\n"),
    (
        b"set b 0 0 1 noreply\r\nb\r\nset b 0 0 2000000 noreply\r\n"
        + b"x" * 2000000
        + b"\r\nget b\r\n"
    ),
    (b"set b 0 0 1\r\nb\r\nadd b 0 0 2000000 noreply\r\n" + b"x" * 2000000 + b"\r\nget b\r\n"),
    (b"ms b 2000000 ME\r\n" + b"x" * 2000000 + b"\r\nget b\r\n"),
    (b"set b 0 0 9999999999\r\n"),
    (b"set b 0 0 2147483647\r\n"),
    (b"set b 0 0 2147483646\r\n"),
    (b"ms b 2147483646\r\n"),
    (b"ms b -1\r\nmn\r\n"),
    (b"ms b\r\nmn\r\n"),
    (b"ms\r\nmn\r\n"),
    (b"ms " + LONG_KEY + b" 1\r\na\r\nmn\r\n"),
    (b"mg Zm9v b N30 k v\r\nmg Zm9v b k v\r\nmg foo k\r\n"),
    (b"mg Zm9w b k\r\nmg Zm9w k b q\r\nmn\r\n"),
    (b"ma Zm92 b N0 k v\r\nma Zm92 b k v\r\nmg fov k\r\n"),
    (b"md Zm92 k b\r\nmd Zm92 k b\r\nma Zm92 k b\r\n"),
    (b"set c 0 0 1\r\n9\r\nma c T30 t v\r\nmg c t\r\nma c T30 t\r\nmg c t\r\n"),
    (b"ma c t T60\r\n ma c N0 q\r\nma cc N0 q\r\nmn\r\n"),
    (b"ma c O111111111111111111111111111111111 q\r\nmg c v\r\n"),
    (b"ms c 1 O111111111111111111111111111111111 q\r\na\r\nmn\r\n"),
    (b"md c O111111111111111111111111111111111 q\r\nmn\r\n"),
    (
        b"ms c 1 MA\r\na\r\nms c 1 MP C0\r\nb\r\nms c 1 MA C1\r\nb\r\nms c 1 MR C1\r\nz\r\n"
        b"ms zz 1 MR\r\nz\r\nms zz 1 MA\r\nz\r\nms c 1 C0\r\nz\r\nms zz 1 C0 ME c\r\nz\r\n"
        b"mg c v\r\n"
    ),
    (
        b"ms c 1 Mx\r\n1\r\nms c 1 Ms\r\n1\r\nms c 1 Me\r\n1\r\nms c 1 Ma\r\n1\r\n"
        b"ma c Mi\r\nma c Md\r\nma c M+\r\nma c M-\r\nma c MI\r\n"
    ),
    (
        b"mg c W\r\nmg c X\r\nmg c Z\r\nmg c S\r\nmg c S1\r\nmg c x\r\nmg c E5\r\n"
        b"mg c L\r\nmg c P\r\nmg c 0\r\nmg c D3 J4 M+ C5 F7 I\r\nmg c Q\r\n"
    ),
    (b"md c x\r\nmd c E1\r\n"),
    (b"ms c 1 E100 c\r\n1\r\nmn\r\nms c 1 S1\r\n1\r\nms c 1 S5\r\n12345\r\nmn\r\n"),
    (b"mg c T-1 t\r\nmg c\r\n"),
    (b"set c 0 0 1\r\n1\r\nmg c t T10 t\r\nmg c s t T0 t\r\n"),
    (b"mg c vv\r\nmg c v1\r\nmg c tx\r\n"),
    (
        b"mg c N\r\nmg c Nx\r\nmg c Rx\r\nmg c T5x\r\nmg c T+5 t\r\nmg c Z T\r\n"
        b" mg c T9999999999\r\n"
    ),
    (b"mg c Dx\r\nma c Jx\r\nmg c Jx\r\nms c 1 Dx\r\n1\r\nmg c F\r\nmg c C\r\n"),
    (b"mg c Tx Nx Dx M\r\nmg c M Fx\r\nmg c Fx M\r\n"),
    (b"mg ! b Tx\r\nmg ! Tx b\r\nmg ! b z\r\n"),
    (b"mg " + b"A" * 250 + b" b k\r\n"),
    (
        b"mg A b k\r\nmg AA b\r\nmg AAA b\r\nmg AA== b k\r\nmg AAA= b k\r\nmg AAAA= b k\r\n"
        b"mg AB== b k\r\nmg AAAAA b\r\nmg =AAA b\r\nmg AA=A b k\r\nmg A=== b\r\n"
    ),
    (b"ms AA== 1 b k\r\n1\r\nmg AA== b k v\r\nget \x00\r\n"),
    (b"set n 0 0 3\r\n 12\r\nincr n 1\r\nget n\r\n"),
    (b"set n 0 0 3\r\n1 2\r\nincr n 1\r\nget n\r\n"),
    (b"set n 0 0 3\r\n+12\r\nincr n 1\r\nget n\r\n"),
    (b"set n 0 0 3\r\n-12\r\nincr n 1\r\nget n\r\n"),
    (b"set n 0 0 3\r\n12a\r\nincr n 1\r\n"),
    (b"set n 0 0 0\r\n\r\nincr n 1\r\n"),
    (b"set n 0 0 20\r\n18446744073709551615\r\nincr n 1\r\nget n\r\n"),
    (b"set n 0 0 20\r\n18446744073709551616\r\nincr n 1\r\n"),
    (b"set n 0 0 4\r\n12\r\n\r\nincr n 1\r\nget n\r\n"),
    (b"set n 0 0 3\r\n1\x002\r\nincr n 1\r\nget n\r\n"),
    (b"set n 5 0 2\r\n99\r\nincr n +1\r\nget n\r\nappend n 7 100 1\r\n5\r\nget n\r\nmg n t f\r\n"),
    (
        b"incr n -18446744073709551615\r\nincr n 1x\r\nincr n 1\t2\r\nincr n \t1\r\n"
        b"incr n 1 x\r\nincr n 1 noreply\r\nincr n\r\n"
    ),
    (b"set o 0 0 1048500\r\n" + b"x" * 1048500 + b"\r\nget o2\r\n"),
    (b"set o 0 0 1048517\r\n" + b"x" * 1048517 + b"\r\n"),
    (b"set o 0 0 1048516\r\n" + b"x" * 1048516 + b"\r\n"),
    (b"set o 0 0 1048515\r\n" + b"x" * 1048515 + b"\r\n"),
    (b"set o 5 0 1048513\r\n" + b"x" * 1048513 + b"\r\n"),
    (b"set o 5 0 1048512\r\n" + b"x" * 1048512 + b"\r\n"),
    (b"append o 0 0 100\r\n" + b"x" * 100 + b"\r\nmg o s\r\n"),
    (b"add p 0 0 1\r\n1\r\ncas p 0 -1 1 9999\r\nx\r\n"),
    (b"verbosity noreply\r\n"),
    (
        b"flush_all 0 0\r\ngets n\r\nset n 0 0 1\r\n1\r\ngets n\r\nflush_all\r\n"
        b"set n 0 0 1\r\n2\r\ngets n\r\n"
    ),
    (b"cache_memlimit 1\r\ncache_memlimit a\r\ncache_memlimit 9999999999\r\ncache_memlimit\r\n"),
    (b"mg a s v          \r\n"),
    (b"me " + LONG_KEY + b"\r\nme Zm9v b\r\nme Zm9v x\r\n"),
    (b"mn\r\nmnx\r\nmg\r\nmd\r\nma\r\nms\r\nme\r\n"),
    b"delete K\r\ntouch K 0\r\nincr K 1\r\ngat 0 K\r\nmd K\r\nma K\r\n".replace(b"K", LONG_KEY),
    (b"delete a noreply 0\r\ndelete a noreply noreply\r\nmn\r\n"),
    (
        b"set a 0 0 1 noreply\r\n1\r\nset "
        + LONG_KEY
        + b" 0 0 1 noreply\r\nversion\r\nset a x 0 1 noreply\r\nversion\r\n"
        b"incr a x noreply\r\nversion\r\n"
    ),
    (b"add a 0 0 1 noreply x\r\n"),
    (b"gat 5\r\ngat abc\r\ngats -1 a\r\nget a\r\n"),
    (b"a\x80\r\n"),
    (b"\x00version\r\n"),
    (b"set q 0 0 2\r\na\r\r\nget q\r\n"),
    (b"gets  \r\n"),
    (b"mg a\x01\r\nmg \x7f v\r\n"),
    (b"mg \xc3\xa9 k\r\nset \xc3\xa9 0 0 1\r\n1\r\nget \xc3\xa9\r\n"),
    (b"quit\r\n"),
    (b"version\r\nquit\r\n"),
    (b"version\r\r\nversion\r\r\r\n"),
    (b"mg c T30 t\r\nmg a T30 t O1 k v q\r\nmg zz k q O1\r\nmn\r\n"),
    (b"ms a 1 C0 I\r\nz\r\nms a 1 C1 I c\r\nz\r\nms a 1 C999999999 I\r\nz\r\nmg a v c\r\n"),
    (b"md a I\r\nmg a c\r\nmg a c\r\nmd a I\r\nmg a c\r\nmg a c\r\n"),
    (b"ma c c v\r\nmg c c v\r\nma c c v\r\nmg c c v\r\n"),
    (
        b"stats detail on\r\nstats detail off\r\nstats detail x\r\nstats detail dump\r\n"
        b"stats reset\r\nstats bogus\r\n"
    ),
    (
        b"flush_all 100000\r\nget a\r\nflush_all 0\r\nget a\r\nset a 0 0 1\r\n1\r\n"
        b"flush_all 100000\r\nget a\r\n"
    ),
    # Requests of browsers, including those that memcached does not recognise.
    (b"POST / HTTP/1.1\r\nHost: evil.example\r\n\r\nset a 0 0 1\r\n9\r\nget a\r\n"),
    (b"OPTIONS * HTTP/1.1\nversion\n"),
    (b"GET / HTTP/1.1 \r\nversion\r\n"),
    (b"version\r\nGET / HTTP/1.1\r\nversion\r\n"),
    (b"mn\r\nGET / HTTP/1.1\r\nversion\r\n"),
    (b"HTTP/1.1\r\nversion\r\n"),
    (b"GET /" + b" x" * 20 + b" HTTP/1.1 x\r\nversion\r\n"),
    (b"GET /" + b" x" * 21 + b" HTTP/1.1\r\nversion\r\n"),
    (b"GET / http/1.1\r\nG / HTTP/1.1\r\nmq / HTTP/1.1\r\nmove / HTTP/1.1\r\nversion\r\n"),
    (b"get / HTTP/1.1\r\n" + b"".join(b"%c. HTTP/1.1\r\n" % each for each in b"acdgist")),
]
