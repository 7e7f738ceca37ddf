"""WIRE: model <-> protobuf, the local service, the stream to the controller."""
