"""Numbers and layouts that stand in C and in Python are the same."""

from __future__ import annotations

import pathlib

from nodeagent.model import ringproto
from nodeagent.model.histogram import BUCKETS, bucket_of
from nodeagent.native.ring import TICK, ffi, lib


def test_message_numbers() -> None:
    assert ringproto.HEADER_BYTES == ffi.sizeof("struct na_ring_msg") == 128
    for kind in ringproto.MsgType:
        assert getattr(lib, f"NA_MSG_{kind.name}") == kind
    for code in ringproto.ErrorCode:
        if code:
            assert getattr(lib, f"NA_ERR_{code.name}") == code
    assert (lib.NA_MSG_MAGIC, lib.NA_MSG_VERSION) == (ringproto.MAGIC, ringproto.VERSION)
    assert (lib.NA_MSG_MAX_FDS, lib.NA_MSG_MAX_TEXT) == (ringproto.MAX_FDS, ringproto.MAX_TEXT)
    assert lib.NA_RING_NAME_BYTES == ringproto.NAME_BYTES
    assert [ringproto.MODES[lib.NA_MODE_LOSSY], ringproto.MODES[lib.NA_MODE_GATING]] == [
        "lossy",
        "gating",
    ]
    assert (lib.NA_MSG_HAS_STATS, lib.NA_MSG_LIVE) == (
        ringproto.Flag.HAS_STATS,
        ringproto.Flag.LIVE,
    )


def test_message_fields_lie_where_c_has_them() -> None:
    msg = ringproto.Msg(
        type=ringproto.MsgType.ATTACHED,
        feed="feed",
        name="name",
        ring=1,
        rings=(1, 2),
        slot=7,
        lineage=1 << 60,
        incarnation=3,
        cursor=9,
        text="text",
    )
    packet = ringproto.encode(msg)
    c = ffi.from_buffer("struct na_ring_msg *", packet)
    assert (c.type, c.ring, c.rings, c.slot, c.text_bytes) == (6, 1, 6, 7, 4)
    assert (c.lineage, c.incarnation, c.cursor) == (1 << 60, 3, 9)
    assert (ffi.string(c.feed), ffi.string(c.name)) == (b"feed", b"name")


def test_the_tick_is_laid_out_as_c_has_it() -> None:
    assert TICK.fields is not None
    for name in TICK.names or ():
        assert ffi.offsetof("struct na_tick", name) == TICK.fields[name][1]


def test_the_readers_page_is_one_page_and_keeps_the_models_buckets() -> None:
    assert ffi.sizeof("struct na_ring_page") == 4096
    page = ffi.new("struct na_ring_page *")
    assert len(page.age_counts) == BUCKETS
    assert ffi.sizeof("struct na_feed_stats") <= lib.NA_FEED_STATS_BYTES
    assert bucket_of((1 << 64) - 1) < BUCKETS


def test_headers_for_other_peoples_readers_are_installed() -> None:
    import nodeagent.native

    include = pathlib.Path(nodeagent.native.__file__).parent / "include"
    names = {"ring_abi.h", "ring_api.h", "ring.h", "ring_reader.h", "ring_reader_abi.h"}
    assert names <= {path.name for path in include.iterdir()}
