"""Messages of ring.sock: round trips, the C layout, and bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model import ringproto
from nodeagent.model.feed import ReaderMode
from nodeagent.model.ringproto import (
    ErrorCode,
    Flag,
    Msg,
    MsgType,
    ProtocolError,
    decode,
    encode,
    raise_error,
)

NAMES = st.text(
    st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters="/"),
    max_size=31,
)
U64 = st.integers(0, (1 << 64) - 1)


@given(
    kind=st.sampled_from(MsgType),
    feed=NAMES,
    name=NAMES,
    status=st.sampled_from(ErrorCode),
    flags=st.sampled_from([Flag.NONE, Flag.LIVE, Flag.HAS_STATS, Flag.LIVE | Flag.HAS_STATS]),
    ring=st.integers(0, 2),
    rings=st.sampled_from([(), (1,), (2,), (1, 2)]),
    mode=st.sampled_from(ReaderMode),
    slot=st.integers(0, 65535),
    numbers=st.tuples(U64, U64, U64),
    text=st.text(max_size=300),
)
def test_what_is_encoded_is_decoded(
    kind: MsgType,
    feed: str,
    name: str,
    status: ErrorCode,
    flags: Flag,
    ring: int,
    rings: tuple[int, ...],
    mode: ReaderMode,
    slot: int,
    numbers: tuple[int, int, int],
    text: str,
) -> None:
    msg = Msg(
        type=kind,
        feed=feed,
        name=name,
        status=status,
        flags=flags,
        ring=ring,
        rings=rings,
        mode=mode,
        slot=slot,
        lineage=numbers[0],
        incarnation=numbers[1],
        cursor=numbers[2],
        text=text,
    )
    assert decode(encode(msg)) == msg


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_a_sentence(packet: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"expected|message"):
        decode(packet)


@given(at=st.integers(0, 127), value=st.integers(0, 255))
def test_one_changed_byte_never_raises_anything_else(at: int, value: int) -> None:
    packet = bytearray(encode(Msg(type=MsgType.ATTACH, feed="itch", name="me", ring=1)))
    packet[at] = value
    try:
        decode(bytes(packet))
    except ProtocolError as error:
        assert str(error)


def test_another_version_is_named_with_a_remedy() -> None:
    packet = bytearray(encode(Msg(type=MsgType.STAT)))
    packet[4] = 9
    with pytest.raises(ProtocolError, match="version 9") as caught:
        decode(bytes(packet))
    assert caught.value.code is ErrorCode.VERSION
    assert "one release" in caught.value.remedy


def test_an_error_carries_sentence_and_remedy() -> None:
    msg = decode(encode(ringproto.error(ErrorCode.DENIED, "you may not", "ask somebody")))
    with pytest.raises(ProtocolError, match="you may not") as caught:
        raise_error(msg)
    assert (caught.value.remedy, caught.value.code) == ("ask somebody", ErrorCode.DENIED)
    raise_error(Msg(type=MsgType.OK))


def test_names_with_spaces_slashes_or_of_32_bytes_are_refused() -> None:
    for name in ("a b", "a/b", "x" * 32, "tab\t"):
        assert not ringproto.valid_name(name)
    assert ringproto.valid_name("x" * 31)
