"""What an agent process imports: the ring reader."""
