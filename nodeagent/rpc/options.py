"""Bounds and channel settings of our gRPC ends, in one place.

Source: grpc/include/grpc/impl/channel_arg_names.h.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 << 20
"""Greatest message either end accepts; a status of an eight-GPU node with its topology is about
100 KiB."""
MAX_REQUEST_BYTES = 64 << 10
"""Greatest question that `api.sock` accepts: they carry a few numbers."""
MAX_STREAMS = 32
"""Calls at a time on one connection."""
MAX_LOCAL_CALLS = 64
"""Calls at a time on `api.sock`."""
MAX_EVENTS = 1000
"""Events in one answer."""

DEFAULT_SOCKET = "/run/nodeagent/api.sock"
DEFAULT_CONTROLLER = "127.0.0.1:7440"

COMMON: tuple[tuple[str, int], ...] = (
    # One backlog and one poller: several do not pay at a message a second.
    ("grpc.so_reuseport", 0),
    # Our own retries know about the spool; gRPC's do not.
    ("grpc.enable_retries", 0),
    # No proxy between a node and its controller, whatever the environment of a shell says.
    ("grpc.enable_http_proxy", 0),
)

AGENT_STREAM: tuple[tuple[str, int], ...] = (
    *COMMON,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A controller whose machine is gone is noticed within half a minute; a ping is one packet.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Our own back-off decides when to dial; gRPC's should not stand in its way.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # This one is the time a dial may take, too.
    ("grpc.min_reconnect_backoff_ms", 5_000),
)

LOCAL_SERVER: tuple[tuple[str, int], ...] = (
    *COMMON,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
)

CONTROLLER_SERVER: tuple[tuple[str, int], ...] = (
    *COMMON,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    # Agents ping every 20 s; pings faster than this are answered by closing the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

CLIENT: tuple[tuple[str, int], ...] = (
    *COMMON,
    ("grpc.max_receive_message_length", 4 * MAX_MESSAGE_BYTES),
)
