"""FEED: sources, decoders, the feeder process, the ring registry."""
