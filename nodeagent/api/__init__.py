"""Generated protobuf and gRPC code: never edited."""
