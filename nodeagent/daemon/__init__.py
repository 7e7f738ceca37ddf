"""The daemon: configuration, the pure turn, the loop, the actor."""
